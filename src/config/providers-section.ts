/** Reads `[providers]`: which providers are registered, with what settings, and why others are not. */

import { didYouMean } from '../lib/did-you-mean.ts';
import { isLoopback, isPrivate } from '../lib/loopback.ts';
import { Secret } from '../lib/secrets.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf } from './built-in-providers.ts';
import { checkKey } from './callers-section.ts';
import { readHeaders, readNames } from './provider-headers.ts';
import type { SettingValues } from './setting-values.ts';

/** A provider that is enabled and has a key. */
export interface ProviderSettings {
  readonly id: string;
  /** Without a trailing slash. */
  readonly baseUrl: string;
  /** One at least, to be used in turn. */
  readonly apiKeys: readonly Secret[];
  /** Sent with each request, names in lower case. */
  readonly headers: Readonly<Record<string, Secret>>;
  /** Headers of the client's requests that the provider gets; names in lower case, undefined without any. */
  readonly forwardHeaders: readonly string[] | undefined;
  /** Headers of the provider's replies that the client gets. */
  readonly returnHeaders: readonly string[] | undefined;
  readonly defaultModel: string | undefined;
  readonly timeoutMs: number;
  readonly retries: number;
  /** A session begins with the same key each time, as long as that is there. */
  readonly keyAffinity: boolean;
  /** 0 is unlimited. */
  readonly maxConcurrentRequests: number;
  /** Listed by hand: the list is not fetched from the provider. */
  readonly models: readonly string[] | undefined;
  /** It is asked for the tokens of streams. */
  readonly streamUsage: boolean;
}

interface SkippedProvider {
  readonly id: string;
  readonly reason: string;
  /** The file has a section for it, so the operator probably wants it. */
  readonly isConfigured: boolean;
}

/** Returns the registered providers, and the others with the reason. */
export function readProviders(values: SettingValues) {
  const { primary, fallback = [] } = values.section('providers');
  const registered: ProviderSettings[] = [];
  const skipped: SkippedProvider[] = [];
  const used = values.sectionsBelow('providers');
  for (const id of new Set([...used, ...BUILT_IN_PROVIDERS.keys()])) {
    const isConfigured = used.includes(id);
    const result = isConfigured ? readProvider(id, values) : withoutKey(id);
    if (typeof result === 'string') skipped.push({ id, reason: result, isConfigured });
    else registered.push(result);
  }

  const known = [...registered, ...skipped].map(({ id }) => id);
  const named = fallback.map((id) => ['providers.fallback', id]);
  if (primary !== undefined) named.push(['providers.primary', primary]);
  for (const [name = '', id = ''] of named) {
    const shown = values.asWritten(id);
    if (!known.includes(id)) {
      values.problem(name, `no such provider "${shown}"${didYouMean(id, known)}`);
    } else if (skipped.some((provider) => provider.id === id)) {
      values.warning(name, `provider "${shown}" is not registered`);
    }
  }
  return { registered, skipped, primary, fallback: [...new Set(fallback)] };
}

function withoutKey(id: string): string {
  return `no api_key and no ${keyVariableOf(id)}`;
}

/** Returns the settings of one provider, or the reason why it is not registered. */
function readProvider(id: string, values: SettingValues): ProviderSettings | string {
  const path = `providers.${id}`;
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(id)) {
    values.problem(path, 'a provider id is 1 to 64 letters, digits, ".", "_" or "-"');
  }
  const server = values.section('server');
  const section = values.section('providers.<id>', path);
  const keys = textsOfKeys(path, values);
  const settings = {
    id,
    baseUrl: checkBaseUrl(id, section.baseUrl, values),
    apiKeys: [...new Set(keys.map(({ text }) => text))].map((text) => new Secret(text)),
    headers: readHeaders(`${path}.headers`, section.headers ?? {}, values),
    forwardHeaders: readNames(`${path}.forward_headers`, section.forwardHeaders, values),
    returnHeaders: readNames(`${path}.return_headers`, section.returnHeaders, values),
    defaultModel: section.defaultModel || undefined,
    timeoutMs: section.timeoutMs,
    retries: section.retries,
    keyAffinity: section.keyAffinity,
    maxConcurrentRequests: section.maxConcurrentRequests,
    models: section.models,
    streamUsage: section.streamUsage,
  };
  const twice = settings.forwardHeaders?.find((name) => Object.hasOwn(settings.headers, name));
  if (twice) values.problem(`${path}.forward_headers`, `"${twice}" is in headers too`);
  if (!section.enabled) return 'enabled = false';
  if (settings.apiKeys.length === 0) return withoutKey(id);
  for (const { name, text } of keys) checkKey(values, name, text);
  if (isReadable(settings.baseUrl)) {
    const text = 'http:// beyond a private network: the key travels in clear text';
    values.warning(`${path}.base_url`, text);
  }
  if (isOwnAddress(settings.baseUrl, server)) {
    const text = "this is the gateway's own address: requests would come back to it";
    values.warning(`${path}.base_url`, text);
  }
  return settings;
}
/** The keys of a provider with their settings, as often as they are there. A variable's key is used if the file has none. */
function textsOfKeys(path: string, values: SettingValues): { name: string; text: string }[] {
  const { apiKey: single = '', apiKeys: more = [] } = values.section('providers.<id>', path);
  const inList = more.map((text) => ({ name: `${path}.api_keys`, text: text.trim() }));
  const own = { name: `${path}.api_key`, text: single.trim() };
  const hasList = inList.some(({ text }) => text !== '');
  const all = hasList && values.plain().get(own.name)?.origin ? inList : [own, ...inList];
  return all.filter(({ text }) => text !== '');
}

/** Returns the URL without a slash at its end. */
function checkBaseUrl(id: string, text: string | undefined, values: SettingValues): string {
  if (text === undefined) {
    const hint = didYouMean(id, [...BUILT_IN_PROVIDERS.keys()]);
    values.problem(
      `providers.${id}.base_url`,
      `required: "${id}" is not a built-in provider${hint}`,
    );
    return '';
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isPlain = url && !url.username && !url.password && !/[?#\s]/.test(text);
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    values.problem(
      `providers.${id}.base_url`,
      'expected an http or https URL without user, query or fragment',
    );
  } else if (/\/chat\/completions\/*$/.test(text)) {
    values.problem(
      `providers.${id}.base_url`,
      'leave out /chat/completions: the gateway appends it',
    );
  }
  return text.replace(/\/+$/, '');
}

/** Returns true if everybody on the way can read the key. */
function isReadable(baseUrl: string): boolean {
  if (!URL.canParse(baseUrl)) return false;
  const { protocol, hostname } = new URL(baseUrl);
  return protocol === 'http:' && !isPrivate(hostname);
}

/** OPENAI_BASE_URL is often set to the gateway's address, for the SDKs of programs beside it. */
function isOwnAddress(baseUrl: string, { host, port }: { host: string; port: number }): boolean {
  if (!URL.canParse(baseUrl)) return false;
  const url = new URL(baseUrl);
  const name = url.hostname.replace(/^\[|\]$/g, '');
  const isEverywhere = host === '0.0.0.0' || host === '::';
  const isHere = name === host || (isLoopback(name) && (isEverywhere || isLoopback(host)));
  return isHere && Number(url.port || (url.protocol === 'https:' ? 443 : 80)) === port;
}
