/** `--check`: are the settings right, does each provider accept its keys, and can the rate limits be kept in the store? */

import { STATUS_CODES } from 'node:http';

import type { CommandLine } from './cli/command-line.ts';
import { describeWarning, NO_PROVIDERS, toLines, warningsOf } from './cli/startup-report.ts';
import { ConfigError, type Config, type StoreSettings } from './config/config.ts';
import type { ProviderSettings } from './config/providers-section.ts';
import type { Settings } from './config/read-settings.ts';
import { fetchModelList } from './gateway/model-list.ts';
import { causeOf } from './request/cause.ts';
import { Deadline } from './lib/cancellation.ts';
import { GatewayError } from './lib/errors.ts';
import { createRedactor, escapeControlCharacters } from './lib/secrets.ts';
import { ANSWER_MS, Connection } from './store/connection.ts';
import { upstreamFailure } from './upstream/network-error.ts';
import { createOpenAIProvider } from './upstream/provider.ts';
import { createTransport } from './upstream/transport.ts';

/** For all providers and the store together: they are asked side by side. */
const CHECK_TIMEOUT_MS = 5000;
const TIMEOUT = new Error(`timeout: no answer in ${CHECK_TIMEOUT_MS / 1000} s`);
/** The fastest reply of the store counts: another may be late because the machine is busy. */
const STORE_RUNS = 5;

/** A provider that has no model list answers with one of these. */
const NO_LIST = new Set([404, 405, 501]);

export type CheckResult = 'ok' | 'settings wrong' | 'failed';

/** Reads the settings, asks the providers and the store, prints the results. Throws `ConfigError` unless it prints JSON. */
export async function runCheck(
  { json = false, offline = false }: CommandLine,
  readSettings: () => Settings,
  print: (text: string) => void,
): Promise<CheckResult> {
  const printJson = (document: object) => print(`${JSON.stringify(document, undefined, 2)}\n`);
  let settings: Settings;
  try {
    settings = readSettings();
  } catch (error) {
    if (!json || !(error instanceof ConfigError)) throw error;
    printJson({ ok: false, problems: error.problems });
    return 'settings wrong';
  }
  const { config, source } = settings;
  const document = documentOf(settings);
  if (!json) print(describe(document, source.text));
  const live = offline ? undefined : await checkLive(config);
  const results = [...(live?.checks ?? []), live?.store ?? []].flat();
  const ok = !live || (live.checks.length > 0 && results.every((one) => one.ok));
  if (json) printJson({ ok, ...document, ...live });
  else if (live) print(describeChecks(live));
  return ok ? 'ok' : 'failed';
}

/** Every setting with the value in use, keys masked; the providers, and the warnings. */
function documentOf({ config, source }: Settings) {
  const { registered, skipped } = config.providers;
  return {
    problems: [],
    warnings: warningsOf(config),
    file: (source.isFound && source.path) || null,
    settings: Object.fromEntries(config.resolved),
    registered: registered.map(({ id }) => id),
    skipped: skipped.map(({ id, reason }) => ({ provider: id, reason })),
  };
}

/** The same as text. */
function describe(document: ReturnType<typeof documentOf>, source: string): string {
  const settings = Object.entries(document.settings);
  return toLines([
    `settings   ${source}`,
    ...settings.map(([name, value]) => `${name} = ${JSON.stringify(value)}`).toSorted(),
    ...document.registered.map((id) => `registered ${id}`),
    ...document.skipped.map(({ provider, reason }) => `skipped    ${provider}: ${reason}`),
    ...document.warnings.map(describeWarning),
  ]);
}

