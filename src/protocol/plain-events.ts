/** Looks at whole events without parsing them. */

/**
 * Matches, on its four lines:
 *
 * - the names of an error, and a `usage` up to its value. Text inside a longer string never
 *   matches, because JSON escapes the quotes in it.
 * - a `finish_reason` that is set, and the `index` of any choice or tool call but the first.
 * - the beginning of `[DONE]`, and the fields `event` and `error`.
 * - whole comments, so that the search steps over them.
 */
const SIGNS = new RegExp(
  [
    /"(?:errors?"|(usage)"[ \t]*:[ \t]*(?=\{))/,
    /"(?:finish_reason"[ \t]*:[ \t]*"(?!null"|")|index"[ \t]*:[ \t]*(?![ \t]|0[,}]))/,
    /\[D|^(?:event|error):/,
    /^(:).*/,
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
/** Matches an event's only line, and the blank line behind it. */
const ONLY_DATA = /data:.*(\r\n|\n|\r)\1/y;
const DATA_FIELD_BYTES = 'data:'.length;
/** A longer event is parsed at once, because an open stream keeps the last event with a `usage`. */
const MAX_USAGE_EVENT_BYTES = 1024;
/** Matches what precedes such a line: nothing, or the end of a blank line. */
const BLANK_LINE = /^$|(?:\n\n|\r\r|\n\r\n)$/;

/**
 * Looks at a run of whole events.
 *
 * @returns '' if they have nothing but content of the first choice; if they have a `usage` too, the
 * JSON of the last event with a `usage`; undefined if they are to be parsed
 */
export function skimEvents(events: Buffer): string | undefined {
  // Latin-1 has one character for each byte, so nothing is decoded.
  const text = events.toString('latin1');
  let usageAt = -1;
  SIGNS.lastIndex = 0;
  for (let sign = SIGNS.exec(text); sign; sign = SIGNS.exec(text)) {
    if (sign[1] !== undefined) usageAt = sign.index;
    // A sign of neither kind is a comment.
    else if (sign[2] === undefined) return undefined;
  }
  return usageAt < 0 ? '' : dataAround(events, text, usageAt);
}

/** Returns the data of the event at `offset`; undefined if it is long or there are other lines. */
function dataAround(events: Buffer, text: string, offset: number): string | undefined {
  const start = Math.max(text.lastIndexOf('\n', offset), text.lastIndexOf('\r', offset)) + 1;
  if (!BLANK_LINE.test(text.slice(Math.max(0, start - 3), start))) return undefined;
  ONLY_DATA.lastIndex = start;
  if (!ONLY_DATA.test(text)) return undefined;
  const end = ONLY_DATA.lastIndex;
  // Decoded anew, because V8's slice would keep the whole text in memory.
  return end - start > MAX_USAGE_EVENT_BYTES
    ? undefined
    : events.toString('latin1', start + DATA_FIELD_BYTES, end);
}

/** Returns whether the line at `start` is blank, an event field, or a cut-off field name. */
export function isField(events: Buffer, start: number): boolean {
  const end = start + LONGEST_FIELD + 1;
  const [line = ''] = events.toString('latin1', start, end).split(/[\r\n]/, 1);
  const isNamed = FIELDS.some((name) => line.startsWith(`${name}:`) || name.startsWith(line));
  return isNamed || line.trim() === '';
}
