/** The exposition format's label sets, and the model names allowed as labels. */

import type { Config } from '../config/config.ts';
import type { FinishedRequest } from '../request/facts.ts';

/** Stands for names neither configured nor listed by a provider, because clients choose them. */
export const OTHER = 'other';
/** Stands for a missing model name, as in Envoy AI Gateway. */
const UNKNOWN = 'unknown';
const MAX_KNOWN_NAMES = 8000;
const MAX_NAME_CHARACTERS = 200;
/** The most sets with a provider and three model names. Further sets have `other` models. */
const MAX_MODEL_SETS = 400;

/**
 * A set of labels. Equal sets are the same object, so that only a set's first lookup allocates.
 */
export class LabelSet {
  /** The labels in the exposition format, without braces. */
  readonly text: string;
  readonly #children = new Map<string, Map<string, LabelSet>>();

  constructor(text = '') {
    this.text = text;
  }

  /** Returns the set with a further label, or this set if the value is undefined. */
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

  /** Returns the set that `with` has made before, if any. */
  find(name: string, value: string): LabelSet | undefined {
    return this.#children.get(name)?.get(value);
  }
}

export const NO_LABELS = new LabelSet();
/** The labels for a model's three names. */
const ORIGINAL = 'gen_ai_original_model';
const REQUEST = 'gen_ai_request_model';
const RESPONSE = 'gen_ai_response_model';

/** Returns all combinations of the sets and the label's values. */
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

/** A label set for a model's requests. */
export interface ModelSet {
  readonly labels: LabelSet;
  /** The model's name for clients. */
  readonly name: string;
}

/** Label sets that name models, bounded whatever clients and providers send. */
export class ModelLabels {
  readonly #known = new Map<string, string>();
  readonly #sets = new Map<LabelSet, ModelSet>();

  /** Allows names as labels. Names that are too long or too many stay `other`. */
  learn(names: Iterable<string>): void {
    for (const name of names) {
      if (name.length > MAX_NAME_CHARACTERS || this.#known.has(name)) continue;
      if (this.#known.size >= MAX_KNOWN_NAMES) return;
      // A copy, because V8's slice of a string would keep the settings file's text in memory.
      const copy = Buffer.from(name).toString();
      this.#known.set(copy, copy);
    }
  }

  /** Returns a request's label set: its operation, provider and the three names of its model. */
  setOf(provider: string, { facts, operation = 'chat', responseModel }: FinishedRequest): ModelSet {
    const ofOperation = NO_LABELS.with('gen_ai_operation_name', operation);
    const ofProvider = ofOperation.with('gen_ai_provider_name', provider);
    let original = this.nameOf(facts.model);
    let request = this.nameOf(facts.upstream_model);
    let response = this.nameOf(responseModel);
    // No text serves as a key, because making it would take longer than the rest.
    const found = ofProvider.find(ORIGINAL, original)?.find(REQUEST, request);
    const known = this.#sets.get(found?.find(RESPONSE, response) ?? NO_LABELS);
    if (known) return known;
    const isFull = this.#sets.size >= MAX_MODEL_SETS;
    if (isFull) original = request = response = OTHER;
    const ofModel = ofProvider.with(ORIGINAL, original).with(REQUEST, request);
    const labels = ofModel.with(RESPONSE, response);
    const set = { labels, name: original };
    if (!isFull) this.#sets.set(labels, set);
    return set;
  }

  /** Returns an allowed name, `other` for another name, and `unknown` for undefined. */
  nameOf(name: string | undefined): string {
    return name === undefined ? UNKNOWN : (this.#known.get(name) ?? OTHER);
  }
}

/** Returns all model names in the settings, for clients and for providers. */
export function configuredModels({ aliases, clients, providers, wildcards }: Config): string[] {
  const targets = [...aliases.values(), ...(wildcards ?? [])]
    .flatMap((alias) => alias.targets)
    .filter((target) => !target.includes('*'));
  return [
    ...aliases.keys(),
    ...clients.flatMap(({ models = [] }) => models.filter((name) => !name.endsWith('*'))),
    ...targets,
    ...targets.map((target) => target.slice(target.indexOf('/') + 1)),
    ...providers.registered.flatMap(({ id, defaultModel, modelDetails = {}, models = [] }) => {
      const names = listedModels(id, [...Object.keys(modelDetails), ...models]);
      if (defaultModel === undefined) return names;
      // A provider's id stands for its default model.
      return [id, `${id}/`, ...listedModels(id, [defaultModel]), ...names];
    }),
  ];
}

/** Returns a provider's model names, for the provider and for clients. */
export function listedModels(provider: string, names: readonly string[]): string[] {
  return names.flatMap((name) => [name, `${provider}/${name}`]);
}
