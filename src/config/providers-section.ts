/**
 * Reads `[providers]`: each registered provider's settings, and why any other provider is skipped.
 */

import { isLoopback, isPrivate, withoutBrackets } from '../lib/loopback.ts';
import { Secret } from '../lib/secret.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf } from './built-in-providers.ts';
import { HEADER_NAME, HEADER_VALUE, readHeaderNames } from './header-names.ts';
import { checkKey, MAX_KEY_CHARACTERS, toSecrets } from './keys.ts';
import type { SettingValues } from './setting-values.ts';
import { readTls } from './tls-files.ts';

/**
 * Headers refused in settings: hop-by-hop headers (RFC 9110 7.6.1), message framing, and headers
 * set by the gateway itself.
 */
const REFUSED = new Set(
  [
    'connection keep-alive proxy-authorization proxy-connection',
    'te trailer transfer-encoding upgrade',
    'host content-length content-encoding expect',
    'authorization content-type accept accept-encoding x-request-id traceparent tracestate',
  ].flatMap((names) => names.split(' ')),
);

/**
 * More headers refused in `forward_headers` and `return_headers`: credentials, and headers set by
 * the gateway itself in either direction.
 */
const NEVER_PASSED = new RegExp(
  '^(?:access-control|content|proxy)-|^(?:(?:set-)?cookie2?|(?:x-(?:goog-)?)?api-key|user-agent|' +
    'sec-fetch-mode|x-gateway-(?:provider|tries)|x-upstream-request-id|server-timing|' +
    'retry-after(?:-ms)?|x-should-retry|www-authenticate|allow|vary|date|cache-control|' +
    'x-accel-buffering|x-content-type-options)$',
);

const PASSED = {
  max: 32,
  refuse: (name: string) =>
    REFUSED.has(name) || NEVER_PASSED.test(name)
      ? 'cannot pass: it is a credential or set by the gateway itself'
      : undefined,
};

/** A provider that is enabled and has a key. */
export type ProviderSettings = Exclude<ReturnType<typeof readProvider>, string>;

export function readProviders(values: SettingValues) {
  const { primary, fallback = [], fallbackOn = [] } = values.section('providers');
  const registered: ProviderSettings[] = [];
  /**
   * `isConfigured` is true if the file has a section for the provider, so that the operator
   * probably wants it.
   */
  const skipped: { id: string; reason: string; isConfigured: boolean }[] = [];
  const used = values.sectionsBelow('providers');
  for (const id of new Set([...used, ...BUILT_IN_PROVIDERS.keys()])) {
    const isConfigured = used.includes(id);
    const result = isConfigured ? readProvider(id, values) : withoutKey(id);
    if (typeof result === 'string') skipped.push({ id, reason: result, isConfigured });
    else registered.push(result);
  }

  /** The ids of all providers. */
  const known = [...registered, ...skipped].map(({ id }) => id);
  const check = (name: string, id: string) => {
    const shown = values.asWritten(id);
    const provider = registered.find((candidate) => candidate.id === id);
    if (!known.includes(id)) {
      const hint = values.suggestions.didYouMean(id, known);
      values.problem(name, `no such provider "${shown}"${hint}`);
    } else if (!provider) {
      values.warning(name, `provider "${shown}" is not registered`);
    } else if (name === 'providers.fallback' && !provider.defaultModel) {
      const text = `"${shown}" has no default_model, so it is asked for the requested model`;
      values.warning(name, text);
    }
  };
  for (const id of fallback) check('providers.fallback', id);
  const { endpoints } = values.section('server');
  if (fallback.length > 0 && endpoints?.includes('/v1/embeddings')) {
    const text = 'vectors of two models do not compare; an alias that names its targets does apply';
    values.warning('providers.fallback', `does not apply to /v1/embeddings, because ${text}`);
  }
  if (primary !== undefined) check('providers.primary', primary);
  warnOfQueueTimeout(values, registered);
  return { registered, skipped, known, primary, fallback, fallbackOn };
}

