/**
 * Reads `[aliases]`, and finds the alias for a name. A wildcard alias has a `*` in its name for any
 * text, and a `*` in a target is the same text.
 */

import { capture, matches } from '../lib/pattern.ts';
import { SHORTEST_SECRET_CHARACTERS } from '../lib/secrets.ts';
import type { BalancedTargets, TARGETS } from './setting-kinds.ts';
import type { SettingValues } from './setting-values.ts';

/** A model at a provider. */
export interface Target {
  /** `<provider_id>/<model_name>`. */
  readonly name: string;
  readonly providerId: string;
  readonly model: string;
}

/**
 * Splits `<provider_id>/<model_name>` at the first slash, because models' names have slashes too. A
 * name without a slash is a provider's id, with '' as the model.
 */
export function parseTarget(name: string): Target {
  const slash = name.indexOf('/');
  const providerId = slash < 0 ? name : name.slice(0, slash);
  return { name, providerId, model: name.slice(providerId.length + 1) };
}

/**
 * Returns the target of a name that is no alias: a name without a slash is the id of one of
 * `providers`, or else a model of `primary`. Returns undefined if the name has no provider.
 */
export function targetNamed(
  name: string,
  { primary }: { readonly primary?: string | undefined },
  providers: { has(id: string): boolean },
): Target | undefined {
  const target = parseTarget(name);
  const isId = !name.includes('/');
  if (target.providerId !== '' && (!isId || providers.has(name))) return target;
  return isId && primary !== undefined ? { name, providerId: primary, model: name } : undefined;
}

export interface AliasSettings {
  /** The name for clients; in a wildcard alias with one `*`. */
  readonly name: string;
  /** There is at least one. */
  readonly targets: readonly Target[];
  readonly balance: NonNullable<BalancedTargets['balance']>;
  /** The weight of each target by its name, or undefined unless `balance` is `weighted`. */
  readonly weights: ReadonlyMap<string, number> | undefined;
}

export function readAliases(values: SettingValues, providers: KnownProviders) {
  const aliases: AliasSettings[] = [];
  const keys = values.secrets().filter(({ isKey }) => isKey);
  for (const [name, { value }] of values.plain()) {
    if (!name.startsWith('aliases.')) continue;
    const alias = name.slice('aliases.'.length);
    // Aliases are printed, so their names must not be keys. A shorter text is taken for a
    // placeholder.
    if (alias.length >= SHORTEST_SECRET_CHARACTERS && keys.some((key) => key.is(alias))) {
      values.problem(
        'aliases',
        'a configured key is also an alias name, and names are printed; choose another name',
      );
      continue;
    }
    aliases.push(readAlias(values, alias, value, providers));
  }
  const exact = aliases.filter(({ name }) => !name.includes('*'));
  // The longest text beside the `*` first; equals in the order of the file.
  const wildcards = aliases
    .filter((alias) => !exact.includes(alias))
    .toSorted((a, b) => b.name.length - a.name.length);
  return {
    aliases: new Map(exact.map((alias) => [alias.name, alias])),
    /** Aliases with a `*`, the most specific first; undefined without any. */
    wildcards: wildcards.length > 0 ? wildcards : undefined,
  };
}

interface KnownProviders {
  readonly registered: readonly { readonly id: string }[];
  /** The ids of all providers, registered or not. */
  readonly known: readonly string[];
}

function readAlias(
  values: SettingValues,
  alias: string,
  value: unknown,
  providers: KnownProviders,
): AliasSettings {
  const setting = `aliases.${alias}`;
  const written = value as NonNullable<typeof TARGETS.default>;
  const isTable = typeof written === 'object' && 'targets' in written;
  const table: BalancedTargets = isTable ? written : { targets: [written].flat() };
  const { balance = 'order', weights } = table;
  const targets = table.targets.map(parseTarget);
  if (targets.length === 0) values.problem(setting, 'expected at least one model');
  const stars = starsIn(alias);
  if (stars > 1) values.problem(setting, 'the name of an alias can have only one "*"');
  for (const target of targets) checkTarget(values, setting, target, { ...providers, stars });
  const isWhole = weights?.length === targets.length && weights.some((weight) => weight > 0);
  if (balance === 'weighted' && !isWhole) {
    const text = 'balance = "weighted" needs a weight for each target, at least one above 0';
    values.problem(`${setting}.weights`, text);
  } else if (balance !== 'weighted' && weights) {
    values.problem(`${setting}.weights`, 'weights need balance = "weighted"');
  }
  const byTarget = weights && weightsOf(targets, weights);
  return {
    name: alias,
    targets: byTarget ? [...byTarget.keys()].map(parseTarget) : targets,
    balance,
    weights: byTarget,
  };
}

