/** A minimal AbortSignal, a wait that it ends, and the deadline of one attempt. */

/** 25 days. setTimeout fires at once beyond it. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/** As setTimeout; waits of more than `MAX_TIMER_MS`, such as sums of settings, end there. */
export function startTimer(callback: () => void, ms: number): NodeJS.Timeout {
  return setTimeout(callback, Math.min(ms, MAX_TIMER_MS));
}

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

const NONE: readonly (() => void)[] = [];

/**
 * AbortController and AbortSignal in one, without their cost: each request has several, each nearly
 * always with one listener.
 */
export class Cancellation {
  /** Set by `cancel` alone. */
  reason: Error | undefined;
  #listeners = NONE;

  /** Cancels and calls the listeners. Only the first call has an effect. */
  cancel(reason: Error): void {
    if (this.reason) return;
    this.reason = reason;
    const listeners = this.#listeners;
    this.#listeners = NONE;
    for (const listener of listeners) listener();
  }

  throwIfCancelled(): void {
    if (this.reason) throw this.reason;
  }

  /** Calls `listener` when it is cancelled, at once if it is already. */
  onCancel(listener: () => void): void {
    if (this.reason) listener();
    else this.#listeners = this.#listeners === NONE ? [listener] : [...this.#listeners, listener];
  }

  offCancel(listener: () => void): void {
    const listeners = this.#listeners;
    // The usual case needs no list.
    const isOnly = listeners.length === 1 && listeners[0] === listener;
    this.#listeners = isOnly ? NONE : listeners.filter((one) => one !== listener);
  }
}

const ABANDONED = new Error('the upstream request is no longer needed');

/**
 * Cancels one upstream request when its time limit passes, or when the client's request is
 * cancelled.
 */
export class Deadline extends Cancellation {
  readonly #client: Cancellation | undefined;
  readonly #onClient = () => this.cancel(this.#client!.reason!);
  #timer: NodeJS.Timeout | undefined;
  #timerMs = 0;
  #armedAtMs = 0;
  #suspendedAtMs: number | undefined;
  /** Creates the reason only if it is needed: an error captures a stack. */
  #createReason: (() => Error) | undefined;

  constructor(client?: Cancellation) {
    super();
    this.#client = client;
    client?.onCancel(this.#onClient);
  }

  /** (Re)starts the time limit: cancels in `ms` milliseconds with this reason. 0 means no limit. */
  arm(ms: number, createReason: () => Error): void {
    this.#createReason = createReason;
    this.#armedAtMs = performance.now();
    this.#suspendedAtMs = undefined;
    // A stream re-arms it for each event: refreshing a timer is cheaper than creating one.
    if (this.#timer && ms === this.#timerMs) this.#timer.refresh();
    else {
      clearTimeout(this.#timer);
      this.#timer = ms > 0 ? startTimer(() => this.#onTime(), ms) : undefined;
    }
    this.#timerMs = ms;
  }

  /** Suspends the time limit, until `resume` or `arm`. */
  suspend(): void {
    this.#suspendedAtMs = performance.now();
  }

  /**
   * Goes on after `suspend`: at most `maxCountedMs` of the time since then count. If nothing is
   * left, cancels at once.
   */
  resume(maxCountedMs: number): void {
    if (this.#suspendedAtMs === undefined) return;
    const nowMs = performance.now();
    const uncountedMs = Math.max(0, nowMs - this.#suspendedAtMs - maxCountedMs);
    const leftMs = this.#timerMs - (nowMs - this.#armedAtMs) + uncountedMs;
    this.#suspendedAtMs = undefined;
    if (this.#timerMs === 0) return;
    // Not left to a timer, which may not get its turn before the next `suspend`.
    if (leftMs <= 0) this.cancel(this.#createReason!());
    else if (uncountedMs > 0 || !this.#timer) this.arm(leftMs, this.#createReason!);
  }

  /** Clears the timer, and no longer follows the client. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#client?.offCancel(this.#onClient);
  }

  /** Also cancels the upstream request. */
  abandon(): void {
    this.stop();
    this.cancel(ABANDONED);
  }

  #onTime(): void {
    this.#timer = undefined;
    if (this.#suspendedAtMs === undefined) this.cancel(this.#createReason!());
  }
}
