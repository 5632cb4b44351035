/** The exposition format's label sets, and the model names allowed as labels. */

import type { FinishedRequest } from '../request/facts.ts';
import type { AllNames, Names } from './names.ts';

/** Stands for names neither configured nor listed by a provider, because clients choose them. */
export const OTHER = 'other';
/** Stands for a missing model name, as in Envoy AI Gateway. */
export const UNKNOWN = 'unknown';
/** The most sets with a provider and three model names. Further sets have `other` models. */
const MAX_MODEL_SETS = 400;

/**
 * A set of labels. Equal sets are the same object, so that only a set's first lookup allocates.
 */
export class LabelSet {
  /** The labels in the exposition format, without braces. */
  readonly text: string;
  /** True once a scrape shall no longer have the set's series. */
  isRemoved = false;
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

  /**
   * Removes the sets made from this set that have a label with the name of a client, a provider or
   * a model that is known no longer.
   */
  removeUnknown(names: AllNames, isRemoved = false): void {
    this.isRemoved = isRemoved;
    for (const [name, children] of this.#children) {
      const kind = KINDS[name];
      for (const [value, child] of children) {
        const isKnown = !kind || names[kind].has(value) || value === OTHER || value === UNKNOWN;
        child.removeUnknown(names, isRemoved || !isKnown);
        if (!isKnown) children.delete(value);
      }
    }
  }
}

/** The labels for a model's three names. */
const ORIGINAL = 'gen_ai_original_model';
const REQUEST = 'gen_ai_request_model';
const RESPONSE = 'gen_ai_response_model';
/** The labels whose values are names, which may be known no longer. Others are of a fixed list. */
const KINDS: Readonly<Record<string, 'clients' | 'providers' | 'models'>> = {
  client: 'clients',
  provider: 'providers',
  from: 'providers',
  to: 'providers',
  gen_ai_provider_name: 'providers',
  model: 'models',
  [ORIGINAL]: 'models',
  [REQUEST]: 'models',
  [RESPONSE]: 'models',
};

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
  readonly #root: LabelSet;
  readonly #names: Names;
  readonly #sets = new Map<LabelSet, ModelSet>();

  /** @param root - the set without labels, of which all sets are made */
  constructor(root: LabelSet, names: Names) {
    this.#root = root;
    this.#names = names;
  }

  /** Returns a request's label set: its operation, provider and the three names of its model. */
  setOf(provider: string, { facts, operation = 'chat', responseModel }: FinishedRequest): ModelSet {
    const ofOperation = this.#root.with('gen_ai_operation_name', operation);
    const ofProvider = ofOperation.with('gen_ai_provider_name', provider);
    let original = this.nameOf(facts.model);
    let request = this.nameOf(facts.upstream_model);
    let response = this.nameOf(responseModel);
    // No text serves as a key, because making it would take longer than the rest.
    const found = ofProvider.find(ORIGINAL, original)?.find(REQUEST, request);
    const known = this.#sets.get(found?.find(RESPONSE, response) ?? this.#root);
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
    return name === undefined ? UNKNOWN : (this.#names.get(name) ?? OTHER);
  }

  /** Forgets sets that were removed from the root. */
  forgetRemoved(): void {
    for (const labels of this.#sets.keys()) if (labels.isRemoved) this.#sets.delete(labels);
  }
}
