/** Server-sent events as bytes: splitting, parsing, encoding (WHATWG HTML, 9.2). */

import { ChunkBuffer } from './chunk-buffer.ts';

export const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const COLON = 0x3a;
/** The part of a line that is searched in a loop. */
const SHORT_LINE_BYTES = 1024;
/** As latin1. */
const BYTE_ORDER_MARK = '\u00ef\u00bb\u00bf';
/** No field of an event begins so. */
const CONTINUES_JSON = /^[\s"{}\],]/;

/** Proxies must neither buffer nor rewrite events. */
export const EVENT_STREAM_HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
};

export interface ServerSentEvent {
  readonly name: string;
  readonly data: string;
  /** The last lines that are no fields but an object or an array of JSON; '' if there are none. */
  readonly bareJson: string;
}

/**
 * Returns the offset of the first line feed or carriage return from `from` on, or the length if
 * there is none. Node searches long lines, and a loop short ones: the search for a carriage return
 * that is not there reads all of the chunk, for each line.
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
 * Splits a byte stream where events end, with any of the three line ends. A comment before an event
 * is one: it is not held back.
 */
export class EventSplitter {
  /** The unfinished event. */
  readonly unfinished = new ChunkBuffer();
  #lineIsEmpty = true;
  #lineIsComment = false;
  /**
   * After a carriage return, a line feed is skipped; `atEventEnd`: it belongs to the event that has
   * just ended.
   */
  #afterCarriageReturn: 'no' | 'inEvent' | 'atEventEnd' = 'no';
  #eventHasFields = false;
  /** The last `push` had a part of an event, and not only comments and blank lines. */
  sawData = false;

  /**
   * The last byte was a carriage return that ended an event: a line feed that comes next belongs to
   * that event.
   */
  get isLineEndOpen(): boolean {
    return this.#afterCarriageReturn === 'atEventEnd';
  }

  /** Takes a chunk. Returns all events that are now whole, and holds the unfinished one. */
  push(chunk: Buffer): Buffer {
    const boundary = this.#findBoundary(chunk);
    // Most chunks hold whole events only.
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
   * Takes a chunk up to the end of the unfinished event, which stays in `unfinished`.
   *
   * @returns the offset behind that end, from which the caller pushes the rest; 0 if all of the
   * chunk belongs to the event
   */
  pushToEnd(chunk: Buffer): number {
    const end = this.#findBoundary(chunk, true);
    this.unfinished.push(end === 0 ? chunk : chunk.subarray(0, end));
    return end;
  }

  /**
   * The offset after the last event end in `chunk`, or 0. With `isFirst` the first one, and nothing
   * behind it is read.
   */
  #findBoundary(chunk: Buffer, isFirst = false): number {
    let boundary = 0;
    // Local copies: this loop runs for each byte of a short line.
    let lineIsEmpty = this.#lineIsEmpty;
    let lineIsComment = this.#lineIsComment;
    let eventHasFields = this.#eventHasFields;
    let afterCarriageReturn = this.#afterCarriageReturn;
    let sawData = !lineIsEmpty && !lineIsComment && chunk.length > 0;
    for (let at = 0; at < chunk.length; at += 1) {
      const byte = chunk[at]!;
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
 * Parses whole events, as `push` returned them, with the offsets of the first line that is no
 * comment and of the byte after the blank line. At the start of the stream a byte order mark is
 * skipped. A field `error`, which is llama.cpp's own, is the data of an event with that name,
 * whatever other data there is.
 */
export function* parseEvents(
  bytes: Buffer,
  isAtStart = false,
): Generator<ServerSentEvent & { readonly start: number; readonly end: number }> {
  const text = bytes.toString('latin1');
  // latin1: one character is one byte, so offsets in the text are offsets in the bytes.
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

/** Encodes an event with only a `data` field. `data` has no line ends: it is JSON or `[DONE]`. */
export function encodeEvent(data: string): Buffer {
  return Buffer.from(`data: ${data}\n\n`);
}
