/** Counters that the threads of the process share. With one worker there is one thread, and the code is the same. */

/** Blocks of memory by their names. A thread that is sent them finds the same memory by the same names. */
export type SharedBlocks = Map<string, SharedArrayBuffer>;

/** Which thread of the process this is. The main thread is number 0. */
export interface ThreadPlace {
  readonly thread: number;
  readonly threads: number;
}

export const ONLY_THREAD: ThreadPlace = { thread: 0, threads: 1 };

/** Each worker may have three successors while it still finishes its requests. */
export function placeOfMain(workers: number): ThreadPlace {
  return workers === 1 ? ONLY_THREAD : { thread: 0, threads: 1 + 4 * workers };
}

const IN_FLIGHT_PREFIX = 'in flight: ';

/** Blocks by name, for the life of the process: what has the same name after a reload goes on. */
export class SharedMemory {
  readonly place: ThreadPlace;
  /** A reload hands the main thread's new ones to the others. */
  blocks: SharedBlocks;

  constructor(place: ThreadPlace, blocks: SharedBlocks = new Map()) {
    this.place = place;
    this.blocks = blocks;
  }

  /** Returns the block of this name; only the main thread creates new ones, filled with zeros. */
  block(name: string, bytes: number): SharedArrayBuffer {
    const existing = this.blocks.get(name);
    // Its own would be shared with nobody.
    if (!existing && this.place.thread !== 0) throw new Error(`no shared memory for "${name}"`);
    const block = existing ?? new SharedArrayBuffer(bytes);
    this.blocks.set(name, block);
    return block;
  }

  /** Returns the counter of what is under way under this name: `reclaim` takes back what a thread leaves in it. */
  inFlightCounter(name: string, thread = this.place.thread): SharedCounter {
    return this.#counter(`${IN_FLIGHT_PREFIX}${name}`, thread);
  }

  /** Returns the counter of what has happened since the start. */
  totalCounter(name: string, thread = this.place.thread): SharedCounter {
    return this.#counter(`total: ${name}`, thread);
  }

  /** Takes back what a thread that has ended still had in flight. */
  reclaim(thread: number): void {
    for (const [name, block] of this.blocks) {
      if (!name.startsWith(IN_FLIGHT_PREFIX)) continue;
      const counter = new SharedCounter(block, thread);
      counter.add(-counter.own);
    }
  }

  #counter(name: string, thread: number): SharedCounter {
    return new SharedCounter(this.block(name, (1 + this.place.threads) * 8), thread);
  }
}

/** A number to which all threads add. */
export class SharedCounter {
  /** The sum, and then the part of each thread. */
  readonly #cells: BigInt64Array;
  readonly #ownCell: number;

  constructor(block: SharedArrayBuffer, thread: number) {
    this.#cells = new BigInt64Array(block);
    this.#ownCell = 1 + thread;
  }

  get value(): number {
    return Number(Atomics.load(this.#cells, 0));
  }

  /** This thread's part. */
  get own(): number {
    return Number(this.#cells[this.#ownCell]);
  }

  /** Returns the sum after it. */
  add(amount: number): number {
    const whole = BigInt(amount);
    this.#cells[this.#ownCell]! += whole;
    return Number(Atomics.add(this.#cells, 0, whole)) + amount;
  }

  /** Adds, unless the sum would be above `max`: then it returns false. Of several threads at once, no more than fit succeed. */
  addWithin(amount: number, max: number): boolean {
    const whole = BigInt(amount);
    let sum = Atomics.load(this.#cells, 0);
    for (;;) {
      if (Number(sum) + amount > max) return false;
      const found = Atomics.compareExchange(this.#cells, 0, sum, sum + whole);
      if (found === sum) break;
      sum = found;
    }
    this.#cells[this.#ownCell]! += whole;
    return true;
  }
}

/** Delays of the event loop, in milliseconds. */
export type LoopDelay = Readonly<Record<'mean' | 'p99' | 'max', number>>;

/** `performance.now()` counts from the start of its own thread. */
const threadStartMs = Number(process.hrtime.bigint()) / 1e6 - performance.now();

/** Milliseconds on a monotonic clock that is the same in all threads of the process. */
export function sharedNowMs(): number {
  return threadStartMs + performance.now();
}

/** The same in whole milliseconds, as shared counters need them. */
export function sharedNowWholeMs(): number {
  return Math.round(sharedNowMs());
}
