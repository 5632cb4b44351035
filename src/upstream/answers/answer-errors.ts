/** The errors for an answer that is empty or can never fit. */

import { GatewayError } from '../../lib/errors.ts';

/** SDKs repeat every 500, and the provider would charge for each repeated answer. */
const FINAL = { 'x-should-retry': 'false' };
/** 2,048 embeddings take 88 MB, and image models send a picture in one event. */
export const MAX_BYTES = { answer: 268_435_456, event: 67_108_864 } as const;

/**
 * Returns the error for a complete answer or an event that can never fit. Both limits are the
 * gateway's own, so the error counts against no provider, and no provider is asked again. Memory is
 * not short, so the error is no incident.
 */
export function tooLargeError(
  part: keyof typeof MAX_BYTES,
  maxBufferedBytes: number,
): GatewayError {
  const maxBytes = MAX_BYTES[part];
  const isOfBudget = maxBufferedBytes < maxBytes;
  const limit = isOfBudget ? `max_buffered_bytes, ${maxBufferedBytes}` : String(maxBytes);
  return new GatewayError('internal', `The ${part} is larger than ${limit} bytes`, {
    headers: FINAL,
  });
}

/**
 * Returns the error for an answer without content. The request is retried, because another answer
 * may have content.
 */
export function emptyAnswerError(reason?: string): GatewayError {
  const cause = reason && { cause: `finish_reason: ${reason}` };
  return new GatewayError('provider', 'the answer is empty', { retry: 'later', ...cause });
}
