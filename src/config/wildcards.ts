/** Wildcard aliases: the name has a `*` for any text, and each `*` in a target is that text. */

import { capture, matches } from '../lib/pattern.ts';
import type { AliasSettings, Config } from './config.ts';

type Settings = Pick<Config, 'aliases' | 'providers' | 'wildcards'>;

/**
 * Returns the alias for this name: the exact one, or the first wildcard alias that matches. The
 * alias `*` leaves out the names that begin with a registered provider's id.
 */
export function aliasFor(
  name: string,
  { aliases, providers, wildcards = [] }: Settings,
): AliasSettings | undefined {
  const found = aliases.get(name) ?? wildcards.find((one) => matches(one.name, name));
  if (found?.name !== '*') return found;
  const [start] = name.split('/', 1);
  return providers.registered.some(({ id }) => id === start) ? undefined : found;
}

/** Returns the alias's target for this name, with the name's text in place of `*`. */
export function targetFor(target: string, alias: AliasSettings, name: string): string {
  // A function, because `$` has a meaning in a replacement text.
  return target.replace('*', () => capture(alias.name, name)![0]!);
}

/**
 * Returns the names that lead to this model by wildcard aliases. `id` is
 * `<provider_id>/<model_name>`. A wildcard alias leads to its first target whose provider is
 * registered.
 */
export function wildcardNamesOf(id: string, settings: Settings): string[] {
  const ids = settings.providers.registered.map((provider) => `${provider.id}/`);
  return (settings.wildcards ?? []).flatMap((alias) => {
    const target = alias.targets.find((one) => ids.some((start) => one.startsWith(start)));
    const [star] = capture(target ?? '', id) ?? [];
    if (star === undefined) return [];
    const name = alias.name.replace('*', () => star);
    return aliasFor(name, settings) === alias ? [name] : [];
  });
}
