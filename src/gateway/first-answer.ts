/**
 * `POST /v1/chat/completions`, and the other endpoints whose requests name a model: reads the
 * request, and asks the candidates in turn until an answer begins.
 */

import type { Tenant, Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import type { ModelRequest } from '../protocol/model-request.ts';
import { soleHeader } from '../downstream/request-head.ts';
import { type GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { isOfTarget } from '../policy/circuit-breaker.ts';
import { type Attempt, MAX_NAME_CHARACTERS, type RequestHistory } from '../request/history.ts';
import { forwardedHeaders } from '../upstream/headers.ts';
import { waitForSlot } from '../policy/waiting.ts';
import { type Asking, askProvider } from './attempts.ts';
import { type Candidate, candidatesFor } from './candidates.ts';
import { Lease } from './lease.ts';
import type { Services } from './services.ts';

/**
 * Reads the request, and resolves with the lease of the first answer that begins. The
 * candidates are asked in order; the first candidate is asked last if its circuit is open. If none
 * has answered, the request waits for the candidates that were full. Rejects with `GatewayError` or
 * `ClientGone`. If all candidates fail, the failure of the first is reported. A refusal by a
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
    let asked = await askProvider(first, asking);
    if (asked instanceof Lease) return asked;
    const isPostponed = asked.outcome === 'circuit_open';
    if (isPostponed || isReasonToFallBack(asked.failure!, first, call, services.config)) {
      for (const other of candidates.slice(1)) {
        const fallback = await askProvider(other, asking);
        if (fallback instanceof Lease) return fallback;
        // Nobody else is sent what a content policy has refused.
        if (fallback.failure?.details.problem === 'policy') {
          asked = fallback;
          break;
        }
      }
    }
    if (asked.outcome === 'circuit_open') {
      asked = await askProvider(first, asking, 'last');
      if (asked instanceof Lease) return asked;
    }
    const full = fullOnes(candidates, history);
    if (full.length > 0 && isReasonToFallBack(asked.failure!, first, call, services.config)) {
      const waited = await askAfterWait(full, asking);
      if (waited instanceof Lease) return waited;
      if (waited && (isAt(first, waited) || waited.failure?.details.problem === 'policy')) {
        asked = waited;
      }
    }
    // If all providers were skipped, the request does not count for the tenant's limit.
    if (history.asked.length === 0) services.limiters.ofTenants.get(tenant?.name)!.refundRequest();
    history.provider = asked.provider;
    history.attempt = asked;
    throw asked.failure!;
  } finally {
    call.requestBody.drop();
  }
}

/** Returns the candidates that were skipped because they were full, and have a queue. */
function fullOnes(candidates: readonly Candidate[], { attempts }: RequestHistory): Candidate[] {
  const skipped = attempts.filter(
    ({ failure }) => failure?.details.limit === 'provider_concurrency',
  );
  return candidates.filter(
    (one) => one.provider.limiter.queue && skipped.some((attempt) => isAt(one, attempt)),
  );
}

/**
 * Waits for a slot of any of these candidates, and asks the candidate whose slot comes first.
 * Resolves as `askProvider` does; with undefined if no slot comes. Rejects with the reason if the
 * call is cancelled.
 */
async function askAfterWait(
  candidates: readonly Candidate[],
  asking: Asking,
): Promise<Lease | Attempt | undefined> {
  const { cancellation, history } = asking.call;
  const { queueTimeoutMs } = asking.services.config.server;
  const queues = new Set(candidates.map(({ provider }) => provider.limiter.queue!));
  const longestMs = Math.max(...candidates.map(({ provider }) => provider.timeoutMs));
  const maxMs = Math.min(queueTimeoutMs, longestMs);
  const beganAtMs = performance.now();
  const waiting = waitForSlot(queues, history.client, maxMs, cancellation);
  if (!waiting) return undefined;
  const granted = await waiting;
  history.wait = { beganAtMs, endedAtMs: performance.now() };
  const next = granted && candidates.find(({ provider }) => provider.limiter.queue === granted);
  if (!next) {
    cancellation.throwIfCancelled();
    return undefined;
  }
  const asked = await askProvider(next, asking, 'waited');
  const isSkipped = !(asked instanceof Lease) && !asked.wasAsked;
  if (isSkipped) next.provider.limiter.releaseSlot();
  return asked;
}

/** A skipped attempt counts too. */
function isAt({ model, provider }: Candidate, attempt: Attempt): boolean {
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
  const parser = new history.endpoint.Parser(tenant?.models === undefined);
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
  const lacksPath = endpoint.protocol !== undefined && status === 404;
  const isOfProvider = scope !== 'client' && (isTransient || lacksPath);
  return problem === 'length' || isOfProvider || fallbackOn.includes(status);
}
