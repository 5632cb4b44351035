/** The access log: a line per request. An observer gets the same facts. */

import type { Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { createRemoteAddress } from '../downstream/trusted-proxies.ts';
import { MAX_LOGGED_CHARACTERS } from '../request/cause.ts';
import type { Endpoint } from '../protocol/endpoint.ts';
import { ClientGone, type GatewayError, type Outcome } from '../lib/errors.ts';
import type { LogLevel } from '../lib/log.ts';
import { factsOf, toFinished } from '../request/facts.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import type { createCostOf } from './cost.ts';
import type { RefusalLog } from './refusal-log.ts';
import type { Services } from './services.ts';

const LEVELS: Readonly<Record<Outcome, LogLevel>> = {
  ok: 'info',
  client_closed: 'info',
  refused: 'info',
  rejected: 'info',
  rate_limited: 'warn',
  upstream_error: 'warn',
  timeout: 'warn',
  internal_error: 'error',
};

interface LoggedRoute {
  readonly path: string;
  /** Set for `/health`: a good answer is logged only at level debug. */
  readonly isHealthCheck?: true;
  /** Set for requests with a body: the client may leave during its upload. */
  readonly endpoint?: Endpoint;
}

/**
 * Returns the functions that log requests and pass their facts, without redaction, to the observer.
 */
export function createAccessLog(
  { config: { logging, server }, incidents, logger, observe, refusals }: Services,
  costOf: ReturnType<typeof createCostOf>,
) {
  const hasDetails = logging.verbose || logging.headers !== undefined;
  const remoteAddressOf = createRemoteAddress(server.trustedProxies);
  return {
    /**
     * Logs a finished request. A good answer to a health check is logged at level debug, and so is
     * a refusal that another line sums up.
     */
    logFinished(call: Call, { isHealthCheck, endpoint, path }: LoggedRoute): void {
      const endedAtMs = performance.now();
      const outcome = finalOutcomeOf(call);
      const isOfInterest = incidents.isTroubled || call.history.failure !== undefined;
      if (isOfInterest) incidents.recordRequest(call.history, outcome);
      const isGoodHealthCheck = isHealthCheck === true && outcome === 'ok';
      const limitState = limitStateOf(call, outcome, incidents);
      const isQuiet = isGoodHealthCheck || isSummed(call, outcome, limitState, refusals);
      const level = isQuiet ? 'debug' : levelOf(call, outcome);
      const { history, trace } = call;
      const isObserved = (observe ?? trace) !== undefined && !isGoodHealthCheck;
      if (!isObserved && !logger.isEnabled(level)) return;
      const phase = outcome === 'client_closed' ? phaseOf(call, endpoint) : undefined;
      const remote = remoteAddressOf(call);
      const ending = { outcome, endedAtMs, phase, remote, limitState };
      const facts = history.withoutKey(factsOf(call, ending, costOf));
      const details = hasDetails && history.withoutKey(detailsOf(call, logging));
      logger.log(level, 'request', details ? { ...facts, ...details } : facts);
      if (!isObserved) return;
      const finished = toFinished(call, facts, endedAtMs);
      observe?.(finished);
      trace?.end(finished, call, path === '*' ? undefined : path);
    },
    /** Logs bytes that could not be parsed as a request. */
    logBroken(
      { message: reason, status }: GatewayError,
      request_id: string,
      remote?: string,
    ): void {
      const facts = { request_id, remote, status, outcome: 'refused', reason } as const;
      logger.log('info', 'broken request', facts);
      const unknown = { method: '', path: '', duration_ms: 0, bytes: 0 };
      observe?.({ facts: { ...facts, ...unknown }, endTime: Date.now(), durationMs: 0 });
    },
  };
}

/** Returns the fields that `[logging]` adds to the line, and only to the line. */
function detailsOf(
  { headers, history }: Call,
  { headers: names = [], verbose }: Config['logging'],
) {
  const shown = (name: string) =>
    escapeControlCharacters(headers[name] as string, MAX_LOGGED_CHARACTERS);
  // A header may be named as a member of each object, such as `constructor`.
  const sent = names.filter((name) => Object.hasOwn(headers, name));
  const named = Object.fromEntries(sent.map((name) => [name, shown(name)]));
  return {
    ...(verbose && {
      request_bytes: history.requestBytes,
      user_agent: headers['user-agent'] && shown('user-agent'),
    }),
    headers: sent.length > 0 ? named : undefined,
  };
}

function finalOutcomeOf({ cancellation: { reason }, history }: Call): Outcome {
  if (reason instanceof ClientGone) return reason.outcome;
  const { attempt, failure } = history;
  // A want of memory is a refusal of an upload, but the gateway's own failure in an attempt.
  const isOwn = failure && attempt?.outcome === 'internal_error';
  return isOwn ? 'internal_error' : (failure?.outcome ?? 'ok');
}

function limitStateOf(
  { history: { failure } }: Call,
  outcome: Outcome,
  { memoryState }: Pick<Services['incidents'], 'memoryState'>,
): string | undefined {
  if (outcome !== 'rate_limited') return undefined;
  const { limit, limitState } = failure!.details;
  return limit === 'memory' ? memoryState : limitState;
}

function isSummed(
  { history }: Call,
  outcome: Outcome,
  limitState: string | undefined,
  refusals: RefusalLog,
): boolean {
  if (outcome !== 'rate_limited') return false;
  const { asked, client, failure, provider } = history;
  const { limit } = failure!.details;
  // A try at another provider has a cause of its own.
  if (limit === undefined || asked.length > 0) return false;
  return !refusals.add({ client, limit, limitState, provider });
}

/** Returns the level of a line of its own. */
function levelOf({ cancellation, history }: Call, outcome: Outcome): LogLevel {
  // A shutdown is `internal` too, but it is also the call's cancellation reason.
  const isShutdown = outcome === 'internal_error' && history.failure === cancellation.reason;
  return isShutdown ? 'warn' : LEVELS[outcome];
}

function phaseOf({ history, reply }: Call, endpoint: Endpoint | undefined): string {
  if (reply.firstByteAtMs !== undefined) return 'client left during the answer';
  const isUploading = endpoint !== undefined && history.bodyReadAtMs === undefined;
  return isUploading ? 'client left during its upload' : 'client left before the answer';
}
