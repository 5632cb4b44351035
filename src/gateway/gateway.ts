/** One request from its head to its access line: the order of checks, the routes, and where every failure becomes an answer. */

import { type ClientSettings, needsKey, type Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { checkProtocol, headerValues } from '../downstream/request-head.ts';
import { ClientGone, GatewayError, invalidRequest } from '../lib/errors.ts';
import { isLoopback, isOwnHost } from '../lib/loopback.ts';
import { type Answer, isStream } from '../lib/attempt.ts';
import type { RequestObserver } from '../lib/request-facts.ts';
import type { Redactor } from '../lib/secrets.ts';
import { VERSION } from '../lib/version.ts';
import { createAuthenticator } from '../policy/authentication.ts';
import { createAccessLog } from './access-log.ts';
import type { CompletionServices } from './attempts.ts';
import { completeChat } from './chat-completions.ts';
import type { ModelList } from './model-list.ts';

interface GatewayServices extends CompletionServices {
  /** Is told of every finished request but those for /health. */
  readonly observe?: RequestObserver | undefined;
  readonly listModels: ModelList;
  /** Counts streamed answers while they are being sent: also those of former settings. */
  readonly streams: { open: number };
  /** The warnings that were logged, each of which is logged once. */
  readonly warned: Set<string>;
}

const ROUTES: ReadonlyMap<string, readonly string[]> = new Map([
  ['/v1/chat/completions', ['POST']],
  ['/v1/models', ['GET']],
  ['/health', ['GET', 'HEAD']],
]);
const SERVED = [...ROUTES].map(([path, [method]]) => `${method} ${path}`).join(', ');
const JSON_HEADERS = { 'content-type': 'application/json', 'x-content-type-options': 'nosniff' };
/** Endpoints of OpenAI's API that clients are often set to by default. */
const UNSERVED_PATHS = ['/v1/responses', '/v1/completions', '/v1/embeddings'];

const WEB_ORIGIN = /^https?:/i;
const WEB_ORIGIN_HOST = /^https?:\/\/(.*?)(?::\d+)?$/i;

/** Creates the gateway: what answers and logs the calls of the public port. */
export function createGateway(services: GatewayServices) {
  const { config, incidents, logger, observe, streams } = services;
  const dispatch = createDispatch(services);
  const accessLog = createAccessLog(config, logger, incidents, observe);
  const allowCors = config.server.cors ? addCorsHeaders : undefined;

  /** Returns the answer for what was thrown; undefined if nobody is there to answer. */
  const answerFailure = (thrown: unknown, call: Call): Answer | undefined => {
    // The request may report the disconnect before the response does.
    if (thrown instanceof ClientGone) call.cancellation.cancel(thrown);
    else return toErrorAnswer(call, GatewayError.from(thrown));
    return undefined;
  };
  const addHeaders = (answer: Answer, call: Call): void => {
    if (!answer.pending) addOwnHeaders(answer, call, services.redact);
    allowCors?.(answer);
  };

  return {
    /** Answers a call and logs it. Never rejects. */
    async handle(call: Call): Promise<void> {
      let answer: Answer | undefined;
      try {
        answer = await dispatch(call);
      } catch (thrown) {
        answer = answerFailure(thrown, call);
      }
      const openStreams = Number(answer !== undefined && isStream(answer.body));
      streams.open += openStreams;
      try {
        if (answer) {
          addHeaders(answer, call);
          await call.send(answer);
          // If the client has left, providers may still be asked: what they hold is freed after the request.
          if (answer.pending) await answer.pending;
        }
      } catch (thrown) {
        answer = toErrorAnswer(call, GatewayError.from(thrown));
        allowCors?.(answer);
        await call.send(answer).catch(() => {});
      }
      streams.open -= openStreams;
      accessLog.logFinished(call, answer?.status);
    },
    /** Logs a request that could not be parsed, and returns its answer. */
    answerBroken(refusal: GatewayError, requestId: string, remote: string | undefined) {
      accessLog.logBroken(refusal, requestId, remote);
      const headers = { ...JSON_HEADERS, ...refusal.toHeaders() };
      const answer = { status: refusal.status, headers, body: refusal.toBody() };
      allowCors?.(answer);
      return answer;
    },
  };
}

/** Lets pages of any origin read an answer, errors included (WHATWG Fetch, 3.3). Credentials (cookies) are not allowed. */
function addCorsHeaders({ status, headers }: Answer): void {
  const names = ['x-request-id', ...Object.keys(headers)];
  headers['access-control-allow-origin'] = '*';
  if (status !== 204) headers['access-control-expose-headers'] = names.join(', ');
}

/** Adds who answered, under which id, and whose time it took. */
function addOwnHeaders({ headers }: Answer, { record }: Call, redact: Redactor): void {
  if (record.provider) headers['x-gateway-provider'] = record.provider;
  const upstreamId = record.attempt?.upstreamRequestId;
  if (upstreamId) headers['x-upstream-request-id'] = redact(upstreamId);
  const spent = record.timeSpent(performance.now());
  if (spent) {
    // W3C Server Timing: `gateway;dur=0.4, upstream;dur=812.3`.
    const gateway = `gateway;dur=${Math.max(spent.gatewayMs, 0).toFixed(1)}`;
    const upstream = spent.upstreamMs?.toFixed(1);
    headers['server-timing'] = upstream ? `${gateway}, upstream;dur=${upstream}` : gateway;
  }
}

/** Returns a function that finds a call's answer. It throws or rejects with `GatewayError` or `ClientGone`. */
function createDispatch(services: GatewayServices): (call: Call) => Answer | Promise<Answer> {
  const { config, limits, listModels, logger, warned } = services;
  const { server, clients } = config;
  const authenticate = createAuthenticator(server.auth, clients);
  // With CORS pages are wanted; with keys they are no danger.
  const checkOrigin = server.cors || needsKey(config) ? undefined : createOriginCheck(server);
  const isOpen = !needsKey(config);
  const warnOnce = (text: string) => {
    if (warned.has(text)) return;
    warned.add(text);
    logger.log('warn', text);
  };

  /** Answers a request whose client may send it, unless it has no token left. */
  const route = (
    noToken: GatewayError | undefined,
    call: Call,
    client: ClientSettings | undefined,
  ): Answer | Promise<Answer> => {
    if (noToken) throw noToken;
    const { path } = call;
    const methods = ROUTES.get(path);
    if (methods?.includes(call.method)) {
      return path === '/v1/models' ? listModels(client) : completeChat(call, services, client);
    }
    // A client that is set to it asks again and again.
    if (UNSERVED_PATHS.includes(path)) {
      warnOnce(`${path} is not served; this gateway serves ${SERVED}`);
    }
    const allow = methods && { headers: { allow: methods.join(', ') } };
    throw new GatewayError('notFound', 'Resource not found', allow);
  };
  const waitAndRoute = async (
    taking: Promise<GatewayError | undefined>,
    call: Call,
    client: ClientSettings | undefined,
  ) => route(await taking, call, client);
  // In this order, so that an unauthenticated client learns and consumes nothing.
  return (call) => {
    const { headers, method } = call;
    checkProtocol(call);
    checkOrigin?.(call);
    if (call.path === '/health' && ROUTES.get('/health')!.includes(method)) return health(call);
    const isPreflight =
      method === 'OPTIONS' && headers['access-control-request-method'] !== undefined;
    // It carries no Authorization.
    if (server.cors && isPreflight) return answerPreflight(call);
    const client = authenticate(headerValues(call, 'authorization'));
    call.record.client = client?.name;
    const isProxied = headers['x-forwarded-for'] !== undefined || headers.forwarded !== undefined;
    // On loopback too, a gateway without keys is open to everybody whom a proxy lets through.
    if (isProxied && isOpen) {
      warnOnce('a proxy sends requests, and no key is needed; set [server.auth] keys');
    }
    const limiter = limits.ofClients.get(client?.name)!;
    const noSlot = limiter.acquireSlot();
    if (noSlot) throw noSlot;
    call.onFinish(limiter.releaseSlot);
    const taking = limiter.takeTokens();
    // Only with a store there is something to wait for.
    return taking instanceof Promise
      ? waitAndRoute(taking, call, client)
      : route(taking, call, client);
  };
}

/** Allows what the preflight asks for. */
function answerPreflight(call: Call): Answer {
  const requested = call.headers['access-control-request-headers'];
  return {
    status: 204,
    headers: {
      'access-control-allow-methods': 'GET, HEAD, POST, OPTIONS',
      // `*` does not cover Authorization.
      ...(typeof requested === 'string' ? { 'access-control-allow-headers': requested } : {}),
      'access-control-max-age': '86400',
      vary: 'access-control-request-headers',
    },
    body: '',
  };
}

/**
 * Returns a function that throws `invalidRequest` for a page of another host: without keys, by DNS rebinding, such a page
 * is same-origin, and would spend the operator's provider keys. Editors (`vscode-webview:`), extensions and opaque
 * origins (`null`) pass: no name can be rebound to become one of them. A GET of a same-origin page has no `Origin`; its
 * `Host` tells, if no proxy sets it and the gateway is not known by other names.
 */
function createOriginCheck({ host, trustedProxies }: Config['server']): (call: Call) => void {
  const isLocal = isLoopback(host) && trustedProxies.length === 0;
  return ({ headers }) => {
    const { origin = '' } = headers;
    const originHost = WEB_ORIGIN_HOST.exec(origin)?.[1] ?? '';
    if (WEB_ORIGIN.test(origin) && !isLoopback(originHost)) {
      throw invalidRequest(
        'Origin must be a page on this machine, unless [server.auth] keys or [server] cors is set',
      );
    }
    if (isLocal && !isOwnHost(headers.host, host)) {
      throw invalidRequest(
        'Host must be an address, localhost or [server] host, unless [server.auth] keys is set',
      );
    }
  };
}

function health(call: Call): Answer {
  const status = call.isDraining ? 503 : 200;
  const body = { status: call.isDraining ? 'draining' : 'healthy', version: VERSION };
  return { status, headers: { ...JSON_HEADERS }, body: JSON.stringify(body) };
}

function toErrorAnswer(call: Call, failure: GatewayError): Answer {
  const { record } = call;
  record.failure = failure;
  const headers: Record<string, string> = { ...JSON_HEADERS, ...failure.toHeaders() };
  // After retries or a fallback: a client's own retries would multiply the gateway's.
  if (record.hasRetried) headers['x-should-retry'] = 'false';
  return { status: failure.status, headers, body: failure.toBody() };
}
