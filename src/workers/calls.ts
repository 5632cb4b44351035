/** Questions that are under way to another thread. */

import { startTimer } from '../lib/clock.ts';

export class Calls<Reply> {
  readonly #waiting = new Map<number, (reply: Reply | undefined) => void>();
  #last = 0;

  /** Sends a question with a number of its own. Resolves with its reply; with undefined after `limitMs`, or if the other thread ends. */
  async ask(send: (call: number) => void, limitMs: number): Promise<Reply | undefined> {
    this.#last += 1;
    const call = this.#last;
    const limit = startTimer(() => this.settle(call, undefined), limitMs);
    const reply = new Promise<Reply | undefined>((resolve) => this.#waiting.set(call, resolve));
    send(call);
    try {
      return await reply;
    } finally {
      clearTimeout(limit);
    }
  }

  settle(call: number, reply: Reply | undefined): void {
    this.#waiting.get(call)?.(reply);
    this.#waiting.delete(call);
  }

  /** The other thread has ended. */
  end(): void {
    for (const call of this.#waiting.keys()) this.settle(call, undefined);
  }
}
