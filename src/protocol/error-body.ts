/** Reads errors as providers write them: in an error body, in a 200, or in a stream's event. */

import { memberOf, parseUntrustedJson } from '../lib/json.ts';
import { firstItem, isBlank, reportsError } from './answer-json.ts';

const MAX_CODE_CHARACTERS = 200;
/**
 * Codes for a request that exceeds the context: OpenAI's, llama.cpp's and z.ai's. Codes are
 * compared as `toWord` returns them, because providers write `InvalidParameter` and
 * `invalid-parameter`.
 */
const TOO_LONG = /contextlengthexceeded|exceedcontextsize|\b1261\b/;
/** Codes for a request that no key and no model would answer: OpenAI's for prompts and images. */
const BLAMES_REQUEST = new RegExp(
  'abovemaxlength|imageparse|image(?:file)?(?:too|not)|' +
    '(?:invalid|64|empty|unsupported|load)image',
);
/** OpenAI flags an `invalid_prompt`; 1301 is z.ai's. */
const REFUSED_BY_POLICY = new RegExp(
  'contentpolicy|contentfilter|moderation|safety|datainspection|invalidprompt|\\b1301\\b',
);
/**
 * Compared as written, because Azure's `RequestDisallowedByPolicy` is about a policy of the
 * operator's.
 */
const POLICY_CODE = /[_-]policy(?:[_-]violation)?$/i;
/**
 * Messages about the content of the request or of its answer: xAI's, OpenRouter's, OpenAI's,
 * Anthropic's, Gemini's, Bedrock's, Azure's, DeepSeek's and Alibaba's. A failure of a filter
 * itself, such as `content filter timed out`, is no refusal.
 */
const FLAGS_CONTENT = new RegExp(
  '\\b(?:(?:content|input|message|prompt)s?|request) (?:\\w+ ){0,2}(?:flagged|violat)|' +
    '\\b(?:allowed|blocked|filtered|flagged|refused|rejected) (?:by|due to|as a result of) ' +
    '(?:[\\w-]+ ){0,3}(?:content (?:filter|moderation)|guardrail|moderation|safety\\b)|' +
    '\\bcontent (?:exists risk|management policy)|\\binappropriate content',
  'i',
);
/**
 * Messages about an account, a network or a database, which may name a violation too. xAI's refusal
 * of content ends with `Team: ..., API key ID: ...`.
 */
const FLAGS_ACCOUNT = new RegExp(
  '\\baccount\\b|\\b(?:organi[sz]ation|team)\\b(?!:)|\\bkey (?:has|is|was)\\b|suspend|terminat|' +
    'billing|\\bcredits?\\b|\\blimits?\\b|quota|spending|' +
    'security rule|\\bip address|\\btraffic|constraint|schema',
  'i',
);
/** Statuses for the client's mistakes. */
const REJECTED_STATUSES = new Set([400, 413, 422, 451]);
const REFERENCE_STATUSES = new Set([404, 409]);
const KEY_STATUSES = new Set([401, 402, 403]);
/** OpenAI's codes of a 400 or a 429. */
const LACKS_MONEY_CODE = /billing(?:hard)?limit|billingnotactive/;
/** z.ai's codes for an account without money and for an ended plan. */
const ZAI_MONEY_CODE = /^(?:1113|1309)$/;
const MONEY_CODE = new RegExp(
  `insufficient[a-z]*(?:quota|balance|funds|credit)|billing|${ZAI_MONEY_CODE.source}`,
);
const REFUSES_KEY_CODE = new RegExp(`invalidapikey|${LACKS_MONEY_CODE.source}`);
/**
 * Messages of a 400: Gemini's and xAI's for a refused key, OpenAI's and Anthropic's for an account
 * that is disabled or without money. A message must begin with these words, because other messages
 * quote the request.
 */
const REFUSES_KEY_MESSAGE = new RegExp(
  '^\\s*(?:api key (?:not valid|expired|not found)|incorrect api key|' +
    'billing hard limit has been reached|your credit balance is too low|' +
    'you have reached your specified (?:\\w+ )?api usage limits|' +
    'this organization has been disabled)\\b',
  'i',
);
/** Google's reasons in `details`, such as `API_KEY_INVALID`. */
const REFUSES_KEY_REASON = /^API_KEY_/;
/** A duration as Google's APIs write it in JSON. */
const RETRY_DELAY = /^(\d+(?:\.\d+)?)s$/;
/** OpenAI's and Groq's codes of a 403. */
const DENIES_MODEL_CODE = /^model/;
/** A scope of a key, such as `model.request`, is no model. */
const DENIES_MODEL_MESSAGE = /\baccess (?:to )?(?:the )?model\b(?!\.)/i;
/** In search order. */
const MESSAGE_NAMES = (
  'message msg detail error errors Message error_description ' +
  // `error_msg` is Baidu's; `status_msg` is MiniMax's, inside `base_resp`.
  'error_msg status_msg'
).split(' ');
/**
 * Members that may be the message if there is no `error`. An object under `message` is an answer's,
 * Anthropic's in `message_start` for one, so its members are not searched.
 */
