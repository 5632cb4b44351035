/** Writes log lines to a stream, in batches and with a bounded buffer, and counts lost lines. */

import { writeSync } from 'node:fs';
import { Socket } from 'node:net';
import type { Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';

import { LINE_FEED } from './sse.ts';

/** Further lines are dropped while the stream is not read. */
const MAX_BUFFERED_BYTES = 4_194_304;
const END_MS = 2000;
const END_CHECK_MS = 10;

/** `lost` is the unwritten rest, '' on success. */
type Write = (text: string, onEnd: (lost: string, error?: Error) => void) => void;

interface Events {
  /** Called once lines are written again. */
  readonly onDropped: (lines: number) => void;
  readonly onLost: (cause: string) => void;
}

/** Lines from the same turn of the event loop share a write, to save system calls. */
export class LineWriter {
  readonly #stream: Writable;
  readonly #events: Events;
  readonly #writeText: Write;
  #lines = '';
  readonly #unwritten: string[] = [];
  #droppedLines = 0;
  /** Lines that `onDropped` has reported, in a log line that may be dropped in turn. */
  #reportedLines = 0;
  #confirmedLines = 0;

  constructor(stream: Writable & { readonly fd?: number }, events: Events) {
    this.#stream = stream;
    this.#events = events;
    // Pipes and terminals are sockets (writes to a terminal block). A file is written through its
    // descriptor, because its stream does not report how much it wrote.
    const descriptor = stream instanceof Socket ? undefined : stream.fd;
    this.#writeText =
      descriptor === undefined
        ? (text, onEnd) =>
            void stream.write(text, (error) => onEnd(error ? text : '', error ?? undefined))
        : createFileWrite(descriptor);
    process.on('exit', this.#flush);
  }

  /** Bound to the writer, because the log gets the function alone. Each line has its line end. */
  readonly write = (text: string): void => {
    // Counts this turn's lines too, because a turn may log thousands.
    if (this.#stream.writableLength + this.#lines.length > MAX_BUFFERED_BYTES) {
      this.#droppedLines += countLines(text);
      this.#events.onLost('standard output is not read');
      return;
    }
    if (this.#lines === '') setImmediate(this.#flush);
    this.#lines += text;
  };

  get droppedLines(): number {
    return this.#droppedLines;
  }

  /** @returns how many lost lines the written log does not report */
  async end(): Promise<number> {
    const lastAtMs = performance.now() + END_MS;
    while (this.#isPending && performance.now() < lastAtMs) {
      this.#flush();
      await sleep(END_CHECK_MS);
    }
    return this.#droppedLines - this.#confirmedLines + countLines(this.#unwritten.join(''));
  }

  get #isPending(): boolean {
    return this.#lines !== '' || this.#unwritten.length > 0;
  }

  readonly #flush = (): void => {
    if (this.#lines === '') return;
    const text = this.#lines;
    this.#lines = '';
    this.#unwritten.push(text);
    this.#writeText(text, this.#onEnd);
  };

  readonly #onEnd = (lost: string, error?: Error): void => {
    this.#unwritten.shift();
    if (lost !== '') {
      this.#droppedLines += countLines(lost);
      // The lost text may have contained a report, so its lines are reported again.
      this.#reportedLines = this.#confirmedLines;
      this.#events.onLost(error?.message ?? 'standard output takes no more');
      return;
    }
    this.#confirmedLines = this.#reportedLines;
    const count = this.#droppedLines - this.#reportedLines;
    if (count === 0 || this.#unwritten.length > 0) return;
    this.#reportedLines = this.#droppedLines;
    this.#events.onDropped(count);
  };
}

/** A full disk may take only the first part of a text, so the next text begins on a new line. */
function createFileWrite(descriptor: number): Write {
  let isLineOpen = false;
  return (text, onEnd) => {
    const bytes = Buffer.from(text);
    let written = 0;
    let failure: Error | undefined;
    try {
      if (isLineOpen) writeSync(descriptor, '\n');
      isLineOpen = false;
      while (written < bytes.length) written += writeSync(descriptor, bytes, written);
    } catch (error) {
      failure = error as Error;
      isLineOpen ||= written > 0 && bytes[written - 1] !== LINE_FEED;
    }
    onEnd(bytes.toString('utf8', written), failure);
  };
}

function countLines(text: string): number {
  return text.split('\n').length - 1;
}
