/** Finds the models without a price that may answer a client, because cost limits miss them. */

import { memberOf } from '../lib/json.ts';
import { canMeet } from '../lib/pattern.ts';
import { aliasFor, providerIdOf, targetFor, type AliasSettings } from './aliases-section.ts';
import type { ProviderSettings } from './providers-section.ts';

interface Settings {
  readonly all: readonly AliasSettings[];
  readonly aliases: ReadonlyMap<string, AliasSettings>;
  readonly wildcards: readonly AliasSettings[] | undefined;
  readonly providers: {
    readonly registered: readonly Pick<ProviderSettings, 'id' | 'defaultModel' | 'modelPrices'>[];
    readonly primary: string | undefined;
    readonly fallback: readonly string[];
  };
}

/**
 * Returns these models as `<provider_id>/<model_name>`. A `*` stands for any model's name, which
 * has no price. `patterns` are the names that the client may send.
 */
export function unpricedModels(patterns: readonly string[], settings: Settings): string[] {
  const { registered, fallback } = settings.providers;
  const isRegistered = (target: string) => registered.some(({ id }) => id === providerIdOf(target));
  const asked = patterns.flatMap((pattern) => targetsOf(pattern, settings)).filter(isRegistered);
  // The gateway refuses a name without a registered provider before it asks a fallback.
  const fallbacks = registered
    .filter(({ id }) => asked.length > 0 && fallback.includes(id))
    .flatMap(({ id, defaultModel }) => {
      const models = defaultModel ? [defaultModel] : asked.map(modelOf);
      return models.map((model) => `${id}/${model}`);
    });
  return [...new Set([...asked, ...fallbacks])].filter((target) => {
    const provider = registered.find(({ id }) => id === providerIdOf(target));
    const isPriced =
      !target.includes('*') && memberOf(provider?.modelPrices, modelOf(target)) !== undefined;
    return !isPriced;
  });
}

/** Returns the models that are asked for a name that matches the pattern. */
function targetsOf(pattern: string, settings: Settings): readonly string[] {
  const { all, providers } = settings;
  const { registered, primary } = providers;
  if (!pattern.includes('*')) {
    const alias = aliasFor(pattern, settings);
    if (!alias) return modelsNamed(pattern, settings);
    return alias.name === pattern
      ? alias.targets
      : alias.targets.map((target) => targetFor(target, alias, pattern));
  }
  const met = registered.filter(({ id }) => canMeet(pattern, `${id}/*`)).map(({ id }) => id);
  if (primary !== undefined && !pattern.includes('/')) met.push(primary);
  return [
    ...all.filter(({ name }) => canMeet(pattern, name)).flatMap(({ targets }) => targets),
    ...met.map((id) => `${id}/*`),
  ];
}

/**
 * Returns the model for a name that is no alias, or none if the gateway refuses the name. A
 * provider's id alone stands for its `default_model`.
 */
function modelsNamed(name: string, { providers: { primary, registered } }: Settings): string[] {
  const slash = name.indexOf('/');
  const id = slash < 0 ? name : name.slice(0, slash);
  const provider = registered.find((one) => one.id === id);
  const model = (slash < 0 ? '' : name.slice(slash + 1)) || provider?.defaultModel;
  if (provider) return model ? [`${id}/${model}`] : [];
  return slash < 0 && primary !== undefined ? [`${primary}/${name}`] : [];
}

const modelOf = (target: string) => target.slice(target.indexOf('/') + 1);
