/** Reads an answer's token counts as the provider reports them, untrusted. */

import { JsonScanner, memberOf, parseUntrustedJson } from '../lib/json.ts';

/** Bounds a `usage` text. OpenAI's takes 300 bytes. */
export const MAX_USAGE_BYTES = 16_384;

/**
 * Returns the token counts in a `usage`; an absent or invalid count is undefined.
 *
 * @param value - the parsed `usage`; or its JSON with the text behind it, cut off after
 * MAX_USAGE_BYTES
 */
export function readUsage(value: unknown) {
  const usage = typeof value === 'string' ? parseUntrustedJson(firstObject(value)) : value;
  // `/v1/responses` has the second names.
  const inputDetails =
    memberOf(usage, 'prompt_tokens_details') ?? memberOf(usage, 'input_tokens_details');
  const outputDetails =
    memberOf(usage, 'completion_tokens_details') ?? memberOf(usage, 'output_tokens_details');
  return {
    prompt_tokens: count(usage, 'prompt_tokens') ?? count(usage, 'input_tokens'),
    completion_tokens: count(usage, 'completion_tokens') ?? count(usage, 'output_tokens'),
    total_tokens: count(usage, 'total_tokens'),
    cached_tokens:
      count(inputDetails, 'cached_tokens') ??
      // DeepSeek's name, then Moonshot's.
      count(usage, 'prompt_cache_hit_tokens') ??
      count(usage, 'cached_tokens'),
    reasoning_tokens: count(outputDetails, 'reasoning_tokens'),
  };
}

/** Token counts by their names in the log. */
export type TokenUsage = ReturnType<typeof readUsage>;

/**
 * Returns the JSON object at the start of `text`, without the text behind it; invalid JSON if the
 * object is incomplete.
 */
function firstObject(text: string): string {
  let end = 0;
  // The object itself is reported after its members.
  const json = new JsonScanner((value) => ({ end } = value));
  const bytes = Buffer.from(text);
  json.push(bytes);
  return bytes.toString('utf8', 0, end);
}

function count(value: unknown, name: string): number | undefined {
  const number = memberOf(value, name);
  return Number.isSafeInteger(number) && (number as number) >= 0 ? (number as number) : undefined;
}
