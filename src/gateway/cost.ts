/** The cost of an answer's tokens, by the prices in the settings. */

import type { ProviderSettings } from '../config/config.ts';
import { memberOf } from '../lib/json.ts';
import { COST_DECIMALS } from '../lib/limits.ts';
import type { TokenUsage } from '../protocol/usage.ts';
import { MAX_ANSWER_TOKENS } from '../policy/limiter.ts';
import type { Attempt } from '../request/history.ts';

/** Prices are for this many tokens. */
const PRICED_TOKENS = 1_000_000;

type ModelPrices = NonNullable<ProviderSettings['modelPrices']>[string];

/**
 * Returns the function for the cost of an attempt's answer, in the currency of the prices;
 * undefined if no provider has prices. The cost is undefined if the attempt's model has no prices,
 * if the answer's usage lacks the prompt's tokens, or if there are more than a billion.
 */
export function createCostOf(
  providers: ReadonlyMap<string, Pick<ProviderSettings, 'modelPrices'>>,
) {
  const hasPrices = [...providers.values()].some(({ modelPrices }) => modelPrices !== undefined);
  if (!hasPrices) return undefined;
  return ({ provider, model }: Attempt, usage: TokenUsage | undefined): number | undefined => {
    const prices = memberOf(providers.get(provider)?.modelPrices, model) as ModelPrices | undefined;
    return prices && costOf(usage, prices);
  };
}

function costOf(usage: TokenUsage | undefined, { input, cachedInput, output }: ModelPrices) {
  const { prompt_tokens: prompt, completion_tokens: completion = 0, cached_tokens } = usage ?? {};
  if (prompt === undefined) return undefined;
  const cached = Math.min(cached_tokens ?? 0, prompt);
  // A provider's wrong number would stay in the sum of all costs until a restart.
  if (prompt + completion > MAX_ANSWER_TOKENS) return undefined;
  const cost = (prompt - cached) * input + cached * cachedInput + completion * output;
  return Number((cost / PRICED_TOKENS).toFixed(COST_DECIMALS));
}
