/**
 * A provider's list of models: their names, and what it says of each under an allow-list of
 * members.
 */

import { memberOf } from '../lib/json.ts';
import { reportsFailure } from './error-body.ts';

/** The members of a list of models that tell a model's limits, in tokens. */
export const MODEL_LIMITS = (
  'context_length max_model_len context_window max_input_tokens max_output_tokens ' +
  'max_completion_tokens'
).split(' ');

export interface ListedModel {
  readonly name: string;
  /** Seconds since the epoch; 0 if the provider does not say. */
  readonly created: number;
  /** Members of the provider's entry, as `JSON.parse` reads them. */
  readonly details: Readonly<Record<string, unknown>>;
}

/**
 * Limits of context and output, modalities, prices and parameters, by which agents size their
 * context.
 */
const DETAILS = [
  ...MODEL_LIMITS,
  ...'architecture input_modalities output_modalities pricing supported_parameters'.split(' '),
];
/** Further ones are left out. */
const MAX_MODELS = 10_000;
/** Limits of one detail: a longer or deeper one is left out. */
const MAX_JSON_CHARACTERS = 2048;
const MAX_LEVELS = 3;

/**
 * Reads `{data: […]}` (OpenAI), an array (Together) or `{models: […]}`; strips `models/` (Gemini).
 * A list that is null is empty: servers in Go write empty lists so. Throws for all else.
 */
export function readModelList(json: unknown): ListedModel[] {
  const [data, models] = [memberOf(json, 'data'), memberOf(json, 'models')];
  const isEmptyList = (data === null || models === null) && !reportsFailure(json);
  const list = Array.isArray(json) ? json : (data ?? models ?? (isEmptyList ? [] : undefined));
  if (!Array.isArray(list)) throw new Error('not a model list');
  return list.slice(0, MAX_MODELS).flatMap((entry: unknown) => {
    const name = memberOf(entry, 'id') ?? memberOf(entry, 'name') ?? entry;
    const created = memberOf(entry, 'created');
    if (typeof name !== 'string' || name === '') return [];
    return {
      name: name.replace(/^models\//, ''),
      created: Number.isSafeInteger(created) ? (created as number) : 0,
      details: readDetails(entry),
    };
  });
}

function readDetails(entry: unknown): ListedModel['details'] {
  const details = DETAILS.map((name): [string, unknown] => [name, memberOf(entry, name)]);
  // llama.cpp writes its limit there, among facts of the file.
  const ofFile = memberOf(memberOf(entry, 'meta'), 'n_ctx');
  if (ofFile !== undefined) details.push(['meta', { n_ctx: ofFile }]);
  return Object.fromEntries(details.filter(([, value]) => value != null && isSmall(value)));
}

/** Levels come first: a deep value would overflow the stack of `JSON.stringify`. */
function isSmall(value: unknown): boolean {
  return hasLevels(value, MAX_LEVELS) && JSON.stringify(value).length <= MAX_JSON_CHARACTERS;
}

function hasLevels(value: unknown, most: number): boolean {
  if (typeof value !== 'object' || value === null) return true;
  return most > 0 && Object.values(value).every((item) => hasLevels(item, most - 1));
}