/** Warns about a `queue_timeout` that no wait reaches, unless it is the default. */
function warnOfQueueTimeout(
  values: SettingValues,
  registered: readonly Pick<ProviderSettings, 'maxWaiting' | 'timeoutMs'>[],
): void {
  const name = 'server.queue_timeout';
  const { value, row } = values.plain().get(name) ?? {};
  const queues = registered.filter(({ maxWaiting }) => maxWaiting > 0);
  const longest = Math.max(...queues.map(({ timeoutMs }) => timeoutMs)) / 2000;
  if (queues.length === 0 || value === row?.default || Number(value) <= longest) return;
  const why = 'no request waits longer than half of the timeout of a provider with max_waiting';
  values.warning(name, `has no effect above ${longest} seconds: ${why}`);
}

function withoutKey(id: string): string {
  return `no api_key and no ${keyVariableOf(id)}`;
}

/** Returns a provider's settings, or the reason why it is not registered. */
function readProvider(id: string, values: SettingValues) {
  const path = `providers.${id}`;
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(id)) {
    values.problem(path, 'a provider id has 1 to 64 letters, digits, ".", "_" or "-"');
  }
  const all = values.section('providers.<id>', path);
  const { enabled, apiKey = '', caFile, clientCert, clientKey, modelDetails, ...section } = all;
  const listed = (section.apiKeys ?? []).map((text) => text.trim()).filter((text) => text !== '');
  // An environment variable's key is used only if the file has none.
  const isOfVariable = values.plain().get(`${path}.api_key`)?.origin !== undefined;
  const soleKey = isOfVariable && listed.length > 0 ? '' : apiKey.trim();
  const keys = new Set(soleKey === '' ? listed : [soleKey, ...listed]);
  const baseUrl = readBaseUrl(id, section.baseUrl, values);
  const settings = {
    ...section,
    id,
    baseUrl,
    /** Undefined without files for TLS. */
    tls: readTls(path, { caFile, clientCert, clientKey }, baseUrl, values),
    /** At least one key; they are used in turn. */
    apiKeys: toSecrets(keys),
    /** Headers for each request, with names in lower case. */
    headers: readHeaders(`${path}.headers`, section.headers, values),
    /** Names of client headers to forward, in lower case, or undefined without any. */
    forwardHeaders: readHeaderNames(
      values,
      `${path}.forward_headers`,
      section.forwardHeaders,
      PASSED,
    ),
    /** Names of answer headers to return, in lower case, or undefined without any. */
    returnHeaders: readHeaderNames(values, `${path}.return_headers`, section.returnHeaders, PASSED),
    defaultModel: section.defaultModel || undefined,
    ...readDetails(`${path}.model_details`, modelDetails, values),
  };
  const twice = settings.forwardHeaders?.find((name) => Object.hasOwn(settings.headers, name));
  if (twice)
    values.problem(
      `${path}.forward_headers`,
      `"${twice}" is also in headers; name it in one of the two`,
    );
  if (settings.maxWaiting > 0 && settings.maxConcurrentRequests === 0) {
    const text = 'has no effect: no request waits unless max_concurrent_requests is set';
    values.warning(`${path}.max_waiting`, text);
  }
  if (!enabled) return 'enabled = false';
  if (keys.size === 0) return withoutKey(id);
  warnOfBaseUrl(`${path}.base_url`, settings.baseUrl, values);
  for (const text of keys) {
    checkKey(values, `${path}.${text === soleKey ? 'api_key' : 'api_keys'}`, text);
  }
  return settings;
}

/**
 * Returns the limits of models, and apart from them the prices, because clients would not know the
 * unit of a price in `/v1/models`. Reports a price without the others that a cost needs.
 */
