/** The circuits that have failures, in memory that all threads of the process share. */

import { randomBytes } from 'node:crypto';

import type { SharedMemory } from '../lib/shared-memory.ts';

/** Model names come from clients: the circuits that failed last are kept, and no names longer than this. */
const MAX_CIRCUITS = 1000;
export const MAX_NAME_CHARACTERS = 256;
const MAX_CAUSE_CHARACTERS = 256;

/** Indexes of the header's integers: the lock, how many slots are used, and the key of the hashes. */
const HOLDER = 0;
const USED = 1;
const KEY = 2;
const NOBODY = 0;

/** After the header come columns of numbers, and then the texts, in UTF-16: it keeps every string as it is. */
const LATEST_STAMP_AT = 16;
const HEADER_BYTES = LATEST_STAMP_AT + Float64Array.BYTES_PER_ELEMENT;
const COLUMNS = 7;
const COLUMN_BYTES = MAX_CIRCUITS * Float64Array.BYTES_PER_ELEMENT;
const TEXTS_AT = HEADER_BYTES + COLUMNS * COLUMN_BYTES;
const NAME_BYTES = MAX_NAME_CHARACTERS * 2;
const TEXT_BYTES = NAME_BYTES + MAX_CAUSE_CHARACTERS * 2;
const TABLE_BYTES = TEXTS_AT + MAX_CIRCUITS * TEXT_BYTES;

/** The lock is held for microseconds: who sleeps so often without being woken waits for a thread that died. */
const MAX_SLEEPS = 100;
const SLEEP_MS = 10;
/** Other threads may be faster each time that this one is woken. */
const MAX_WAKE_UPS = 10_000;

export interface Circuit {
  readonly provider: string;
  /** Absent for the provider itself. */
  readonly model: string | undefined;
  /** In a row. */
  readonly failures: number;
  /** Of the latest failure. */
  readonly cause: string | undefined;
  /** In milliseconds. */
  readonly restsUntilMs: number;
}

/** Everything but `size` and `releaseLock` is for tasks that `locked` runs. */
export class CircuitTable {
  readonly #header: Int32Array;
  readonly #latestStamp: Float64Array;
  readonly #self: number;
  /** A column, as the others: indexed by slot. */
  readonly failures: Float64Array;
  readonly restsUntilMs: Float64Array;
  /** The order of the latest failures. */
  readonly #stamps: Float64Array;
  readonly #hashes: Float64Array;
  readonly #idLengths: Float64Array;
  readonly #nameLengths: Float64Array;
  /** -1: there is no cause. */
  readonly #causeLengths: Float64Array;
  readonly #columns: readonly Float64Array[];
  readonly #texts: Buffer;

