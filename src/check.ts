/** `--check`: tests the settings, each provider's keys, and the rate limit store. */

import { EXIT, type CommandLine } from './cli/command-line.ts';
import { describeWarning, NO_PROVIDERS, toLines, warningsOf } from './cli/startup-report.ts';
import { ConfigError, type Config, type StoreSettings } from './config/config.ts';
import { missingModels } from './config/named-models.ts';
import type { ProviderSettings } from './config/providers-section.ts';
import type { Settings } from './config/read-settings.ts';
import { fetchModelList, NO_LIST_IN_TIME } from './gateway/model-list.ts';
import { causeOf } from './request/cause.ts';
import { GatewayError } from './lib/errors.ts';
import { createRedactor, escapeControlCharacters } from './lib/secrets.ts';
import { RedisConnection } from './store/redis-connection.ts';
import { upstreamFailure } from './upstream/connections/network-error.ts';
import { createOpenAIProvider } from './upstream/connections/provider.ts';
import { createTransport } from './upstream/connections/transport.ts';
import { http } from './lib/http.ts';

/** The limit for all model lists, which are requested at the same time. */
const CHECK_TIMEOUT_MS = 5000;

/**
 * Appended to a key's result if the provider shows its list to everybody, as OpenRouter and NVIDIA
 * do.
 */
const NOT_TRIED = '; the list is public, so the key was not tested';

/** Statuses from a provider without a model list. */
const NO_LIST = new Set([404, 405, 501]);

/** The result for the store, or for a provider with one of its keys. */
interface Result {
  /** True if the gateway can use the store, or the provider with this key. */
  readonly ok: boolean;
  /** The answer's status; absent without an answer. */
  readonly status?: number;
  /** How many models there are; absent without a model list. */
  readonly models?: number;
  readonly names?: readonly string[];
  /** The result in words, for the operator. */
  readonly message: string;
}

/**
 * Reads the settings, asks the providers and the store unless `offline`, and prints the results,
 * with `json` as a single document. Returns the exit code: 0, or 3 if a key or the store failed or
 * no provider is registered, or 78 for wrong settings with `json`. Without `json`, wrong settings
 * throw `ConfigError`.
 */
export async function runCheck(
  { json, offline }: CommandLine,
  readSettings: () => Settings,
  print: (text: string) => void,
): Promise<number> {
  let settings: Settings;
  try {
    settings = readSettings();
  } catch (error) {
    if (!json || !(error instanceof ConfigError)) throw error;
    print(toJson({ ok: false, problems: error.problems }, (text) => text));
    return EXIT.wrongSettings;
  }
  const { config, source } = settings;
  const { registered, skipped } = config.providers;
  // All output is redacted, because an operator may type a key as a model name, and servers repeat
  // the text they receive.
  const redact = createRedactor(config.secrets, config.resolved);
  const resolved = [...config.resolved].map(
    ([name, value]) => [redactName(name, redact), value] as const,
  );
  const document = {
    problems: [],
    warnings: warningsOf(config),
    file: (source.isFound && source.path) || null,
    settings: Object.fromEntries(resolved),
    registered: registered.map(({ id }) => id),
    skipped: skipped.map(({ id, reason }) => ({ provider: id, reason })),
  };
  const lines = [
    `settings   ${redact(source.text)}`,
    ...resolved
      .map(([name, value]) => `${name} = ${JSON.stringify(value, redactWith(redact))}`)
      .toSorted(),
    ...document.registered.map((id) => `registered ${redact(id)}`),
    ...skipped.map(({ id, reason }) => `skipped    ${redact(id)}: ${redact(reason)}`),
    ...document.warnings.map((text) => describeWarning(redact(text))),
  ];
  if (!json) print(toLines(lines));
  const live = offline ? undefined : await askAll(config);
  const { ok } = live ?? { ok: registered.length > 0 };
  const warnings = [...document.warnings, ...(live?.warnings ?? [])];
  if (json) print(toJson({ ok, ...document, ...live, warnings }, redact));
  else if (live) print(describeChecks(live, redact));
  else if (!ok) print(toLines(['', `providers  ${NO_PROVIDERS}`]));
  return ok ? 0 : EXIT.failedCheck;
}

/**
 * Each value is redacted by itself, because in the whole text a key could match JSON's syntax or a
 * member's name.
 */
function toJson(document: object, redact: (text: string) => string): string {
  return `${JSON.stringify(document, redactWith(redact), 2)}\n`;
}

/** Redacts texts, and model names in `model_details`. */
function redactWith(redact: (text: string) => string) {
  return (name: string, value: unknown) => {
    if (typeof value === 'string') return redact(value);
    if (!name.endsWith('.model_details')) return value;
    return Object.fromEntries(
      Object.entries(value as object).map(([model, limits]) => [redact(model), limits as unknown]),
    );
  };
}

/** Redacts the operator's own part of a setting's name, such as an alias. */
function redactName(name: string, redact: (text: string) => string): string {
  const [, section, chosen, key] =
    /^(aliases\.)(.+)()$/s.exec(name) ??
    /^((?:rate_limit\.providers|providers|clients)\.)(.+)(\..+)$/s.exec(name) ??
    [];
  return chosen === undefined ? name : `${section}${redact(chosen)}${key}`;
}

