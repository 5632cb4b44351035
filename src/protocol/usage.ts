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

function usageOf(value: unknown): object | undefined {
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

export type TokenUsage = ReturnType<typeof readUsage>;

function count(value: unknown, name: string): number | undefined {
  const number = memberOf(value, name);
  return Number.isSafeInteger(number) && (number as number) >= 0 ? (number as number) : undefined;
}
