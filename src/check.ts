/** `--check`: are the settings right, and does each provider accept its keys? */

import { STATUS_CODES } from 'node:http';

import {
  checkToJson,
  describeChecks,
  describeConfig,
  problemsToJson,
  type ProviderCheck,
} from './cli/check-report.ts';
import type { CommandLine } from './cli/command-line.ts';
import { ConfigError, type Config } from './config/config.ts';
import type { ProviderSettings } from './config/providers-section.ts';
import type { Settings } from './config/read-settings.ts';
import { fetchModelList, type ModelFetch } from './gateway/model-list.ts';
import { causeOf } from './gateway/outcome.ts';
import { Deadline } from './lib/cancellation.ts';
import { GatewayError } from './lib/errors.ts';
import { upstreamFailure } from './upstream/network-error.ts';
import { createOpenAIProvider } from './upstream/openai.ts';
import { createTransport } from './upstream/transport.ts';

/** For all providers together: they are asked side by side. */
const CHECK_TIMEOUT_MS = 5000;
const TIMEOUT = new Error('the time of the check is over');

/** A provider that has no model list answers with one of these. */
const NO_LIST = new Set([404, 405, 501]);

export type CheckResult = 'ok' | 'settings wrong' | 'provider failed';

/** Reads the settings, asks the providers, prints the results. Throws `ConfigError` unless it prints JSON. */
export async function runCheck(
  { json = false, offline = false }: CommandLine,
  readSettings: () => Settings,
  print: (text: string) => void,
): Promise<CheckResult> {
  let settings: Settings;
  try {
    settings = readSettings();
  } catch (error) {
    if (!json || !(error instanceof ConfigError)) throw error;
    print(problemsToJson(error.problems));
    return 'settings wrong';
  }
  const { config, source } = settings;
  if (!json) print(describeConfig(config, source));
  const checks = offline ? undefined : await checkProviders(config);
  print(json ? checkToJson(config, source, checks) : describeChecks(checks ?? []));
  return checks?.some(({ ok }) => !ok) ? 'provider failed' : 'ok';
}

/** Asks each registered provider for its model list, once with each of its keys, all at the same time. */
async function checkProviders({ server, providers }: Config): Promise<ProviderCheck[]> {
  // Without permission to use the network, settings without a provider can still be checked.
  if (providers.registered.length === 0) return [];
  const transport = createTransport(server.upstream);
  // Requests wait for it.
  void transport.check();
  const limit = new Deadline();
  limit.arm(CHECK_TIMEOUT_MS, () => TIMEOUT);
  const requests = providers.registered.flatMap((settings) => {
    const provider = createOpenAIProvider(settings);
    return settings.apiKeys.map(async (_, key) => ({
      provider: settings.id,
      key: settings.apiKeys.length > 1 ? key + 1 : undefined,
      ...(await checkKey(settings, { provider, key, transport, limit })),
    }));
  });
  const checks = await Promise.all(requests);
  limit.end();
  return checks;
}

type Result = Omit<ProviderCheck, 'provider' | 'key'>;

/** Asks a provider with one of its keys. */
async function checkKey(settings: ProviderSettings, fetch: ModelFetch): Promise<Result> {
  try {
    const result = await fetchModelList(fetch);
    if (typeof result === 'number') return withoutList(settings, result);
    return { ok: true, status: 200, models: result.length, message: countModels(result.length) };
  } catch (thrown) {
    if (thrown === TIMEOUT) {
      return failed(undefined, `timeout: no answer in ${CHECK_TIMEOUT_MS / 1000} s`);
    }
    const failure = upstreamFailure(thrown, { provider: settings.id, answered: false });
    // The answer was read, and is no list.
    if (!(failure instanceof GatewayError)) return withoutList(settings, 200);
    const what = failure.facts.unreachable ? 'unreachable' : 'no usable answer';
    return failed(undefined, `${what}: ${causeOf(failure)}`);
  }
}

/** The result for a provider that answered with `status` and without a model list. */
function withoutList({ baseUrl, models }: ProviderSettings, status: number): Result {
  // The answer shows that the key is not refused, and the gateway needs no list.
  if (models && (status === 200 || NO_LIST.has(status))) {
    const message = `no model list; the settings list ${countModels(models.length)}`;
    return { ok: true, status, models: undefined, message };
  }
  if (status === 401 || status === 403) return failed(status, 'key refused');
  // What Gemini and xAI answer to a wrong key.
  if (status === 400) return failed(status, 'Bad Request; is the key right?');
  const hint = /\/v\d/.test(baseUrl)
    ? 'is base_url right? A provider without a list needs models = ["…"]'
    : 'is /v1 missing in base_url?';
  if (status === 404) return failed(status, hint);
  if (status === 200) return failed(status, `not a model list; ${hint}`);
  if (status >= 300 && status < 400) return failed(status, 'redirects; is base_url right?');
  return failed(status, STATUS_CODES[status] ?? 'unknown status');
}

function failed(status: number | undefined, message: string): Result {
  return { ok: false, status, models: undefined, message };
}

function countModels(count: number): string {
  return count === 1 ? '1 model' : `${count} models`;
}
