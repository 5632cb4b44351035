/** The listener of `[admin]`: metrics, readiness, the page and its feed, all from memory. */

import { pipeline } from 'node:stream';
import { constants, createGzip } from 'node:zlib';

import type { AdminSettings, Config } from '../config/config.ts';
import type { Call, CLIENT_LIMITS } from '../downstream/call.ts';
import { createHttpServer } from '../downstream/http-server.ts';
import { checkProtocol } from '../downstream/request-head.ts';
import { ByteBudget } from '../lib/byte-budget.ts';
import { fromIterable } from '../lib/byte-source.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { Answer } from '../lib/attempt.ts';
import type { Redactor } from '../lib/secrets.ts';
import { createAccessCheck, READY_PATH } from './access.ts';
import { createFeed } from './feed.ts';
import { readinessOf, type Figures } from './figures.ts';
import { createPage } from './page/page.ts';
import { inChunks } from './series.ts';
import { createView } from './view.ts';

/** Request bodies are not read, and answers are made as they are sent. */
const LIMITS = { maxBufferedBytes: 1_048_576, memoryBytes: Infinity };
const JSON_TYPE = 'application/json';
const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

type Route = (call: Call) => Answer;
export type Admin = ReturnType<typeof createAdmin>;

/**
 * Creates the listener. Nothing listens yet, but the event loop is watched. `config` returns the settings in use, which
 * a reload replaces.
 */
export function createAdmin(
  config: () => Config,
  settings: AdminSettings,
  figures: Figures,
  { logger, redact, limits }: { logger: Logger; redact: Redactor; limits: typeof CLIENT_LIMITS },
) {
  const view = createView(config, figures, redact);
  const feed = createFeed(() => view.present());
  const { html, policy } = createPage();
  const headers = { 'content-security-policy': policy, 'referrer-policy': 'no-referrer' };
  const answerReadiness = () => {
    const status = readinessOf(config(), figures);
    return createAnswer(JSON_TYPE, JSON.stringify({ status }), status === 'ready' ? 200 : 503);
  };
  const routes = new Map<string, Route>([
    ['/', () => createAnswer('text/html; charset=utf-8', html, 200, headers)],
    ['/events', (call) => stream(call, 'text/event-stream', () => feed(call))],
    ['/metrics', (call) => stream(call, METRICS_TYPE, () => inChunks(view.scrape()))],
    [READY_PATH, answerReadiness],
  ]);
  return {
    ...view,
    server: createHttpServer({
      handler: {
        handle: createHandler(createAccessCheck(config, settings, logger), routes, logger),
        answerBroken: toErrorAnswer,
      },
      limits,
      budget: new ByteBudget(LIMITS),
    }),
  };
}

/** Returns the function that answers a call, never rejecting. */
function createHandler(
  checkAccess: (call: Call) => void,
  routes: ReadonlyMap<string, Route>,
  logger: Logger,
): (call: Call) => Promise<void> {
  // Async: in the turn in which a request is announced, node:http does not know yet that it is complete.
  async function dispatch(call: Call): Promise<Answer> {
    checkProtocol(call);
    checkAccess(call);
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
  const headers = failure.toHeaders();
  // Browsers ask the user for a key then, and send it with the feed's request too.
  if (status === 401) headers['www-authenticate'] = 'Basic realm="inference-gateway"';
  return createAnswer(JSON_TYPE, failure.toBody(), status, headers);
}

/** Compressed if that is asked for: the text of 300 models has megabytes, and a page that changes repeats its names. */
function stream({ headers, method }: Call, type: string, read: () => AsyncIterable<Buffer>) {
  const vary = { vary: 'accept-encoding' };
  if (method === 'HEAD') return createAnswer(type, '', 200, vary);
  if (!/\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))/i.test(String(headers['accept-encoding']))) {
    return createAnswer(type, fromIterable(read()), 200, vary);
  }
  // Each event leaves at once.
  const gzip = createGzip({ flush: constants.Z_SYNC_FLUSH });
  pipeline(read(), gzip, () => {});
  return createAnswer(type, fromIterable(gzip), 200, { ...vary, 'content-encoding': 'gzip' });
}

type Headers = Answer['headers'];

function createAnswer<Body>(type: string, body: Body, status = 200, headers: Headers = {}) {
  const common = { 'cache-control': 'no-store', 'x-content-type-options': 'nosniff' };
  return { status, headers: { 'content-type': type, ...common, ...headers }, body };
}
