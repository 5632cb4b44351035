/** Bytes pushed to a single reader, without a promise or a stream object for each chunk. */

import { ChunkBuffer } from '../chunk-buffer.ts';

/** The methods must not throw. */
export interface ByteSink {
  /** Returns false to stop the chunks until the source's `resume` is called. */
  write(chunk: Buffer): boolean;
  /** Called once after the last chunk, with an error if the bytes are incomplete. */
  end(error?: unknown): void;
}

export interface ByteSource {
  /** Called once. The chunks that have arrived come first. */
  start(sink: ByteSink): void;
  resume(): void;
}

/**
 * Calls `take` with each chunk, until `take` returns false or the source ends.
 *
 * @returns a promise for the end; nothing if the end came during the call, to save the promise
 * @throws the error from the source or from `take`; the promise rejects with it
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

/** Returns the body, or `undefined` if it is longer than `maxBytes`. Its rest is left unread. */
export async function readAll(source: ByteSource, maxBytes: number): Promise<Buffer | undefined> {
  const whole = new ChunkBuffer();
  await readEach(source, (chunk) => {
    whole.push(chunk);
    return whole.size <= maxBytes;
  });
  return whole.size > maxBytes ? undefined : whole.take();
}
