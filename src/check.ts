/**
 * `--check`: are the settings right, does each provider accept its keys, and can the rate limits be
 * kept in the store?
 */

import { STATUS_CODES } from 'node:http';

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
import { upstreamFailure } from './upstream/network-error.ts';
import { createOpenAIProvider } from './upstream/provider.ts';
import { createTransport } from './upstream/transport.ts';

/** For each model list. The providers are asked side by side. */
const CHECK_TIMEOUT_MS = 5000;

/**
 * Behind the result of a key whose provider shows its list to everybody, as OpenRouter and NVIDIA
 * do.
 */
const NOT_TRIED = '; the list is public, so the key was not tried';

/** A provider that has no model list answers with one of these. */
const NO_LIST = new Set([404, 405, 501]);

interface Result {
  /** The gateway can use the store, or the provider with this key. */
  readonly ok: boolean;
  /** Absent if it did not answer. */
  readonly status?: number;
  /** Absent if it has no list. */
  readonly models?: number;
  /** The names of its list. */
  readonly names?: readonly string[];
  /** The result in words, for the operator. */
  readonly message: string;
}

/**
 * Reads the settings, asks the providers and the store, prints the results. Returns the exit code.
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
  // A key may stand in the name of a model by mistake, and servers repeat what they are sent.
  const redact = createRedactor(config.secrets);
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
  const { ok } = live ?? { ok: true };
  const warnings = [...document.warnings, ...(live?.warnings ?? [])];
  if (json) print(toJson({ ok, ...document, ...live, warnings }, redact));
  else if (live) print(describeChecks(live, redact));
  return ok ? 0 : EXIT.failedCheck;
}

/**
 * Value by value: in the whole text, a key could be a part of its syntax, or the name of a member.
 */
function toJson(document: object, redact: (text: string) => string): string {
  return `${JSON.stringify(document, redactWith(redact), 2)}\n`;
}

/**
 * Returns a replacer of `JSON.stringify` that redacts texts, and the names of the models in
 * `model_details`.
 */
function redactWith(redact: (text: string) => string) {
  return (name: string, value: unknown) => {
    if (typeof value === 'string') return redact(value);
    if (!name.endsWith('.model_details')) return value;
    return Object.fromEntries(
      Object.entries(value as object).map(([model, limits]) => [redact(model), limits as unknown]),
    );
  };
}

/** Redacts the part of a setting's name that the operator has chosen. */
function redactName(name: string, redact: (text: string) => string): string {
  const [, section, chosen, key] =
    /^(aliases\.)(.+)()$/s.exec(name) ??
    /^((?:rate_limit\.providers|providers|clients)\.)(.+)(\..+)$/s.exec(name) ??
    [];
  return chosen === undefined ? name : `${section}${redact(chosen)}${key}`;
}

/** Asks the providers and the store, all at the same time. */
async function askAll(config: Config) {
  const { store: settings } = config.rateLimit;
  const [checks, store] = await Promise.all([
    checkProviders(config),
    settings && checkStore(settings),
  ]);
  const results: Result[] = store ? [...checks, store] : checks;
  return {
    ok: checks.length > 0 && results.every((one) => one.ok),
    checks: checks.map(({ names: _names, ...check }) => check),
    store,
    warnings: warningsOfLists(config, checks),
  };
}

/**
 * Returns a warning for each model that settings name and that none of its provider's keys lists.
 */
function warningsOfLists(
  config: Config,
  checks: Awaited<ReturnType<typeof checkProviders>>,
): string[] {
  // A list by hand is there because the provider's own is wrong, or absent.
  const asked = config.providers.registered.filter(({ models }) => !models);
  return asked.flatMap(({ id }) => {
    const names = checks.flatMap((one) => (one.provider === id ? (one.names ?? []) : []));
    return missingModels(config, id, names).map(
      ({ setting, model }) => `${setting}: "${model}" is not in the list of models of ${id}`,
    );
  });
}

/**
 * A table with a line for each key of each provider, and one for the store, after an empty line.
 */
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

/** Asks each registered provider for its model list, once with each of its keys. */
async function checkProviders({ server, providers }: Config) {
  // Without permission to use the network, settings without a provider can still be checked.
  if (providers.registered.length === 0) return [];
  const transport = createTransport(server.upstream);
  const requests = providers.registered.map(async (settings) => {
    const provider = createOpenAIProvider(settings);
    const fetchList = (key?: number) =>
      fetchModelList(provider, [key], transport, CHECK_TIMEOUT_MS);
    const ofKeys = settings.apiKeys.map((_, key) => checkKey(settings, fetchList(key)));
    const results = await Promise.all(ofKeys);
    const isPublic =
      results.some(({ models }) => models !== undefined) && (await isList(fetchList()));
    return results.map((result, key) => ({
      provider: settings.id,
      /** From 1; undefined if the provider has only one. */
      key: settings.apiKeys.length > 1 ? key + 1 : undefined,
      ...result,
      message: result.message + (isPublic && result.ok ? NOT_TRIED : ''),
    }));
  });
  return (await Promise.all(requests)).flat();
}

/** Returns true if the answer to a request without a key is a model list. */
async function isList(fetch: ReturnType<typeof fetchModelList>): Promise<boolean> {
  const list = await fetch.catch(() => undefined);
  return Array.isArray(list);
}

/** The result of the request for the model list with one of a provider's keys. */
async function checkKey(
  { id, baseUrl, models }: ProviderSettings,
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
    const failure = upstreamFailure(thrown, id);
    // Else the answer was read, and is no list.
    if (failure instanceof GatewayError) {
      const what = failure.scope === 'provider' ? 'unreachable' : 'no usable answer';
      return { ok: false, message: `${what}: ${causeOf(failure)}` };
    }
  }
  // The answer shows that the key is not refused, and the gateway needs no list.
  if (models && (status === 200 || NO_LIST.has(status))) {
    const message = `no model list; the settings list ${countModels(models.length)}`;
    return { ok: true, status, message };
  }
  return { ok: false, status, message: whyNoList(baseUrl, status) };
}

function whyNoList(baseUrl: string, status: number): string {
  if (status === 401 || status === 403) return 'key refused';
  // Gemini and xAI answer so to a wrong key.
  if (status === 400) return 'Bad Request; is the key right?';
  const hint = /\/v\d/.test(baseUrl)
    ? 'is base_url right? A provider without a list needs models = ["…"]'
    : 'is /v1 missing in base_url?';
  if (status === 404) return hint;
  if (status === 200) return `not a model list; ${hint}`;
  return STATUS_CODES[status] ?? 'unknown status';
}

function countModels(count: number): string {
  return count === 1 ? '1 model' : `${count} models`;
}

/** Connects to the store and runs its script, as the gateway does. */
function checkStore(settings: StoreSettings): Promise<Result> {
  return new Promise((resolve) => {
    const connection = new RedisConnection(settings, {
      onReady() {
        resolve({ ok: true, message: 'answers' });
        connection.end('the check is over');
      },
      // After `onReady` the promise has its result, which stays.
      onEnd: (cause) => resolve({ ok: false, message: escapeControlCharacters(cause, Infinity) }),
    });
  });
}
