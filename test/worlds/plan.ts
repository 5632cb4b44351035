/** What a world does, chosen by its seed before it begins: plain data, which can be made smaller when a check fails. */

export interface Settings {
  readonly server: {
    readonly host?: string | undefined;
    readonly trusted_proxies?: readonly string[] | undefined;
    readonly timeout: number;
    readonly first_token_timeout?: number | undefined;
    readonly stream_idle_timeout: number;
    readonly stream_keepalive: number;
    readonly retries: number;
    readonly max_concurrent_requests: number;
    readonly max_body_bytes?: number | undefined;
    readonly max_buffered_bytes?: number | undefined;
    readonly empty_answers?: 'pass' | 'fail' | undefined;
    readonly cors: boolean;
  };
  /** Keys of `[server.auth]`. */
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
    readonly providers: Readonly<Record<string, Bucket>>;
  };
  readonly hasAdmin: boolean;
}

export interface Bucket {
  readonly requests_per_second: number;
  readonly burst_capacity: number;
}

export interface Tenant extends Bucket {
  readonly name: string;
  readonly keys: readonly string[];
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
  readonly model_details?: Readonly<Record<string, ModelDetails>> | undefined;
  readonly key_affinity: boolean;
  readonly stream_usage: boolean;
  readonly timeout?: number | undefined;
  readonly retries?: number | undefined;
  readonly max_concurrent_requests: number;
  readonly forward_headers: readonly string[];
  readonly return_headers: readonly string[];
}

export type ModelDetails = Readonly<{ context_length?: number; max_output_tokens?: number }>;

export interface AliasSettings {
  readonly name: string;
  readonly targets: readonly string[];
  readonly isBalanced: boolean;
  /** One for each target: the first is drawn by them. */
  readonly weights?: readonly number[] | undefined;
}

/** A request as its client sends it. */
export interface Ask {
  /** Its `x-request-id`; also in its trace id and its body. */
  readonly id: string;
  /** Its trace id begins with it. */
  readonly number: number;
  /** After the one before it on its connection was sent, if it is pipelined, else after that was answered. */
  readonly afterMs: number;
  readonly isPipelined: boolean;
  readonly method: string;
  readonly path: string;
  readonly version: '1.1' | '1.0';
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly body?: string | undefined;
  readonly isChunked: boolean;
  /** What it sends in the place of a request, and is none. */
  readonly broken?: { readonly text: string; readonly status: number } | undefined;
  /** Where the bytes of head and body are cut, and how long the client waits there. */
  readonly cuts: readonly { readonly at: number; readonly waitMs: number }[];
  readonly leaves?: Leave | undefined;
  /** It stops reading after so many bytes of the answer, and goes on after this time. */
  readonly pause?: { readonly afterBytes: number; readonly forMs: number } | undefined;
  /** What its body says; undefined if it is no chat completion. */
  readonly chat?: ChatPlan | undefined;
  /** By provider, in the order of the tries; those that are not listed answer well. */
  readonly replies: Readonly<Record<string, readonly Reply[]>>;
}

export interface ChatPlan {
  readonly model: string;
  readonly isStream: boolean;
  readonly promptCacheKey?: string | undefined;
  /** Its member `model`, if that is written otherwise than usual. */
  readonly written?: readonly [name: string, value: string] | undefined;
  /** It has a member `models`, which a client whose models are limited may not send. */
  readonly namesOthers?: boolean | undefined;
  /** What `stream_usage` would add is there, or has no place. */
  readonly asksForUsage: boolean;
  /** What it makes of the `stream_options` that are there. */
  readonly usage?: readonly [now: string, asking: string] | undefined;
  /** It is refused with 400, or with this status. */
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

/** What a provider sends, in its order. Times are waits before it. */
export interface Item {
  readonly kind: 'data' | 'done' | 'error' | 'comment' | 'json';
  readonly text: string;
  readonly waitMs: number;
  /** It comes in two pieces, the second so much later. */
  readonly cut?: { readonly at: number; readonly waitMs: number } | undefined;
  /** What an error, or an error event, says. */
  readonly error?: ErrorPlan | undefined;
  /** What a list of models has. */
  readonly models?: readonly ListedModel[] | undefined;
}

export interface ListedModel {
  readonly id: string;
  readonly created?: number;
  /** What `/v1/models` shows of all that is said of it. */
  readonly shown: object;
}

export interface ErrorPlan {
  readonly status: number;
  /** What of its text is shown: all of this, or at least that; undefined: nothing that may be shown. */
  readonly message?: string | undefined;
  readonly says?: string | undefined;
  readonly code?: string | undefined;
  readonly type?: string | undefined;
  /** It is JSON about the model: a 404 is then the client's own mistake. */
  readonly isAboutModel?: boolean | undefined;
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
  /** Its answer never comes if this is undefined. */
  readonly headMs?: number | undefined;
  readonly connectMs: number;
  readonly connection: 'new' | 'reused';
  /** In the place of the head. */
  readonly fault?: (typeof NETWORK_FAULTS)[number] | undefined;
  readonly status: number;
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly items: readonly Item[];
  /** What is sent at the same moment comes in one piece. */
  readonly isJoined?: boolean | undefined;
  readonly end: 'end' | 'cut' | 'hang';
  readonly endMs: number;
  /** A part of an event before the end. */
  readonly rest: string;
}

/** What happens beside the requests. */
export type Incident =
  | { readonly atMs: number; readonly kind: 'reload'; readonly settings: Settings }
  | {
      readonly atMs: number;
      readonly kind: 'drain';
      readonly timeoutMs: number;
      readonly delayMs: number;
    }
  | { readonly atMs: number; readonly kind: 'store'; readonly isUp: boolean };

/** A provider answers everybody so for a while. */
export interface Outage {
  /** Undefined: all of them. */
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
  /** To the gateway's questions for models, by provider; behind the last one they answer well. */
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
    ...clients.map(({ name, ...rest }) => section(`clients.${name}`, rest)),
    section('providers', { primary, fallback, fallback_on: fallbackOn }),
    ...providers.map(({ id, ...rest }) =>
      section(`providers.${id}`, { base_url: `https://${id}.test/v1`, ...rest }),
    ),
    section('logging', { level: 'debug', format: 'json' }),
    section('rate_limit', {
      enabled,
      ...global,
      store: hasStore ? 'redis://store.test' : undefined,
    }),
    ...Object.entries(limits).map(([id, limit]) => section(`rate_limit.providers.${id}`, limit)),
    hasAdmin ? section('admin', { port: 0 }) : '',
    '[aliases]',
    ...aliases.map(({ name, targets, isBalanced, weights }) => {
      const list = JSON.stringify(targets);
      if (weights)
        return `${name} = { targets = ${list}, balance = "weighted", weights = ${JSON.stringify(weights)} }`;
      return `${name} = ${isBalanced ? `{ targets = ${list}, balance = "least_busy" }` : list}`;
    }),
  ];
  return lines.join('\n');
}

function section(name: string, values: object): string {
  const rows = Object.entries(values)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => `${key} = ${toValue(value)}`);
  return [`[${name}]`, ...rows].join('\n');
}

function toValue(value: unknown): string {
  if (typeof value !== 'object' || Array.isArray(value)) return JSON.stringify(value);
  const rows = Object.entries(value!).map(([key, one]) => `${key} = ${toValue(one)}`);
  return `{ ${rows.join(', ')} }`;
}
