/** Writes log lines to a stream, in batches and with a bounded buffer, and counts those that are lost. */

import { writeSync } from 'node:fs';
import { Socket } from 'node:net';
import type { Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';

/** Log bytes buffered while the stream is not read; further lines are dropped. */
const MAX_BUFFERED_BYTES = 4_194_304;
const END_MS = 2000;
const END_CHECK_MS = 10;
const LINE_FEED = 10;

export type LineWriter = ReturnType<typeof createLineWriter>;

/** Writes a text. Calls `onEnd` with what was not written. */
type Write = (text: string, onEnd: (lost: string) => void) => void;

/**
 * Writes lines to `stream`. Lines of one turn of the event loop are written together, to save system calls.
 * Once lines are written again, `onDropped` receives the number of those that were lost meanwhile.
 */
export function createLineWriter(
  stream: Writable & { readonly fd?: number },
  onDropped: (lines: number) => void,
) {
  // Pipes and terminals are sockets (a terminal's writes block); the stream of a file does not tell how much was written.
  const descriptor = stream instanceof Socket ? undefined : stream.fd;
  const writeText: Write =
    descriptor === undefined
      ? (text, onEnd) => void stream.write(text, (error) => onEnd(error ? text : ''))
      : createFileWrite(descriptor);
  let lines = '';
  const unwritten: string[] = [];
  let droppedLines = 0;
  /** The dropped lines that `onDropped` was told of, and how many of these the written log tells of. */
  let reportedLines = 0;
  let confirmedLines = 0;
  const onEnd = (lost: string) => {
    unwritten.shift();
    if (lost !== '') {
      droppedLines += countLines(lost);
      reportedLines = confirmedLines;
      return;
    }
    confirmedLines = reportedLines;
    const count = droppedLines - reportedLines;
    if (count === 0 || unwritten.length > 0) return;
    reportedLines = droppedLines;
    onDropped(count);
  };
  const isPending = () => lines !== '' || unwritten.length > 0;
  const flush = () => {
    if (lines === '') return;
    const text = lines;
    lines = '';
    unwritten.push(text);
    writeText(text, onEnd);
  };
  process.on('exit', flush);
  return {
    /** Takes one line or several, each with its end. */
    write: (text: string) => {
      // One turn may log thousands of lines.
      if (stream.writableLength + lines.length > MAX_BUFFERED_BYTES) {
        droppedLines += countLines(text);
        return;
      }
      if (lines === '') setImmediate(flush);
      lines += text;
    },
    /** Since the start. */
    get droppedLines() {
      return droppedLines;
    },
    /** Waits until all is written, 2 s at most. Returns how many lost lines the written log does not tell of. */
    async end(): Promise<number> {
      const lastMs = performance.now() + END_MS;
      while (isPending() && performance.now() < lastMs) {
        flush();
        await sleep(END_CHECK_MS);
      }
      return droppedLines - confirmedLines + countLines(unwritten.join(''));
    },
  };
}

/** On a full disk only a part of a text is written. */
function createFileWrite(descriptor: number): Write {
  let isLineOpen = false;
  return (text, onEnd) => {
    const bytes = Buffer.from(text);
    let written = 0;
    try {
      if (isLineOpen) writeSync(descriptor, '\n');
      isLineOpen = false;
      while (written < bytes.length) written += writeSync(descriptor, bytes, written);
    } catch {
      isLineOpen ||= written > 0 && bytes[written - 1] !== LINE_FEED;
    }
    onEnd(bytes.toString('utf8', written));
  };
}

function countLines(text: string): number {
  return text.split('\n').length - 1;
}
