/** Reads a provider's model list: names, and allow-listed members. */

import { memberOf } from '../lib/json.ts';
import { reportsFailure } from './error-body.ts';

/** Members with a model's limits, in tokens. */
export const MODEL_LIMITS = (
  'context_length max_model_len context_window max_input_tokens max_output_tokens ' +
  'max_completion_tokens'
).split(' ');

export interface ListedModel {
  readonly name: string;
  /** Seconds since the epoch; 0 if the provider gives none. */
  readonly created: number;
  readonly details: Readonly<Record<string, unknown>>;
}

/** Agents size their context by these members, and clients sort models by their use. */
const DETAILS = [
  ...MODEL_LIMITS,
  ...'architecture input_modalities output_modalities pricing supported_parameters'.split(' '),
  ...'type supported_endpoints supported_operations capabilities'.split(' '),
];
/** Further models are left out. */
const MAX_MODELS = 10_000;
/** A longer or deeper detail is left out. */
const MAX_JSON_CHARACTERS = 2048;
const MAX_LEVELS = 3;

/**
 * Reads `{data: [...]}` (OpenAI), an array (Together) or `{models: [...]}`; strips `models/` from
 * names (Gemini). Servers in Go write an empty list as null.
 *
 * @throws an Error if the JSON is no such list
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
  // llama.cpp writes its limit into `meta`, among facts about the model file.
  const contextLength = memberOf(memberOf(entry, 'meta'), 'n_ctx');
  if (contextLength !== undefined) details.push(['meta', { n_ctx: contextLength }]);
  return Object.fromEntries(details.filter(([, value]) => value != null && isSmall(value)));
}

/** Levels are checked first, because a deep value would overflow the stack in `JSON.stringify`. */
function isSmall(value: unknown): boolean {
  return hasLevels(value, MAX_LEVELS) && JSON.stringify(value).length <= MAX_JSON_CHARACTERS;
}

function hasLevels(value: unknown, maxLevels: number): boolean {
  if (typeof value !== 'object' || value === null) return true;
  return maxLevels > 0 && Object.values(value).every((item) => hasLevels(item, maxLevels - 1));
}
