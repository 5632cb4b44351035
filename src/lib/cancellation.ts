/** A minimal AbortSignal, a pause that it ends, and an attempt's deadline. */

/** The longest timer, 25 days: setTimeout fires at once if the delay is longer. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/** Calls setTimeout with at most `MAX_TIMER_MS`, because a sum of settings may be longer. */
export function startTimer(callback: () => void, ms: number): NodeJS.Timeout {
  return setTimeout(callback, Math.min(ms, MAX_TIMER_MS));
}

/** Resolves after `ms` milliseconds, or as soon as `cancellation` is cancelled. Never rejects. */
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
 * A cheaper AbortController and AbortSignal in one, because each request needs several, nearly
 * always with a single listener.
 */
export class Cancellation {
  reason: Error | undefined;
  #listeners = NONE;

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

  onCancel(listener: () => void): void {
    if (this.reason) listener();
    else this.#listeners = this.#listeners === NONE ? [listener] : [...this.#listeners, listener];
  }

  offCancel(listener: () => void): void {
    const listeners = this.#listeners;
    const isOnly = listeners.length === 1 && listeners[0] === listener;
    this.#listeners = isOnly ? NONE : listeners.filter((kept) => kept !== listener);
  }
}

const ABANDONED = new Error('the upstream request is no longer needed');

/** Cancels an upstream request when its time limit passes or when its client is cancelled. */
export class Deadline extends Cancellation {
  readonly #client: Cancellation | undefined;
  readonly #onClient = () => this.cancel(this.#client!.reason!);
  #timer: NodeJS.Timeout | undefined;
  #timerMs = 0;
  #armedAtMs = 0;
  #suspendedAtMs: number | undefined;
  /** Called only when the time limit passes, because an error captures a stack. */
  #createReason: (() => Error) | undefined;

  constructor(client?: Cancellation) {
    super();
    this.#client = client;
    client?.onCancel(this.#onClient);
  }

  /** Starts or restarts the time limit. With 0 there is no limit. */
  arm(ms: number, createReason: () => Error): void {
    this.#createReason = createReason;
    this.#armedAtMs = performance.now();
    this.#suspendedAtMs = undefined;
    // A stream re-arms its deadline for each event, and refreshing a timer is cheaper than creating
    // it.
    if (this.#timer && ms === this.#timerMs) this.#timer.refresh();
    else {
      clearTimeout(this.#timer);
      this.#timer = ms > 0 ? startTimer(() => this.#onTime(), ms) : undefined;
    }
    this.#timerMs = ms;
  }

  get suspendedMs(): number {
    return this.#suspendedAtMs === undefined ? 0 : performance.now() - this.#suspendedAtMs;
  }

  /** Called while a client does not read. */
  suspend(): void {
    this.#suspendedAtMs = performance.now();
  }

  /**
   * Continues the time limit after `suspend`, and cancels at once if no time is left. At most
   * `maxCountedMs` of the suspension count, because a provider that sends only comments would
   * otherwise never reach the limit if its client often pauses.
   */
  resume(maxCountedMs: number): void {
    if (this.#suspendedAtMs === undefined) return;
    const nowMs = performance.now();
    const uncountedMs = Math.max(0, nowMs - this.#suspendedAtMs - maxCountedMs);
    const leftMs = this.#timerMs - (nowMs - this.#armedAtMs) + uncountedMs;
    this.#suspendedAtMs = undefined;
    if (this.#timerMs === 0) return;
    // Cancels here, because a timer may not get its turn before the next `suspend`.
    if (leftMs <= 0) this.cancel(this.#createReason!());
    else if (uncountedMs > 0 || !this.#timer) this.arm(leftMs, this.#createReason!);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#client?.offCancel(this.#onClient);
  }

  abandon(): void {
    this.stop();
    this.cancel(ABANDONED);
  }

  #onTime(): void {
    this.#timer = undefined;
    if (this.#suspendedAtMs === undefined) this.cancel(this.#createReason!());
  }
}
