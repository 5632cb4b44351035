/** Finds the models without a price that may answer a client, because cost limits miss them. */

import { memberOf } from '../lib/json.ts';
import { canMeet } from '../lib/pattern.ts';
import {
  aliasFor,
  allAliases,
  parseTarget,
  targetFor,
  type Routing,
  type Target,
} from './aliases-section.ts';
import type { readProviders } from './providers-section.ts';

type Asked = Pick<Target, 'providerId' | 'model'>;

export interface PricedRouting extends Routing {
  readonly providers: ReturnType<typeof readProviders>;
}

/**
 * Returns these models as `<provider_id>/<model_name>`. A `*` stands for any model's name, which
 * has no price. `patterns` are the names that the client may send.
 */
export function unpricedModels(patterns: readonly string[], settings: PricedRouting): string[] {
  const { registered, fallback } = settings.providers;
  const providerOf = ({ providerId }: Asked) => registered.find(({ id }) => id === providerId);
  const asked = patterns.flatMap((pattern) => targetsOf(pattern, settings)).filter(providerOf);
  // The gateway refuses a name without a registered provider before it asks a fallback.
  const fallbacks = registered
    .filter(({ id }) => asked.length > 0 && fallback.includes(id))
    .flatMap(({ id, defaultModel }) => {
      const models = defaultModel ? [defaultModel] : asked.map(({ model }) => model);
      return models.map((model) => ({ providerId: id, model }));
    });
  const unpriced = [...asked, ...fallbacks].filter((target) => {
    const prices = providerOf(target)?.modelPrices;
    return target.model.includes('*') || memberOf(prices, target.model) === undefined;
  });
  return [...new Set(unpriced.map(({ providerId, model }) => `${providerId}/${model}`))];
}

/** Returns the models that are asked for a name that matches the pattern. */
function targetsOf(pattern: string, settings: PricedRouting): readonly Asked[] {
  const { registered, primary } = settings.providers;
  if (!pattern.includes('*')) {
    const alias = aliasFor(pattern, settings);
    if (!alias) return modelsNamed(pattern, settings);
    return alias.targets.map((target) => targetFor(target, alias, pattern));
  }
  const met = registered.filter(({ id }) => canMeet(pattern, `${id}/*`)).map(({ id }) => id);
  if (primary !== undefined && !pattern.includes('/')) met.push(primary);
  return [
    ...allAliases(settings)
      .filter(({ name }) => canMeet(pattern, name))
      .flatMap(({ targets }) => targets),
    ...met.map((id) => ({ providerId: id, model: '*' })),
  ];
}

/**
 * Returns the model for a name that is no alias, or none if the gateway refuses the name. A
 * provider's id alone stands for its `default_model`.
 */
function modelsNamed(name: string, { providers: { primary, registered } }: PricedRouting): Asked[] {
  const { providerId, model: named } = parseTarget(name);
  const provider = registered.find(({ id }) => id === providerId);
  const model = named || provider?.defaultModel;
  if (provider) return model ? [{ providerId, model }] : [];
  return primary === undefined || name.includes('/') ? [] : [{ providerId: primary, model: name }];
}
