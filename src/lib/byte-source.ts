/** Bytes that are pushed to one reader, without a promise or a stream object for each chunk. */

import { ChunkBuffer } from './chunk-buffer.ts';

/** Neither method throws. */
export interface ByteSink {
  /**
   * Takes a chunk. After it has returned false, no other comes before the source's `resume` is
   * called.
   */
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

/**
 * Calls `take` with each chunk until it returns false. Resolves then or at the end, and rejects
 * with the source's error, or with what `take` throws. Without a promise if all has come: returns
 * nothing, or throws.
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

/**
 * Returns the whole body, or `undefined` if it is longer than `maxBytes`; what follows is left
 * unread.
 */
export async function readAll(source: ByteSource, maxBytes: number): Promise<Buffer | undefined> {
  const whole = new ChunkBuffer();
  await readEach(source, (chunk) => {
    whole.push(chunk);
    return whole.size <= maxBytes;
  });
  return whole.size > maxBytes ? undefined : whole.take();
}