/** A table with a line for each key of each provider, and one for the store, after an empty line. */
function describeChecks({ checks, store }: Awaited<ReturnType<typeof checkLive>>): string {
  const rows = checks.map(({ provider, key, status, message }) => [
    key ? `${provider} key ${key}` : provider,
    status ? `${status}  ${message}` : message,
  ]);
  if (rows.length === 0) rows.push(['providers', NO_PROVIDERS]);
  if (store) rows.push(['rate_limit.store', store.message]);
  const width = Math.max(...rows.map(([name = '']) => name.length));
  return toLines(['', ...rows.map(([name = '', result]) => `${name.padEnd(width)}  ${result}`)]);
}

async function checkLive(config: Config) {
  const { store: settings } = config.rateLimit;
  const [checks, store] = await Promise.all([
    checkProviders(config),
    settings && checkStore(settings, createRedactor(config.secrets)),
  ]);
  return { checks, store };
}

/** Asks each registered provider for its model list, once with each of its keys, all at the same time. */
async function checkProviders({ server, providers }: Config) {
  // Without permission to use the network, settings without a provider can still be checked.
  if (providers.registered.length === 0) return [];
  const transport = createTransport(server.upstream);
  const limit = new Deadline();
  limit.arm(CHECK_TIMEOUT_MS, () => TIMEOUT);
  const requests = providers.registered.flatMap((settings) => {
    const provider = createOpenAIProvider(settings);
    return settings.apiKeys.map(async (_, key) => ({
      provider: settings.id,
      /** From 1; undefined if the provider has only one. */
      key: settings.apiKeys.length > 1 ? key + 1 : undefined,
      ...(await checkKey(settings, fetchModelList(provider, key, transport, limit))),
    }));
  });
  const checks = await Promise.all(requests);
  limit.stop();
  return checks;
}

interface Result {
  /** The gateway can use the provider with this key. */
  readonly ok: boolean;
  /** Absent if it did not answer. */
  readonly status?: number;
  /** Absent if it has no list. */
  readonly models?: number;
  /** The result in words, for the operator. */
  readonly message: string;
}

/** The result of the request for the model list with one of a provider's keys. */
async function checkKey(
  { id, baseUrl, models }: ProviderSettings,
  fetch: Promise<unknown[] | number>,
): Promise<Result> {
  let status = 200;
  try {
    const list = await fetch;
    if (typeof list !== 'number') {
      return { ok: true, status, models: list.length, message: countModels(list.length) };
    }
    status = list;
  } catch (thrown) {
    if (thrown === TIMEOUT) return { ok: false, message: TIMEOUT.message };
    const failure = upstreamFailure(thrown, id);
    // Else the answer was read, and is no list.
    if (failure instanceof GatewayError) {
      const what = failure.details.unreachable ? 'unreachable' : 'no usable answer';
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
  if (status >= 300 && status < 400) return 'redirects; is base_url right?';
  return STATUS_CODES[status] ?? 'unknown status';
}

function countModels(count: number): string {
  return count === 1 ? '1 model' : `${count} models`;
}

/** Connects to the store as the gateway does, and measures how soon its script answers. No message has the password. */
async function checkStore(settings: StoreSettings, redact: (text: string) => string) {
  return await new Promise<Result>((resolve) => {
    const measure = async () => {
      const times: number[] = [];
      while (times.length < STORE_RUNS) {
        const startMs = performance.now();
        await connection.run([]);
        times.push(performance.now() - startMs);
      }
      const fastestMs = Math.min(...times);
      const ok = fastestMs <= ANSWER_MS;
      const hint = ok ? '' : `; a request waits for ${ANSWER_MS} ms`;
      resolve({ ok, message: `answers in ${Math.ceil(fastestMs)} ms${hint}` });
      connection.end('the check is over');
    };
    const connection = new Connection(settings, {
      answerMs: CHECK_TIMEOUT_MS,
      onReady: () => void measure(),
      // If it ends before it was measured, this result is the first, and stays.
      onEnd: (cause) =>
        resolve({ ok: false, message: escapeControlCharacters(redact(cause), Infinity) }),
    });
    setTimeout(() => connection.end(TIMEOUT.message), CHECK_TIMEOUT_MS).unref();
  });
}
