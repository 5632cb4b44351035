/** Label sets of the exposition format, and which names of models may be labels. */

import type { Config } from '../config/config.ts';
import type { FinishedRequest } from '../request/facts.ts';

/** Names that are neither configured nor listed by a provider: clients could make up any number of them. */
export const OTHER = 'other';
/** A model that was never known, as Envoy AI Gateway calls it. */
const UNKNOWN = 'unknown';
const MAX_KNOWN_NAMES = 8000;
/** With `other` and `unknown`. */
const MAX_PLACES = MAX_KNOWN_NAMES + 2;
const MAX_NAME_CHARACTERS = 200;
/** Label sets of a provider with the three names of its model. Beyond them the models of new sets are `other`. */
const MAX_MODEL_SETS = 400;

/** A set of labels. The same names and values give the same object: a lookup allocates nothing after the first. */
export class LabelSet {
  /** In the exposition format, without the braces. */
  readonly text: string;
  readonly #children = new Map<string, Map<string, LabelSet>>();

  constructor(text = '') {
    this.text = text;
  }

  /** Returns this set and one more label. Without a value it returns this set. */
  with(name: string, value: string | undefined): LabelSet {
    if (value === undefined) return this;
    let children = this.#children.get(name);
    if (!children) this.#children.set(name, (children = new Map()));
    let child = children.get(value);
    if (!child) {
      const separator = this.text === '' ? '' : ',';
      child = new LabelSet(`${this.text}${separator}${name}="${escapeValue(value)}"`);
      children.set(value, child);
    }
    return child;
  }
}

export const NO_LABELS = new LabelSet();

/** Returns each of the sets with each of the values: all labels that the settings make known. */
export function combine(
  sets: readonly LabelSet[],
  name: string,
  values: readonly (string | undefined)[],
): LabelSet[] {
  return sets.flatMap((set) => values.map((value) => set.with(name, value)));
}

function escapeValue(value: string): string {
  return value.replace(/[\\"\n]/g, (character) => (character === '\n' ? '\\n' : `\\${character}`));
}

/** The labels of completions by a model. */
export interface ModelSet {
  readonly labels: LabelSet;
  /** The name that clients use. */
  readonly name: string;
}

/** The labels that name models. Bounded whatever clients and providers send. */
export class ModelLabels {
  readonly #labels = [OTHER, UNKNOWN];
  /** The places of the known names in `#labels`. */
  readonly #places = new Map<string, number>();
  /** By provider, and by the places of the three names: a key of text would cost more than all else here. */
  readonly #sets = new Map<string, Map<number, ModelSet>>();
  #size = 0;

  /** Allows names as labels. Those that are too long, or do not fit any more, stay `other`. */
  learn(names: Iterable<string>): void {
    for (const name of names) {
      if (name.length > MAX_NAME_CHARACTERS || this.#places.has(name)) continue;
      if (this.#places.size >= MAX_KNOWN_NAMES) return;
      // A copy: V8's slice of a string keeps the whole string in memory, here the settings file's text.
      const copy = Buffer.from(name).toString();
      this.#places.set(copy, this.#labels.push(copy) - 1);
    }
  }

  /** Returns the labels of a completion: its provider, and the three names of its model. */
  setOf(provider: string, { facts, responseModel }: FinishedRequest): ModelSet {
    let original = this.#placeOf(facts.model);
    let request = this.#placeOf(facts.upstream_model);
    let response = this.#placeOf(responseModel);
    let sets = this.#sets.get(provider);
    if (!sets) this.#sets.set(provider, (sets = new Map()));
    const key = (original * MAX_PLACES + request) * MAX_PLACES + response;
    const known = sets.get(key);
    if (known) return known;
    const isFull = this.#size >= MAX_MODEL_SETS;
    if (isFull) original = request = response = 0;
    const labels = NO_LABELS.with('gen_ai_operation_name', 'chat')
      .with('gen_ai_provider_name', provider)
      .with('gen_ai_original_model', this.#labels[original])
      .with('gen_ai_request_model', this.#labels[request])
      .with('gen_ai_response_model', this.#labels[response]);
    const set = { labels, name: this.#labels[original]! };
    if (isFull) return set;
    this.#size += 1;
    sets.set(key, set);
    return set;
  }

  /** Returns the name if it is known. */
  nameOf(name: string): string {
    return this.#labels[this.#placeOf(name)]!;
  }

  #placeOf(name: string | undefined): number {
    return name === undefined ? 1 : (this.#places.get(name) ?? 0);
  }
}

/** Returns the names by which clients or the gateway may call a model of the settings. */
export function configuredModels({ aliases, providers, clients }: Config): string[] {
  const targets = [...aliases.values()].flatMap((alias) => alias.targets);
  return [
    ...aliases.keys(),
    ...clients.flatMap(({ models = [] }) => models.filter((name) => !name.endsWith('*'))),
    ...targets,
    ...targets.map((target) => target.slice(target.indexOf('/') + 1)),
    ...providers.registered.flatMap(({ id, defaultModel, modelDetails = {}, models = [] }) => {
      const names = listedModels(id, [...Object.keys(modelDetails), ...models]);
      if (defaultModel === undefined) return names;
      // A provider's id alone stands for its default model.
      return [id, `${id}/`, ...listedModels(id, [defaultModel]), ...names];
    }),
  ];
}

/** Returns a provider's names of its models, and those that clients use. */
export function listedModels(provider: string, names: readonly string[]): string[] {
  return names.flatMap((name) => [name, `${provider}/${name}`]);
}
