/** Finds errors, the end, the model and the usage in events, without parsing them. */

import { JsonScanner, OPEN_BRACE, QUOTE } from '../lib/json.ts';
import { MAX_USAGE_BYTES, MAX_WORD_CHARACTERS } from '../lib/attempt.ts';

const DIGIT_0 = 0x30;
/**
 * Members up to their values, and signs of an error or of the end. JSON escapes quotes inside strings, so a name in quotes
 * cannot be anything else.
 */
const SIGNS =
  /"(?:errors?"|(index|model|finish_reason|usage)"[ \t]*:[ \t]*)|\[D|^(?:event|error):/gm;

export interface EventScan {
  /** The run may hold an error, `[DONE]` or several choices, and must be parsed. */
  readonly isSuspicious: boolean;
  /** `none`: there is no member `index`; `0`: all are 0; `other`: at least one is not. */
  readonly index: 'none' | '0' | 'other';
  /** The first `model`; '' if there is none, or it is not wanted. */
  readonly model: string;
  /** The last `finish_reason`; '' if no choice is finished. */
  readonly finishReason: string;
  /** The last `usage` that is an object, with what follows it in its line: MAX_USAGE_BYTES at most; '' if there is none. */
  readonly usage: string;
}

/** Scans a run of whole events once, without decoding it. */
export function scanEvents(events: Buffer, isModelWanted: boolean): EventScan {
  let isSuspicious = false;
  let index: EventScan['index'] = 'none';
  let model = '';
  let finishReason = '';
  let usageStart = 0;
  // latin1: one character is one byte, so offsets in the text are offsets in the bytes.
  const text = events.toString('latin1');
  SIGNS.lastIndex = 0;
  for (let sign = SIGNS.exec(text); sign; sign = SIGNS.exec(text)) {
    const name = sign[1];
    const start = SIGNS.lastIndex;
    const byte = events[start];
    if (name === undefined) isSuspicious = true;
    else if (name === 'finish_reason') finishReason = readString(events, start) || finishReason;
    else if (name === 'index' && byte !== DIGIT_0) index = 'other';
    else if (name === 'index' && index === 'none') index = '0';
    else if (name === 'usage' && byte === OPEN_BRACE) usageStart = start;
    else if (name === 'model' && isModelWanted) model ||= readString(events, start);
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

/** The beginning of the string at `start`, as written; '' if no string begins there, or it says nothing. */
function readString(bytes: Buffer, start: number): string {
  if (bytes[start] !== QUOTE) return '';
  // One character more than may be noted, so that a longer string is not.
  const end = start + 1 + MAX_WORD_CHARACTERS + 1;
  const [text = ''] = bytes.toString('latin1', start + 1, end).split('"', 1);
  // Some providers write `""` or `"null"` until the answer is finished.
  return text === 'null' ? '' : text;
}

/** From `start` to the end of the line. Not cut out of the scanned text: V8 would keep all of that with it. */
function readLine(bytes: Buffer, start: number): string {
  return bytes.toString('latin1', start, start + MAX_USAGE_BYTES).split(/[\r\n]/, 1)[0]!;
}
