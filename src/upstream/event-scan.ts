/** Finds errors, the end, the model and the usage in events, without parsing them. */

import { COLON, JsonScanner, OPEN_BRACE, OPEN_BRACKET, QUOTE } from '../lib/json.ts';
import { CARRIAGE_RETURN, LINE_FEED } from '../lib/sse.ts';
import { MAX_USAGE_BYTES, MAX_WORD_CHARACTERS } from '../lib/attempt.ts';

const TAB = 0x09;
const SPACE = 0x20;
const DIGIT_0 = 0x30;
const LETTER_D = 0x44;
const LETTER_E = 0x65;
const LETTER_F = 0x66;
const LETTER_I = 0x69;
const LETTER_M = 0x6d;
const LETTER_U = 0x75;
const ERROR = Buffer.from('"error"');
const INDEX = Buffer.from('"index"');
const FINISH_REASON = Buffer.from('"finish_reason"');
const MODEL = Buffer.from('"model"');
const USAGE = Buffer.from('"usage"');
const EVENT = Buffer.from('event:');
const ERROR_FIELD = Buffer.from('error:');

export interface EventScan {
  /** The run may hold an error, `[DONE]` or several choices, and must be parsed. */
  readonly isSuspicious: boolean;
  /** There is an `index`: 0 if all are, as of a single choice and its first tool call. */
  readonly index: 'none' | '0' | 'other';
  /** The first `model`; '' if there is none, or it is not wanted. */
  readonly model: string;
  /** The last `finish_reason`; '' if no choice is finished. */
  readonly finishReason: string;
  /** The last `usage` that is an object, with what follows it in its line: MAX_USAGE_BYTES at most; '' if there is none. */
  readonly usage: string;
}

/**
 * Scans a run of whole events once, without decoding it. JSON escapes quotes inside strings, so the bytes of a
 * member's name in quotes cannot be anything else.
 */
export function scanEvents(events: Buffer, isModelWanted: boolean): EventScan {
  let isSuspicious = false;
  let index: EventScan['index'] = 'none';
  let model = '';
  let finishReason = '';
  let usageStart = 0;
  let before = LINE_FEED;
  for (let at = 0; at < events.length; at += 1) {
    const byte = events[at]!;
    if (byte === QUOTE) {
      const next = events[at + 1];
      if (next === LETTER_E) {
        if (beginsWith(events, at, ERROR)) isSuspicious = true;
      } else if (next === LETTER_I) {
        const value = valueOffset(events, at, INDEX);
        if (value < events.length && index !== 'other')
          index = events[value] === DIGIT_0 ? '0' : 'other';
      } else if (next === LETTER_F) {
        finishReason = readString(events, valueOffset(events, at, FINISH_REASON)) || finishReason;
      } else if (next === LETTER_U) {
        const value = valueOffset(events, at, USAGE);
        if (events[value] === OPEN_BRACE) usageStart = value;
      } else if (next === LETTER_M && isModelWanted) {
        model ||= readString(events, valueOffset(events, at, MODEL));
      }
    } else if (byte === OPEN_BRACKET) {
      if (events[at + 1] === LETTER_D) isSuspicious = true;
    } else if (byte === LETTER_E && (before === LINE_FEED || before === CARRIAGE_RETURN)) {
      if (beginsWith(events, at, EVENT) || beginsWith(events, at, ERROR_FIELD)) isSuspicious = true;
    }
    before = byte;
  }
  const usage = usageStart > 0 ? readLine(events, usageStart) : '';
  return { isSuspicious: isSuspicious || index === 'other', index, model, finishReason, usage };
}

/** Returns whether the data of an event is not cut off. */
export function isWholeData(data: string): boolean {
  if (data === '[DONE]') return true;
  const json = new JsonScanner(() => {}, Infinity);
  json.push(Buffer.from(data));
  return json.end() === undefined;
}

function beginsWith(bytes: Buffer, start: number, text: Buffer): boolean {
  for (let at = 0; at < text.length; at += 1) {
    if (bytes[start + at] !== text[at]) return false;
  }
  return true;
}

/** The offset of the value of the member that begins at `start`, if `name` is its name; otherwise `bytes.length`. */
function valueOffset(bytes: Buffer, start: number, name: Buffer): number {
  if (!beginsWith(bytes, start, name)) return bytes.length;
  const colon = skipBlanks(bytes, start + name.length);
  return bytes[colon] === COLON ? skipBlanks(bytes, colon + 1) : bytes.length;
}

function skipBlanks(bytes: Buffer, start: number): number {
  let at = start;
  while (bytes[at] === SPACE || bytes[at] === TAB) at += 1;
  return at;
}

/** The beginning of the string at `start`, as written; '' if no string begins there, or it says nothing. */
function readString(bytes: Buffer, start: number): string {
  if (bytes[start] !== QUOTE) return '';
  // One character more than may be noted, so that a longer string is not.
  const end = start + 1 + MAX_WORD_CHARACTERS + 1;
  const [text = ''] = bytes.toString('latin1', start + 1, end).split('"', 1);
  // Some providers write `""` or `"null"` until the answer is finished.
  return text === 'null' ? '' : text;
}

/** From `start` to the end of the line. A text: a slice would keep all that was read from the socket with it. */
function readLine(bytes: Buffer, start: number): string {
  return bytes.toString('latin1', start, start + MAX_USAGE_BYTES).split(/[\r\n]/, 1)[0]!;
}
