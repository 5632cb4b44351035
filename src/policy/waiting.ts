/** Requests that wait for a slot of a provider: clients take turns, each in order of arrival. */

import { type Cancellation, startTimer } from '../lib/cancellation.ts';

/** The requests in flight under a concurrency limit. */
export interface Slots {
  inFlight: number;
  /** Undefined unless requests may wait for a slot. */
  queue: SlotQueue | undefined;
}

/**
 * Why a request gets no slot: its time is over (or it was cancelled), all its queues were full, or
 * other clients have taken its places.
 */
export type NoSlot = 'over' | 'full' | 'replaced';

/** A request that waits for a slot. */
interface WaitingRequest {
  readonly client: string | undefined;
  /**
   * Called for a free slot of a queue. With false the request leaves this queue, and the slot goes
   * to the next. `isLast`: the request waits in no other queue.
   */
  takesSlot(queue: SlotQueue, isLast: boolean): boolean;
}

/** A request in one or several queues. */
interface Waiter extends WaitingRequest {
  readonly queues: Set<SlotQueue>;
  /** Ends the wait in all queues, with the queue whose slot the request has got. */
  end: (result: SlotQueue | NoSlot) => void;
}

/**
 * While a request waits, no slot is free, because `grant` is called for each slot that becomes
 * free.
 */
export class SlotQueue {
  /** By client, in order of arrival. No set is empty. */
  readonly #waiters = new Map<string | undefined, Set<Waiter>>();
  /** By client, the number of its latest turn, also while it does not wait. */
  readonly #turns = new Map<string | undefined, number>();
  #turn = 0;
  readonly #slots: Slots;
  #max = Infinity;
  #maxWaiting = 0;
  #size = 0;

  constructor(slots: Slots) {
    this.#slots = slots;
  }

  get size(): number {
    return this.#size;
  }

  /**
   * Requests that wait already keep their places. Turns are forgotten, because the settings may no
   * longer have their clients.
   */
  configure(max: number, maxWaiting: number): void {
    this.#turns.clear();
    this.#max = max;
    this.#maxWaiting = maxWaiting;
    this.grant();
  }

  grant(): void {
    while (this.#size > 0 && this.#slots.inFlight < this.#max) {
      const [waiter] = this.#nextWaiters();
      if (!waiter!.takesSlot(this, waiter!.queues.size === 1)) {
        this.#dismiss(waiter!, 'over');
        continue;
      }
      this.#turn += 1;
      this.#turns.set(waiter!.client, this.#turn);
      this.#slots.inFlight += 1;
      waiter!.end(this);
    }
  }

  add(waiter: Waiter): void {
    if (this.#size >= this.#maxWaiting && !this.#makeRoom(waiter.client)) return;
    const waiters = this.#waiters.get(waiter.client) ?? new Set();
    this.#waiters.set(waiter.client, waiters.add(waiter));
    this.#size += 1;
    waiter.queues.add(this);
  }

  remove(waiter: Waiter): void {
    const waiters = this.#waiters.get(waiter.client)!;
    waiters.delete(waiter);
    if (waiters.size === 0) this.#waiters.delete(waiter.client);
    this.#size -= 1;
    waiter.queues.delete(this);
  }

  /** Returns the requests of the client whose latest turn is the longest ago. */
  #nextWaiters(): Set<Waiter> {
    const turnOf = (client: string | undefined) => this.#turns.get(client) ?? 0;
    const [next] = [...this.#waiters].toSorted(([a], [b]) => turnOf(a) - turnOf(b));
    return next![1];
  }

  /**
   * Takes a place of a full queue from the client with the most, if it then still has as many as
   * `client`. Its latest request gives way.
   */
  #makeRoom(client: string | undefined): boolean {
    // A reload may have made the queue shorter than it is.
    if (this.#size > this.#maxWaiting) return false;
    const [longest] = [...this.#waiters.values()].toSorted((a, b) => b.size - a.size);
    const own = this.#waiters.get(client)?.size ?? 0;
    if (!longest || longest.size < own + 2) return false;
    const latest = [...longest].at(-1)!;
    this.#dismiss(latest, 'replaced');
    return true;
  }

  /** Ends the wait if the request waits in no other queue. */
  #dismiss(waiter: Waiter, why: NoSlot): void {
    this.remove(waiter);
    if (waiter.queues.size === 0) waiter.end(why);
  }
}

/**
 * Waits in all `queues` with room, `maxMs` at most. Resolves with the queue whose slot the request
 * now holds, or with the reason for no slot: at once with `full` if no queue has room. Never
 * rejects.
 */
export function waitForSlot(
  queues: Iterable<SlotQueue>,
  request: WaitingRequest,
  maxMs: number,
  cancellation: Cancellation,
): Promise<SlotQueue | NoSlot> {
  const waiter: Waiter = { ...request, queues: new Set(), end() {} };
  for (const queue of queues) queue.add(waiter);
  if (waiter.queues.size === 0) return Promise.resolve('full');
  return new Promise((resolve) => {
    const giveUp = () => waiter.end('over');
    const timer = startTimer(giveUp, maxMs);
    waiter.end = (result) => {
      clearTimeout(timer);
      cancellation.offCancel(giveUp);
      for (const queue of waiter.queues) queue.remove(waiter);
      resolve(result);
    };
    cancellation.onCancel(giveUp);
    // A slot may have become free since the request found none.
    for (const queue of waiter.queues) queue.grant();
  });
}
