/**
 * What the JSON of an answer, or of one of its events, is: an error, usage alone, a beginning
 * without content, or empty.
 */

import { memberOf, OPEN_BRACE, OPEN_BRACKET } from '../lib/json.ts';

/** Bytes before the beginning of an answer: white space, and those of a byte order mark. */
const BLANK_BYTES = new Set([0x20, 0x09, 0x0a, 0x0d, 0xef, 0xbb, 0xbf]);

/**
 * Returns the first byte that is neither white space nor of a byte order mark; undefined if there
 * is none. Each chunk of an answer is searched once, because a provider may send megabytes of white
 * space.
 */
export function firstByteOf(chunk: Buffer): number | undefined {
  for (const byte of chunk) if (!BLANK_BYTES.has(byte)) return byte;
  return undefined;
}

/**
 * Returns whether an answer whose first byte this is begins as JSON: as a completion, and not as a
 * stream.
 */
export function beginsJson(firstByte: number | undefined): boolean {
  return firstByte === OPEN_BRACE || firstByte === OPEN_BRACKET;
}

/**
 * `{error: …}`, `{errors: […]}` (Cloudflare), `[{error: …}]` (Gemini), `{object: "error", …}`
 * (vLLM), `{type: "error", …}`. An `error` that is empty is none: some providers write `"error":
 * {}` into every answer.
 */
export function reportsError(json: unknown): boolean {
  const body = firstItem(json);
  const isFlat = memberOf(body, 'object') === 'error' || memberOf(body, 'type') === 'error';
  return isFlat || isSaid(memberOf(body, 'error')) || isSaid(memberOf(body, 'errors'));
}

/**
 * Returns whether the value, or the first item of an array, is there and neither false, zero nor
 * empty.
 */
function isSaid(value: unknown): boolean {
  const item = firstItem(value);
  return Boolean(item) && !isBlank(item);
}

/** Returns the first item of an array; what is no array is returned as it is. */
export function firstItem(value: unknown): unknown {
  return Array.isArray(value) ? value[0] : value;
}

/**
 * Returns whether an event begins no answer (vLLM, OpenAI and others send the role as soon as a
 * request is queued, Azure its `prompt_filter_results`): a chat chunk whose choices, if it has any,
 * have deltas of a `role` and empty values, and no `finish_reason`; `stop` is none either if
 * `isStopEmpty`. An event of another shape is no such chunk.
 */
export function isPreamble(json: unknown, isStopEmpty: boolean): boolean {
  const choices = memberOf(json, 'choices');
  return (
    Array.isArray(choices) &&
    choices.every(
      (choice) => isEmpty(memberOf(choice, 'delta')) && isUnfinished(choice, isStopEmpty),
    )
  );
}

/**
 * Returns whether a chunk has a `usage` and no choices. Azure adds `latency_checkpoint`, others
 * `x_groq`, `timings` and more.
 */
export function isUsageChunk(json: unknown): boolean {
  return Boolean(memberOf(json, 'usage')) && hasNoChoice(json);
}

export function hasNoChoice(json: unknown): boolean {
  const choices = memberOf(json, 'choices') ?? [];
  return Array.isArray(choices) && choices.length === 0;
}

/**
 * Returns whether a completion has no content, reasoning, refusal, tool call or audio, and did not
 * end for another reason than `stop`.
 */
export function isEmptyCompletion(json: unknown): boolean {
  const choices = memberOf(json, 'choices') ?? [];
  return (
    Array.isArray(choices) &&
    choices.every((choice) => isEmpty(memberOf(choice, 'message')) && isUnfinished(choice, true))
  );
}

/** Returns whether the chunk of a choice has more than a role and empty values. */
export function hasContent(choice: unknown): boolean {
  const delta = memberOf(choice, 'delta');
  return typeof delta === 'object' && delta !== null && !isEmpty(delta);
}

/** Returns whether a choice has no `finish_reason`; with `isStopEmpty`, or has `stop`. */
export function isUnfinished(choice: unknown, isStopEmpty: boolean): boolean {
  const reason = memberOf(choice, 'finish_reason') ?? '';
  // Some providers write `""` or `"null"` until the answer is finished.
  return reason === '' || reason === 'null' || (isStopEmpty && reason === 'stop');
}

/** A message, or a part of one, that has only a role and empty values. */
function isEmpty(message: unknown): boolean {
  if (typeof message !== 'object' || message === null || Array.isArray(message)) return false;
  return Object.entries(message).every(([name, value]) => name === 'role' || isBlank(value));
}

function isBlank(value: unknown): boolean {
  if (value === null || value === '') return true;
  return typeof value === 'object' && Object.keys(value).length === 0;
}
