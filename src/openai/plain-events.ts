/** Looks at whole events without parsing them. */

/**
 * Matches, on its four lines:
 *
 * - the names of an error, and the beginning of a `usage`. Text inside a longer string never
 *   matches, because JSON escapes the quotes in it.
 * - a `finish_reason` that is set, and the `index` of any choice or tool call but the first.
 * - the beginning of `[DONE]`, and the fields `event` and `error`.
 * - whole comments, so that the search steps over them.
 */
const SIGNS = new RegExp(
  [
    /"(?:errors?"|usage"[ \t]*:[ \t]*\{)/,
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

/**
 * Returns whether a run of whole events has nothing but content of the first choice. False if the
 * events may have more, so that they are to be parsed.
 */
export function isPlain(events: Buffer): boolean {
  // Latin-1 has one character for each byte, so nothing is decoded.
  const text = events.toString('latin1');
  SIGNS.lastIndex = 0;
  for (let sign = SIGNS.exec(text); sign; sign = SIGNS.exec(text)) {
    if (sign[1] === undefined) return false;
  }
  return true;
}

/** Returns whether the line at `start` is blank, an event field, or a cut-off field name. */
export function isField(events: Buffer, start: number): boolean {
  const end = start + LONGEST_FIELD + 1;
  const [line = ''] = events.toString('latin1', start, end).split(/[\r\n]/, 1);
  const isNamed = FIELDS.some((name) => line.startsWith(`${name}:`) || name.startsWith(line));
  return isNamed || line.trim() === '';
}
