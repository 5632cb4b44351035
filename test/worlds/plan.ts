/**
 * A world's plan, chosen by its seed before it begins: plain data, so a failing plan can be made
 * smaller.
 */

import { createHash } from 'node:crypto';

import { wallClockMs } from './clock.ts';

export interface Settings {
  readonly server: {
    readonly host?: string | undefined;
    readonly trusted_proxies?: readonly string[] | undefined;
    readonly endpoints?: readonly string[] | undefined;
    readonly timeout: number;
    readonly first_token_timeout?: number | undefined;
    readonly stream_idle_timeout: number;
    readonly stream_keepalive: number;
    readonly retries: number;
    readonly max_concurrent_requests: number;
    readonly queue_timeout?: number | undefined;
    readonly max_body_bytes?: number | undefined;
    readonly max_buffered_bytes?: number | undefined;
    readonly empty_answers?: 'pass' | 'fail' | undefined;
    readonly cors: boolean;
  };
  readonly logging: {
    readonly headers?: readonly string[] | undefined;
  };
  /** The keys in `[server.auth]`. */
  readonly authKeys: readonly string[];
  readonly clients: readonly Tenant[];
  readonly primary?: string | undefined;
  readonly fallback: readonly string[];
  readonly fallbackOn: readonly number[];
  readonly providers: readonly ProviderSettings[];
  readonly aliases: readonly AliasSettings[];
  readonly rateLimit: Bucket & {
    readonly enabled: boolean;
    readonly hasStore: boolean;
    readonly providers: Readonly<Record<string, ProviderBucket>>;
  };
  readonly hasAdmin: boolean;
}

export interface Bucket {
  readonly requests_per_second: number;
  readonly burst_capacity: number;
}

export interface ProviderBucket extends Bucket {
  readonly requests_per_minute?: number | undefined;
}

export interface Tenant extends Bucket {
  readonly name: string;
  readonly keys: readonly string[];
  /** Whether the settings have only the digest of the last key. */
  readonly isHashed?: boolean | undefined;
  /** When the keys expire, in whole milliseconds of the world's time. */
  readonly expiryTime?: number | undefined;
  readonly models?: readonly string[] | undefined;
  readonly max_concurrent_requests: number;
  readonly requests_per_minute?: number | undefined;
  readonly tokens_per_minute?: number | undefined;
  readonly tokens_per_day?: number | undefined;
}

export interface ProviderSettings {
  readonly id: string;
  readonly enabled: boolean;
  readonly api_keys: readonly string[];
  readonly default_model?: string | undefined;
  readonly models?: readonly string[] | undefined;
  readonly hide_models?: readonly string[] | undefined;
  readonly model_details?: Readonly<Record<string, ModelDetails>> | undefined;
  readonly key_affinity: boolean;
  readonly stream_usage: boolean;
  readonly timeout?: number | undefined;
  readonly retries?: number | undefined;
  readonly max_concurrent_requests: number;
  readonly max_waiting?: number | undefined;
  readonly forward_headers: readonly string[];
  readonly return_headers: readonly string[];
}

export type ModelDetails = Readonly<{ context_length?: number; max_output_tokens?: number }>;

export interface AliasSettings {
  readonly name: string;
  readonly targets: readonly string[];
  readonly isBalanced: boolean;
  /** True for `balance = "fastest"`; only if `isBalanced`. */
  readonly isFastest?: boolean;
  /** A weight for each target, by which the first is drawn. */
  readonly weights?: readonly number[] | undefined;
}

