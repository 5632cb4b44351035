/** Label sets of the exposition format, and which names of models may be labels. */

import type { Config } from '../config/config.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';

/** Names that are neither configured nor listed by a provider: clients could make up any number of them. */
export const OTHER = 'other';
/** A model that was never known, as Envoy AI Gateway calls it. */
const UNKNOWN = 'unknown';
const MAX_KNOWN_NAMES = 8000;
const MAX_NAME_CHARACTERS = 200;
/** Of a provider with the three names of its model. Beyond them the models of new sets are `other`. */
const MAX_MODEL_SETS = 400;

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
  readonly #sets = new Map<string, LabelSet>();

  /** Allows names as labels. Those that are too long, or do not fit any more, stay `other`. */
  learn(names: Iterable<string>): void {
    for (const name of names) {
      if (this.#known.size >= MAX_KNOWN_NAMES) return;
      // A copy: V8's slice of a string keeps the whole string in memory, here the settings file's text.
      if (name.length <= MAX_NAME_CHARACTERS) this.#known.add(Buffer.from(name).toString());
    }
  }

  /** Returns the labels of a completion: its provider, and the three names of its model. */
  setOf(provider: string, { facts, responseModel }: FinishedRequest): LabelSet {
    const models = [facts.model, facts.upstream_model, responseModel].map((name) => {
      if (name === undefined) return UNKNOWN;
      return this.#known.has(name) ? name : OTHER;
    });
    const key = JSON.stringify([provider, ...models]);
    const known = this.#sets.get(key);
    if (known) return known;
    const isFull = this.#sets.size >= MAX_MODEL_SETS;
    const [original, request, response] = isFull ? [OTHER, OTHER, OTHER] : models;
    const set = NO_LABELS.with('gen_ai_operation_name', 'chat')
      .with('gen_ai_provider_name', provider)
      .with('gen_ai_original_model', original!)
      .with('gen_ai_request_model', request!)
      .with('gen_ai_response_model', response!);
    if (!isFull) this.#sets.set(key, set);
    return set;
  }
}

/** Returns the names by which clients or the gateway may call a model of the settings. */
export function configuredModels({ aliases, providers, clients }: Config): string[] {
  const targets = [...aliases.values()].flat();
  return [
    ...aliases.keys(),
    ...clients.flatMap(({ models = [] }) => models.filter((name) => !name.endsWith('*'))),
    ...targets,
    ...targets.map((target) => target.slice(target.indexOf('/') + 1)),
    ...providers.registered.flatMap(({ id, defaultModel, models = [] }) => {
      if (defaultModel === undefined) return listedModels(id, models);
      // A provider's id alone stands for its default model.
      return [id, `${id}/`, ...listedModels(id, [defaultModel, ...models])];
    }),
  ];
}

/** Returns a provider's names of its models, and those that clients use. */
export function listedModels(provider: string, names: readonly string[]): string[] {
  return names.flatMap((name) => [name, `${provider}/${name}`]);
}
