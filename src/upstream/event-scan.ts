/** Finds the events that the relay must parse, without parsing the others. */

import { CARRIAGE_RETURN, LINE_FEED, OPEN_BRACKET, QUOTE } from '../lib/ascii.ts';

const LETTER_D = 0x44;
const LETTER_E = 0x65;
const LETTER_F = 0x66;
/** Some providers write `""` or `"null"` until the answer is finished. */
const FINISH_REASON = /^"finish_reason"[ \t]*:[ \t]*"(?!"|null")/;

/**
 * Scans a run of events once, without decoding it. `isFinished`: a choice has a `finish_reason`. JSON escapes quotes
 * inside strings, so the bytes of that member cannot be anything else. `isSuspicious`: the run may hold an error or
 * `[DONE]`, and must be parsed.
 */
export function scanEvents(events: Buffer): { isFinished: boolean; isSuspicious: boolean } {
  let isFinished = false;
  let isSuspicious = false;
  let before = LINE_FEED;
  for (let at = 0; at < events.length; at += 1) {
    const byte = events[at]!;
    if (byte === QUOTE) {
      const next = events[at + 1];
      if (next === LETTER_E && textAt(events, at, 7) === '"error"') isSuspicious = true;
      if (next === LETTER_F && FINISH_REASON.test(textAt(events, at, 40))) isFinished = true;
    } else if (byte === OPEN_BRACKET) {
      if (events[at + 1] === LETTER_D) isSuspicious = true;
    } else if (byte === LETTER_E && (before === LINE_FEED || before === CARRIAGE_RETURN)) {
      if (textAt(events, at, 6) === 'event:') isSuspicious = true;
    }
    before = byte;
  }
  return { isFinished, isSuspicious };
}

function textAt(bytes: Buffer, start: number, length: number): string {
  return bytes.toString('latin1', start, start + length);
}
