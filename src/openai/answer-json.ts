/**
 * Classifies the JSON of an answer or event: an error, usage only, a beginning without content, or
 * empty.
 */

import { memberOf, OPEN_BRACE, OPEN_BRACKET } from '../lib/json.ts';

/** Bytes allowed before an answer: white space and a byte order mark. */
const BLANK_BYTES = new Set([0x20, 0x09, 0x0a, 0x0d, 0xef, 0xbb, 0xbf]);

/**
 * Returns the first byte after white space and a byte order mark, or undefined. Each chunk is
 * searched only once, because a provider may send megabytes of white space.
 */
export function firstByteOf(chunk: Buffer): number | undefined {
  for (const byte of chunk) if (!BLANK_BYTES.has(byte)) return byte;
  return undefined;
}

/** Returns whether an answer with this first byte is JSON, and so a completion and not a stream. */
export function beginsJson(firstByte: number | undefined): boolean {
  return firstByte === OPEN_BRACE || firstByte === OPEN_BRACKET;
}

/**
 * Returns whether the JSON is an error: `{error: ...}`, `{errors: [...]}` (Cloudflare),
 * `[{error: ...}]` (Gemini), `{object: "error", ...}` (vLLM), `{type: "error", ...}`. An empty
 * `error` does not count, because some providers write `"error": {}` into every answer.
 */
export function reportsError(json: unknown): boolean {
  const body = firstItem(json);
  const isFlat = memberOf(body, 'object') === 'error' || memberOf(body, 'type') === 'error';
  return isFlat || isSet(memberOf(body, 'error')) || isSet(memberOf(body, 'errors'));
}

/**
 * Returns whether a value, or an array's first item, is present and neither false, zero nor empty.
 */
function isSet(value: unknown): boolean {
  const item = firstItem(value);
  return Boolean(item) && !isBlank(item);
}

/** Returns an array's first item, and any other value unchanged. */
export function firstItem(value: unknown): unknown {
  return Array.isArray(value) ? value[0] : value;
}

/**
 * Returns whether an event is a chat chunk before the answer: its choices, if any, have deltas with
 * only a `role` and empty values, and no `finish_reason`. vLLM, OpenAI and others send the role as
 * soon as a request is queued. Azure sends its `prompt_filter_results`. Events with another shape
 * are no preamble.
 *
 * @param isStopEmpty - whether the `finish_reason` `stop` counts as none
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
 * Returns whether a chunk has a `usage` and no choices. Other members may be there too: Azure adds
 * `latency_checkpoint`, others `x_groq`, `timings` and more.
 */
export function isUsageChunk(json: unknown): boolean {
  return Boolean(memberOf(json, 'usage')) && hasNoChoice(json);
}

/** Returns whether `choices` is absent, null or an empty array. */
export function hasNoChoice(json: unknown): boolean {
  const choices = memberOf(json, 'choices') ?? [];
  return Array.isArray(choices) && choices.length === 0;
}

/**
 * Returns whether a completion has neither content, reasoning, refusal, tool call nor audio, and
 * ended with `stop` or without a reason.
 */
export function isEmptyCompletion(json: unknown): boolean {
  const choices = memberOf(json, 'choices') ?? [];
  return (
    Array.isArray(choices) &&
    choices.every((choice) => isEmpty(memberOf(choice, 'message')) && isUnfinished(choice, true))
  );
}

/** Reasons of answers that the provider itself calls failed: z.ai's, OpenRouter's, DeepSeek's. */
const FAILED_REASONS = new Set<unknown>(['network_error', 'error', 'insufficient_system_resource']);

/**
 * Returns the `finish_reason` of an answer or an event without content that the provider itself
 * calls failed; undefined for any other.
 */
export function failedReasonOf(json: unknown): string | undefined {
  const choices = memberOf(json, 'choices');
  if (!Array.isArray(choices)) return undefined;
  const failed: unknown = choices.find((choice) =>
    FAILED_REASONS.has(memberOf(choice, 'finish_reason')),
  );
  // The content is only looked at then, because nearly every answer has some.
  if (failed === undefined || !choices.every(isSilent)) return undefined;
  return String(memberOf(failed, 'finish_reason'));
}

/** Returns whether a choice of an answer or an event has no content. */
function isSilent(choice: unknown): boolean {
  const parts = [memberOf(choice, 'message') ?? {}, memberOf(choice, 'delta') ?? {}];
  return parts.every(isEmpty) && isBlank(memberOf(choice, 'text') ?? '');
}

/** Returns whether a choice's delta has more than a role and empty values. */
export function hasContent(choice: unknown): boolean {
  const delta = memberOf(choice, 'delta');
  return typeof delta === 'object' && delta !== null && !isEmpty(delta);
}

/** Returns whether a choice has no `finish_reason`. With `isStopEmpty`, `stop` counts as none. */
export function isUnfinished(choice: unknown, isStopEmpty: boolean): boolean {
  const reason = memberOf(choice, 'finish_reason') ?? '';
  // Some providers write `""` or `"null"` until the answer is finished.
  return reason === '' || reason === 'null' || (isStopEmpty && reason === 'stop');
}

/** Returns whether a message or a delta has only a role and empty values. */
function isEmpty(message: unknown): boolean {
  if (typeof message !== 'object' || message === null || Array.isArray(message)) return false;
  return Object.entries(message).every(([name, value]) => name === 'role' || isBlank(value));
}

/** Returns whether a value is null, '', `[]` or `{}`. */
export function isBlank(value: unknown): boolean {
  if (value === null || value === '') return true;
  return typeof value === 'object' && Object.keys(value).length === 0;
}
