/** Whether what a provider sends with a 200, or as an event, is an error. */

import { memberOf } from '../lib/json.ts';

/** `{error: …}`, `{errors: […]}` (Cloudflare), `[{error: …}]` (Gemini), `{object: "error", …}` (vLLM), `{type: "error", …}`. */
export function reportsError(json: unknown): boolean {
  const body = firstItem(json);
  const isFlat = memberOf(body, 'object') === 'error' || memberOf(body, 'type') === 'error';
  return isFlat || Boolean(memberOf(body, 'error') || firstItem(memberOf(body, 'errors')));
}

/** Returns the first item of an array; what is no array is returned as it is. */
export function firstItem(value: unknown): unknown {
  return Array.isArray(value) ? value[0] : value;
}
