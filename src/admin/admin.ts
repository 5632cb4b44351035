/** The listener of `[admin]`, with metrics, readiness, the page and its feed. */

import type { AdminSettings, Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import type { CLIENT_TIME_LIMITS } from '../downstream/listener.ts';
import type { ClientReply, ResponseHeaders } from '../downstream/client-reply.ts';
import { createHttpServer } from '../downstream/http-server.ts';
import { checkProtocol } from '../downstream/request-head.ts';
import { ByteBudget } from '../lib/memory/byte-budget.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { Redactor } from '../lib/secrets.ts';
import { createAccessCheck, READY_PATH } from './access.ts';
import { Feed } from './feed.ts';
import { readinessOf, type Figures } from './figures.ts';
import { createPage } from './page/page.ts';
import { inChunks } from './series.ts';
import { AdminView } from './view.ts';

/** Small, because request bodies are not read, and answers are made while they are sent. */
const LIMITS = { maxBufferedBytes: 1_048_576, memoryBytes: Infinity };
/** How long a connection may be idle. The page asks every few seconds. */
const KEEP_ALIVE_MS = 75_000;
const JSON_TYPE = 'application/json';
const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

type Route = (call: Call) => Promise<void> | undefined;
export type Admin = ReturnType<typeof createAdmin>;

/**
 * Creates the listener, which does not listen yet, and begins to measure the event loop.
 *
 * @param config - returns the settings in use, which a reload replaces
 */
export function createAdmin(
  config: () => Config,
  settings: AdminSettings,
  figures: Figures,
  {
    logger,
    redact,
    timeLimits,
  }: { logger: Logger; redact: Redactor; timeLimits: typeof CLIENT_TIME_LIMITS },
) {
  const view = new AdminView(config, figures, redact);
  const feed = new Feed(() => view.present());
  const { html, policy } = createPage();
  const headers = { 'content-security-policy': policy, 'referrer-policy': 'no-referrer' };
  const routes = new Map<string, Route>([
    ['/', ({ reply }) => reply.send(200, headersOf('text/html; charset=utf-8', headers), html)],
    ['/events', (call) => stream(call, 'text/event-stream', () => feed.open(call))],
    ['/status', ({ reply }) => sendJson(reply, view.status())],
    ['/requests', (call) => sendRequests(call, view)],
    ['/metrics', (call) => stream(call, METRICS_TYPE, () => inChunks(view.scrape()))],
    [READY_PATH, ({ reply }) => sendReadiness(reply, readinessOf(figures))],
  ]);
  const checkAccess = createAccessCheck(config, settings, logger);
  /** Never rejects. */
  async function handle(call: Call): Promise<void> {
    const { method, path, reply } = call;
    try {
      checkProtocol(call.request);
      checkAccess(call);
      const route = routes.get(path);
      const isRead = method === 'GET' || method === 'HEAD';
      const allow = route && { headers: { allow: 'GET, HEAD' } };
      if (!route || !isRead) throw new GatewayError('notFound', 'Resource not found', allow);
      await route(call);
    } catch (thrown) {
      const failure = GatewayError.from(thrown);
      if (failure.kind === 'internal') {
        const cause = thrown instanceof Error ? thrown.stack : undefined;
        logger.log('error', 'admin request failed', { path, cause });
      }
      const answer = toErrorAnswer(failure);
      if (reply.headersSent) await reply.fail(failure);
      else await reply.send(answer.status, answer.headers, answer.body);
    }
    reply.onClosed(() => call.close());
  }
  const handler = { handle, answerBroken: toErrorAnswer };
  const listening = { handler, timeLimits, budget: new ByteBudget(LIMITS) };
  return { view, server: createHttpServer(listening, KEEP_ALIVE_MS) };
}

function toErrorAnswer(failure: GatewayError) {
  const { status } = failure;
  const headers = failure.toHeaders();
  // With this header browsers ask for a key, and send it with the feed's request too.
  if (status === 401) headers['www-authenticate'] = 'Basic realm="inference-gateway"';
  return { status, headers: headersOf(JSON_TYPE, headers), body: failure.toBody() };
}

const sendJson = (reply: ClientReply, value: object, status = 200) =>
  reply.send(status, headersOf(JSON_TYPE), JSON.stringify(value));

const sendReadiness = (reply: ClientReply, status: ReturnType<typeof readinessOf>) =>
  sendJson(reply, { status }, status === 'ready' ? 200 : 503);

/** Sends the requests that the query asks for: a `kind` with `words`, or all of a `number`. */
function sendRequests({ request, reply }: Call, view: AdminView): ReturnType<Route> {
  const query = new URLSearchParams(request.url!.replace(/^[^?]*/, ''));
  const read = (name: string) => query.get(name) ?? '';
  const number = Number(read('number'));
  const filter = { kind: read('kind'), words: read('words') };
  const found = number > 0 ? view.requestOf(number) : view.findRequests(filter);
  if (!found) throw new GatewayError('notFound', 'Resource not found');
  return sendJson(reply, found);
}

/** Sends chunks as fast as the client takes them, until the client leaves. */
async function stream(
  { cancellation, method, reply }: Call,
  type: string,
  read: () => AsyncIterable<Buffer>,
): Promise<void> {
  // Called before the head is sent, because `read` throws for a ninth feed.
  const chunks = method === 'HEAD' ? undefined : read();
  reply.beginStream(200, headersOf(type));
  // Without `Content-Length`, as the answer to GET.
  if (!chunks) return reply.end();
  // Registered once instead of for each wait, because a feed is open for days.
  cancellation.onCancel(() => reply.onRoom());
  for await (const chunk of chunks) {
    if (cancellation.reason) return;
    if (reply.write(chunk)) continue;
    await new Promise<void>((resolve) => (reply.onRoom = resolve));
  }
  reply.end();
}

function headersOf(type: string, more: ResponseHeaders = {}): ResponseHeaders {
  const common = { 'cache-control': 'no-store', 'x-content-type-options': 'nosniff' };
  return { 'content-type': type, ...common, ...more };
}
