/** The listener of `[admin]`: metrics, readiness, the page and its feed, all from memory. */

import type { AdminSettings } from '../config/admin-section.ts';
import type { Config } from '../config/config.ts';
import type { AnswerBroken } from '../downstream/broken-request.ts';
import type { Call, CLIENT_LIMITS } from '../downstream/call.ts';
import { createHttpServer, type HttpServer } from '../downstream/http-server.ts';
import { ByteBudget } from '../lib/byte-budget.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { Answer } from '../lib/messages.ts';
import type { RequestObserver } from '../lib/request-facts.ts';
import { checkHost, createKeyCheck } from './access.ts';
import { METRICS_TYPE, renderMetrics } from './exposition.ts';
import { createFeed } from './feed.ts';
import { createProcessFigures, type Figures } from './figures.ts';
import { History } from './history.ts';
import { ModelLabels } from './labels.ts';
import { createRequestMetrics } from './metrics.ts';
import { configuredModels, listedModels } from './model-names.ts';
import { createPage } from './page/page.ts';
import { RecentRequests } from './recent-requests.ts';
import { firstTokenMsOf, isFailed, Totals } from './totals.ts';

/** Request bodies are not read, and the feed holds nothing back. */
const MAX_HELD_BYTES = 1_048_576;
const READY_PATH = '/ready';

interface AdminOptions {
  readonly config: Config;
  readonly settings: AdminSettings;
  readonly figures: Figures;
  readonly logger: Logger;
  readonly limits: typeof CLIENT_LIMITS;
}

export interface Admin {
  readonly server: HttpServer;
  /** Counts a finished request. */
  readonly observe: RequestObserver;
  /** Takes the models that a provider lists: their names become labels. */
  readonly onModels: (provider: string, names: readonly string[]) => void;
}

/** Creates the listener. Nothing listens yet, but the event loop is watched. */
export function createAdmin({ config, settings, figures, logger, limits }: AdminOptions): Admin {
  const models = new ModelLabels();
  models.learn(configuredModels(config));
  const metrics = createRequestMetrics(models);
  const history = new History(() => Date.now());
  const totals = new Totals();
  const recent = new RecentRequests();
  const processFigures = createProcessFigures();
  const sources = { config, figures, processFigures, metrics, history, totals, recent };
  const feed = createFeed(sources);
  const routes = new Map<string, (call: Call) => Answer>([
    ['/', createPageAnswer()],
    ['/events', feed],
    ['/metrics', () => metricsAnswer(renderMetrics(sources))],
    [READY_PATH, () => readiness(config, figures)],
  ]);
  const handle = createHandler({ settings, routes, logger });
  const budget = new ByteBudget(MAX_HELD_BYTES);
  return {
    server: createHttpServer({ handle, answerBroken, limits, budget }),
    observe(request) {
      const { model, outcome } = request.facts;
      metrics.observe(request);
      totals.record(request, models.labelOf(model));
      history.record(isFailed(outcome), firstTokenMsOf(request), figures.openStreams());
      recent.add(request);
    },
    onModels: (provider, names) => models.learn(listedModels(provider, names)),
  };
}

interface HandlerOptions {
  readonly settings: AdminSettings;
  readonly routes: ReadonlyMap<string, (call: Call) => Answer>;
  readonly logger: Logger;
}

/** Returns what answers a call, never rejecting. */
function createHandler({
  settings,
  routes,
  logger,
}: HandlerOptions): (call: Call) => Promise<void> {
  const checkKey = createKeyCheck(settings);
  function dispatch(call: Call): Answer {
    call.checkProtocol();
    checkHost(call, settings);
    // Probes cannot read secrets: as /health on the public port, it says nothing else.
    if (call.path !== READY_PATH) checkKey(call);
    const route = routes.get(call.path);
    if (route && (call.method === 'GET' || call.method === 'HEAD')) return route(call);
    const allow = route && { headers: { allow: 'GET, HEAD' } };
    throw new GatewayError('notFound', 'Resource not found', allow);
  }
  return async (call) => {
    try {
      await call.send(dispatch(call));
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

const answerBroken: AnswerBroken = toErrorAnswer;

function toErrorAnswer(failure: GatewayError): Answer & { readonly body: string } {
  const headers: Record<string, string> = { ...JSON_HEADERS, ...failure.toHeaders() };
  // Browsers ask the user for a key then, and send it with the feed's request too.
  if (failure.status === 401) headers['www-authenticate'] = 'Basic realm="inference-gateway"';
  return { status: failure.status, headers, body: failure.toBody() };
}

const COMMON_HEADERS = { 'cache-control': 'no-store', 'x-content-type-options': 'nosniff' };
const JSON_HEADERS = { ...COMMON_HEADERS, 'content-type': 'application/json' };

function metricsAnswer(body: string): Answer {
  return { status: 200, headers: { ...COMMON_HEADERS, 'content-type': METRICS_TYPE }, body };
}

/** Ready: another request may be sent to the public port, and some provider may be asked. */
function readiness({ providers }: Config, figures: Figures): Answer {
  const circuits = figures.circuits();
  const isResting = (id: string) =>
    circuits.some(({ provider, model, state }) => {
      return provider === id && model === undefined && state === 'open';
    });
  let status = 'ready';
  if (figures.isDraining()) status = 'draining';
  else if (providers.registered.length === 0) status = 'no provider';
  else if (providers.registered.every(({ id }) => isResting(id))) status = 'all providers rest';
  const body = JSON.stringify({ status });
  return { status: status === 'ready' ? 200 : 503, headers: { ...JSON_HEADERS }, body };
}

function createPageAnswer(): () => Answer {
  const { html, scriptHash, styleHash } = createPage();
  const policy = [
    "default-src 'none'",
    `script-src '${scriptHash}'`,
    `style-src '${styleHash}'`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ');
  const headers = {
    ...COMMON_HEADERS,
    'content-type': 'text/html; charset=utf-8',
    'content-security-policy': policy,
    'referrer-policy': 'no-referrer',
  };
  return () => ({ status: 200, headers: { ...headers }, body: html });
}
