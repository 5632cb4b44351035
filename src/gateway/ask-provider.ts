/** One provider of a request: its keys, its retries, and each attempt with its record. */

import type { Call } from '../downstream/call.ts';
import { Attempt, type ChatRequest, isStream } from '../lib/attempt.ts';
import { Deadline, pause } from '../lib/cancellation.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { CircuitBreaker, Probe } from '../policy/circuit-breaker.ts';
import type { KeyPool } from '../policy/key-pool.ts';
import type { ProviderHealth } from '../policy/provider-health.ts';
import type { Limits } from '../policy/limits.ts';
import { sendAttempt } from '../upstream/send-attempt.ts';
import type { AttemptServices } from '../upstream/attempt-context.ts';
import type { Provider } from '../upstream/provider.ts';

/** A longer `Retry-After` is left to the client. */
const MAX_AWAITED_SECONDS = 30;
const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;

/** A provider, and the model to ask it for. */
export interface Candidate {
  readonly provider: Provider;
  readonly model: string;
  /** The gateway has chosen it among several that are alike. */
  readonly isBalanced?: boolean;
}

export interface SelectionServices extends AttemptServices {
  readonly logger: Logger;
  readonly breaker: CircuitBreaker;
  readonly limits: Limits;
  /** By the provider's id; absent if it has one key. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly health: ReadonlyMap<string, ProviderHealth>;
  /** The ids of providers that refuse to be asked for the tokens of streams. */
  readonly usageRefusals: Set<string>;
}

/** One request on its way through the candidates. */
export interface Selection {
  readonly call: Call;
  readonly chat: ChatRequest;
  /** The headers by which its trace goes on at providers, names and values in turn. */
  readonly tracing: readonly string[];
  /** Absent if there is one candidate: nobody else can be asked, and the circuit would have no effect. */
  readonly breaker: CircuitBreaker | undefined;
  readonly services: SelectionServices;
}

/**
 * Asks one provider, with retries if its circuit was closed, and with one key after the other until one is not refused.
 * Returns the attempt that has the answer, or says why there is none. Frees the slot and ends the probe: after a stream, else
 * at once.
 */
export async function askProvider(
  candidate: Candidate,
  state: 'closed' | 'open' | Probe,
  selection: Selection,
): Promise<Attempt> {
  const { breaker, call, chat, services } = selection;
  const { provider } = candidate;
  const keyPool = services.keyPools.get(provider.id);
  const probe = typeof state === 'object' ? state : undefined;
  const maxRetries = state === 'closed' ? provider.retries : 0;
  let reconnect = false;
  const wantsUsage = provider.streamUsage && !services.usageRefusals.has(provider.id);
  let isWithoutUsage = false;
  let isStreamed = false;
  try {
    for (let retries = 0; ;) {
      let chosen: Attempt | undefined;
      for (const key of keyPool?.keysToTry(call) ?? [0]) {
        // If the client repeated the request, it would be tried with all keys again.
        if (chosen) call.record.hasRetried = true;
        const cooldown = keyPool?.cooldownOf(key);
        const asksForUsage = wantsUsage && !isWithoutUsage;
        const how = { key: keyPool && key, reconnect, asksForUsage, onData: probe?.onData };
        const attempt = await makeAttempt(candidate, how, selection);
        const { failure } = attempt;
        if (!failure) keyPool?.recordSuccess(key, cooldown);
        const isRefused = failure && keyPool?.recordFailure(key, failure);
        // A 429 stays: unlike a 401 or 403 it ends, and another provider may be asked instead.
        const isWorse = failure?.status !== 429 && chosen?.failure?.status === 429;
        if (!isRefused || !isWorse) chosen = attempt;
        if (!isRefused) break;
      }
      const { answer, failure } = chosen!;
      if (!failure) {
        // A stream can fail until its end.
        if (!chat.stream) breaker?.recordOutcome(candidate, undefined);
        if (isWithoutUsage) {
          services.usageRefusals.add(provider.id);
          services.logger.log('warn', 'stream_usage refused', { provider: provider.id });
        }
        isStreamed = isStream(answer!.body);
        return chosen!;
      }
      if (chosen!.isUsageRefused) {
        // Only an answer to the same request without the member will tell that it was not the request.
        isWithoutUsage = true;
        continue;
      }
      const { repeatAtOnce, retryable, retryAfterSeconds = 0 } = failure.details;
      // Not a retry: a stale connection says nothing about the provider.
      if (repeatAtOnce && !reconnect) {
        reconnect = true;
        continue;
      }
      if (!retryable || retries === maxRetries || retryAfterSeconds > MAX_AWAITED_SECONDS) {
        breaker?.recordOutcome(candidate, failure);
        return chosen!;
      }
      retries += 1;
      call.record.hasRetried = true;
      // Exponential with equal jitter: half of the step and a random part of the other half.
      const stepMs = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** (retries - 1));
      const backoffMs = (stepMs / 2) * (1 + Math.random());
      await pause(Math.max(backoffMs, retryAfterSeconds * 1000), call.cancellation);
      call.cancellation.throwIfCancelled();
    }
  } finally {
    const release = () => {
      services.limits.ofProviders.get(provider.id)!.releaseSlot();
      probe?.end();
    };
    if (isStreamed) call.onFinish(release);
    else release();
  }
}

