/** Reads the members that answers and events of all endpoints have in common. */

import { memberOf, OPEN_BRACE, OPEN_BRACKET } from '../lib/json.ts';

/** White space and a byte order mark. */
const BLANK_BYTES = new Set([0x20, 0x09, 0x0a, 0x0d, 0xef, 0xbb, 0xbf]);

/**
 * Returns the first byte of an answer. Each chunk is searched only once, because a provider may
 * send megabytes of white space.
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
 * Returns whether the JSON is an error: `{error: ...}`, `{errors: [...]}` (Cloudflare), `[{error:
 * ...}]` (Gemini), `{object: "error", ...}` (vLLM), `{type: "error", ...}`. Some providers write an
 * empty `"error": {}` into every answer.
 */
export function reportsError(json: unknown): boolean {
  const body = firstItem(json);
  const isFlat = memberOf(body, 'object') === 'error' || memberOf(body, 'type') === 'error';
  return isFlat || isSet(memberOf(body, 'error')) || isSet(memberOf(body, 'errors'));
}

function isSet(value: unknown): boolean {
  const item = firstItem(value);
  return Boolean(item) && !isBlank(item);
}

/** Returns an array's first item, and any other value unchanged. */
export function firstItem(value: unknown): unknown {
  return Array.isArray(value) ? value[0] : value;
}

/** Returns whether a value is null, '', `[]` or `{}`. */
export function isBlank(value: unknown): boolean {
  if (value === null || value === '') return true;
  return typeof value === 'object' && Object.keys(value).length === 0;
}
