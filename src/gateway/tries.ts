/** The attempts of a request, and the providers that were passed over, as its access line tells them. */

import type { Call } from '../downstream/call.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { TryFacts } from '../lib/request-facts.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { AnswerFacts } from '../upstream/answer-facts.ts';
import type { AttemptFacts } from '../upstream/attempt.ts';
import { MAX_ECHOED_CHARACTERS, type Candidate } from './model-name.ts';
import { causeOf, outcomeOf } from './outcome.ts';

/** One attempt that is being made. */
export interface OpenTry {
  /** For the attempt to fill in. */
  readonly facts: AttemptFacts;
  /** Records its end. A stream that fails later ends a second time. */
  end(failure?: GatewayError | ClientGone): void;
}

/** Begins the record of an attempt. `key` is the index of the key that is sent, if the provider has several. */
export function beginTry(
  candidate: Candidate,
  call: Call,
  logger: Logger,
  key: number | undefined,
): OpenTry {
  const { record } = call;
  const facts: AttemptFacts = {
    status: undefined,
    upstreamRequestId: undefined,
    connection: undefined,
    answer: new AnswerFacts(),
  };
  const at = record.tries.length;
  const askedAtMs = performance.now();
  record.provider = candidate.provider.id;
  record.answeredTry = at;
  record.askedAtMs ??= askedAtMs;
  return {
    facts,
    end(failure) {
      const error = failure instanceof GatewayError ? failure : undefined;
      const before = record.tries[at];
      if (!before) record.answeredAtMs = performance.now();
      if (!failure) record.answer = facts.answer;
      const { status, connection, upstreamRequestId } = facts;
      const url = candidate.provider.chatUrl;
      const ended: TryFacts = {
        provider: candidate.provider.id,
        model: escapeControlCharacters(candidate.model, MAX_ECHOED_CHARACTERS),
        key: key === undefined ? undefined : key + 1,
        outcome: outcomeOf(failure),
        status,
        cause: error && causeOf(error),
        url: failure && url,
        upstream_request_id:
          upstreamRequestId && escapeControlCharacters(upstreamRequestId, MAX_ECHOED_CHARACTERS),
        duration_ms: before?.duration_ms ?? Math.round(record.answeredAtMs! - askedAtMs),
      };
      record.tries[at] = ended;
      if (logger.isEnabled('debug')) {
        logger.log('debug', 'try', { request_id: call.id, ...ended, url, connection });
      }
    },
  };
}

/** Records that a provider was not asked. */
export function recordPassedOver(
  candidate: Candidate,
  outcome: 'resting' | 'limit',
  call: Call,
  logger: Logger,
): void {
  const model = escapeControlCharacters(candidate.model, MAX_ECHOED_CHARACTERS);
  const passedOver: TryFacts = { provider: candidate.provider.id, model, outcome };
  call.record.tries.push(passedOver);
  logger.log('debug', 'provider passed over', { request_id: call.id, ...passedOver });
}
