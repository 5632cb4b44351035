/** Looks at whole events without parsing them. */

import { endOfLine } from '../lib/sse.ts';

/**
 * Matches, on its four lines:
 *
 * - the names of an error, of llama.cpp's progress, and of a `usage` that is set. JSON escapes the
 *   quotes in a string, so its text never matches.
 * - a `finish_reason` that is set, and the `index` of any choice or tool call but the first.
 * - an escaped letter or `_`, because a name may hold it. .NET escapes the backtick.
 * - a line that begins neither an object nor a comment, and a line end between two lines of an
 *   event.
 */
const SIGNS = new RegExp(
  [
    /"(?:errors?"|prompt_progress"|(usage)"[ \t]*:[ \t]*(?![ \t]|null))/,
    /"(?:finish_reason"[ \t]*:[ \t]*"(?!null"|")|index"[ \t]*:[ \t]*(?![ \t]|0[,}]))/,
    /\\u00(?:6[^0]|7|5[fF])/,
    /(?:^|[\r\n])(?!data: ?\{|[:\r\n]|$)|(?<![\r\n])(?:\r\n?|\n)(?=[^\r\n])/,
  ]
    .map(({ source }) => source)
    .join('|'),
  'g',
);
/** Some providers write spaces around it. */
export const DONE_MARK = /^[ \t]*\[DONE\][ \t]*$/;
/** `error` is llama.cpp's own. */
const FIELDS = ['data', 'event', 'id', 'retry', 'error'];
const LONGEST_FIELD = 'event'.length;
const DATA_FIELD_BYTES = 'data:'.length;

/**
 * Looks at a run of whole events.
 *
 * @returns '' if they have nothing but content of the first choice; the data of the last event with
 * a
 * `usage`, as Latin-1; undefined if they are to be parsed
 */
export function skimEvents(events: Buffer): string | undefined {
  // Latin-1 has one character for each byte, so nothing is decoded.
  const text = events.toString('latin1');
  let usageAt = -1;
  SIGNS.lastIndex = 0;
  for (let sign = SIGNS.exec(text); sign; sign = SIGNS.exec(text)) {
    if (sign[1] === undefined) return undefined;
    usageAt = sign.index;
  }
  if (usageAt < 0) return '';
  const start = Math.max(text.lastIndexOf('\n', usageAt), text.lastIndexOf('\r', usageAt)) + 1;
  return text.slice(start + DATA_FIELD_BYTES, endOfLine(events, usageAt));
}

/** Returns whether the line at `start` is blank, an event field, or a cut-off field name. */
export function isField(events: Buffer, start: number): boolean {
  const end = start + LONGEST_FIELD + 1;
  const [line = ''] = events.toString('latin1', start, end).split(/[\r\n]/, 1);
  const isNamed = FIELDS.some((name) => line.startsWith(`${name}:`) || name.startsWith(line));
  return isNamed || line.trim() === '';
}
