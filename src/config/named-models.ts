/**
 * The models that settings name, and not only clients: if one of them is gone, the settings are
 * wrong.
 */

import type { Config } from './config.ts';

/** A model that a setting names. */
interface NamedModel {
  /** The name of the setting, as `aliases.fast`. */
  readonly setting: string;
  readonly provider: string;
  readonly model: string;
}

type Settings = Pick<Config, 'aliases' | 'providers'>;

/** Returns the targets of all aliases, and each `default_model` of a registered provider. */
function namedModels({ aliases, providers }: Settings): NamedModel[] {
  const targets = [...aliases].flatMap(([alias, settings]) =>
    settings.targets.map((target) => {
      const slash = target.indexOf('/');
      const [provider, model] = [target.slice(0, slash), target.slice(slash + 1)];
      return { setting: `aliases.${alias}`, provider, model };
    }),
  );
  const defaults = providers.registered.flatMap(({ id, defaultModel: model }) =>
    model ? { setting: `providers.${id}.default_model`, provider: id, model } : [],
  );
  return [...targets, ...defaults];
}

/**
 * Returns true if a setting names this model of the provider. A fallback without a `default_model`
 * is asked for the models that settings name of other providers.
 */
export function isNamed(settings: Settings, provider: string, model: string): boolean {
  const { fallback, registered } = settings.providers;
  const section = registered.find(({ id }) => id === provider);
  const takesOthers = fallback.includes(provider) && !section?.defaultModel;
  return namedModels(settings).some(
    (one) => one.model === model && (takesOthers || one.provider === provider),
  );
}

/**
 * Returns the models that settings name of this provider and that its list does not have; none of
 * an empty list.
 */
export function missingModels(
  settings: Settings,
  provider: string,
  listed: readonly string[],
): NamedModel[] {
  if (listed.length === 0) return [];
  const names = new Set(listed);
  return namedModels(settings).filter((one) => one.provider === provider && !names.has(one.model));
}