/** A request as its client sends it. */
export interface Ask {
  /** The `x-request-id`, also in the trace id and the body. */
  readonly id: string;
  /** The trace id's beginning. */
  readonly number: number;
  /**
   * The wait after the request before it on the connection was sent, if this one is pipelined, or
   * else was answered.
   */
  readonly afterMs: number;
  readonly isPipelined: boolean;
  readonly method: string;
  readonly path: string;
  readonly version: '1.1' | '1.0';
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly body?: string | undefined;
  readonly isChunked: boolean;
  /** Bytes other than HTTP, sent instead of a request. */
  readonly broken?: { readonly text: string; readonly status: number } | undefined;
  /** Where head and body are cut, and how long the client waits there. */
  readonly cuts: readonly { readonly at: number; readonly waitMs: number }[];
  readonly leaves?: Leave | undefined;
  /** A pause in which the client does not read, after this many bytes of the answer. */
  readonly pause?: { readonly afterBytes: number; readonly forMs: number } | undefined;
  /** The body's meaning; undefined if it names no model. */
  readonly chat?: ChatPlan | undefined;
  /** Each provider's replies, in the order of its tries. An unlisted try is answered well. */
  readonly replies: Readonly<Record<string, readonly Reply[]>>;
}

/** A request that names a model: for a chat completion, or at another endpoint. */
export interface ChatPlan {
  readonly model: string;
  readonly isStream: boolean;
  /** The answer has texts or embeddings in place of a chat completion's messages and deltas. */
  readonly answersWith?: 'text' | 'embeddings' | undefined;
  readonly promptCacheKey?: string | undefined;
  /** The member `model`, if its spelling is unusual. */
  readonly written?: readonly [name: string, value: string] | undefined;
  /** Whether there is a member `models`, which is refused if the client's models are limited. */
  readonly namesOthers?: boolean | undefined;
  /**
   * Whether `stream_usage` adds nothing, because the request asks for usage or has no place for it.
   */
  readonly asksForUsage: boolean;
  /** The change by `stream_usage` to the request's `stream_options`. */
  readonly usage?: readonly [now: string, asking: string] | undefined;
  /** The refusal's status. */
  readonly refusedWith?: number | undefined;
}

export interface Leave {
  readonly when: 'sent' | 'begun';
  readonly afterMs: number;
  readonly how: 'end' | 'reset';
}

export interface ConnectionPlan {
  readonly atMs: number;
  readonly asks: readonly Ask[];
}

/** A part of a provider's reply. Times are waits before the part. */
export interface Item {
  readonly kind: 'data' | 'done' | 'error' | 'comment' | 'json';
  readonly text: string;
  readonly waitMs: number;
  /** Splits the item into two pieces, with this wait between them. */
  readonly cut?: { readonly at: number; readonly waitMs: number } | undefined;
  /** The meaning of an error or an error event. */
  readonly error?: ErrorPlan | undefined;
  /** The entries of a model list. */
  readonly models?: readonly ListedModel[] | undefined;
}

export interface ListedModel {
  readonly id: string;
  readonly created?: number;
  /** The details in `/v1/models`. */
  readonly shown: object;
}

export interface ErrorPlan {
  readonly status: number;
  /**
   * The shown text: the whole as `message`, or a part as `says`. With neither, nothing may be
   * shown.
   */
  readonly message?: string | undefined;
  readonly says?: string | undefined;
  readonly code?: string | undefined;
  readonly type?: string | undefined;
  /** Whether it is JSON about the model, so a 404 is the client's own mistake. */
  readonly isAboutModel?: boolean | undefined;
  /** Whether the words of a 400 are about the key. */
  readonly refusesKey?: boolean | undefined;
  /** Whether the words of a 403 are about the content of the request. */
  readonly isFlagged?: boolean | undefined;
}

export const NETWORK_FAULTS = [
  'refused',
  'unresolved',
  'descriptors',
  'stale',
  'reset',
  'cut in head',
  'not http',
] as const;

export interface Reply {
  /** Undefined if the answer never comes. */
  readonly headMs?: number | undefined;
  readonly connectMs: number;
  readonly connection: 'new' | 'reused';
  /** The fault that replaces the head. */
  readonly fault?: (typeof NETWORK_FAULTS)[number] | undefined;
  readonly status: number;
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly items: readonly Item[];
  /** Whether simultaneous items come in one piece. */
  readonly isJoined?: boolean | undefined;
  readonly end: 'end' | 'cut' | 'hang';
  readonly endMs: number;
  /** A part of an event before the end. */
  readonly rest: string;
}

