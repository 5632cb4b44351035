/** The time limit of one attempt, tied to the client: whichever ends first aborts the upstream request. */
export class Deadline {
  readonly #controller = new AbortController();
  readonly #client: AbortSignal;
  readonly #onClientAbort = () => this.#controller.abort(this.#client.reason);
  #timer: NodeJS.Timeout | undefined;

  /** `client` aborts when the client leaves or the gateway gives up the request. */
  constructor(client: AbortSignal) {
    this.#client = client;
    if (client.aborted) this.#onClientAbort();
    else client.addEventListener('abort', this.#onClientAbort, { once: true });
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** (Re)starts the clock: after `ms` the signal aborts with `reason`. 0 means no limit. */
  arm(ms: number, reason: Error): void {
    this.disarm();
    if (ms > 0) this.#timer = setTimeout(() => this.#controller.abort(reason), ms);
  }

  disarm(): void {
    clearTimeout(this.#timer);
  }

  /** Lets go of the timer and the client. `abandon` also aborts what is still going on upstream. */
  end({ abandon = false } = {}): void {
    this.disarm();
    this.#client.removeEventListener('abort', this.#onClientAbort);
    if (abandon) this.#controller.abort();
  }
}