interface HowToAsk {
  readonly key: number | undefined;
  /** With a new connection. */
  readonly reconnect: boolean;
  /** For the tokens of a stream whose client does not ask for them. */
  readonly asksForUsage: boolean;
  readonly onData: (() => void) | undefined;
}

/** Returns the attempt, with its answer or its provider's failure. Throws failures that name no provider: nobody else is asked. */
async function makeAttempt(
  candidate: Candidate,
  { key, reconnect, asksForUsage, onData }: HowToAsk,
  { breaker, call, chat, tracing, services }: Selection,
): Promise<Attempt> {
  const { record } = call;
  const { provider, model } = candidate;
  const attempt = new Attempt(provider, model, key);
  const deadline = new Deadline(call.cancellation);
  const recordHealth = services.health.get(provider.id)!;
  record.tries.push(attempt);
  record.attempt = attempt;
  record.provider = provider.id;
  const recordEnd = (failure?: GatewayError | ClientGone) => {
    attempt.recordEnd(failure);
    logAttempt('try', attempt, call, services.logger);
  };
  // Both live as long as the stream, and must not capture `chat`: its body is often megabytes.
  const onStreamEnd = (failure?: GatewayError) => {
    if (failure) {
      record.failure = failure;
      recordEnd(failure);
    }
    recordHealth(failure);
    breaker?.recordOutcome(candidate, failure);
  };
  try {
    const withUsage = asksForUsage ? chat.askForUsage() : undefined;
    attempt.usageAdded = withUsage !== undefined;
    const request = provider.chatRequest(withUsage ?? chat, model, tracing, key);
    attempt.answer = await sendAttempt(
      { ...request, reservation: call.bodyReservation, isStream: chat.stream, reconnect },
      provider.timeoutMs,
      {
        attempt,
        headerNames: provider,
        call,
        services,
        isStream: chat.stream,
        deadline,
        onStreamEnd,
        onData,
      },
    );
    recordEnd();
    // A stream may still fail.
    if (!isStream(attempt.answer.body)) recordHealth(undefined);
  } catch (thrown) {
    const failure = thrown instanceof ClientGone ? thrown : GatewayError.from(thrown);
    recordEnd(failure);
    if (failure instanceof ClientGone) throw failure;
    recordHealth(failure);
    if (failure.details.provider === undefined) throw failure;
  }
  return attempt;
}

export function logAttempt(message: string, attempt: Attempt, { id }: Call, logger: Logger): void {
  if (!logger.isEnabled('debug')) return;
  const { connection, url, wasAsked } = attempt;
  const sent = wasAsked ? { url, connection } : {};
  logger.log('debug', message, { request_id: id, ...attempt.toFacts(), ...sent });
}