/** Reports a target that is no model, or whose provider may not exist. */
function checkTarget(
  values: SettingValues,
  setting: string,
  { name, providerId, model }: Target,
  { known, registered, stars }: KnownProviders & { readonly stars: number },
): void {
  if (providerId === '' || model === '') {
    values.problem(setting, 'expected "<provider_id>/<model_name>"');
  } else if (starsIn(name) > Math.min(stars, 1)) {
    const limit = stars > 0 ? 'can have only one "*"' : 'has a "*", but the name has none';
    values.problem(setting, `the target "${values.asWritten(name)}" ${limit}`);
  } else if (stars > 0 && !known.includes(providerId)) {
    const hint = values.suggestions.didYouMean(providerId, known);
    values.problem(setting, `no such provider "${values.asWritten(name, providerId)}"${hint}`);
  } else if (!registered.some(({ id }) => id === providerId)) {
    const hint = known.includes(providerId) ? '' : values.suggestions.similarTo(providerId, known);
    const shown = values.asWritten(name, providerId);
    values.warning(setting, `provider "${shown}" is not registered${hint}`);
  }
}

function starsIn(text: string): number {
  return text.split('*').length - 1;
}

/** Returns each target's weight by its name. A target listed several times gets the sum. */
function weightsOf(targets: readonly Target[], weights: readonly number[]) {
  const byTarget = new Map<string, number>();
  for (const [index, { name }] of targets.entries()) {
    byTarget.set(name, (byTarget.get(name) ?? 0) + weights[index]!);
  }
  return byTarget;
}

/** The settings that decide where a name leads. */
export interface Routing {
  readonly aliases: ReadonlyMap<string, AliasSettings>;
  readonly wildcards: readonly AliasSettings[] | undefined;
  readonly providers: { readonly registered: readonly { readonly id: string }[] };
}

/** Returns the exact aliases, then the wildcard aliases. */
export function allAliases({
  aliases,
  wildcards = [],
}: Pick<Routing, 'aliases' | 'wildcards'>): readonly AliasSettings[] {
  return [...aliases.values(), ...wildcards];
}

/**
 * Returns the alias for this name: the exact one, or the first wildcard alias that matches. The
 * alias `*` leaves out the names that begin with a registered provider's id.
 */
export function aliasFor(
  name: string,
  { aliases, providers, wildcards }: Routing,
): AliasSettings | undefined {
  const found = aliases.get(name) ?? wildcards?.find((one) => matches(one.name, name));
  if (found?.name !== '*') return found;
  const { providerId } = parseTarget(name);
  return providers.registered.some(({ id }) => id === providerId) ? undefined : found;
}

/** Returns the alias's targets whose providers are registered. */
export function registeredTargets(
  { targets }: AliasSettings,
  providers: ReadonlyMap<string, unknown>,
): readonly Target[] {
  return targets.filter(({ providerId }) => providers.has(providerId));
}

/** Returns the alias's target for this name, with the name's text in place of `*`. */
export function targetFor(target: Target, alias: AliasSettings, name: string): Target {
  if (alias.name === name) return target;
  // A function, because `$` has a meaning in a replacement text.
  return parseTarget(target.name.replace('*', () => capture(alias.name, name)![0]!));
}

/**
 * Returns the names that lead to this model by wildcard aliases. `id` is
 * `<provider_id>/<model_name>`. A wildcard alias leads to its first target whose provider is
 * registered.
 */
export function wildcardNamesOf(id: string, settings: Routing): string[] {
  const { registered } = settings.providers;
  return (settings.wildcards ?? []).flatMap((alias) => {
    const target = alias.targets.find(({ providerId }) =>
      registered.some((provider) => provider.id === providerId),
    );
    const [star] = capture(target?.name ?? '', id) ?? [];
    if (star === undefined) return [];
    const name = alias.name.replace('*', () => star);
    return aliasFor(name, settings) === alias ? [name] : [];
  });
}
