/** Label sets of the exposition format, and which names of models may be labels. */

import type { Config } from '../config/config.ts';
import type { FinishedRequest } from '../request/facts.ts';

/**
 * Names that are neither configured nor listed by a provider: clients could make up any number of
 * them.
 */
export const OTHER = 'other';
/** A model that was never known, as Envoy AI Gateway calls it. */
const UNKNOWN = 'unknown';
const MAX_KNOWN_NAMES = 8000;
const MAX_NAME_CHARACTERS = 200;
/**
 * Label sets of a provider with the three names of its model. Beyond them the models of new sets
 * are `other`.
 */
const MAX_MODEL_SETS = 400;

/**
 * A set of labels. The same names and values give the same object: a lookup allocates nothing after
 * the first.
 */
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

  /** Returns the set that `with` returns, if it exists. */
  find(name: string, value: string): LabelSet | undefined {
    return this.#children.get(name)?.get(value);
  }
}

export const NO_LABELS = new LabelSet();
const COMPLETION = NO_LABELS.with('gen_ai_operation_name', 'chat');
/** The names of the labels with the three names of a model. */
const ORIGINAL = 'gen_ai_original_model';
const REQUEST = 'gen_ai_request_model';
const RESPONSE = 'gen_ai_response_model';

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
  readonly #known = new Map<string, string>();
  readonly #sets = new Map<LabelSet, ModelSet>();

  /** Allows names as labels. Those that are too long, or do not fit any more, stay `other`. */
  learn(names: Iterable<string>): void {
    for (const name of names) {
      if (name.length > MAX_NAME_CHARACTERS || this.#known.has(name)) continue;
      if (this.#known.size >= MAX_KNOWN_NAMES) return;
      // A copy: V8's slice of a string keeps the whole string in memory, here the settings file's
      // text.
      const copy = Buffer.from(name).toString();
      this.#known.set(copy, copy);
    }
  }

  /** Returns the labels of a completion: its provider, and the three names of its model. */
  setOf(provider: string, { facts, responseModel }: FinishedRequest): ModelSet {
    const ofProvider = COMPLETION.with('gen_ai_provider_name', provider);
    let original = this.nameOf(facts.model);
    let request = this.nameOf(facts.upstream_model);
    let response = this.nameOf(responseModel);
    // A key of text for each request would cost more than all else here.
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

  /** Returns the name if it is known; for none `unknown`. */
  nameOf(name: string | undefined): string {
    return name === undefined ? UNKNOWN : (this.#known.get(name) ?? OTHER);
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