/** An event beside the requests. */
export type Incident =
  | { readonly atMs: number; readonly kind: 'reload'; readonly settings: Settings }
  | {
      readonly atMs: number;
      readonly kind: 'drain';
      readonly timeoutMs: number;
      readonly delayMs: number;
    }
  | { readonly atMs: number; readonly kind: 'store'; readonly isUp: boolean };

/** A time in which a provider gives every request the same reply. */
export interface Outage {
  /** Undefined for all providers. */
  readonly provider: string | undefined;
  readonly fromMs: number;
  readonly toMs: number;
  readonly reply: Reply;
}

export interface Plan {
  readonly seed: number;
  readonly settings: Settings;
  readonly connections: readonly ConnectionPlan[];
  readonly incidents: readonly Incident[];
  readonly outages: readonly Outage[];
  /**
   * The replies to the gateway's requests for models, by provider. Further requests are answered
   * well.
   */
  readonly lists: Readonly<Record<string, readonly Reply[]>>;
}

/** Returns the settings as gateway.toml. */
export function toToml(settings: Settings): string {
  const {
    authKeys,
    clients,
    providers,
    aliases,
    rateLimit,
    primary,
    fallback,
    fallbackOn,
    hasAdmin,
  } = settings;
  const { enabled, hasStore, providers: limits, ...global } = rateLimit;
  const lines = [
    section('server', settings.server),
    authKeys.length > 0 ? section('server.auth', { keys: authKeys }) : '',
    ...clients.map(clientSection),
    section('providers', { primary, fallback, fallback_on: fallbackOn }),
    ...providers.map(({ id, ...rest }) =>
      section(`providers.${id}`, { base_url: `https://${id}.test/v1`, ...rest }),
    ),
    section('logging', { level: 'debug', format: 'json', ...settings.logging }),
    section('rate_limit', {
      enabled,
      ...global,
      store: hasStore ? 'redis://store.test' : undefined,
    }),
    ...Object.entries(limits).map(([id, limit]) => section(`rate_limit.providers.${id}`, limit)),
    hasAdmin ? section('admin', { port: 0 }) : '',
    '[aliases]',
    ...aliases.map(({ name, targets, isBalanced, isFastest, weights }) => {
      const list = JSON.stringify(targets);
      const key = JSON.stringify(name);
      if (weights) {
        const listed = JSON.stringify(weights);
        return `${key} = { targets = ${list}, balance = "weighted", weights = ${listed} }`;
      }
      const balance = isFastest ? 'fastest' : 'least_busy';
      return `${key} = ${isBalanced ? `{ targets = ${list}, balance = "${balance}" }` : list}`;
    }),
  ];
  return lines.join('\n');
}

function clientSection({ name, keys, isHashed, expiryTime, ...rest }: Tenant): string {
  const hashed = isHashed ? keys.at(-1) : undefined;
  return section(`clients.${name}`, {
    keys: isHashed ? keys.slice(0, -1) : keys,
    key_sha256: hashed && createHash('sha256').update(hashed).digest('hex'),
    expires: expiryTime && new Date(wallClockMs(expiryTime)),
    ...rest,
  });
}

function section(name: string, values: object): string {
  const rows = Object.entries(values)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => `${key} = ${toValue(value)}`);
  return [`[${name}]`, ...rows].join('\n');
}

function toValue(value: unknown): string {
  if (value instanceof Date) return value.toISOString();
  if (typeof value !== 'object' || Array.isArray(value)) return JSON.stringify(value);
  const rows = Object.entries(value!).map(([key, one]) => `${key} = ${toValue(one)}`);
  return `{ ${rows.join(', ')} }`;
}