const BARE_MESSAGE_NAMES = ['message', 'msg', 'error_msg'];
/** Arrays and objects, which also bounds the depth. */
const MAX_SEARCHED = 100;
const STATUS_NAMES = ['status_code', 'status', 'code'];
const STATUSES_BY_WORD: readonly (readonly [words: RegExp, status: number])[] = [
  [/invalidrequesterror|toolusefailed|unsupportedvalue|invalidparameter/, 400],
  [/authenticationerror/, 401],
  [/billingerror|paymentrequired|insufficientbalance/, 402],
  [/permission/, 403],
  [/notfound/, 404],
  [/requesttoolarge/, 413],
  [new RegExp(`ratelimit|insufficientquota|${ZAI_MONEY_CODE.source}`), 429],
  [/overloaded/, 503],
  [/timeouterror/, 504],
];
/**
 * The types for MiniMax's numbers in `base_resp`, which it sends with the status 200
 * (platform.minimax.io/docs/api-reference/errorcode).
 */
const MINIMAX_TYPES: ReadonlyMap<unknown, string> = new Map([
  [1002, 'rate_limit'],
  [1004, 'invalid_api_key'],
  [1008, 'insufficient_balance'],
  [1026, 'content_filter'],
  [1027, 'content_filter'],
  [1041, 'rate_limit'],
  [1042, 'invalid_parameter'],
  [2013, 'invalid_parameter'],
  [2045, 'rate_limit'],
  [2049, 'invalid_api_key'],
  [2056, 'insufficient_quota'],
]);
/** Azure, OpenRouter, Databricks and NVIDIA write a 404 about a model without that word. */
const ABOUT_MODEL =
  /model|deploymentnotfound|no endpoints found for|endpoint with name|function '[^']*': not found/i;
/** Codes of a 400. 1211 is z.ai's. */
const LACKS_MODEL_CODE = /^(?:modelnotfound|modelnotavailable|unknownmodel|invalidmodel|1211)$/;
/**
 * Messages of a 400. A message must begin with these words, because other messages quote the
 * request, which could then open a circuit.
 */
const LACKS_MODEL_MESSAGE =
  /^(?:model (?:not exist|does not exist|not found)|unknown model|\S+ is not a valid model id)\b/i;
/** OpenRouter writes this in place of its provider's message. */
const GENERIC_MESSAGE = /^provider returned error\.?$/i;

/** Whose fault an error is, by its status and its words. */
type Blame =
  | 'policy'
  | 'length'
  /** The request's, because the provider lacks what only the request has named. */
  | 'reference'
  | 'request'
  /** The gateway's key's. */
  | 'key'
  /** The model's name is wrong: the client's fault, or that of the setting with the name. */
  | 'model'
  /** The provider's, as with a 429 or a 500. */
  | 'server';

/** An upstream's error. All its texts are untrusted. */
export interface UpstreamFault {
  readonly message: string | undefined;
  readonly code: string | undefined;
  readonly type: string | undefined;
  /** From 400 to 599. */
  readonly status: number;
  readonly blame: Blame;
  readonly retrySeconds: number | undefined;
  /** The words of the page that the response has in place of an error. */
  readonly page?: string | undefined;
}

/**
 * Returns whether the JSON in a 200, or in an event before an answer, is an error. `error` may be
 * absent: `{"code":500,"msg":...}` (z.ai), `{"detail":...}` (FastAPI),
 * `{"base_resp":{"status_code":1004,"status_msg":...}}` (MiniMax). An object with `choices` is an
 * answer; if they are empty, unless it has an `error` or such a state.
 */
export function reportsFailure(json: unknown): boolean {
  const choices = memberOf(json, 'choices') ?? undefined;
  if (choices !== undefined && !isBlank(choices)) return false;
  if (reportsError(json)) return true;
  const state = memberOf(json, 'base_resp');
  if (isText(memberOf(state, 'status_msg')) && memberOf(state, 'status_code') !== 0) return true;
  if (choices !== undefined) return false;
  const isBare = BARE_MESSAGE_NAMES.some((name) => isText(memberOf(json, name)));
  return isBare || firstText(memberOf(json, 'detail')) !== undefined;
}

/**
 * Reads an error. The error's status is `sentStatus`, else a member, the code or the type, else
 * 502. A refused key has the status 401 in place of 400.
 *
 * @param json - the parsed JSON, or the error's text if it is not JSON
 * @param sentStatus - the HTTP status; undefined if the error is in a 200 or an event
 * @param references - the endpoint's own, if it has any
 */