function readDetails(
  setting: string,
  details: Readonly<Record<string, Readonly<Record<string, number>>>> | undefined,
  values: SettingValues,
) {
  const models = Object.entries(details ?? {}).map(([model, members]) => {
    const {
      input_price_per_million: input,
      cached_input_price_per_million: cachedInput = input,
      output_price_per_million: output,
      ...limits
    } = members;
    const isPriced = input !== undefined && output !== undefined;
    if (!isPriced && (cachedInput ?? output) !== undefined) {
      const text = 'prices need input_price_per_million and output_price_per_million';
      values.problem(`${setting}.${model}`, text);
    }
    return { model, limits, prices: isPriced && { input, cachedInput: cachedInput!, output } };
  });
  const priced = models.flatMap(({ model, prices }) => (prices ? [[model, prices] as const] : []));
  return {
    modelDetails: details && Object.fromEntries(models.map(({ model, limits }) => [model, limits])),
    /** In currency units per million tokens, by the model's name; undefined without prices. */
    modelPrices: priced.length > 0 ? Object.fromEntries(priced) : undefined,
  };
}

function readBaseUrl(id: string, text: string | undefined, values: SettingValues): string {
  const name = `providers.${id}.base_url`;
  if (text === undefined) {
    const hint = values.suggestions.didYouMean(id, [...BUILT_IN_PROVIDERS.keys()]);
    values.problem(name, `required: "${id}" is not a built-in provider${hint}`);
    return '';
  }
  const fault = faultOf(text);
  const [path] = ENDPOINT_PATH.exec(text) ?? [];
  if (fault) values.problem(name, `${fault}; ${EXPECTED_URL}`);
  else if (path) values.problem(name, `leave out ${path}: the gateway appends it`);
  return text.replace(/\/+$/, '');
}

const EXPECTED_URL = 'expected a URL such as "https://api.example.com/v1"';
const ENDPOINT_PATH = /\/(?:(?:chat\/)?completions|embeddings|responses|messages)(?=\/*$)/;

/** Returns what is wrong with a URL, without a part of it, because it may hold a key. */
function faultOf(text: string): string | undefined {
  if (text === '') return 'the URL is empty';
  if (/\s/.test(text)) return 'the URL has a space';
  if (!/^https?:\/\//i.test(text)) return 'the URL does not begin with http:// or https://';
  if (text.includes('?')) return 'the URL has a query; leave out "?" and all behind it';
  if (text.includes('#')) return 'the URL has a fragment; leave out "#" and all behind it';
  if (!URL.canParse(text)) return 'the URL has no valid host and port';
  const { username, password } = new URL(text);
  return username || password ? 'the URL has a user; a key belongs into api_key' : undefined;
}

/**
 * Warns about a key sent in clear text, and about the gateway's own address: OPENAI_BASE_URL often
 * has it, for SDKs on the same machine.
 */
function warnOfBaseUrl(name: string, baseUrl: string, values: SettingValues): void {
  if (!URL.canParse(baseUrl)) return;
  const { protocol, hostname, port } = new URL(baseUrl);
  if (protocol === 'http:' && !isPrivate(hostname)) {
    values.warning(name, 'the key is sent in clear text beyond a private network; use https://');
  }
  const server = values.section('server');
  const isHere = isLoopback(hostname) || withoutBrackets(hostname) === withoutBrackets(server.host);
  if (isHere && Number(port) === server.port) {
    values.warning(name, "this is the gateway's own address, so requests would loop");
  }
}

function readHeaders(
  setting: string,
  headers: Readonly<Record<string, string>> = {},
  values: SettingValues,
): Readonly<Record<string, Secret>> {
  const checked = new Map<string, Secret>();
  for (const [written, value] of Object.entries(headers)) {
    const name = written.toLowerCase();
    const shown = JSON.stringify(written);
    if (!HEADER_NAME.test(name)) {
      values.problem(setting, `${shown} is not a valid header name`);
    } else if (REFUSED.has(name)) {
      values.problem(setting, `${shown} cannot be set: the gateway sets it itself`);
    } else if (checked.has(name)) {
      values.problem(setting, `${shown} appears twice; header names ignore case`);
    } else if (!HEADER_VALUE.test(value)) {
      values.problem(setting, `the value of ${shown} must be visible ASCII, spaces and tabs`);
    } else if (value.length > MAX_KEY_CHARACTERS) {
      const limit = `${MAX_KEY_CHARACTERS} characters`;
      values.problem(setting, `the value of ${shown} is longer than ${limit}`);
    }
    checked.set(name, new Secret(value));
  }
  return Object.fromEntries(checked);
}
