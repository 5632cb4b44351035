/**
 * A request from its head to its access line: the order of checks, the routes, and where every
 * failure becomes an answer.
 */

import { type Tenant, needsKey, type Config } from '../config/config.ts';
import type { Call, OnReplyHead } from '../downstream/call.ts';
import type { ResponseHeaders } from '../downstream/client-reply.ts';
import { allAliases } from '../config/aliases-section.ts';
import { checkProtocol, soleHeader } from '../downstream/request-head.ts';
import { ClientGone, GatewayError, invalidRequest } from '../lib/errors.ts';
import { isLoopback, isOwnHost } from '../lib/loopback.ts';
import type { Redactor } from '../lib/secrets.ts';
import { VERSION } from '../lib/version.ts';
import { CHAT } from '../protocol/chat.ts';
import type { Endpoint } from '../protocol/endpoint.ts';
import { clientPathOf, MODEL_PATH, MORE_ENDPOINTS } from '../protocol/endpoints.ts';
import { createAuthenticator } from '../policy/authentication.ts';
import type { Limiter } from '../policy/limiter.ts';
import { createAccessLog } from './access-log.ts';
import { createCostOf } from './cost.ts';
import { firstAnswer } from './first-answer.ts';
import { addCorsHeaders, isPreflight, preflightHeaders } from './cors.ts';
import type { Lease } from './lease.ts';
import { addLimitHeaders } from './limit-headers.ts';
import type { Services } from './services.ts';

/** An endpoint, or another kind of request: the checks before it, and its answer. */
interface Route {
  readonly path: string;
  readonly methods: readonly string[];
  /** True if the request is not authenticated and counts for no limit. */
  readonly isPublic: boolean;
  /** Set for monitoring: a good answer is logged only at level debug. */
  readonly isHealthCheck?: true;
  /** The rules of a request whose body names a model, and of its answer. */
  readonly endpoint?: Endpoint;
  /**
   * Answers the call, or resolves with the lease of an answer to deliver. `tenant` is undefined if
   * `isPublic`, or if the key belongs to no client in the settings.
   */
  readonly handle: (
    call: Call,
    services: Services,
    tenant: Tenant | undefined,
  ) => Promise<Lease | void> | undefined;
}

const ROUTES: readonly Route[] = [
  routeOf(CHAT),
  { path: '/v1/models', methods: ['GET'], isPublic: false, handle: sendModels },
  {
    path: '/health',
    methods: ['GET', 'HEAD'],
    isPublic: true,
    isHealthCheck: true,
    handle: sendHealth,
  },
];
/** The routes that `[server] endpoints` adds. */
const MORE_ROUTES: readonly Route[] = [
  ...MORE_ENDPOINTS.map(routeOf),
  { path: MODEL_PATH, methods: ['GET'], isPublic: false, handle: sendModels },
];
/** `MODEL_PATH` without its `{id}`. */
const MODEL_PREFIX = '/v1/models/';
/** A preflight has no `Authorization`. Only with `[server] cors`; its path may be unknown. */
const PREFLIGHT: Route = { path: '*', methods: ['OPTIONS'], isPublic: true, handle: sendPreflight };
/** Every other request. It needs a key, so that a client without a key does not learn the paths. */
const NOT_FOUND: Route = { path: '*', methods: [], isPublic: false, handle: refuseUnknown };
/**
 * Paths from clients whose `base_url` lacks `/v1`, has it twice, ends in `/` or contains the
 * endpoint.
 */
const WRONG_BASE_PATHS = ['', '/v1/v1', '/v1/', '/v1/chat/completions'].flatMap((base) => [
  `${base}/chat/completions`,
  `${base}/models`,
]);

const WEB_ORIGIN = /^https?:/i;
const WEB_ORIGIN_HOST = /^https?:\/\/(.*?)(?::\d+)?$/i;

/** Answers and logs the calls to the public port. */
export class Gateway {
  readonly #services: Services;
  readonly #routes: readonly Route[];
  readonly #costOf: ReturnType<typeof createCostOf>;
  readonly #accessLog: ReturnType<typeof createAccessLog>;
  readonly #authenticate: ReturnType<typeof createAuthenticator>;
  readonly #hasKeys: boolean;
  readonly #checkOrigin: ((call: Call) => void) | undefined;

