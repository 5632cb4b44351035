/** Bytes that are pushed, chunk by chunk, to one reader: without a promise or a stream object for each chunk. */

import { collectGarbage } from './byte-budget.ts';
import { ChunkBuffer } from './chunk-buffer.ts';

const BYTES_PER_TURN = 65_536;
/** Cost of a chunk beside its bytes: in chunks of one byte, 64 KiB would take a quarter of a second. */
const BYTES_PER_CHUNK = 64;
/** With all of 300 bodies in each turn, a small request would wait for seconds. */
const BODIES_PER_TURN = 4;
/** Collecting the youngest objects takes 0.3 ms. */
const BYTES_PER_COLLECTION = 8_388_608;

/** Neither method throws. */
export interface ByteSink {
  /** Takes a chunk. After it has returned false, only one closing chunk may come before the source's `resume` is called. */
  write(chunk: Buffer): boolean;
  /** Called once, after the last chunk; with an error if more should have come. */
  end(error?: unknown): void;
}

export interface ByteSource {
  /** Hands over what has come, and then what comes. Called once. */
  start(sink: ByteSink): void;
  /** Goes on after `write` has returned false. */
  resume(): void;
}

/** A source whose reader may want no more. */
export interface ByteStream extends ByteSource {
  /** Ends it if it has not ended. */
  cancel(): void;
}

/** Hands over the chunks of an iterable as fast as they are taken, in turns with everything else. `cancel` also ends one that was not begun. */
export function fromIterable(chunks: AsyncIterable<Buffer>): ByteStream {
  let isWanted = true;
  let isBegun = false;
  let resume = () => {};
  const turn = new TurnLimit();
  const handOver = async (sink?: ByteSink) => {
    isBegun = true;
    for await (const chunk of chunks) {
      const isTaken = !isWanted || sink?.write(chunk);
      if (!isTaken) await new Promise<void>((resolve) => (resume = resolve));
      if (turn.spend(chunk.length)) await nextTurn();
      if (!isWanted) return;
    }
  };
  return {
    start: (sink) =>
      void handOver(sink).then(
        () => sink.end(),
        (error: unknown) => sink.end(error),
      ),
    resume: () => resume(),
    cancel() {
      isWanted = false;
      resume();
      // `return` would not run the `finally` of a generator that has not begun: it is begun, and ended at its first chunk.
      if (!isBegun) handOver().catch(() => {});
    },
  };
}

/**
 * Calls `take` with each chunk until it returns false. Resolves then or at the end, and rejects with the source's error,
 * or with what `take` throws. Without a promise if all has come: returns nothing, or throws.
 */
export function readEach(
  source: ByteSource,
  take: (chunk: Buffer) => boolean,
): Promise<void> | undefined {
  let isOver = false;
  let failure: unknown;
  let settle = (error?: unknown) => {
    isOver = true;
    failure = error;
  };
  source.start({
    write(chunk) {
      try {
        if (take(chunk)) return true;
        settle();
      } catch (error) {
        settle(error);
      }
      return false;
    },
    end: (error) => settle(error),
  });
  if (failure) throw failure;
  if (isOver) return undefined;
  return new Promise((resolve, reject) => {
    settle = (error) => (error ? reject(error) : resolve());
  });
}

/** Returns the whole body, or `undefined` if it is longer than `maxBytes`; what follows is left unread. */
export async function readAll(source: ByteSource, maxBytes: number): Promise<Buffer | undefined> {
  const whole = new ChunkBuffer();
  await readEach(source, (chunk) => {
    whole.push(chunk);
    return whole.size <= maxBytes;
  });
  return whole.size > maxBytes ? undefined : whole.take();
}

/** Bytes that were read or copied, to be passed on or dropped, since garbage was collected. */
let passedBytes = 0;

/** Says when to yield to the event loop: one turn could otherwise process megabytes. */
export class TurnLimit {
  #bytes = 0;

  /** Adds a chunk of so many bytes. Returns true if further chunks should wait for `onNextTurn`. Collects garbage now and then. */
  spend(bytes: number): boolean {
    passedBytes += bytes;
    if (passedBytes >= BYTES_PER_COLLECTION) {
      passedBytes = 0;
      collectGarbage({ type: 'minor' });
    }
    this.#bytes += bytes + BYTES_PER_CHUNK;
    if (this.#bytes < BYTES_PER_TURN) return false;
    this.#bytes = 0;
    return true;
  }
}

/** In order of arrival. */
const waiting: (() => void)[] = [];

/** Calls `goOn`, which must not throw, in the next turn; later if there are other bodies that wait. */
export function onNextTurn(goOn: () => void): void {
  if (waiting.push(goOn) === 1) setImmediate(beginTurn);
}

export function nextTurn(): Promise<void> {
  return new Promise(onNextTurn);
}

function beginTurn(): void {
  const bodies = waiting.slice(0, BODIES_PER_TURN);
  for (const goOn of bodies) goOn();
  // Only now: a body that waits again meanwhile must not begin the turn after this one a second time.
  waiting.splice(0, bodies.length);
  if (waiting.length > 0) setImmediate(beginTurn);
}