export function readFault(json: unknown, sentStatus?: number, references?: RegExp): UpstreamFault {
  const body = firstItem(json);
  const state = memberOf(body, 'base_resp');
  const sources = [memberOf(body, 'error'), firstItem(memberOf(body, 'errors')), body, state];
  const textOf = (name: string) => sources.map((source) => memberOf(source, name)).find(isText);
  const message = firstText(json) ?? firstText(state);
  const type = textOf('type') ?? MINIMAX_TYPES.get(memberOf(state, 'status_code'));
  const texts = { message, code: textOf('code'), type };
  const named =
    sentStatus ??
    sources
      .flatMap((source) => STATUS_NAMES.map((name) => memberOf(source, name)))
      .find(isErrorStatus);
  const blame = blameOfWords(texts, sources);
  const status = Number(named ?? statusOf(texts, blame));
  const fault = { ...texts, status, retrySeconds: retrySecondsIn(detailsOf(sources)) };
  if (blame === 'key' && status === 400) return { ...fault, status: 401, blame };
  if (REFERENCE_STATUSES.has(status) && references?.test(message ?? '')) {
    return { ...fault, blame: 'reference' };
  }
  if (blame === undefined || blame === 'key') {
    return { ...fault, blame: blameOfStatus(status, texts, typeof json === 'object') };
  }
  return { ...fault, blame: blame === 'length' && status !== 400 ? 'request' : blame };
}

type Texts = Pick<UpstreamFault, 'message' | 'code' | 'type'>;

/**
 * Returns whose fault an error is by its words, if they say. The words blame the request whatever
 * the status is, and the key only with a 400.
 */
function blameOfWords(
  { message: text = '', code = '', type = '' }: Texts,
  sources: readonly unknown[],
): 'policy' | 'length' | 'request' | 'key' | undefined {
  const words = `${toWord(code)} ${toWord(type)}`;
  const [error] = sources;
  // OpenRouter's moderation has no code, and quotes the input that it flags.
  const isFlagged = memberOf(memberOf(error, 'metadata'), 'flagged_input') !== undefined;
  const isPolicy =
    REFUSED_BY_POLICY.test(words) || POLICY_CODE.test(code) || POLICY_CODE.test(type);
  if (isFlagged || isPolicy) return 'policy';
  if (TOO_LONG.test(words)) return 'length';
  const isReason = (detail: unknown) => REFUSES_KEY_REASON.test(textIn(detail, 'reason'));
  const isOfKey = REFUSES_KEY_CODE.test(words) || detailsOf(sources).some(isReason);
  if (isOfKey || REFUSES_KEY_MESSAGE.test(text)) return 'key';
  if (FLAGS_CONTENT.test(text) && !FLAGS_ACCOUNT.test(text)) return 'policy';
  return BLAMES_REQUEST.test(words) ? 'request' : undefined;
}

function blameOfStatus(
  status: number,
  { message: text = '', code, type }: Texts,
  isJson: boolean,
): Blame {
  const words = [toWord(code), toWord(type)];
  // Text that is not JSON comes from a proxy or a wrong base_url, so it is not about the model.
  const isAboutModel =
    isJson &&
    {
      400: LACKS_MODEL_MESSAGE.test(text) || words.some((word) => LACKS_MODEL_CODE.test(word)),
      403: DENIES_MODEL_MESSAGE.test(text) || words.some((word) => DENIES_MODEL_CODE.test(word)),
      404: ABOUT_MODEL.test([text, ...words].join(' ')),
    }[status];
  if (isAboutModel) return 'model';
  const lacksMoney = status === 429 && words.some((word) => LACKS_MONEY_CODE.test(word));
  if (KEY_STATUSES.has(status) || lacksMoney) return 'key';
  return REJECTED_STATUSES.has(status) ? 'request' : 'server';
}

function retrySecondsIn(details: readonly unknown[]): number | undefined {
  const delays = details.map((detail) => RETRY_DELAY.exec(textIn(detail, 'retryDelay'))?.[1]);
  const delay = delays.find((one) => one !== undefined);
  return delay === undefined ? undefined : Number(delay);
}

function detailsOf(sources: readonly unknown[]): readonly unknown[] {
  const details = sources.map((source) => memberOf(source, 'details')).find(Array.isArray);
  return (details ?? []).slice(0, MAX_SEARCHED);
}

function textIn(value: unknown, name: string): string {
  const text = memberOf(value, name);
  return typeof text === 'string' ? text : '';
}

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

/** Returns the status of an error that names none. `readFault` answers a refused key with 401. */
function statusOf({ code, type }: Texts, blame: Blame | undefined): number {
  if (blame !== undefined) return 400;
  const found = [toWord(code), toWord(type)].map(
    (word) => STATUSES_BY_WORD.find(([words]) => words.test(word))?.[1],
  );
  return found[0] ?? found[1] ?? 502;
}

/** Returns whether an error is about the money of an account, so that a repeat is useless. */
export function isAboutMoney({ code, type }: Texts): boolean {
  return MONEY_CODE.test(toWord(code ?? type));
}

/** Returns a code in lower case and without separators; '' if it is too long for a code. */
export function toWord(code = ''): string {
  return code.length > MAX_CODE_CHARACTERS ? '' : code.toLowerCase().replace(/[^a-z\d]+/g, '');
}

/**
 * Only numbers and texts are converted, because converting a deep array would overflow the stack.
 */
function isErrorStatus(value: unknown): boolean {
  return (typeof value === 'number' || typeof value === 'string') && /^[45]\d\d$/.test(`${value}`);
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value.trim() !== '';
}
