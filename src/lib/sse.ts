/** Splits, parses and encodes server-sent events as bytes (WHATWG HTML, 9.2). */

import { ChunkBuffer } from './chunk-buffer.ts';

export const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const COLON = 0x3a;
const SHORT_LINE_BYTES = 1024;
const BYTE_ORDER_MARK = '\u00ef\u00bb\u00bf';
/** No event field begins so. */
const CONTINUES_JSON = /^[\s"{}\],]/;

/** Headers that keep proxies from buffering and rewriting events. */
export const EVENT_STREAM_HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
};

export interface ServerSentEvent {
  readonly name: string;
  readonly data: string;
  /** The last JSON object or array on lines without a field name, or ''. */
  readonly bareJson: string;
}

/**
 * Returns the offset of the first line end from `from` on, or the length. A loop searches short
 * lines, because `indexOf` would read the whole chunk if it has no carriage return.
 */
export function endOfLine(bytes: Buffer, from: number): number {
  const near = Math.min(from + SHORT_LINE_BYTES, bytes.length);
  for (let at = from; at < near; at += 1) {
    if (bytes[at] === LINE_FEED || bytes[at] === CARRIAGE_RETURN) return at;
  }
  if (near === bytes.length) return near;
  const lineFeed = bytes.indexOf(LINE_FEED, near);
  const carriageReturn = bytes.indexOf(CARRIAGE_RETURN, near);
  const end = lineFeed < 0 ? bytes.length : lineFeed;
  return carriageReturn < 0 ? end : Math.min(carriageReturn, end);
}

/**
 * Splits a byte stream behind each event. A comment before an event counts as an event, so that it
 * is not held back.
 */
export class EventSplitter {
  readonly unfinished = new ChunkBuffer();
  #lineIsEmpty = true;
  #lineIsComment = false;
  /** `atEventEnd`: the line feed still belongs to the event before it. */
  #afterCarriageReturn: 'no' | 'inEvent' | 'atEventEnd' = 'no';
  #eventHasFields = false;
  /** True if the last chunk had event fields, not only comments and blank lines. */
  sawData = false;

  get isLineEndOpen(): boolean {
    return this.#afterCarriageReturn === 'atEventEnd';
  }

  /** Returns all complete events, and holds the unfinished one. */
  push(chunk: Buffer): Buffer {
    const boundary = this.#findBoundary(chunk);
    if (boundary === chunk.length && this.unfinished.size === 0) return chunk;
    if (boundary === 0) {
      this.unfinished.push(chunk);
      return chunk.subarray(0, 0);
    }
    this.unfinished.push(chunk.subarray(0, boundary));
    const whole = this.unfinished.take();
    if (boundary < chunk.length) this.unfinished.push(chunk.subarray(boundary));
    return whole;
  }

  /**
   * @returns the offset behind the event, from which the caller pushes the rest; 0 if the event
   * does not end in the chunk
   */
  pushToEnd(chunk: Buffer): number {
    const end = this.#findBoundary(chunk, true);
    this.unfinished.push(end === 0 ? chunk : chunk.subarray(0, end));
    return end;
  }

  /**
   * Returns the offset behind the last event in `chunk`, with `isFirst` behind the first, or 0.
   *
   * An event ends behind an empty line, and a comment before an event's first field behind its own
   * line. A carriage return ends a line at once; a line feed that follows, even in the next chunk,
   * belongs to the same line end.
   */
  #findBoundary(chunk: Buffer, isFirst = false): number {
    let boundary = 0;
    let lineIsEmpty = this.#lineIsEmpty;
    let lineIsComment = this.#lineIsComment;
    let eventHasFields = this.#eventHasFields;
    let afterCarriageReturn = this.#afterCarriageReturn;
    let sawData = !lineIsEmpty && !lineIsComment && chunk.length > 0;
    for (let at = 0; at < chunk.length; at += 1) {
      const byte = chunk[at]!;
      // The line feed of a CR LF that ends the first event is still read.
      if (isFirst && boundary > 0 && (byte !== LINE_FEED || afterCarriageReturn === 'no')) break;
      if (byte !== LINE_FEED && byte !== CARRIAGE_RETURN) {
        if (lineIsEmpty) {
          lineIsEmpty = false;
          lineIsComment = byte === COLON;
          if (!lineIsComment) eventHasFields = sawData = true;
          afterCarriageReturn = 'no';
        }
        at = endOfLine(chunk, at + 1) - 1;
        continue;
      }
      if (byte === LINE_FEED && afterCarriageReturn !== 'no') {
        if (afterCarriageReturn === 'atEventEnd') boundary = at + 1;
        afterCarriageReturn = 'no';
        continue;
      }
      afterCarriageReturn = byte === CARRIAGE_RETURN ? 'inEvent' : 'no';
      if (lineIsEmpty || (lineIsComment && !eventHasFields)) {
        boundary = at + 1;
        if (byte === CARRIAGE_RETURN) afterCarriageReturn = 'atEventEnd';
        if (eventHasFields) sawData = true;
        eventHasFields = false;
      }
      lineIsEmpty = true;
    }
    this.sawData = sawData;
    this.#lineIsEmpty = lineIsEmpty;
    this.#lineIsComment = lineIsComment;
    this.#eventHasFields = eventHasFields;
    this.#afterCarriageReturn = afterCarriageReturn;
    return boundary;
  }
}

/**
 * Parses whole events. llama.cpp's own field `error` becomes the data of an event `error`.
 *
 * @param isAtStart - skips a byte order mark
 * @returns the events; `start` is the offset of an event's first field, `end` the offset behind its
 * blank line
 */
export function* parseEvents(
  bytes: Buffer,
  isAtStart = false,
): Generator<ServerSentEvent & { readonly start: number; readonly end: number }> {
  const text = bytes.toString('latin1');
  // Latin-1 has one character for each byte, so offsets in the text are offsets in the bytes.
  const lineEnd = /\r\n|\n|\r/g;
  let name = '';
  let data: string[] = [];
  let errors: string[] = [];
  let bare: string[] = [];
  let start: number | undefined;
  let lineStart = isAtStart && text.startsWith(BYTE_ORDER_MARK) ? 3 : 0;
  for (const match of text.matchAll(lineEnd)) {
    const line = text.slice(lineStart, match.index);
    const end = match.index + match[0].length;
    if (line === '') {
      if (errors.length > 0) [name, data] = ['error', errors];
      if (start !== undefined) {
        yield { name, data: decode(data), bareJson: decode(bare), start, end };
      }
      name = '';
      [data, errors, bare] = [[], [], []];
      start = undefined;
    } else if (!line.startsWith(':')) {
      start ??= lineStart;
      const colon = line.indexOf(':');
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
      if (field === 'event') name = value;
      if (field === 'data') data.push(value);
      if (line.startsWith('error:')) errors.push(value);
      if (line[0] === '[' || (line[0] === '{' && !bare[0]?.startsWith('['))) bare = [line];
      else if (bare.length > 0 && CONTINUES_JSON.test(line)) bare.push(line);
    }
    lineStart = end;
  }
}

function decode(lines: string[]): string {
  return Buffer.from(lines.join('\n'), 'latin1').toString('utf8');
}

/** `data` is JSON or `[DONE]`, without line ends. */
export function encodeEvent(data: string): Buffer {
  return Buffer.from(`data: ${data}\n\n`);
}
