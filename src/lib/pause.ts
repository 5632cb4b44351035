/** A wait that can be cancelled. */

import { type Cancellation, startTimer } from './cancellation.ts';

/** Waits for `ms` milliseconds, or until `cancellation` is cancelled. */
export function pause(ms: number, cancellation: Cancellation): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      cancellation.offCancel(end);
      resolve();
    };
    const timer = startTimer(end, ms);
    cancellation.onCancel(end);
  });
}
