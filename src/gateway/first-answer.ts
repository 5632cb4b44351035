/**
 * `POST /v1/chat/completions`, and the other endpoints whose requests name a model: reads the
 * request, and asks the candidates in turn until an answer begins.
 */

import type { Tenant, Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import type { ModelRequest } from '../protocol/model-request.ts';
import { soleHeader } from '../downstream/request-head.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { isOfTarget } from '../policy/circuit-breaker.ts';
import {
  type Attempt,
  waitedMsOf,
  MAX_NAME_CHARACTERS,
  type RequestHistory,
} from '../request/history.ts';
import { forwardedHeaders } from '../upstream/answers/headers.ts';
import { type NoSlot, type SlotQueue, waitForSlot } from '../policy/waiting.ts';
import { type Asking, askProvider, timeLimitMsOf } from './attempts.ts';
import { type Candidate, candidatesFor } from './candidates.ts';
import { Lease } from './lease.ts';
import type { Services } from './services.ts';

/**
 * Reads the request, and resolves with the lease of the first answer that begins. The
 * candidates are asked in order. If none has answered, the request waits for the candidates that
 * were full. The first candidate is asked last if its circuit is open. Rejects with `GatewayError`
 * or `ClientGone`. If all candidates fail, the failure of the first is reported. A refusal by a
 * content policy is reported at once. `tenant` is undefined if the key belongs to no client in the
 * settings.
 */
export async function firstAnswer(
  call: Call,
  services: Services,
  tenant: Tenant | undefined,
): Promise<Lease> {
  const { history } = call;
  const { maxBodyBytes, streamKeepaliveMs } = services.config.server;
  checkContentHeaders(call);
  const { traceId, headers: forwarded } = forwardedHeaders(call.id, call.headers);
  history.traceId = call.trace?.traceId ?? traceId;
  try {
    const modelRequest = await readRequest(call, tenant, maxBodyBytes);
    const candidates = candidatesFor(modelRequest.model, call, services, tenant);
    const first = candidates[0]!;
    history.provider = first.provider.id;
    call.beginAsking();
    if (modelRequest.stream && streamKeepaliveMs > 0) call.reply.keepAlive(streamKeepaliveMs);
    const hasOthers = candidates.length > 1;
    const asking = { call, modelRequest, first, hasOthers, forwarded, services };
    const result = await askProvider(first, asking);
    // A function of its own, because all variables of this function cost each request memory.
    return result instanceof Lease ? result : await askOthers(result, candidates, asking, tenant);
  } finally {
    call.requestBody.drop();
  }
}

/**
 * Asks the other candidates after the first one's failure, if it is a reason to. Resolves with the
 * lease of an answer, and rejects with the failure for the client.
 */
async function askOthers(
  firstAttempt: Attempt,
  candidates: readonly Candidate[],
  asking: Asking,
  tenant: Tenant | undefined,
): Promise<Lease> {
  const { call, first, services } = asking;
  const { history } = call;
  let result: Lease | Attempt = firstAttempt;
  if (goesOn(result, asking)) {
    for (const other of candidates.slice(1)) {
      const fallback = await askProvider(other, asking);
      if (fallback instanceof Lease) return fallback;
      // Nobody else is sent what a content policy has refused.
      if (fallback.failure?.details.problem === 'policy') {
        result = fallback;
        break;
      }
    }
    const full = goesOn(result, asking) ? fullOnes(candidates, history) : [];
    if (full.length > 0) {
      result = await askAfterWait(full, result, asking);
      if (result instanceof Lease) return result;
    }
  }
  if (result.outcome === 'circuit_open') {
    result = await askProvider(first, asking, 'last');
    if (result instanceof Lease) return result;
  }
  // If all providers were skipped, the request does not count for the tenant's limit.
  if (history.asked.length === 0) services.limiters.ofTenants.get(tenant?.name)!.refundRequest();
  history.provider = result.provider;
  history.attempt = result;
  throw result.failure!;
}

/** Returns the candidates that were skipped because they were full, and have a queue. */
function fullOnes(candidates: readonly Candidate[], { attempts }: RequestHistory): Candidate[] {
  const skipped = attempts.filter(
    ({ failure }) => failure?.details.limit === 'provider_concurrency',
  );
  return candidates.filter(
    (one) => one.provider.limiter.queue && skipped.some((attempt) => isAttemptOf(attempt, one)),
  );
}

/**
 * Waits for a slot of any of these candidates, and asks the candidate whose slot comes first. If
 * this attempt fails, the request waits for the other candidates in the rest of its time. Resolves
 * with the lease of an answer; else with the attempt whose failure is reported, which is
 * `beforeWait` unless a later attempt replaces it. Rejects with the reason if the call is
 * cancelled.
 */
async function askAfterWait(
  full: Candidate[],
  beforeWait: Attempt,
  asking: Asking,
): Promise<Lease | Attempt> {
  const { cancellation } = asking.call;
  let left = full;
  let reported = beforeWait;
  while (left.length > 0) {
    const next = await waitForOne(left, asking);
    if (typeof next === 'string') {
      cancellation.throwIfCancelled();
      noteNoSlot(reported, next);
      return reported;
    }
    left = left.filter((one) => one !== next);
    const result = await askProvider(next, asking, 'waited');
    if (result instanceof Lease) return result;
    // The lease of an asked candidate has released the slot.
    if (!result.wasAsked) next.provider.limiter.releaseSlot();
    if (result.failure?.details.problem === 'policy') return result;
    if (!isAttemptOf(result, asking.first)) continue;
    reported = result;
    if (!goesOn(result, asking)) return result;
  }
  return reported;
}

/** Waits for a slot of any of these candidates. Resolves with the candidate whose slot it is. */
async function waitForOne(
  candidates: readonly Candidate[],
  { call: { cancellation, history }, services }: Asking,
): Promise<Candidate | NoSlot> {
  const formerMs = waitedMsOf(history.waits);
  const beganAtMs = performance.now();
  const waitedMs = () => formerMs + performance.now() - beganAtMs;
  const atQueue = (queue: SlotQueue) => candidates.filter((one) => queueOf(one) === queue);
  const takesSlot = (queue: SlotQueue, isLast: boolean) => {
    const ones = atQueue(queue);
    // The candidates at a queue have the same provider, and so the same time limit.
    const hasTime = maxWaitMsOf(ones[0]!, services) > waitedMs();
    return hasTime && (isLast || ones.some(isUsable));
  };
  const longestMs = Math.max(...candidates.map((one) => maxWaitMsOf(one, services)));
  const maxMs = Math.min(services.config.server.queueTimeoutMs, longestMs) - formerMs;
  const request = { client: history.client, takesSlot };
  const queues = new Set(candidates.map(queueOf));
  // A slot that is free already is taken even if `queue_timeout` is used up.
  const result = await waitForSlot(queues, request, Math.max(0, maxMs), cancellation);
  if (result === 'full') return result;
  history.waits = [...history.waits, { beganAtMs, endedAtMs: performance.now() }];
  if (typeof result === 'string') return result;
  const ones = atQueue(result);
  return ones.find(isUsable) ?? ones[0]!;
}

/**
 * Half of the time limit, because the try has the rest of it. With less, a busy provider would
 * spend its slots on answers that come too late.
 */
function maxWaitMsOf(candidate: Candidate, services: Services): number {
  return timeLimitMsOf(candidate, services) / 2;
}

function queueOf({ provider }: Candidate): SlotQueue {
  return provider.limiter.queue!;
}

function isUsable(candidate: Candidate): boolean {
  return candidate.provider.breaker.stateOf(candidate) !== 'open';
}

const NO_SLOT = {
  over: 'the wait for a slot ended',
  full: 'its queue was full',
  replaced: 'another client took its place in the queue',
} as const satisfies Record<NoSlot, string>;

/** Adds to the limit in the access line why the request has got no slot. */
function noteNoSlot(attempt: Attempt, why: NoSlot): void {
  const { details, message } = attempt.failure ?? {};
  if (details?.limit !== 'provider_concurrency') return;
  const limitState = `${details.limitState}; ${NO_SLOT[why]}`;
  attempt.failure = new GatewayError('rateLimit', message!, { ...details, limitState });
}

/** Returns whether the attempt has asked this candidate or skipped it. */
function isAttemptOf(attempt: Attempt, { model, provider }: Candidate): boolean {
  return attempt.subject === provider.subject && attempt.model === model;
}

/**
 * Reads the request, and notes its members for the log. Rejects with `invalidRequest`. A separate
 * function, so that the frame of `firstAnswer` keeps no parser.
 */
function readRequest(
  call: Call,
  tenant: Tenant | undefined,
  maxBytes: number,
): Promise<ModelRequest> {
  const { history } = call;
  const { Parser, required } = history.endpoint;
  const parser = new Parser(tenant?.models === undefined, required);
  return call.readBody(maxBytes, {
    push: (chunk) => parser.push(chunk),
    finish(body) {
      history.requestBytes = body.size;
      history.bodyReadAtMs = performance.now();
      const modelRequest = parser.finish(body);
      const name = escapeControlCharacters(modelRequest.model, MAX_NAME_CHARACTERS);
      history.model = history.redactKey?.(name) ?? name;
      history.stream = modelRequest.stream;
      history.promptCacheKey = modelRequest.promptCacheKey;
      history.affinity = modelRequest.affinity;
      return modelRequest;
    },
  });
}

const JSON_TYPE = /^\s*application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;
const OTHER_CHARSET = /charset\s*=(?!\s*"?utf-?8"?\s*(?:;|$))/i;

/**
 * Throws unless the content type is JSON. A web page may send `text/plain` to localhost without a
 * preflight, but not JSON.
 */
function checkContentHeaders(call: Call): void {
  const encoding = call.headers['content-encoding'];
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    throw invalidRequest('Content-Encoding must be identity');
  }
  const type = soleHeader(call, 'content-type');
  if (type === undefined || !JSON_TYPE.test(type) || OTHER_CHARSET.test(type)) {
    throw invalidRequest('Content-Type must be application/json in UTF-8');
  }
}

/** Returns whether other candidates are asked after this attempt at the first candidate. */
function goesOn({ failure, outcome }: Attempt, { call, first, services }: Asking): boolean {
  return outcome === 'circuit_open' || isReasonToFallBack(failure!, first, call, services.config);
}

function isReasonToFallBack(
  failure: GatewayError,
  { isBalanced }: Candidate,
  { history: { endpoint } }: Call,
  { providers: { fallbackOn } }: Config,
): boolean {
  const { details, scope, status } = failure;
  const { limit, problem } = details;
  if (problem === 'policy' || problem === 'reference') return false;
  // The targets of a balanced alias are alike, and the gateway has chosen this target.
  if (isBalanced && isOfTarget(failure)) return true;
  // A provider's concurrency limit is a reason to ask another provider. Its rate limits are not.
  if (limit === 'provider' || limit === 'provider_requests_per_minute') return false;
  const isTransient = status >= 500 || status === 408 || status === 429;
  const lacksPath = endpoint.ownProtocol !== undefined && status === 404;
  const isOfProvider = scope !== 'client' && (isTransient || lacksPath);
  return problem === 'length' || isOfProvider || fallbackOn.includes(status);
}
