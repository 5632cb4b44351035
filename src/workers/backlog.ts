/** What workers have sent and the main thread has not taken yet: nothing else bounds it while that thread is kept from running. */

import type { SharedCounter, SharedMemory } from '../lib/shared-memory.ts';

const MAX_CHARACTERS = 4_194_304;
/** About as many as a finished request takes. */
const REQUEST_CHARACTERS = 1000;

interface Batch {
  readonly lines: string;
  readonly requests: readonly unknown[];
}

export class Backlog {
  readonly #characters: SharedCounter;
  readonly #lines: SharedCounter;
  readonly #requests: SharedCounter;

  constructor(memory: SharedMemory) {
    this.#characters = memory.totalCounter('characters on their way to the main thread');
    this.#lines = memory.totalCounter('log lines dropped by workers');
    this.#requests = memory.totalCounter('finished requests dropped by workers');
  }

  /** Since the start. */
  get droppedLines(): number {
    return this.#lines.value;
  }

  /** Since the start. */
  get droppedRequests(): number {
    return this.#requests.value;
  }

  get isFull(): boolean {
    return this.#characters.value > MAX_CHARACTERS;
  }

  dropLine(): void {
    this.#lines.add(1);
  }

  dropRequest(): void {
    this.#requests.add(1);
  }

  /** A worker sends it. */
  add(batch: Batch): void {
    this.#characters.add(charactersOf(batch));
  }

  /** The main thread has it. */
  take(batch: Batch): void {
    this.#characters.add(-charactersOf(batch));
  }
}

function charactersOf({ lines, requests }: Batch): number {
  return lines.length + requests.length * REQUEST_CHARACTERS;
}