async function askAll(config: Config) {
  const { store: settings } = config.rateLimit;
  const [providers, store] = await Promise.all([
    checkProviders(config),
    settings && checkStore(settings),
  ]);
  const checks = providers.flatMap((provider) => provider.checks);
  const results: Result[] = store ? [...checks, store] : checks;
  return {
    ok: checks.length > 0 && results.every((result) => result.ok),
    checks,
    store,
    warnings: providers.flatMap((provider) => provider.warnings),
  };
}

function describeChecks(
  { checks, store, warnings }: Awaited<ReturnType<typeof askAll>>,
  redact: (text: string) => string,
): string {
  const rows = checks.map(({ provider, key, status, message }) => [
    key ? `${provider} key ${key}` : provider,
    status ? `${status}  ${message}` : message,
  ]);
  if (rows.length === 0) rows.push(['providers', NO_PROVIDERS]);
  if (store) rows.push(['rate_limit.store', store.message]);
  const shown = rows.map((row) => row.map(redact));
  const width = Math.max(...shown.map(([name = '']) => name.length));
  const table = shown.map(([name = '', result]) => `${name.padEnd(width)}  ${result}`);
  return toLines(['', ...table, ...warnings.map((text) => describeWarning(redact(text)))]);
}

async function checkProviders(config: Config) {
  const { server, providers } = config;
  // Returns before the transport is created, because the transport needs permission to use the
  // network, and settings without a provider can be checked without it.
  if (providers.registered.length === 0) return [];
  const transport = createTransport(server.upstream);
  const requests = providers.registered.map(async (settings) => {
    const provider = createOpenAIProvider(settings);
    const fetchList = (key?: number) =>
      fetchModelList(provider, [key], transport, CHECK_TIMEOUT_MS);
    const { id } = settings;
    const ofKeys = settings.apiKeys.map((_, key) => checkKey(settings, fetchList(key)));
    const results = await Promise.all(ofKeys);
    const isPublic =
      results.some(({ models }) => models !== undefined) && (await isList(fetchList()));
    const listed = results.flatMap(({ names = [] }) => names);
    const checks = results.map(({ names: _names, ...result }, key) => ({
      provider: id,
      /** The key's position, from 1; undefined for a provider's only key. */
      key: settings.apiKeys.length > 1 ? key + 1 : undefined,
      ...result,
      message: result.message + (isPublic && result.ok ? NOT_TRIED : ''),
    }));
    // `models` wins, because it is set where the provider's own list is wrong or absent.
    const warnings = missingModels(config, id, settings.models ?? listed).map(
      ({ setting, model }) => `${setting}: ${id} does not list the model "${model}"`,
    );
    return { checks, warnings };
  });
  return await Promise.all(requests);
}

async function isList(fetch: ReturnType<typeof fetchModelList>): Promise<boolean> {
  const list = await fetch.catch(() => undefined);
  return Array.isArray(list);
}

async function checkKey(
  { baseUrl, models }: ProviderSettings,
  fetch: ReturnType<typeof fetchModelList>,
): Promise<Result> {
  let status = 200;
  try {
    const list = await fetch;
    if (typeof list !== 'number') {
      const names = list.map(({ name }) => name);
      return { ok: true, status, models: list.length, names, message: countModels(list.length) };
    }
    status = list;
  } catch (thrown) {
    if (thrown === NO_LIST_IN_TIME) {
      return { ok: false, message: `timeout: no answer in ${CHECK_TIMEOUT_MS / 1000} s` };
    }
    const failure = upstreamFailure(thrown);
    // Any other error means that the answer was read but is no model list.
    if (failure instanceof GatewayError) {
      const problem = failure.scope === 'provider' ? 'unreachable' : 'no usable answer';
      return { ok: false, message: `${problem}: ${causeOf(failure)}` };
    }
  }
  // The provider did not refuse the key, and with `models` the gateway needs no list.
  if (models && (status === 200 || NO_LIST.has(status))) {
    const message = `no model list; the settings list ${countModels(models.length)}`;
    return { ok: true, status, message };
  }
  return { ok: false, status, message: whyNoList(baseUrl, status) };
}

function whyNoList(baseUrl: string, status: number): string {
  if (status === 401 || status === 403) return 'key refused';
  if (status === 402) return 'the key has no money';
  // A provider may refuse a key with 400 in words that `readFault` does not know.
  if (status === 400) return 'Bad Request; is the key right?';
  const hint = /\/v\d/.test(baseUrl)
    ? 'is base_url right? A provider without a list needs models = ["…"]'
    : 'is /v1 missing in base_url?';
  if (status === 404) return hint;
  if (status === 200) return `not a model list; ${hint}`;
  return http.STATUS_CODES[status] ?? 'unknown status';
}

function countModels(count: number): string {
  return count === 1 ? '1 model' : `${count} models`;
}

function checkStore(settings: StoreSettings): Promise<Result> {
  return new Promise((resolve) => {
    const connection = new RedisConnection(settings, {
      onReady() {
        resolve({ ok: true, message: 'answers' });
        connection.close('the check is over');
      },
      // Called after `onReady` too, where it has no effect because the promise is resolved.
      onClosed: (cause) =>
        resolve({ ok: false, message: escapeControlCharacters(cause, Infinity) }),
    });
  });
}
