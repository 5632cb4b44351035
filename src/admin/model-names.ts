/** The names of models that the settings and the providers' lists contain. */

import type { Config } from '../config/config.ts';

/** All names by which clients or the gateway may call a model of the settings. */
export function configuredModels({ aliases, providers, clients }: Config): string[] {
  const targets = [...aliases.values()].flat();
  return [
    ...aliases.keys(),
    ...clients.flatMap(({ models = [] }) => models.filter((name) => !name.endsWith('*'))),
    ...targets,
    ...targets.map((target) => target.slice(target.indexOf('/') + 1)),
    ...providers.registered.flatMap(({ id, defaultModel, models = [] }) => {
      const named = defaultModel === undefined ? models : [defaultModel, ...models];
      // A provider's id alone stands for its default model.
      const shorthand = defaultModel === undefined ? [] : [id, `${id}/`];
      return [...shorthand, ...listedModels(id, named)];
    }),
  ];
}

/** What a provider calls its models, and what clients call them. */
export function listedModels(provider: string, names: readonly string[]): string[] {
  return names.flatMap((name) => [name, `${provider}/${name}`]);
}