  /** A new table takes a megabyte of address space, and as much memory as is written to. */
  constructor(shared: SharedMemory) {
    const memory = shared.block('circuits', TABLE_BYTES);
    const column = (index: number) =>
      new Float64Array(memory, HEADER_BYTES + index * COLUMN_BYTES, MAX_CIRCUITS);
    this.#header = new Int32Array(memory, 0, KEY + 1);
    this.#latestStamp = new Float64Array(memory, LATEST_STAMP_AT, 1);
    this.#self = holderOf(shared.place.thread);
    this.failures = column(0);
    this.restsUntilMs = column(1);
    this.#stamps = column(2);
    this.#hashes = column(3);
    this.#idLengths = column(4);
    this.#nameLengths = column(5);
    this.#causeLengths = column(6);
    this.#columns = Array.from({ length: COLUMNS }, (_, index) => column(index));
    this.#texts = Buffer.from(memory, TEXTS_AT);
    // The first thread sets it, to any number but 0.
    Atomics.compareExchange(this.#header, KEY, 0, randomBytes(4).readInt32LE() | 1);
  }

  /** How many slots are used, from 0 on. May be read without the lock. */
  get size(): number {
    return Atomics.load(this.#header, USED);
  }

  /** Runs a short task while no other thread runs one. Returns undefined, without running it, if another one does not end. */
  locked<T>(task: () => T): T | undefined {
    if (!this.#lock()) return undefined;
    try {
      return task();
    } finally {
      this.#unlock();
    }
  }

  /** Returns the slot of the circuit; undefined if it has no failures. */
  find(name: string): number | undefined {
    if (name.length > MAX_NAME_CHARACTERS) return undefined;
    const hash = this.#hashOf(name);
    const hashes = this.#hashes;
    const used = this.size;
    for (let slot = 0; slot < used; slot += 1) {
      if (hashes[slot] === hash && this.#nameAt(slot) === name) return slot;
    }
    return undefined;
  }

  /** Returns the slot of the circuit whose latest failure is the oldest; undefined if there are free slots. */
  oldestIfFull(): number | undefined {
    if (this.size < MAX_CIRCUITS) return undefined;
    let oldest = 0;
    for (let slot = 1; slot < MAX_CIRCUITS; slot += 1) {
      if (this.#stamps[slot]! < this.#stamps[oldest]!) oldest = slot;
    }
    return oldest;
  }

  /** Takes a free slot, which there must be. The name begins with the provider's id, of `idLength` characters. */
  add(name: string, idLength: number): number {
    const slot = this.size;
    this.#hashes[slot] = this.#hashOf(name);
    this.failures[slot] = 0;
    this.#idLengths[slot] = idLength;
    this.#nameLengths[slot] = name.length;
    this.#texts.write(name, slot * TEXT_BYTES, 'utf16le');
    Atomics.store(this.#header, USED, slot + 1);
    return slot;
  }

  /** Counts a failure, and returns how many there are in a row. */
  recordFailure(slot: number, cause: string | undefined, restsUntilMs: number): number {
    // Not half of a character.
    const text = cause?.slice(0, MAX_CAUSE_CHARACTERS).replace(/\p{Surrogate}$/u, '');
    this.#texts.write(text ?? '', slot * TEXT_BYTES + NAME_BYTES, 'utf16le');
    this.#causeLengths[slot] = text?.length ?? -1;
    this.#stamps[slot] = this.#latestStamp[0]! += 1;
    this.restsUntilMs[slot] = restsUntilMs;
    return (this.failures[slot]! += 1);
  }

  /** Frees the slot, and moves the last one that is used there. */
  remove(slot: number): void {
    const last = this.size - 1;
    for (const column of this.#columns) column[slot] = column[last]!;
    this.#texts.copyWithin(slot * TEXT_BYTES, last * TEXT_BYTES, (last + 1) * TEXT_BYTES);
    Atomics.store(this.#header, USED, last);
  }

  /** The slots that are used, in the order of the latest failures. */
  slots(): number[] {
    const slots = Array.from({ length: this.size }, (_, slot) => slot);
    return slots.toSorted((a, b) => this.#stamps[a]! - this.#stamps[b]!);
  }

  read(slot: number): Circuit {
    const name = this.#nameAt(slot);
    const idLength = this.#idLengths[slot]!;
    const causeLength = this.#causeLengths[slot]!;
    return {
      provider: name.slice(0, idLength),
      model: name.length === idLength ? undefined : name.slice(idLength + 1),
      failures: this.failures[slot]!,
      cause:
        causeLength === -1 ? undefined : this.#textAt(slot * TEXT_BYTES + NAME_BYTES, causeLength),
      restsUntilMs: this.restsUntilMs[slot]!,
    };
  }

  /** Frees the lock, and all slots, if a thread that has ended held it. */
  releaseLock(thread: number): void {
    if (Atomics.load(this.#header, HOLDER) !== holderOf(thread)) return;
    // The slot that it was changing may be half written.
    Atomics.store(this.#header, USED, 0);
    this.#unlock();
  }

  #lock(): boolean {
    for (let sleeps = 0, wakeUps = 0; sleeps < MAX_SLEEPS && wakeUps < MAX_WAKE_UPS;) {
      const holder = Atomics.compareExchange(this.#header, HOLDER, NOBODY, this.#self);
      if (holder === NOBODY) return true;
      if (Atomics.wait(this.#header, HOLDER, holder, SLEEP_MS) === 'timed-out') sleeps += 1;
      else wakeUps += 1;
    }
    return false;
  }

  #unlock(): void {
    Atomics.store(this.#header, HOLDER, NOBODY);
    Atomics.notify(this.#header, HOLDER, 1);
  }

  /** Depends on the key, so that clients cannot make up names that share a hash. */
  #hashOf(name: string): number {
    const key = this.#header[KEY]!;
    let hash = key;
    for (let index = 0; index < name.length; index += 1) {
      hash = Math.imul(hash ^ name.charCodeAt(index), key);
      hash ^= hash >>> 15;
    }
    return hash;
  }

  #nameAt(slot: number): string {
    return this.#textAt(slot * TEXT_BYTES, this.#nameLengths[slot]!);
  }

  #textAt(offset: number, length: number): string {
    return this.#texts.toString('utf16le', offset, offset + length * 2);
  }
}

/** What a thread that holds the lock writes into the header. */
function holderOf(thread: number): number {
  return thread + 1;
}
