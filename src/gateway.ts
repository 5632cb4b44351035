/** The request from its arrival to its access line: checks in order, route, the one catch. */

import { createAuthenticator } from './auth.ts';
import { complete, type CompletionSettings } from './complete.ts';
import type { Config } from './config.ts';
import { ClientGone, GatewayError, type ErrorKind } from './errors.ts';
import type { Answer, Call } from './call.ts';
import type { LogFacts, Logger } from './log.ts';
import { createModelList } from './models.ts';
import { printable } from './secrets.ts';
import { VERSION } from './version.ts';

interface GatewaySettings {
  readonly config: Config;
  readonly completion: CompletionSettings;
  readonly logger: Logger;
  /** A monotonic clock in milliseconds. */
  readonly now: () => number;
}

interface Route {
  readonly methods: readonly string[];
  readonly answer: (call: Call) => Answer | Promise<Answer>;
}

const HEALTH_PATH = '/health';
/** Of what the gateway itself has to say. */
const JSON_HEADERS = { 'content-type': 'application/json', 'x-content-type-options': 'nosniff' };
/** Returns the handler of every call. It never rejects. */
export function createGateway(settings: GatewaySettings): (call: Call) => Promise<void> {
  const { config, completion, logger, now } = settings;
  const { limits, providers, upstream } = completion;
  const authenticate = createAuthenticator(config.server.auth);
  const listModels = createModelList({ providers, aliases: config.aliases, upstream, now });

  const routes = new Map<string, Route>([
    [HEALTH_PATH, { methods: ['GET', 'HEAD'], answer: health }],
    ['/v1/models', { methods: ['GET'], answer: () => listModels() }],
    ['/v1/chat/completions', { methods: ['POST'], answer: (call) => complete(call, completion) }],
  ]);

  /** The order of checks decides who learns what: nothing is told, read or counted before its turn. */
  async function dispatch(call: Call): Promise<Answer> {
    call.checkProtocol();
    const route = routes.get(call.path);
    const found = route?.methods.includes(call.method) ? route : undefined;
    if (found && call.path === HEALTH_PATH) return found.answer(call);
    if (config.server.cors && isPreflight(call)) return preflight(call);
    authenticate(call.headerValues('authorization'));
    const refusal = limits.takeGlobal();
    if (refusal) throw refusal;
    if (found) return found.answer(call);
    const allow = route && { headers: { allow: route.methods.join(', ') } };
    throw new GatewayError('notFound', 'Resource not found', allow);
  }

  return async (call) => {
    let answer: Answer | undefined;
    try {
      answer = await dispatch(call);
    } catch (thrown) {
      // The request may know before the response does.
      if (thrown instanceof ClientGone) call.cancellation.cancel(thrown);
      else answer = refuse(call, GatewayError.from(thrown));
    }
    try {
      if (answer) {
        addCommonHeaders(call, answer);
        await call.send(answer);
      }
    } catch (thrown) {
      answer = refuse(call, GatewayError.from(thrown));
      await call.send(answer).catch(() => {});
    }
    logAccess(call, answer?.status);
  };

  function addCommonHeaders({ record }: Call, { status, headers }: Answer): void {
    if (record.provider) headers['x-gateway-provider'] = record.provider;
    if (!config.server.cors) return;
    headers['access-control-allow-origin'] = '*';
    if (status === 204) return;
    headers['access-control-expose-headers'] = ['x-request-id', ...Object.keys(headers)].join(', ');
  }

  function logAccess(call: Call, status: number | undefined): void {
    const { record } = call;
    const { failure } = record;
    const isOurFault =
      failure?.kind === 'internal' && !(call.cancellation.reason instanceof GatewayError);
    const level = isOurFault ? 'error' : call.path === HEALTH_PATH ? 'debug' : 'info';
    const isRepeated = record.attempts.length > 1;
    const facts: LogFacts = {
      request_id: call.id,
      method: call.method,
      path: printable(call.path, 200),
      status,
      provider: record.provider,
      model: record.model,
      stream: record.stream,
      duration_ms: Math.round(now() - call.receivedAtMs),
      first_byte_ms: call.firstByteAtMs && Math.round(call.firstByteAtMs - call.receivedAtMs),
      bytes: call.sentBytes,
      outcome: outcomeOf(call),
      cause: failure && describeCause(failure.cause, isOurFault),
      attempts: isRepeated || config.logging.verbose ? record.attempts.join(' ') : undefined,
      ...(config.logging.verbose && {
        request_bytes: record.requestBytes,
        user_agent: printable(call.headers['user-agent'] ?? '', 200),
      }),
    };
    logger.log(level, 'request', facts);
  }
}

function health(call: Call): Answer {
  const status = call.isDraining ? 503 : 200;
  const body = { status: call.isDraining ? 'draining' : 'healthy', version: VERSION };
  return { status, headers: { ...JSON_HEADERS }, body: JSON.stringify(body) };
}

function refuse(call: Call, failure: GatewayError): Answer {
  const { record } = call;
  record.failure = failure;
  const headers: Record<string, string> = { ...JSON_HEADERS, ...failure.toHeaders() };
  const { provider = record.provider } = failure.facts;
  // The SDK's own retries would multiply with ours.
  if (record.attempts.length > 1 || provider !== record.provider) {
    headers['x-should-retry'] = 'false';
  }
  record.provider = provider;
  return { status: failure.status, headers, body: failure.toBody() };
}

function isPreflight(call: Call): boolean {
  return call.method === 'OPTIONS' && call.headers['access-control-request-method'] !== undefined;
}

function preflight(call: Call): Answer {
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

/** The access line's `outcome`; the others are `ok` and `client_closed`. */
const OUTCOMES: Record<ErrorKind, string> = {
  authentication: 'refused',
  rateLimit: 'rate_limited',
  invalidRequest: 'refused',
  unknownProvider: 'refused',
  notFound: 'refused',
  provider: 'upstream_error',
  api: 'upstream_error',
  timeout: 'timeout',
  internal: 'internal_error',
  serialization: 'upstream_error',
  unsupported: 'upstream_error',
};

function outcomeOf(call: Call): string {
  if (call.cancellation.reason instanceof ClientGone) return 'client_closed';
  return call.record.failure ? OUTCOMES[call.record.failure.kind] : 'ok';
}

/** For the operator: what the network said, or where our own code broke. */
function describeCause(cause: unknown, isOurFault: boolean): string | undefined {
  if (!(cause instanceof Error)) return cause === undefined ? undefined : typeof cause;
  if (isOurFault) return cause.stack;
  const { code } = cause as NodeJS.ErrnoException;
  return code === undefined ? cause.message : `${code}: ${cause.message}`;
}
