/** Scans a streamed completion's events without parsing them. */

import { JsonScanner, OPEN_BRACE, QUOTE } from '../lib/json.ts';
import { MAX_USAGE_BYTES } from './usage.ts';

/** A longer model or `finish_reason` is not noted. */
const MAX_WORD_CHARACTERS = 64;
const DIGIT_0 = 0x30;
/**
 * Matches, on its three lines:
 *
 * - the names of members: `error` and `errors`, and the members that are read, up to their values.
 *   Text inside a longer string never matches, because JSON escapes the quotes in it.
 * - the beginning of `[DONE]`, and the fields `event` and `error`.
 * - whole comments, so that the scan steps over them. A byte order mark may precede a comment.
 */
const SIGNS = new RegExp(
  [
    /"(?:errors?"|(index|model|finish_reason|usage)"[ \t]*:[ \t]*)/,
    /\[D|^(?:event|error):/,
    /^(?:\u00ef\u00bb\u00bf)?(:).*/,
  ]
    .map(({ source }) => source)
    .join('|'),
  'gm',
);
/** The end mark. Some providers write spaces around it. */
export const DONE_MARK = /^[ \t]*\[DONE\][ \t]*$/;
/** Field names; `error` is llama.cpp's own. */
const FIELDS = ['data', 'event', 'id', 'retry', 'error'];
const LONGEST_FIELD = 'event'.length;
/** Bytes between two `data` values. */
const NEXT_DATA = /(?:\r\n|\n|\r)data:/g;

/**
 * Scans a run of whole events once, without decoding it.
 *
 * @param isModelWanted - also reads `model`
 * @returns
 * - `isSuspicious`: the events may hold an error, `[DONE]` or several choices, and must be parsed.
 * - `index`: `none` without a choice, `0` if all choices have the index 0, else `other`.
 * - `model`: the first model, or ''.
 * - `finishReason`: the last `finish_reason`, or ''.
 * - `usage`: the last `usage` and the data behind it, or ''.
 */
export function scanEvents(events: Buffer, isModelWanted: boolean) {
  let isSuspicious = false;
  let index: 'none' | '0' | 'other' = 'none';
  let model = '';
  let finishReason = '';
  let usageStart = 0;
  // Latin-1 has one character for each byte, so offsets in the text are offsets in the bytes.
  const text = events.toString('latin1');
  SIGNS.lastIndex = 0;
  for (let sign = SIGNS.exec(text); sign; sign = SIGNS.exec(text)) {
    const name = sign[1];
    const comment = sign[2];
    const start = SIGNS.lastIndex;
    const byte = events[start];
    // A sign without a name is a comment, or a reason to parse the events.
    if (name === undefined) isSuspicious ||= comment === undefined;
    else if (name === 'finish_reason') finishReason = readString(events, start) || finishReason;
    else if (name === 'index' && byte !== DIGIT_0) index = 'other';
    else if (name === 'index' && index === 'none') index = '0';
    else if (name === 'usage' && byte === OPEN_BRACE) usageStart = start;
    else if (name === 'model' && isModelWanted) model ||= readString(events, start);
  }
  const usage = usageStart > 0 ? readData(events, usageStart) : '';
  return { isSuspicious: isSuspicious || index === 'other', index, model, finishReason, usage };
}

/** Returns whether the line at `start` is blank, an event field, or a cut-off field name. */
export function isField(events: Buffer, start: number): boolean {
  const end = start + LONGEST_FIELD + 1;
  const [line = ''] = events.toString('latin1', start, end).split(/[\r\n]/, 1);
  const isNamed = FIELDS.some((name) => line.startsWith(`${name}:`) || name.startsWith(line));
  return isNamed || line.trim() === '';
}

/** Returns whether an event's data is complete: valid JSON, or the end mark. */
export function isWholeData(data: string): boolean {
  if (DONE_MARK.test(data)) return true;
  const json = new JsonScanner(() => {}, Infinity);
  json.push(Buffer.from(data));
  return json.finish() === undefined;
}

/**
 * Returns the bytes from `start` to the end of the last data line, at most MAX_USAGE_BYTES. A copy,
 * because V8's slice would keep the whole scanned text in memory.
 */
export function readData(bytes: Buffer, start: number): string {
  const text = bytes.toString('latin1', start, start + MAX_USAGE_BYTES);
  const [data = ''] = text.replace(NEXT_DATA, ' ').split(/[\r\n]/, 1);
  return Buffer.from(data, 'latin1').toString('latin1');
}

/**
 * Returns the string at `start` as written, cut after 65 characters; '' if no string begins there,
 * or if it is `null`.
 */
function readString(bytes: Buffer, start: number): string {
  if (bytes[start] !== QUOTE) return '';
  // Reads a character too many, so that `noteModel` of `Attempt` refuses a longer model.
  const end = start + 1 + MAX_WORD_CHARACTERS + 1;
  const [text = ''] = bytes.toString('latin1', start + 1, end).split('"', 1);
  // Some providers write `""` or `"null"` until the answer is finished.
  return text === 'null' ? '' : text;
}
