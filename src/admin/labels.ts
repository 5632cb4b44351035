/** Label sets of the exposition format, and which model names may be labels. */

import type { FinishedRequest } from '../lib/request-facts.ts';

/** Names that are neither configured nor listed by a provider: clients could make up any number of them. */
export const OTHER = 'other';
/** A model that was never known, as Envoy AI Gateway calls it. */
const UNKNOWN = 'unknown';
const MAX_KNOWN_NAMES = 8000;
const MAX_NAME_CHARACTERS = 200;
const LONE_SURROGATE = /\p{Surrogate}/u;
/** Sets that end with a model's label, three for most models. Beyond them the models of new sets are `other`. */
const MAX_MODEL_SETS = 300;

/** A set of labels. The same names and values give the same object: a lookup allocates nothing after the first. */
export class LabelSet {
  /** In the exposition format, without the braces. */
  readonly text: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly #children = new Map<string, Map<string, LabelSet>>();

  constructor(text = '', labels: Readonly<Record<string, string>> = {}) {
    this.text = text;
    this.labels = labels;
  }

  has(name: string, value: string): boolean {
    return this.#children.get(name)?.has(value) === true;
  }

  /** Returns this set and one more label. An empty value is the same as no label: it returns this set. */
  with(name: string, value: string): LabelSet {
    if (value === '') return this;
    let children = this.#children.get(name);
    if (!children) this.#children.set(name, (children = new Map()));
    let child = children.get(value);
    if (!child) {
      const separator = this.text === '' ? '' : ',';
      const text = `${this.text}${separator}${name}="${escapeValue(value)}"`;
      child = new LabelSet(text, { ...this.labels, [name]: value });
      children.set(value, child);
    }
    return child;
  }
}

export const NO_LABELS = new LabelSet();

function escapeValue(value: string): string {
  return value.replace(/[\\"\n]/g, (character) => (character === '\n' ? '\\n' : `\\${character}`));
}

/** The labels that name models. Bounded whatever clients and providers send. */
export class ModelLabels {
  readonly #known = new Set<string>();
  readonly #root = NO_LABELS.with('gen_ai_operation_name', 'chat');
  #modelSets = 0;

  /** Allows names as labels. Those that are too long, or do not fit any more, stay `other`. */
  learn(names: Iterable<string>): void {
    for (const name of names) {
      if (this.#known.size >= MAX_KNOWN_NAMES) return;
      // In UTF-8 all lone surrogates are the same.
      const isUsable = name.length <= MAX_NAME_CHARACTERS && !LONE_SURROGATE.test(name);
      // A copy: V8's slice of a string keeps the whole string in memory, here the settings file's text.
      if (isUsable) this.#known.add(Buffer.from(name).toString());
    }
  }

  /** The label's value for a model's name. */
  labelOf(name: string | undefined): string {
    if (name === undefined) return UNKNOWN;
    return this.#known.has(name) ? name : OTHER;
  }

  /** The labels of a completion: its provider, and the three names of its model. */
  setOf(provider: string, { facts, responseModel }: FinishedRequest): LabelSet {
    let set = this.#root.with('gen_ai_provider_name', provider);
    set = this.#withModel(set, 'gen_ai_original_model', facts.model);
    set = this.#withModel(set, 'gen_ai_request_model', facts.upstream_model);
    return this.#withModel(set, 'gen_ai_response_model', responseModel);
  }

  #withModel(set: LabelSet, name: string, model: string | undefined): LabelSet {
    const label = this.labelOf(model);
    if (set.has(name, label)) return set.with(name, label);
    if (this.#modelSets >= MAX_MODEL_SETS) return set.with(name, OTHER);
    this.#modelSets += 1;
    return set.with(name, label);
  }
}
