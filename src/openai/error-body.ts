/** Reads errors as providers write them: in an error body, in a 200, or in a stream's event. */

import { memberOf, parseUntrustedJson } from '../lib/json.ts';
import { firstItem, reportsError } from './answer-json.ts';

const MAX_CODE_CHARACTERS = 200;
/**
 * Matches the code for a request that exceeds the context. Codes are compared as `toWord` returns
 * them, because providers write `InvalidParameter` and `invalid-parameter`.
 */
export const TOO_LONG = /contextlengthexceeded/;
/** Members that may hold the message, in search order. */
const MESSAGE_NAMES = (
  'message msg detail error errors Message error_description ' +
  // `error_msg` is Baidu's; `status_msg` is MiniMax's, inside `base_resp`.
  'error_msg status_msg'
).split(' ');
/** Members that may hold the message if there is no `error`. */
export const BARE_MESSAGE_NAMES = ['message', 'msg', 'detail', 'error_msg'];
/** The most arrays and objects to search, which also bounds the depth. */
const MAX_SEARCHED = 100;
const STATUS_NAMES = ['status_code', 'status', 'code'];
const STATUSES_BY_WORD: readonly (readonly [words: RegExp, status: number])[] = [
  [/invalidrequesterror|toolusefailed|unsupportedvalue|invalidparameter/, 400],
  [TOO_LONG, 400],
  [/contentpolicy|contentfilter/, 400],
  [/authenticationerror|invalidapikey/, 401],
  [/permission/, 403],
  [/notfound/, 404],
  [/ratelimit|insufficientquota/, 429],
  [/overloaded/, 503],
];
/**
 * Matches the message, code and type of a 404 about the model. Four of them lack the word: Azure's
 * code for an unknown deployment, OpenRouter's message, Databricks' and NVIDIA's.
 */
const ABOUT_MODEL =
  /model|deploymentnotfound|no endpoints found for|endpoint with name|function '[^']*': not found/i;
/** Codes of a 400 for a model that the provider lacks. 1211 is z.ai's. */
const LACKS_MODEL_CODE = /^(?:modelnotfound|modelnotavailable|unknownmodel|invalidmodel|1211)$/;
/**
 * Messages of a 400 for a model that the provider lacks. A message must begin with these words,
 * because other messages quote the request, which could then open a circuit.
 */
const LACKS_MODEL_MESSAGE =
  /^(?:model (?:not exist|does not exist|not found)|unknown model|\S+ is not a valid model id)\b/i;
/** OpenRouter writes this in place of its provider's message. */
const GENERIC_MESSAGE = /^provider returned error\.?$/i;

/** An upstream's error. All its members are untrusted. */
export type UpstreamFault = ReturnType<typeof readFault>;

/**
 * Returns whether the JSON in a 200, or in an event before an answer, is an error. `error` may be
 * absent: `{"code":500,"msg":...}` (z.ai), `{"detail":...}` (FastAPI),
 * `{"base_resp":{"status_code":1004,"status_msg":...}}` (MiniMax). An object with `choices` is an
 * answer.
 */
export function reportsFailure(json: unknown): boolean {
  if ((memberOf(json, 'choices') ?? undefined) !== undefined) return false;
  if (reportsError(json)) return true;
  const state = memberOf(json, 'base_resp');
  if (isText(memberOf(state, 'status_msg')) && memberOf(state, 'status_code') !== 0) return true;
  return BARE_MESSAGE_NAMES.some((name) => firstText(memberOf(json, name)) !== undefined);
}

/**
 * Reads an error.
 *
 * @param json - the parsed JSON, or the error's text if it is not JSON
 * @returns the error's texts, and the `status` from a member, the code or the type, else 502.
 *   `isAboutModel` holds if the answer is a 404, and `lacksModel` if it is a 400
 */
export function readFault(json: unknown) {
  const body = firstItem(json);
  const state = memberOf(body, 'base_resp');
  const sources = [memberOf(body, 'error'), firstItem(memberOf(body, 'errors')), body, state];
  const textOf = (name: string) => sources.map((source) => memberOf(source, name)).find(isText);
  const [code, type] = [textOf('code'), textOf('type')];
  const named = sources
    .flatMap((source) => STATUS_NAMES.map((name) => memberOf(source, name)))
    .find(isErrorStatus);
  const status = Number(named ?? statusOf(code) ?? statusOf(type) ?? 502);
  const message = firstText(json) ?? firstText(state);
  // Text that is not JSON comes from a proxy or a wrong base_url, so it is not about the model.
  const isJson = typeof json === 'object';
  const isAboutModel = isJson && ABOUT_MODEL.test(`${message} ${toWord(code)} ${toWord(type)}`);
  const lacksModel =
    isJson &&
    (LACKS_MODEL_MESSAGE.test(message ?? '') ||
      [code, type].some((word) => LACKS_MODEL_CODE.test(toWord(word))));
  // OpenRouter's moderation has no code but its status, and quotes the input that it flags.
  const metadata = memberOf(memberOf(body, 'error'), 'metadata');
  const isFlagged = memberOf(metadata, 'flagged_input') !== undefined;
  return { message, code, type, status, isAboutModel, lacksModel, isFlagged };
}

/** Returns the first text under a name in `MESSAGE_NAMES`, also in nested arrays and objects. */
function firstText(value: unknown, search = { left: MAX_SEARCHED }): string | undefined {
  if (isText(value)) return value;
  if (typeof value !== 'object' || value === null || search.left === 0) return undefined;
  search.left -= 1;
  const isList = Array.isArray(value);
  const parts: unknown[] = isList ? value : MESSAGE_NAMES.map((name) => memberOf(value, name));
  let text: string | undefined;
  for (const part of parts) text ??= firstText(part, search);
  if (text === undefined || !GENERIC_MESSAGE.test(text)) return text;
  // OpenRouter names its provider and quotes the provider's error in `metadata`.
  const metadata = memberOf(value, 'metadata');
  const raw = memberOf(metadata, 'raw');
  const inner = firstText(typeof raw === 'string' ? parseUntrustedJson(raw) : raw, search) ?? raw;
  return [text, memberOf(metadata, 'provider_name'), inner].filter(isText).join(': ');
}

function statusOf(code: string | undefined): number | undefined {
  const word = toWord(code);
  return STATUSES_BY_WORD.find(([words]) => words.test(word))?.[1];
}

/** Returns a code in lower case and without separators; '' if it is too long for a code. */
export function toWord(code = ''): string {
  return code.length > MAX_CODE_CHARACTERS ? '' : code.toLowerCase().replace(/[^a-z\d]+/g, '');
}

/**
 * Returns whether a value is a status from 400 to 599. Only numbers and texts are converted,
 * because converting a deep array would overflow the stack.
 */
function isErrorStatus(value: unknown): boolean {
  return (typeof value === 'number' || typeof value === 'string') && /^[45]\d\d$/.test(`${value}`);
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value.trim() !== '';
}
