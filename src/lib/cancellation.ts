/** Who gives up what and when: a client's request, and the tries at providers that serve it. */

/**
 * What AbortController and AbortSignal are, for one request: those take 8 µs on Node 20, and each of their
 * listeners another, and a request has several.
 */
export class Cancellation {
  #reason: Error | undefined;
  readonly #listeners: (() => void)[] = [];

  /** Why it was cancelled, or `undefined` where it was not. */
  get reason(): Error | undefined {
    return this.#reason;
  }

  /** Gives up. Only the first reason counts. */
  cancel(reason: Error): void {
    if (this.#reason) return;
    this.#reason = reason;
    for (const listener of this.#listeners.splice(0)) listener();
  }

  throwIfCancelled(): void {
    if (this.#reason) throw this.#reason;
  }

  /** Calls back when it is cancelled, at once where it was. */
  onCancel(listener: () => void): void {
    if (this.#reason) listener();
    else this.#listeners.push(listener);
  }

  offCancel(listener: () => void): void {
    const at = this.#listeners.indexOf(listener);
    if (at >= 0) this.#listeners.splice(at, 1);
  }
}

const ABANDONED = new Error('nobody waits for the answer any more');

/** The time limit of one attempt, tied to the client: whichever ends first cancels the upstream request. */
export class Deadline extends Cancellation {
  readonly #client: Cancellation | undefined;
  readonly #onClient = () => this.cancel(this.#client!.reason!);
  #timer: NodeJS.Timeout | undefined;
  #timerMs = 0;
  /** Made when it is needed: an error takes 5 µs. Absent while the clock is stopped. */
  #createReason: (() => Error) | undefined;

  /** `client` is cancelled when the client leaves or the gateway gives up the request. */
  constructor(client?: Cancellation) {
    super();
    this.#client = client;
    client?.onCancel(this.#onClient);
  }

  /** (Re)starts the clock: `ms` later it cancels with this reason. 0 means no limit. */
  arm(ms: number, createReason: () => Error): void {
    this.#createReason = createReason;
    if (ms !== this.#timerMs) this.#clear();
    this.#timerMs = ms;
    // A stream does this for each event: refreshing is an order cheaper than another timer.
    if (ms > 0) this.#timer = this.#timer?.refresh() ?? setTimeout(() => this.#onTime(), ms);
  }

  disarm(): void {
    this.#createReason = undefined;
  }

  /** Lets go of the timer and the client. `abandon` also gives up what is still going on upstream. */
  end({ abandon = false } = {}): void {
    this.#clear();
    this.#client?.offCancel(this.#onClient);
    if (abandon) this.cancel(ABANDONED);
  }

  #onTime(): void {
    this.#timer = undefined;
    if (this.#createReason) this.cancel(this.#createReason());
  }

  #clear(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }
}
