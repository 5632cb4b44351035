/** Wildcard aliases: the name has a `*` for any text, and each `*` in a target is that text. */

import type { AliasSettings, Config } from './config.ts';

/**
 * Returns the text in the name at the place of the pattern's only `*`, at least one character;
 * undefined if the name does not match the pattern.
 */
export function starOf(pattern: string, name: string): string | undefined {
  const [before = '', after = ''] = pattern.split('*');
  const isMatch = name.startsWith(before) && name.endsWith(after);
  // Empty if `before` and `after` overlap in the name, or leave nothing between them.
  const star = isMatch ? name.slice(before.length, name.length - after.length) : '';
  return star || undefined;
}

/** Returns the alias's target for this name, with the name's text in place of `*`. */
export function targetFor(target: string, alias: AliasSettings, name: string): string {
  // A function, because `$` has a meaning in a replacement text.
  return target.replace('*', () => starOf(alias.name, name)!);
}

/**
 * Returns the names that lead to this model by wildcard aliases. `id` is
 * `<provider_id>/<model_name>`. A wildcard alias leads to its first target whose provider is
 * registered.
 */
export function wildcardNamesOf(
  id: string,
  { aliases, providers, wildcards = [] }: Pick<Config, 'aliases' | 'providers' | 'wildcards'>,
): string[] {
  const ids = providers.registered.map((provider) => `${provider.id}/`);
  return wildcards.flatMap((alias) => {
    const target = alias.targets.find((one) => ids.some((start) => one.startsWith(start)));
    const star = target?.includes('*') ? starOf(target, id) : undefined;
    if (star === undefined) return [];
    const name = alias.name.replace('*', () => star);
    const first = wildcards.find((one) => starOf(one.name, name) !== undefined);
    return first === alias && !aliases.has(name) ? [name] : [];
  });
}
