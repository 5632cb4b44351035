/** How long to wait between attempts at one provider. */

const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;

/**
 * Returns the wait before retry number `retries`, in milliseconds. Exponential with equal jitter: half of the step and a
 * random part of the other half.
 */
export function backoffMs(retries: number): number {
  const stepMs = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** (retries - 1));
  return (stepMs / 2) * (1 + Math.random());
}