  constructor(services: Services) {
    const { config } = services;
    const { server, clients } = config;
    this.#services = services;
    this.#routes = routesOf(config);
    this.#costOf = createCostOf(services.providers);
    this.#accessLog = createAccessLog(services, this.#costOf);
    this.#authenticate = createAuthenticator(server.auth, clients, namesOf(config));
    this.#hasKeys = needsKey(config);
    // With CORS, pages are wanted. With keys, pages are no danger.
    this.#checkOrigin = server.cors || this.#hasKeys ? undefined : createOriginCheck(server);
  }

  /**
   * Answers a call, and logs it once its response has closed. The checks are ordered so that a
   * client without a key learns nothing and consumes nothing. Never rejects.
   */
  async handle(call: Call): Promise<void> {
    const route = this.#routeOf(call);
    let tenant: Tenant | undefined;
    /** Set once its slot is held, because the slot is given back when the response has closed. */
    let limiter: Limiter | undefined;
    let lease: Lease | undefined;
    // Set before the checks, because their errors have the endpoint's shape.
    if (route.endpoint) call.history.endpoint = route.endpoint;
    call.trace = this.#services.traces?.begin(call.headers['traceparent']);
    try {
      checkProtocol(call.request, route.isHealthCheck);
      this.#checkOrigin?.(call);
      if (!route.isPublic) {
        tenant = this.#identify(call);
        // A tenant's limiter includes the global limits. A key without a tenant has only the global
        // limits.
        const tenantLimiter = this.#services.limiters.ofTenants.get(tenant?.name)!;
        let refusal = tenantLimiter.acquireSlot();
        if (refusal) throw refusal;
        limiter = tenantLimiter;
        const taking = limiter.takeRequest();
        refusal = taking instanceof Promise ? await taking : taking;
        if (refusal) throw refusal;
      }
      lease = (await route.handle(call, this.#services, tenant)) || undefined;
      const delivery = lease?.deliver();
      if (delivery) await delivery;
      lease?.close();
    } catch (thrown) {
      await fail(call, lease ? lease.fail(thrown) : thrown);
    }
    call.reply.onClosed(() => {
      limiter?.releaseSlot();
      const { attempt } = call.history;
      // Events before the answer may have a usage too. It is not charged if no answer has begun.
      if (limiter?.countsUsage && attempt?.hasAnswer) {
        const cost = limiter.countsCost ? this.#costOf?.(attempt, attempt.usage) : undefined;
        limiter.takeUsage(attempt.usage, cost);
      }
      this.#accessLog.logFinished(call, route);
      call.close();
    });
  }

  readonly onReplyHead: OnReplyHead = (status, headers, call) => {
    const { attempt, failure } = call?.history ?? {};
    // A stream begun by a `stream_keepalive` comment has no provider yet.
    if (call && (failure || attempt?.hasAnswer)) {
      addOwnHeaders(headers, call, this.#services.redact);
    }
    const client = call?.history.client;
    if (client) addLimitHeaders(headers, this.#services.limiters.ofTenants.get(client)!);
    if (this.#services.config.server.cors) addCorsHeaders(status, headers);
  };

  /** Logs bytes that could not be parsed as a request, and returns their answer. */
  answerBroken(refusal: GatewayError, requestId: string, remote: string | undefined) {
    this.#accessLog.logBroken(refusal, requestId, remote);
    return { status: refusal.status, headers: refusal.toHeaders(), body: refusal.toBody() };
  }

  /** Returns `NOT_FOUND` also for a path with other methods. */
  #routeOf({ headers, method, path }: Call): Route {
    for (const route of this.#routes) {
      if (hasPath(route, path) && route.methods.includes(method)) return route;
    }
    const { cors } = this.#services.config.server;
    const isAllowed = cors && PREFLIGHT.methods.includes(method);
    return isAllowed && isPreflight(headers) ? PREFLIGHT : NOT_FOUND;
  }

  #identify(call: Call): Tenant | undefined {
    const { headers } = call;
    const tenant = this.#authenticate(authorizationOf(call), call.history);
    call.history.client = tenant?.name;
    const isProxied = headers['x-forwarded-for'] !== undefined || headers.forwarded !== undefined;
    // Without keys, a gateway is open to everybody behind the proxy, even on loopback.
    if (isProxied && !this.#hasKeys) {
      const text = 'requests come through a proxy, and no key is required; set [server.auth] keys';
      warnOnce(this.#services, text);
    }
    return tenant;
  }
}

/**
 * Returns the request's `Authorization`, or one with the key from the header of the endpoint's own
 * protocol.
 */
function authorizationOf(call: Call): string | undefined {
  const { ownProtocol } = call.history.endpoint;
  const readsOwnHeader = ownProtocol && call.headers.authorization === undefined;
  const key = readsOwnHeader && soleHeader(call, ownProtocol.keyHeader);
  return key ? `Bearer ${key}` : soleHeader(call, 'authorization');
}

function routeOf(endpoint: Endpoint): Route {
  return {
    path: clientPathOf(endpoint),
    methods: ['POST'],
    isPublic: false,
    endpoint,
    handle: firstAnswer,
  };
}

/** Returns the names that the lines of any request may have. */
function namesOf(config: Config): string[] {
  const { registered } = config.providers;
  return [
    ...registered.flatMap(({ id, defaultModel = '' }) => [id, defaultModel]),
    ...allAliases(config).flatMap(({ name, targets }) => [
      name,
      ...targets.map((target) => target.name),
    ]),
  ];
}

/** The only place where a failure becomes an answer. Never rejects. */
async function fail(call: Call, thrown: unknown): Promise<void> {
  const { cancellation, history, reply } = call;
  // `beginAsking` or the memory may find that the client has left, before the response's 'close'
  // has cancelled the call.
  if (thrown instanceof ClientGone) {
    cancellation.cancel(thrown);
    return reply.notifyClosed();
  }
  history.failure = GatewayError.from(thrown);
  // After retries or a fallback, a client's own retries would multiply the gateway's. But the
  // `Retry-After` of a provider's limit in the settings asks the client to repeat the request.
  const isFinal = history.hasRetried && history.attempt?.outcome !== 'limit';
  const headers = isFinal ? { 'x-should-retry': 'false' } : undefined;
  try {
    await reply.fail(history.failure, headers);
  } catch (unsendable) {
    // node:http refuses a header, so the error is sent without the gateway's additional headers.
    call.onReplyHead = undefined;
    history.failure = GatewayError.from(unsendable);
    await reply.fail(history.failure);
  }
}

function addOwnHeaders(headers: ResponseHeaders, { history }: Call, redact: Redactor): void {
  if (history.provider) headers['x-gateway-provider'] = history.provider;
  const asked = history.asked.length;
  if (asked > 1) headers['x-gateway-tries'] = String(asked);
  const upstreamId = history.attempt?.upstreamRequestId;
  if (upstreamId) headers['x-upstream-request-id'] = redact(upstreamId);
  const spent = history.timeSpent(performance.now());
  if (spent) {
    // W3C Server Timing: `gateway;dur=0.4, queue;dur=1200.0, upstream;dur=812.3`.
    let timing = `gateway;dur=${Math.max(spent.gatewayMs, 0).toFixed(1)}`;
    if (spent.queueMs !== undefined) timing += `, queue;dur=${spent.queueMs.toFixed(1)}`;
    if (spent.upstreamMs !== undefined) timing += `, upstream;dur=${spent.upstreamMs.toFixed(1)}`;
    headers['server-timing'] = timing;
  }
}

/**
 * Answers with the tenant's list, or with the entry of the id in the path. Throws `notFound` for an
 * id that the list does not have.
 */
async function sendModels(
  { path, reply }: Call,
  { modelList }: Services,
  tenant: Tenant | undefined,
): Promise<void> {
  const id = modelIdIn(path);
  const json =
    id === undefined ? [await modelList.bodyFor(tenant)] : await modelList.entryFor(id, tenant);
  if (json === undefined) throw new GatewayError('notFound', 'Resource not found');
  await reply.send(200, { 'content-type': 'application/json' }, json);
}

/**
 * Returns the id in a path of `MODEL_PATH`; undefined for another path. It is decoded, because
 * OpenAI's SDK for Node sends `acme%2Fchat`. A client may also send `acme/chat`.
 */
function modelIdIn(path: string): string | undefined {
  if (!path.startsWith(MODEL_PREFIX) || path === MODEL_PREFIX) return undefined;
  const id = path.slice(MODEL_PREFIX.length);
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

function sendHealth({ isDraining, reply }: Call): Promise<void> | undefined {
  const status = isDraining ? 'draining' : 'healthy';
  const body = JSON.stringify({ status, version: VERSION });
  const headers = { 'content-type': 'application/json', 'x-content-type-options': 'nosniff' };
  return reply.send(isDraining ? 503 : 200, headers, body);
}

function sendPreflight({ headers, reply }: Call): Promise<void> | undefined {
  return reply.send(204, preflightHeaders(headers), '');
}

function routesOf({ server: { endpoints = [] } }: Config): readonly Route[] {
  return ROUTES.concat(MORE_ROUTES.filter(({ path }) => endpoints.includes(path)));
}

/** Returns whether the route has this path. `MODEL_PATH` has every path with an id. */
function hasPath(route: Route, path: string): boolean {
  return route.path === MODEL_PATH ? modelIdIn(path) !== undefined : route.path === path;
}

/**
 * Throws `notFound`; with `Allow` if the path has other methods. Throws a 426 for a WebSocket at an
 * endpoint that `[server] endpoints` adds, because Codex asks for one first, and turns to HTTP at
 * once only after a 426.
 */
function refuseUnknown(call: Call, services: Services): never {
  const { path } = call;
  const isOfPath = (one: Route) => hasPath(one, path);
  const route = routesOf(services.config).find(isOfPath);
  if (route && MORE_ROUTES.includes(route) && asksForWebSocket(call)) {
    // A 426 names the protocol to use (RFC 9110 15.5.22), and `Connection` names `Upgrade` (7.8).
    const connection = 'upgrade, close';
    const headers = { upgrade: 'HTTP/1.1', connection, allow: route.methods.join(', ') };
    throw invalidRequest('WebSocket is not supported; send a POST', { status: 426, headers });
  }
  const unserved = route ? undefined : MORE_ROUTES.find(isOfPath);
  const remedy = unserved ? '[server] endpoints would serve it' : remedyFor(path);
  // A misconfigured client asks again and again, so each warning is logged once. The warning names
  // `MODEL_PATH` in place of a client's own path, so that the set of warnings is bounded.
  if (remedy) warnOnce(services, `${unserved?.path ?? path} is not served; ${remedy}`);
  throw new GatewayError('notFound', 'Resource not found', {
    ...(route && { headers: { allow: route.methods.join(', ') } }),
    ...(remedy && { reason: `Resource not found; ${remedy}` }),
  });
}

/** Returns what would serve a path that many clients ask for by mistake. */
function remedyFor(path: string): string | undefined {
  if (!WRONG_BASE_PATHS.includes(path)) return undefined;
  return "set the client's base_url to this gateway's URL and /v1";
}

/** Returns whether this is a WebSocket's handshake (RFC 6455 4.1). HTTP/1.0 has no upgrades. */
function asksForWebSocket({ headers: { upgrade }, method, request }: Call): boolean {
  const isUpgrade = upgrade !== undefined && /\bwebsocket\b/i.test(upgrade);
  return isUpgrade && method === 'GET' && request.httpVersion === '1.1';
}

function warnOnce({ logger, warned }: Services, text: string): void {
  if (warned.has(text)) return;
  warned.add(text);
  logger.log('warn', text);
}

/**
 * Returns a function that throws `invalidRequest` for a page from another host. Without keys, DNS
 * rebinding would make such a page same-origin, and the page would spend the operator's provider
 * keys. Editors (`vscode-webview:`), extensions and opaque origins (`null`) pass, because no host
 * name can be rebound to them.
 *
 * A same-origin GET has no `Origin`, so `Host` is checked too. It is not checked with
 * `trusted_proxies`, because a proxy may set its own `Host`, nor if the gateway listens beyond
 * loopback, where it may have any name.
 */
function createOriginCheck({ host, trustedProxies }: Config['server']): (call: Call) => void {
  const isLocal = isLoopback(host) && trustedProxies.length === 0;
  /** The last `Host` that has passed, because programs send the same again and again. */
  let passedHost: string | undefined;
  return ({ headers: { origin, host: sentHost } }) => {
    if (origin !== undefined && WEB_ORIGIN.test(origin) && !isLoopback(hostOf(origin))) {
      throw invalidRequest(
        'Origin must be a page on this machine, ' +
          'unless [server.auth] keys, [clients] or [server] cors is set',
      );
    }
    if (!isLocal || sentHost === passedHost) return;
    if (!isOwnHost(sentHost, host)) {
      throw invalidRequest(
        'Host must be an address, localhost or [server] host, ' +
          'unless [server.auth] keys, [clients] or [server] trusted_proxies is set',
      );
    }
    passedHost = sentHost;
  };
}

function hostOf(origin: string): string {
  return WEB_ORIGIN_HOST.exec(origin)?.[1] ?? '';
}
