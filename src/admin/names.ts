/** The names that may be values of labels, and rows of the page. */

import type { Config } from '../config/config.ts';
import { allAliases, wildcardNamesOf } from '../config/aliases-section.ts';

/** How long a name stays that is used no longer, so that a scrape has seen its last values. */
const KEPT_MS = 300_000;
/** Bounds the names of models, which providers list. */
const MAX_MODELS = 8000;
/** The longest name or cause in a label. */
export const MAX_LABEL_CHARACTERS = 200;
/** The source of the names in the settings. */
const SETTINGS = 'settings';

/** Names in use, from one or more sources, and for five minutes those that were in use. */
export class Names {
  /** By source. */
  readonly #inUse = new Map<string, ReadonlySet<string>>();
  /** All names, each as a copy, because a slice of a string keeps the whole string in memory. */
  readonly #known = new Map<string, string>();
  /** When each name that is used no longer goes, on the clock of `performance.now()`. */
  readonly #goesAtMs = new Map<string, number>();
  readonly #max: number;

  constructor(max = Infinity) {
    this.#max = max;
  }

  /** Replaces the names of a source. Names that are too long or too many are left out. */
  use(source: string, names: Iterable<string>): void {
    const before = this.#inUse.get(source) ?? [];
    const next = new Set<string>();
    for (const name of names) {
      const known = this.#known.get(name) ?? this.#learn(name);
      if (known === undefined) continue;
      this.#goesAtMs.delete(known);
      next.add(known);
    }
    if (next.size > 0) this.#inUse.set(source, next);
    else this.#inUse.delete(source);
    const sources = [...this.#inUse.values()];
    for (const name of before) {
      const isUsed = sources.some((all) => all.has(name));
      if (!isUsed) this.#goesAtMs.set(name, performance.now() + KEPT_MS);
    }
  }

  /** Knows a name for five minutes that is used no longer: an old request has ended with it. */
  note(name: string): void {
    if (this.#known.has(name)) return;
    this.#known.set(name, name);
    this.#goesAtMs.set(name, performance.now() + KEPT_MS);
  }

  /** Returns the copy of a known name. */
  get(name: string): string | undefined {
    return this.#known.get(name);
  }

  has(name: string): boolean {
    return this.#known.has(name);
  }

  /** Forgets the names whose time has come, and returns whether there were any. */
  expire(): boolean {
    const nowMs = performance.now();
    const sizeBefore = this.#known.size;
    for (const [name, goesAtMs] of this.#goesAtMs) {
      if (goesAtMs > nowMs) continue;
      this.#goesAtMs.delete(name);
      this.#known.delete(name);
    }
    return this.#known.size < sizeBefore;
  }

  #learn(name: string): string | undefined {
    if (name.length > MAX_LABEL_CHARACTERS || this.#known.size >= this.#max) return undefined;
    const copy = Buffer.from(name).toString();
    this.#known.set(copy, copy);
    return copy;
  }
}

/** The names of clients, providers and models. */
export class AllNames {
  readonly clients = new Names();
  readonly providers = new Names();
  readonly models = new Names(MAX_MODELS);
  /** The names that each provider has listed. */
  readonly #lists = new Map<string, readonly string[]>();
  readonly #isShown: (name: string) => boolean;

  /** @param isShown - false for a name of a model that looks like a key */
  constructor(isShown: (name: string) => boolean = () => true) {
    this.#isShown = isShown;
  }

  /** Takes the names of new settings. */
  useSettings(config: Config): void {
    const ids = config.providers.registered.map(({ id }) => id);
    this.clients.use(
      SETTINGS,
      config.clients.map(({ name }) => name),
    );
    this.providers.use(SETTINGS, ids);
    this.models.use(SETTINGS, configuredModels(config).filter(this.#isShown));
    for (const [id, names] of this.#lists) this.useList(id, ids.includes(id) ? names : [], config);
  }

  /** Takes the models that a provider lists, and the names by which wildcard aliases lead there. */
  useList(provider: string, names: readonly string[], config: Config): void {
    if (names.length > 0) this.#lists.set(provider, names);
    else this.#lists.delete(provider);
    const wildcards = names.flatMap((name) => wildcardNamesOf(`${provider}/${name}`, config));
    const all = [...listedModels(provider, names), ...wildcards];
    this.models.use(`list of ${provider}`, all.filter(this.#isShown));
  }

  /**
   * Forgets the names whose time has come, and returns whether there were any. Their places are
   * then for names that were too many.
   */
  expire(config: Config): boolean {
    const all = [this.clients, this.providers, this.models];
    const hasExpired = all.map((names) => names.expire()).includes(true);
    if (hasExpired) this.useSettings(config);
    return hasExpired;
  }
}

/** Returns all model names in the settings, for clients and for providers. */
function configuredModels(config: Config): string[] {
  const { aliases, clients, providers } = config;
  const targets = allAliases(config)
    .flatMap((alias) => alias.targets)
    .filter(({ model }) => !model.includes('*'));
  return [
    ...aliases.keys(),
    ...clients.flatMap(({ models = [] }) => models.filter((name) => !name.includes('*'))),
    ...targets.flatMap(({ name, model }) => [name, model]),
    ...providers.registered.flatMap(({ id, defaultModel, modelDetails = {}, models = [] }) => {
      const listed = listedModels(id, [...Object.keys(modelDetails), ...models]);
      if (defaultModel === undefined) return listed;
      // A provider's id stands for its default model.
      return [id, `${id}/`, ...listedModels(id, [defaultModel]), ...listed];
    }),
  ];
}

/** Returns a provider's model names, for the provider and for clients. */
function listedModels(provider: string, names: readonly string[]): string[] {
  return names.flatMap((name) => [name, `${provider}/${name}`]);
}
