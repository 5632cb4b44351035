/** Reads an answer's token counts as the provider reports them, untrusted. */

import { memberOf } from '../lib/json.ts';
import { firstItem } from './answer-json.ts';

/**
 * Returns the `usage` in the JSON of an answer or event. Groq writes it in `x_groq`, Moonshot's
 * streams in the first choice.
 */
export function usageIn(json: unknown): object | undefined {
  return (
    usageOf(json) ??
    usageOf(memberOf(json, 'x_groq')) ??
    usageOf(firstItem(memberOf(json, 'choices'))) ??
    usageOf(memberOf(json, 'response'))
  );
}

/** Returns the `usage` of an answer or event, if it is an object. */
export function usageOf(value: unknown): object | undefined {
  const usage = memberOf(value, 'usage');
  return typeof usage === 'object' && usage !== null ? usage : undefined;
}

/** Returns the token counts in a `usage`; an absent or invalid count is undefined. */
export function readUsage(usage: unknown) {
  // `/v1/responses` has the second names.
  const inputDetails =
    memberOf(usage, 'prompt_tokens_details') ?? memberOf(usage, 'input_tokens_details');
  const outputDetails =
    memberOf(usage, 'completion_tokens_details') ?? memberOf(usage, 'output_tokens_details');
  return {
    prompt_tokens: countIn(usage, 'prompt_tokens') ?? countIn(usage, 'input_tokens'),
    completion_tokens: countIn(usage, 'completion_tokens') ?? countIn(usage, 'output_tokens'),
    total_tokens: countIn(usage, 'total_tokens'),
    cached_tokens:
      countIn(inputDetails, 'cached_tokens') ??
      // DeepSeek's name, then Moonshot's.
      countIn(usage, 'prompt_cache_hit_tokens') ??
      countIn(usage, 'cached_tokens'),
    reasoning_tokens: countIn(outputDetails, 'reasoning_tokens'),
  };
}

export type TokenUsage = ReturnType<typeof readUsage>;

/** Returns a count, untrusted; undefined if it is absent or invalid. */
export function countIn(value: unknown, name: string): number | undefined {
  const number = memberOf(value, name);
  return Number.isSafeInteger(number) && (number as number) >= 0 ? (number as number) : undefined;
}
