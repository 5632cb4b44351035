/** The listener of `[admin]`: metrics, readiness, the page and its feed, all from memory. */

import type { AdminSettings } from '../config/config.ts';
import type { Config } from '../config/config.ts';
import type { Call, CLIENT_LIMITS } from '../downstream/call.ts';
import { createHttpServer, type HttpServer } from '../downstream/http-server.ts';
import { createRemoteAddress } from '../downstream/request-head.ts';
import { ByteBudget } from '../lib/byte-budget.ts';
import { fromIterable } from '../lib/byte-source.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { Answer } from '../lib/attempt.ts';
import type { RequestObserver } from '../lib/request-facts.ts';
import { ONLY_THREAD, SharedMemory } from '../lib/shared-memory.ts';
import { checkHost, checkOrigin, createKeyCheck } from './access.ts';
import { METRICS_TYPE, renderMetrics } from './exposition.ts';
import { createFeed } from './feed.ts';
import { createProcessFigures, type Figures } from './figures.ts';
import { History } from './history.ts';
import { ModelLabels } from './labels.ts';
import { firstTokenMsOf, isFailed, RequestMetrics } from './metrics.ts';
import { configuredModels, listedModels } from './model-names.ts';
import { createPage } from './page/page.ts';
import { ProviderFailures, readinessOf } from './provider-state.ts';
import { RecentRequests } from './recent-requests.ts';

/** Request bodies are not read, and answers are made as they are sent. */
const MAX_HELD_BYTES = 1_048_576;
const READY_PATH = '/ready';
const JSON_TYPE = 'application/json';
/** Of the event loop's delays that the feed shows, to all pages together. */
const FEED_WINDOW_MS = 15_000;

interface AdminOptions {
  /** The settings in use; a reload replaces them. */
  readonly config: () => Config;
  readonly settings: AdminSettings;
  readonly figures: Figures;
  readonly logger: Logger;
  readonly limits: typeof CLIENT_LIMITS;
}

export interface Admin {
  readonly server: HttpServer;
  /** Counts a finished request. */
  readonly observe: RequestObserver;
  /** Takes new settings: their names of models become labels. */
  readonly onConfig: (config: Config) => void;
  /** Takes the models that a provider lists: their names become labels. */
  readonly onModels: (provider: string, names: readonly string[]) => void;
}

/** Creates the listener. Nothing listens yet, but the event loop is watched. */
export function createAdmin({ config, settings, figures, logger, limits }: AdminOptions): Admin {
  const models = new ModelLabels();
  const onConfig = (next: Config) => models.learn(configuredModels(next));
  const metrics = new RequestMetrics(models);
  const history = new History(() => performance.timeOrigin + performance.now());
  const failures = new ProviderFailures();
  const recent = new RecentRequests();
  const sources = { config, figures, metrics, history, failures, recent };
  const processFigures = createProcessFigures(FEED_WINDOW_MS, figures);
  const feed = createFeed({ ...sources, processFigures });
  const forScrape = { ...sources, processFigures: createProcessFigures(0, figures) };
  const { html, policy } = createPage();
  const headers = { 'content-security-policy': policy, 'referrer-policy': 'no-referrer' };
  const routes = new Map<string, (call: Call) => Answer>([
    ['/', () => createAnswer('text/html; charset=utf-8', html, { headers })],
    ['/events', (call) => createAnswer('text/event-stream', feed(call))],
    ['/metrics', () => createAnswer(METRICS_TYPE, fromIterable(renderMetrics(forScrape)))],
    [READY_PATH, () => readiness(config(), figures)],
  ]);
  const remoteAddressOf = (call: Call) => createRemoteAddress(config().server.trustedProxies)(call);
  const checkKey = createKeyCheck(settings.keys, logger, remoteAddressOf);
  const handle = createHandler(settings, checkKey, routes, logger);
  const memory = new SharedMemory(ONLY_THREAD);
  const budget = new ByteBudget(
    { maxBufferedBytes: MAX_HELD_BYTES, memoryBytes: Infinity },
    memory,
  );
  const inFlight = memory.inFlightCounter('requests');
  return {
    server: createHttpServer({ handle, answerBroken: toErrorAnswer, limits, budget, inFlight }),
    observe(request) {
      metrics.observe(request);
      failures.record(request);
      history.record(
        isFailed(request.facts.outcome),
        firstTokenMsOf(request),
        figures.openStreams(),
      );
      recent.add(request);
    },
    onConfig,
    onModels: (provider, names) => models.learn(listedModels(provider, names)),
  };
}

/** Returns what answers a call, never rejecting. */
function createHandler(
  settings: AdminSettings,
  checkKey: (call: Call) => void,
  routes: ReadonlyMap<string, (call: Call) => Answer>,
  logger: Logger,
): (call: Call) => Promise<void> {
  // Async: in the turn in which a request is announced, node:http does not know yet that it is complete.
  async function dispatch(call: Call): Promise<Answer> {
    call.checkProtocol();
    checkHost(call, settings);
    checkOrigin(call);
    // Probes cannot read secrets: as /health on the public port, it says nothing else.
    if (call.path !== READY_PATH) checkKey(call);
    const route = routes.get(call.path);
    if (route && (call.method === 'GET' || call.method === 'HEAD')) return route(call);
    const allow = route && { headers: { allow: 'GET, HEAD' } };
    throw new GatewayError('notFound', 'Resource not found', allow);
  }
  return async (call) => {
    try {
      await call.send(await dispatch(call));
    } catch (thrown) {
      const failure = GatewayError.from(thrown);
      if (failure.kind === 'internal') {
        const cause = thrown instanceof Error ? thrown.stack : undefined;
        logger.log('error', 'admin request failed', { path: call.path, cause });
      }
      await call.send(toErrorAnswer(failure)).catch(() => {});
    }
  };
}

function toErrorAnswer(failure: GatewayError) {
  const { status } = failure;
  // Browsers ask the user for a key then, and send it with the feed's request too.
  const challenge = status === 401 && { 'www-authenticate': 'Basic realm="inference-gateway"' };
  const headers = { ...failure.toHeaders(), ...challenge };
  return createAnswer(JSON_TYPE, failure.toBody(), { status, headers });
}

function createAnswer<Body extends Answer['body']>(
  contentType: string,
  body: Body,
  { status = 200, headers = {} }: Partial<Pick<Answer, 'status' | 'headers'>> = {},
) {
  const common = { 'cache-control': 'no-store', 'x-content-type-options': 'nosniff' };
  return { status, headers: { 'content-type': contentType, ...common, ...headers }, body };
}

function readiness(config: Config, figures: Figures): Answer {
  const status = readinessOf(config, figures);
  const body = JSON.stringify({ status });
  return createAnswer(JSON_TYPE, body, { status: status === 'ready' ? 200 : 503 });
}
