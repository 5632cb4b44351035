/** Reads `[providers]`: which providers are registered, with what settings, and why others are not. */

import { didYouMean } from '../lib/did-you-mean.ts';
import { isLoopback, isPrivate } from '../lib/loopback.ts';
import { Secret } from '../lib/secrets.ts';
import { checkKey } from './api-keys.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf, variableOf } from './built-in-providers.ts';
import { toHeaders } from './provider-headers.ts';
import type { SectionReader } from './section-reader.ts';
import { SETTINGS } from './settings-table.ts';

/** A provider that is enabled and has a key. */
export interface ProviderSettings {
  readonly id: string;
  /** Without a trailing slash. */
  readonly baseUrl: string;
  /** One at least, to be used in turn. */
  readonly apiKeys: readonly Secret[];
  /** Sent with each request, names in lower case. */
  readonly headers: Readonly<Record<string, Secret>>;
  readonly defaultModel: string | undefined;
  readonly timeoutMs: number;
  readonly retries: number;
  /** 0 is unlimited. */
  readonly maxConcurrentRequests: number;
  /** Listed by hand: the list is not fetched from the provider. */
  readonly models: readonly string[] | undefined;
}

interface SkippedProvider {
  readonly id: string;
  readonly reason: string;
  /** The file has a section for it, so the operator probably wants it. */
  readonly isConfigured: boolean;
}

export interface Providers {
  readonly registered: readonly ProviderSettings[];
  /** Known, but without a key or switched off. */
  readonly skipped: readonly SkippedProvider[];
  readonly primary: string | undefined;
  readonly fallback: readonly string[];
}

/** What providers need to know of `[server]`. */
interface ServerFacts {
  /** The gateway's own address. */
  readonly host: string;
  readonly port: number;
  /** What applies to providers without such a setting of their own. */
  readonly timeoutMs: number;
  readonly retries: number;
}

export function readProviders(section: SectionReader, server: ServerFacts): Providers {
  const { primary, fallback = [] } = section.values(SETTINGS.providers);
  const registered: ProviderSettings[] = [];
  const skipped: SkippedProvider[] = [];
  const configured = section.remainingSections();
  for (const id of new Set([...configured, ...BUILT_IN_PROVIDERS.keys()])) {
    const subsection = section.section(id);
    const isUsed = configured.includes(id) || section.variable(keyVariableOf(id));
    const result = isUsed ? readProvider(id, subsection, server) : withoutKey(id);
    if (typeof result === 'string') {
      skipped.push({ id, reason: result, isConfigured: configured.includes(id) });
      subsection.dropFromResolved();
    } else {
      registered.push(result);
    }
  }

  const known = [...registered, ...skipped].map(({ id }) => id);
  const named = fallback.map((id) => ['fallback', id]);
  if (primary !== undefined) named.push(['primary', primary]);
  for (const [key = '', id = ''] of named) {
    const shown = section.asWritten(id);
    if (!known.includes(id)) {
      section.problem(key, `no such provider "${shown}"${didYouMean(id, known)}`);
    } else if (skipped.some((provider) => provider.id === id)) {
      section.warning(key, `provider "${shown}" is not registered`);
    }
  }
  return { registered, skipped, primary, fallback: [...new Set(fallback)] };
}

function withoutKey(id: string): string {
  return `no api_key and no ${keyVariableOf(id)}`;
}

/** Reads one provider. Returns its settings, or the reason why it is not registered. */
function readProvider(
  id: string,
  section: SectionReader,
  server: ServerFacts,
): ProviderSettings | string {
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(id)) {
    section.problem('', 'a provider id is 1 to 64 letters, digits, ".", "_" or "-"');
  }
  const rows = SETTINGS['providers.<id>'];
  const builtIn = BUILT_IN_PROVIDERS.get(id);
  const { enabled, ...values } = section.values(
    rows,
    {
      base_url: builtIn?.baseUrl,
      timeout: server.timeoutMs / 1000,
      retries: server.retries,
    },
    builtIn && {
      base_url: variableOf(id, rows.base_url.providerEnv),
      default_model: variableOf(id, rows.default_model.providerEnv),
    },
  );
  const variable = keyVariableOf(id);
  const single = (values.api_key ?? '').trim();
  // An empty key counts as not set, like an empty variable.
  const inSection = [single, ...(values.api_keys ?? []).map((key) => key.trim())].filter(Boolean);
  const distinct = new Set(inSection);
  const inVariable = (section.variable(variable) ?? '').trim();
  const keys = distinct.size > 0 ? [...distinct] : [inVariable];
  const settings = {
    id,
    baseUrl: checkBaseUrl(id, values.base_url, section),
    apiKeys: keys.map((key) => new Secret(key)),
    headers: toHeaders(values.headers ?? {}, section),
    defaultModel: values.default_model || undefined,
    timeoutMs: 1000 * values.timeout,
    retries: values.retries,
    maxConcurrentRequests: values.max_concurrent_requests,
    models: values.models,
  };

  if (!enabled) return 'enabled = false';
  if (keys[0] === '') return withoutKey(id);
  for (const key of distinct) {
    checkKey(key, { section, setting: key === single ? 'api_key' : 'api_keys' });
  }
  if (distinct.size === 0) checkKey(inVariable, { section, setting: 'api_key', variable });
  if (inSection.length > distinct.size) section.warning('api_keys', 'the same key is there twice');
  if (isReadable(settings.baseUrl)) {
    section.warning('base_url', 'http:// beyond a private network: the key travels in clear text');
  }
  if (isOwnAddress(settings.baseUrl, server)) {
    section.warning(
      'base_url',
      "this is the gateway's own address: requests would come back to it",
    );
  }
  return settings;
}

/** Returns the URL without a slash at its end. */
function checkBaseUrl(id: string, text: string | undefined, section: SectionReader): string {
  if (text === undefined) {
    const hint = didYouMean(id, [...BUILT_IN_PROVIDERS.keys()]);
    section.problem('base_url', `required: "${id}" is not a built-in provider${hint}`);
    return '';
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isPlain = url && !url.username && !url.password && !/[?#\s]/.test(text);
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    section.problem('base_url', 'expected an http or https URL without user, query or fragment');
  } else if (/\/chat\/completions\/*$/.test(text)) {
    section.problem('base_url', 'leave out /chat/completions: the gateway appends it');
  }
  return text.replace(/\/+$/, '');
}

/** Whether everybody on the way can read the key. */
function isReadable(baseUrl: string): boolean {
  if (!URL.canParse(baseUrl)) return false;
  const { protocol, hostname } = new URL(baseUrl);
  return protocol === 'http:' && !isPrivate(hostname);
}

/** OPENAI_BASE_URL is often set to the gateway's address, for the SDKs of programs beside it. */
function isOwnAddress(baseUrl: string, { host, port }: ServerFacts): boolean {
  if (!URL.canParse(baseUrl)) return false;
  const url = new URL(baseUrl);
  const name = url.hostname.replace(/^\[|\]$/g, '');
  const isEverywhere = host === '0.0.0.0' || host === '::';
  const isHere = name === host || (isLoopback(name) && (isEverywhere || isLoopback(host)));
  return isHere && Number(url.port || (url.protocol === 'https:' ? 443 : 80)) === port;
}
