/** Finds out whether what a provider sends with a 200, or as an event, is an error. */

import type { GatewayError } from '../lib/errors.ts';
import { memberOf } from '../lib/json.ts';
import type { AttemptContext } from './attempt-context.ts';
import { firstItem, readFault, toProviderError } from './provider-error.ts';

/** Returns the client's error for the JSON of a 200 or of an event; undefined if that is no error. */
export function errorIn(
  json: unknown,
  context: AttemptContext,
  isEvent: boolean,
): GatewayError | undefined {
  return reportsFault(json) ? toProviderError(readFault(json), context, isEvent) : undefined;
}

/** `{error: …}`, `{errors: […]}` (Cloudflare), `[{error: …}]` (Gemini), `{object: "error", …}` (vLLM), `{type: "error", …}`. */
function reportsFault(json: unknown): boolean {
  const body = firstItem(json);
  const isFlat = memberOf(body, 'object') === 'error' || memberOf(body, 'type') === 'error';
  return isFlat || Boolean(memberOf(body, 'error') || firstItem(memberOf(body, 'errors')));
}
