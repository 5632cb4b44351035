/**
 * The models named in settings. If a provider no longer has such a model, the settings are wrong.
 * If only a client names a missing model, the client is wrong.
 */

import { matches } from '../lib/pattern.ts';
import { allAliases } from './aliases-section.ts';
import type { Config } from './config.ts';

interface NamedModel {
  /** The setting's name, such as `aliases.fast`. */
  readonly setting: string;
  readonly provider: string;
  readonly model: string;
}

type NamingSettings = Pick<Config, 'aliases' | 'providers' | 'wildcards'>;

/**
 * Returns the targets of all aliases, and each registered provider's `default_model`. A target with
 * a `*` is left out, because the client names its model.
 */
function namedModels(settings: NamingSettings): NamedModel[] {
  const targets = allAliases(settings).flatMap(({ name, targets: all }) =>
    all
      .filter(({ model }) => !model.includes('*'))
      .map(({ providerId: provider, model }) => ({ setting: `aliases.${name}`, provider, model })),
  );
  const defaults = settings.providers.registered.flatMap(({ id, defaultModel: model }) =>
    model ? { setting: `providers.${id}.default_model`, provider: id, model } : [],
  );
  return [...targets, ...defaults];
}

/**
 * Returns the first setting that names this provider's model, if any. For a fallback without
 * `default_model`, a model named for any provider counts, because the fallback is asked for the
 * requested model.
 */
export function namingSetting(
  settings: NamingSettings,
  provider: string,
  model: string,
): string | undefined {
  const { fallback, registered } = settings.providers;
  const section = registered.find(({ id }) => id === provider);
  const takesOthers = fallback.includes(provider) && !section?.defaultModel;
  const isNaming = (named: NamedModel) =>
    named.model === model && (takesOthers || named.provider === provider);
  return namedModels(settings).find(isNaming)?.setting;
}

/**
 * Returns this provider's named models that are not `listed`, or none if `listed` is empty. Among
 * them are the names in `model_details`, and the patterns in `hide_models` that match no model,
 * because both do nothing then.
 */
export function missingModels(
  settings: NamingSettings,
  provider: string,
  listed: readonly string[],
): NamedModel[] {
  if (listed.length === 0) return [];
  const names = new Set(listed);
  const section = settings.providers.registered.find(({ id }) => id === provider);
  const { hideModels = [], modelDetails = {} } = section ?? {};
  const named = (key: string, model: string) => ({
    setting: `providers.${provider}.${key}`,
    provider,
    model,
  });
  return [
    ...namedModels(settings).filter((each) => each.provider === provider),
    ...Object.keys(modelDetails).map((model) => named('model_details', model)),
    ...hideModels
      .filter((pattern) => !listed.some((model) => matches(pattern, model)))
      .map((pattern) => named('hide_models', pattern)),
  ].filter(({ model }) => !names.has(model));
}
