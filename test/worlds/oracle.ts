/**
 * The expected answers, by docs/behaviour.md and docs/errors.md. This file shares no code with the
 * gateway, and decides nothing beyond the documents.
 */

import type {
  AliasSettings,
  Ask,
  ErrorPlan,
  Item,
  ProviderSettings,
  Reply,
  Settings,
} from './plan.ts';
import { wallClockMs } from './clock.ts';
import { phraseOf } from './replies.ts';

const ERROR_BODY_MS = 1000;

/** An error object with its status. An undefined member is left open by the documents. */
export interface Failure {
  readonly status: number;
  readonly type: string;
  readonly code: string | undefined;
  /** The message in the access line, if it differs. */
  readonly reason?: string | undefined;
  /** Text within the message. `exactly` is the whole message. */
  readonly says?: string | undefined;
  readonly exactly?: string | undefined;
  readonly retryAfter?: number | undefined;
  /** The provider's requested wait, in seconds. */
  readonly asksFor?: number | undefined;
  readonly isOfProvider?: boolean;
  /** Whether the same provider may be tried again, if `retries` allows. */
  readonly isRetried?: boolean | undefined;
  /** Whether another provider may be asked. */
  readonly fallsBack?: boolean | undefined;
  /** How a circuit counts it. `provider`: no connection was made. */
  readonly circuit: 'failure' | 'provider' | 'success' | 'maybe' | 'none';
  /** Whether the provider's name was not resolved. */
  readonly isUnresolved?: boolean;
  readonly isPolicy?: boolean | undefined;
  /** Whether the provider refuses the gateway's key. */
  readonly isOfKey?: boolean;
  /** Whether the key has a cooldown, and another key is tried. */
  readonly restsKey?: boolean;
  /** Whether the provider reported it. */
  readonly isReported?: boolean;
  /** Whether the provider lacks a model that a setting names. */
  readonly isGone?: boolean;
  /** Whether it is the client's own mistake. */
  readonly isRejected?: boolean;
  readonly isRepeatedAtOnce?: boolean;
  /** Whether a repeat by the client cannot help. */
  readonly isFinal?: boolean | undefined;
}

/** A reply's result. Times are counted from the beginning of the try. */
export type Reading =
  | {
      readonly kind: 'answer';
      readonly atMs: number;
      readonly text: string;
      readonly facts: Facts;
    }
  | { readonly kind: 'failure'; readonly atMs: number; readonly failure: Failure }
  | {
      readonly kind: 'stream';
      readonly atMs: number;
      /** Bytes, and the latest time at which the client has them. */
      readonly passes: readonly { readonly atMs: number; readonly text: string }[];
      readonly endMs: number;
      readonly failure: Failure | undefined;
      readonly facts: Facts;
    };

interface Usage {
  readonly prompt_tokens?: number;
  readonly completion_tokens?: number;
  readonly total_tokens?: number;
  readonly prompt_tokens_details?: { readonly cached_tokens?: number };
  readonly completion_tokens_details?: { readonly reasoning_tokens?: number };
}

/** The last finish reason and usage in an answer. */
export interface Facts {
  readonly finishReason?: string | undefined;
  readonly usage?: Usage | undefined;
}

interface Choice {
  readonly index?: number;
  readonly delta?: object;
  readonly message?: object;
  /** The text of a choice of `/v1/completions`. */
  readonly text?: string;
  readonly finish_reason?: string | null;
}

/** The members the gateway reads in a completion or a chunk. */
interface Completion {
  readonly choices?: readonly Choice[] | null;
  readonly usage?: Usage | null;
}

export function refusal(status: number, says?: string): Failure {
  const prefix = 'Invalid request: ';
  const failure = { status, type: 'invalid_request_error', code: 'INVALID_REQUEST' };
  return { ...failure, says: says ?? prefix, circuit: 'none' };
}

const NOT_FOUND: Failure = {
  status: 404,
  type: 'not_found_error',
  code: 'NOT_FOUND',
  exactly: 'Resource not found',
  circuit: 'none',
};
export const UNAUTHORIZED: Failure = {
  status: 401,
  type: 'authentication_error',
  code: undefined,
  exactly: 'Invalid authentication',
  circuit: 'none',
};

export function limited(retryAfter?: number): Failure {
  const failure = { status: 429, type: 'rate_limit_error', code: 'RATE_LIMIT_ERROR' };
  return { ...failure, retryAfter, circuit: 'none' };
}

const TIMEOUT: Failure = {
  status: 504,
  type: 'timeout_error',
  code: 'TIMEOUT',
  exactly: 'Request timed out',
  isRetried: false,
  fallsBack: true,
  circuit: 'failure',
  isFinal: true,
};

function badGateway(more: Partial<Failure> = {}): Failure {
  return {
    status: 502,
    type: 'provider_error',
    code: 'PROVIDER_ERROR',
    says: 'Provider error: ',
    isOfProvider: true,
    isRetried: false,
    fallsBack: true,
    circuit: 'failure',
    ...more,
  };
}

const EMPTY = badGateway({ exactly: 'Provider error: the answer is empty', isRetried: true });

const RETRIED = new Set([408, 429, 500, 502, 503, 504, 529]);
const OUTAGES = new Set([502, 503, 504, 529]);

/** Returns a provider's own error as a failure. */
function apiError(
  error: ErrorPlan,
  seconds: number | undefined,
  { isEvent = false, isNamed }: { readonly isEvent?: boolean; readonly isNamed: boolean },
): Failure {
  const { code, isAboutModel, isFlagged, message, says, type } = error;
  const status = error.refusesKey ? 401 : error.status;
  const text = message ?? says ?? phraseOf(status);
  const isCodeShown = code !== undefined && !text.includes(code);
  const whole = isCodeShown ? `${text} (${code})` : text;
  const isOfModel = status === 404 && isAboutModel === true;
  const isGone = isOfModel && isNamed;
  const word = `${code} ${type}`.toLowerCase().replaceAll(/[^a-z\d ]/g, '');
  const isBilling = status === 429 && word.includes('insufficientquota');
  const isTooLong = status === 400 && word.includes('contextlengthexceeded');
  const isTemporary = status >= 500 || status === 408 || status === 429;
  const isPolicy = isFlagged || /content(?:policy|filter)|invalidprompt/.test(word);
  const blamesRequest = isPolicy || word.includes('contextlengthexceeded');
  const isRejected = REJECTED.has(status) || blamesRequest || (isOfModel && !isNamed);
  const isOfKey = !blamesRequest && REFUSES_KEY.has(status);
  const isOutage = OUTAGES.has(status) || isGone;
  const isOfRequest = isRejected || status === 500;
  const mayRepeat = RETRIED.has(status) && !isRejected;
  const failure = {
    status,
    isRetried: isEvent || isBilling ? undefined : mayRepeat && (seconds ?? 0) <= 30,
    // The documents: "A first event that is an error", whatever its status.
    fallsBack: (isTemporary && !isRejected) || isTooLong ? true : isEvent ? undefined : false,
    circuit: isOfRequest ? 'none' : isOutage ? 'failure' : 'maybe',
    isPolicy,
    isOfKey,
    restsKey: isOfKey || (status === 429 && !isRejected),
    isGone,
    isRejected,
    isFinal: isBilling || (isRejected && RETRIED.has(status)) || (seconds ?? 0) > 60,
    isReported: true,
    retryAfter: seconds,
    asksFor: seconds,
  } as const;
  if (status === 429) {
    const limit = { type: 'rate_limit_error', code: 'RATE_LIMIT_ERROR', says: says ?? whole };
    return { ...failure, ...limit, retryAfter: seconds ?? 1 };
  }
  const own = { ...failure, type: 'provider_error', code: 'API_ERROR', isOfProvider: true };
  const begin = `API error: ${status}`;
  if (status === 401 && isOfKey) return { ...own, exactly: 'Authentication failed' };
  if (says !== undefined) return { ...own, reason: begin, says };
  return { ...own, reason: begin, exactly: `${begin} - ${whole}` };
}

/** Statuses of the gateway's keys (docs/errors.md, "Whose fault an error is"). */
const REFUSES_KEY = new Set([401, 402, 403]);
/** Statuses of the client's own mistakes (docs/behaviour.md#outcomes). */
const REJECTED = new Set([400, 413, 422, 451]);

/**
 * Returns the provider's wait in whole seconds: seconds or a date, the first if there are several,
 * or milliseconds.
 */
function secondsOf({ headers }: Reply, worldMs: number): number | undefined {
  const header = (name: string) => headers.find(([one]) => one === name)?.[1];
  const ms = header('retry-after-ms');
  const text = header('retry-after') ?? (ms && `${Number(ms) / 1000}`);
  const seconds = Number.parseFloat(text ?? '');
  if (text === undefined || text === 'soon') return undefined;
  const [date = ''] = text.split(/(?<=GMT), /);
  const fromDate = () => (Date.parse(date) - wallClockMs(worldMs)) / 1000;
  // At most a day (docs/limits.md).
  return Math.min(86_400, Math.max(1, Math.ceil(Number.isNaN(seconds) ? fromDate() : seconds)));
}

/** Whether a value is an empty text, null, an empty list or an empty object. */
const isBlank = (value: unknown) =>
  value === null || value === '' || (typeof value === 'object' && Object.keys(value).length === 0);
const isSilent = (message: object = {}) =>
  Object.entries(message).every(([name, value]) => name === 'role' || isBlank(value));
const reasonsOf = (json: Completion) =>
  (json.choices ?? []).flatMap((choice) => choice.finish_reason || []);

/** Whether an answer or a chunk has no content, and the provider itself calls it failed. */
function hasFailed(json: Completion | undefined): boolean {
  const choices = Array.isArray(json?.choices) ? (json.choices as readonly Choice[]) : [];
  const isEmpty = choices.every(
    ({ delta, message, text }) => isSilent(delta) && isSilent(message) && !text,
  );
  return isEmpty && choices.some(({ finish_reason }) => finish_reason === 'network_error');
}

/** Whether a complete answer has no content and ends with `stop` or without a reason. */
function isEmptyCompletion({ choices }: Completion): boolean {
  return (choices ?? []).every(
    ({ finish_reason, message }) =>
      isSilent(message) && (!finish_reason || finish_reason === 'stop'),
  );
}

/** Whether a chunk is a preamble, before the answer begins. */
function isPreamble(json: Completion | undefined, refusesEmpty: boolean): boolean {
  if (!Array.isArray(json?.choices)) return false;
  return (json.choices as readonly Choice[]).every(
    ({ delta, finish_reason, text }) =>
      text === undefined &&
      isSilent(delta) &&
      (!finish_reason || (refusesEmpty && finish_reason === 'stop')),
  );
}

function factsOf(json: Completion, before: Facts = {}): Facts {
  const finishReason = reasonsOf(json).at(-1);
  return { finishReason: finishReason ?? before.finishReason, usage: json.usage ?? before.usage };
}

/** Parses an event's data (WHATWG HTML, 9.2). */
function dataOf(text: string): Completion | undefined {
  const lines = text.replace(/^\ufeff/, '').split(/\r\n|\r|\n/);
  const data = lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(5));
  return parse(data.join('\n')) as Completion | undefined;
}

export interface Limits {
  /** The limit for a try, up to the answer or its beginning. */
  readonly limitMs: number;
  readonly idleMs: number;
  /**
   * When the idle limit passes, however early data comes: the client's pauses count only in part.
   */
  readonly idlesAtMs?: number;
  /** When the try began. */
  readonly begunAtMs: number;
  readonly isStream: boolean;
  readonly takesUsageOut: boolean;
  /** Whether the settings name the model. */
  readonly isNamed: boolean;
  /** Whether `empty_answers` is `fail`, and the request asks for a chat completion. */
  readonly refusesEmpty: boolean;
}

/** Returns a try's result, if the client stays and the gateway does not drain. */
export function readReply(reply: Reply, limits: Limits): Reading {
  const { connectMs, headMs, fault, status } = reply;
  const { limitMs, isStream } = limits;
  const late = (isConnected: boolean): Reading => ({
    kind: 'failure',
    atMs: limitMs,
    failure: { ...TIMEOUT, circuit: isConnected ? 'failure' : 'provider' },
  });
  if (connectMs > limitMs) return late(false);
  const fail = (atMs: number, failure: Failure): Reading => ({ kind: 'failure', atMs, failure });
  if (fault === 'descriptors') {
    const internal = { status: 500, type: 'internal_error', code: 'INTERNAL_ERROR' };
    return fail(connectMs, { ...internal, isRetried: true, fallsBack: true, circuit: 'none' });
  }
  if (fault === 'refused' || fault === 'unresolved') {
    const isUnresolved = fault === 'unresolved';
    return fail(connectMs, badGateway({ isRetried: true, circuit: 'provider', isUnresolved }));
  }
  const beganMs = connectMs + (headMs ?? Infinity);
  if (beganMs > limitMs) return late(true);
  if (fault) {
    const isStale = fault === 'stale';
    const isRetried = fault === 'reset' || isStale;
    return fail(beganMs, badGateway({ isRetried, isRepeatedAtOnce: isStale }));
  }
  const header = (name: string) => reply.headers.find(([one]) => one === name)?.[1];
  const pieces = piecesOf(reply, beganMs);
  const last = pieces.at(-1)!;
  if (status >= 400 && status <= 599) {
    const limit = Math.min(limitMs, beganMs + ERROR_BODY_MS);
    const endMs = reply.end === 'hang' ? Infinity : last.atMs;
    const error = endMs < limit && reply.end === 'end' ? reply.items[0]?.error : undefined;
    const atMs = Math.min(endMs, limit);
    const seconds = secondsOf(reply, limits.begunAtMs + atMs);
    return fail(atMs, apiError(error ?? { status }, seconds, limits));
  }
  if (
    status < 200 ||
    status > 299 ||
    status === 204 ||
    /gzip|br/i.test(header('content-encoding') ?? '')
  ) {
    return fail(beganMs, badGateway());
  }
  const isEvents = /^text\/event-stream\b/i.test(header('content-type') ?? '');
  const text = reply.items.map((item) => item.text).join('');
  // The first byte that is not white space decides, not the content type. A line of JSON may be an
  // event.
  const isJson = /^[\ufeff\s]*[{[]/.test(text) && !/(?:\r\n|\n|\r){2}$/.test(text);
  if (isStream && !isJson) return readStream(reply, pieces, limits);
  if (isEvents && !isJson) {
    const atMs = beginMs(pieces);
    if (atMs < last.atMs) return atMs > limitMs ? late(true) : fail(atMs, badGateway());
  }
  if (reply.end === 'hang' || last.atMs > limitMs) return late(true);
  if (reply.end === 'cut') return fail(last.atMs, badGateway());
  const error = isStream || isJson ? reply.items[0]?.error : undefined;
  if (error) {
    const seconds = secondsOf(reply, limits.begunAtMs + last.atMs);
    return fail(last.atMs, apiError(error, seconds, limits));
  }
  const json = parse(text) as Completion | undefined;
  if (!json && (isEvents || /^\ufeff?\s*(?:data|event|id|retry|error)?:/.test(text))) {
    return fail(last.atMs, badGateway());
  }
  if (!json) {
    const wrong = { status: 500, type: 'internal_error', code: 'SERIALIZATION_ERROR' };
    const says = 'Serialization error: ';
    return fail(last.atMs, { ...wrong, says, isRetried: false, fallsBack: true, circuit: 'none' });
  }
  if (hasFailed(json)) return fail(last.atMs, EMPTY);
  if (limits.refusesEmpty && isEmptyCompletion(json)) return fail(last.atMs, EMPTY);
  // The first choice's reason counts.
  const facts = { ...factsOf(json), finishReason: reasonsOf(json)[0] };
  if (!isStream) return { kind: 'answer', atMs: last.atMs, text, facts };
  const unsupported = { status: 501, type: 'unsupported_feature', code: 'UNSUPPORTED_FEATURE' };
  const more = { isRetried: false, fallsBack: true, circuit: 'maybe', isFinal: true } as const;
  return fail(last.atMs, { ...unsupported, ...more });
}

/** When a byte came that is neither white space nor part of a byte order mark. */
function beginMs(pieces: readonly Piece[]): number {
  const begun = pieces.find(({ item, isLast }) => {
    if (typeof item === 'string') return true;
    const bytes = Buffer.from(item.text).subarray(0, isLast ? undefined : item.cut?.at);
    return bytes.some((byte) => !Buffer.from('\ufeff \t\r\n').includes(byte));
  });
  return begun!.atMs;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text.replace(/^\ufeff/, ''));
  } catch {
    return undefined;
  }
}

interface Piece {
  readonly atMs: number;
  readonly item: Item | 'end' | 'rest';
  /** Whether the item is whole with this piece. */
  readonly isLast: boolean;
  /** A line feed alone: the item was whole with the carriage return before it. */
  readonly isLateLineFeed?: boolean;
}

/** Matches an event that was cut in its data. Before its data, nothing is missing. */
const BEGUN_DATA = /^(?:(?:data|error): ?[^\r\n]|[[{])/m;

function piecesOf({ items, endMs, rest }: Reply, beganMs: number): Piece[] {
  const pieces: Piece[] = [];
  let atMs = beganMs;
  for (const item of items) {
    atMs += item.waitMs;
    const beginning = Buffer.from(item.text).subarray(0, item.cut?.at).toString('latin1');
    const isLateLineFeed = item.cut !== undefined && beginning.endsWith('\r\n\r');
    if (item.cut) {
      pieces.push({ atMs, item, isLast: isLateLineFeed });
      atMs += item.cut.waitMs;
    }
    pieces.push({ atMs, item, isLast: true, isLateLineFeed });
  }
  atMs += endMs;
  if (rest !== '') pieces.push({ atMs, item: 'rest', isLast: false });
  return [...pieces, { atMs, item: 'end', isLast: true }];
}

/** Reads an event stream (WHATWG HTML), with the changes in docs/behaviour.md#bytes. */
function readStream(reply: Reply, pieces: readonly Piece[], limits: Limits): Reading {
  const { idlesAtMs, idleMs, limitMs, refusesEmpty, takesUsageOut } = limits;
  const passes: { atMs: number; text: string }[] = [];
  let beganMs: number | undefined;
  let facts: Facts = {};
  let dataMs = 0;
  const begun = new Set<number>();
  const finished = new Set<number>();
  const hasFinished = new Set<number>();
  const end = (atMs: number, failure: Failure | undefined, addsDone = false): Reading => {
    if (beganMs === undefined) return { kind: 'failure', atMs, failure: failure ?? badGateway() };
    if (addsDone) passes.push({ atMs, text: 'data: [DONE]\n\n' });
    return { kind: 'stream', atMs: beganMs, passes, endMs: atMs, failure, facts };
  };
  const isTakenOut = ({ kind, text }: Item) => {
    const json = takesUsageOut && kind === 'data' ? dataOf(text) : undefined;
    return Boolean(json?.usage) && (json!.choices ?? []).length === 0;
  };
  const limitAtMs = () =>
    beganMs === undefined ? limitMs : (idlesAtMs ?? dataMs + (idleMs || Infinity));
  let isDone = false;
  for (const [place, { atMs, item, isLast, isLateLineFeed }] of pieces.entries()) {
    const isComment =
      item === 'rest' ? reply.rest.startsWith(':') : item !== 'end' && item.kind === 'comment';
    const dueMs = limitAtMs();
    if (atMs > dueMs) return end(dueMs, TIMEOUT);
    if (item === 'end') {
      if (reply.end === 'hang') break;
      const isFinished = begun.size > 0 && [...begun].every((index) => finished.has(index));
      const isWhole = reply.end === 'end' && !BEGUN_DATA.test(reply.rest) && isFinished;
      if (isWhole && beganMs === undefined) return end(atMs, refusesEmpty ? EMPTY : badGateway());
      return isWhole ? end(atMs, undefined, true) : end(atMs, badGateway());
    }
    if (!isComment && !isLateLineFeed) dataMs = atMs;
    if (item === 'rest' || !isLast) continue;
    if (isLateLineFeed) {
      if (!isTakenOut(item)) passes.push({ atMs, text: '\n' });
      if (isDone) return end(atMs, undefined);
      continue;
    }
    if (item.kind === 'error') {
      const seconds = secondsOf(reply, limits.begunAtMs + atMs);
      return end(atMs, apiError(item.error!, seconds, { ...limits, isEvent: true }));
    }
    if (item.kind === 'data') {
      const json = dataOf(item.text);
      if (beganMs === undefined && hasFailed(json)) return end(atMs, EMPTY);
      const choices = Array.isArray(json?.choices) ? (json.choices as readonly Choice[]) : [];
      for (const { delta, finish_reason, index = 0, text } of choices) {
        begun.add(index);
        const hasContent = (delta && !isSilent(delta)) || (text !== undefined && text !== '');
        // Content after a finish reason opens the choice again.
        if (hasFinished.has(index) && hasContent) finished.delete(index);
        else if (finish_reason) finished.add(index);
        if (finish_reason) hasFinished.add(index);
      }
      if (!isPreamble(json, refusesEmpty)) beganMs ??= atMs;
      facts = factsOf({ choices, usage: json?.usage }, facts);
      if (isTakenOut(item)) continue;
    }
    if (item.kind === 'done' && begun.size > 0 && !refusesEmpty) beganMs ??= atMs;
    if (item.kind === 'done' && beganMs === undefined) {
      return end(atMs, begun.size > 0 ? EMPTY : badGateway());
    }
    isDone = item.kind === 'done';
    const isOpen = pieces[place + 1]?.isLateLineFeed === true;
    passes.push({ atMs, text: isOpen ? item.text.slice(0, -1) : item.text });
    if (isDone && !isOpen) return end(atMs, undefined);
  }
  return end(limitAtMs(), TIMEOUT);
}

/** A provider, and the model to ask it for. */
export interface Candidate {
  readonly provider: string;
  readonly model: string;
}

export interface Candidates {
  readonly list: readonly Candidate[];
  /** The alias's targets as in the settings, in the order of the list's first candidates. */
  readonly targets: readonly string[];
  /** How many candidates at the front may be asked in any order. */
  readonly balanced: number;
  /** Whether a target without key, model or token is left for another target. */
  readonly isBalanced: boolean;
  readonly isFastest: boolean;
  /** The weight of each balanced candidate in a weighted alias. */
  readonly weights: readonly number[] | undefined;
  /** How many candidates may be asked. */
  readonly atMost: number;
}

/** Whether a client may ask for this model, or see it. */
export function mayName(name: string, { clients }: Settings, client: string | undefined): boolean {
  const allowed = clients.find((one) => one.name === client)?.models;
  const allows = (one: string) =>
    one.endsWith('*') ? name.startsWith(one.slice(0, -1)) : one === name;
  return allowed?.some(allows) ?? true;
}

/**
 * Returns the alias for this model: the alias with the name, else the wildcard alias that matches
 * with the longest text beside its `*`, with the model's text in place of the `*` in its targets.
 */
export function aliasFor(model: string, { aliases }: Settings): AliasSettings | undefined {
  const exact = aliases.find(({ name }) => name === model);
  const [wildcard] = aliases
    .filter(({ name }) => starOf(name, model) !== undefined)
    .toSorted((a, b) => b.name.length - a.name.length);
  if (exact || !wildcard) return exact;
  const star = starOf(wildcard.name, model)!;
  return { ...wildcard, targets: wildcard.targets.map((one) => one.replace('*', () => star)) };
}

/** Returns the text in the name at the place of the pattern's `*`. */
export function starOf(pattern: string, name: string): string | undefined {
  if (!pattern.endsWith('*')) return undefined;
  const start = pattern.slice(0, -1);
  return name.startsWith(start) ? name.slice(start.length) : undefined;
}

/**
 * Returns the candidates in order (docs/behaviour.md#models, #fallbacks, #balance), or the refusal.
 */
export function candidatesFor(
  model: string,
  settings: Settings,
  client?: string,
): Candidates | Failure {
  const registered = new Map(
    settings.providers.filter(({ enabled }) => enabled).map((one) => [one.id, one]),
  );
  const alias = aliasFor(model, settings);
  const may = (name: string) => mayName(name, settings, client);
  const resolve = (name: string): Candidate | Failure => {
    const slash = name.indexOf('/');
    const isWhole = slash < 0 && !registered.has(name);
    if (slash === 0 || (isWhole && settings.primary === undefined)) return refusal(400);
    const id = isWhole ? settings.primary! : slash < 0 ? name : name.slice(0, slash);
    const provider = registered.get(id);
    if (!provider) return { ...refusal(400), exactly: `Unknown provider: ${id}`, says: undefined };
    const named = isWhole ? name : slash < 0 ? '' : name.slice(slash + 1);
    const asked = named || provider.default_model;
    return asked ? { provider: id, model: asked } : refusal(400);
  };
  const isRegistered = (target: string) => registered.has(target.split('/', 1)[0]!);
  const targets = alias?.targets.filter(isRegistered) ?? [];
  const names = alias ? (targets.length > 0 ? targets : alias.targets.slice(0, 1)) : [model];
  const found = names.map(resolve);
  const [first] = found;
  const fullName = first && 'provider' in first ? `${first.provider}/${first.model}` : '';
  if (!may(model) && (alias !== undefined || !may(fullName))) return NOT_FOUND;
  const list: Candidate[] = [];
  for (const one of found) {
    if (!('provider' in one)) return one;
    list.push(one);
  }
  const isBalanced = alias?.isBalanced ?? false;
  const weights = alias?.weights?.filter((_, index) => isRegistered(alias.targets[index]!));
  const balanced = isBalanced ? list.length : 1;
  for (const id of settings.fallback) {
    const provider = registered.get(id);
    if (!provider || list.some((one) => one.provider === id)) continue;
    const models = [...new Set(list.slice(0, balanced).map((one) => one.model))];
    // The documents: "The requested model name". A balanced alias may mean any of its models.
    list.push({ provider: id, model: provider.default_model ?? models.join(' or ') });
  }
  const written = settings.aliases.find(({ name }) => name === alias?.name)?.targets ?? [];
  const targetsOf = written.filter(isRegistered);
  const isFastest = isBalanced && alias?.isFastest === true;
  const atMost = list.length;
  return { list, targets: targetsOf, balanced, isBalanced, isFastest, weights, atMost };
}

/** Whether the settings name this model for the provider (docs/behaviour.md#outcomes). */
export function namesModel(provider: ProviderSettings, model: string, settings: Settings): boolean {
  const enabled = settings.providers.filter((one) => one.enabled);
  const targets = settings.aliases
    .flatMap((alias) => alias.targets)
    .filter((target) => !target.includes('*'));
  const named = [
    ...targets.filter((target) => enabled.some(({ id }) => target.startsWith(`${id}/`))),
    ...enabled.map(({ default_model, id }) => `${id}/${default_model ?? ''}`),
  ];
  // A fallback without its own model is asked for other providers' models.
  const takesOthers = settings.fallback.includes(provider.id) && !provider.default_model;
  return named.some((name) =>
    takesOthers ? name.slice(name.indexOf('/') + 1) === model : name === `${provider.id}/${model}`,
  );
}

const PATHS: Readonly<Record<string, string>> = {
  '/v1/models': 'GET',
  '/health': 'GET, HEAD',
};

export type Early =
  | { readonly kind: 'health' | 'preflight' }
  /** `client` is set if its key has expired. */
  | { readonly kind: 'refused'; readonly failure: Failure; readonly client?: string }
  /** It takes a slot and a token, and is then refused, or asks for models or a completion. */
  | {
      readonly kind: 'counted';
      readonly client: string | undefined;
      readonly to: Failure | 'models' | 'chat';
    };

/** Returns the checks' result, before any provider is asked (docs/behaviour.md#order). */
export function checkHead(ask: Ask, settings: Settings, atMs: number): Early {
  const { method, headers } = ask;
  const path = pathOf(ask);
  if (!mayComeFrom(ask, settings)) return { kind: 'refused', failure: refusal(400) };
  if (path === '/health' && (method === 'GET' || method === 'HEAD')) return { kind: 'health' };
  const isPreflight = headers.some(([name]) => name === 'access-control-request-method');
  if (settings.server.cors && method === 'OPTIONS' && isPreflight) return { kind: 'preflight' };
  const sent = headers.filter(([name]) => name === 'authorization');
  const token = sent.length === 1 ? /^bearer +([^ ].*)$/i.exec(sent[0]![1].trim()) : null;
  const { authKeys, clients } = settings;
  const client = clients.find(({ keys }) => keys.includes(token?.[1] ?? ''));
  const needsKey = authKeys.length > 0 || clients.length > 0;
  if (!token || (needsKey && !client && !authKeys.includes(token[1]!))) {
    return { kind: 'refused', failure: UNAUTHORIZED };
  }
  if (client && atMs >= (client.expiryTime ?? Infinity)) {
    return { kind: 'refused', failure: UNAUTHORIZED, client: client.name };
  }
  const to =
    path === '/v1/models' && method === 'GET'
      ? 'models'
      : isChat(path, settings) && method === 'POST'
        ? 'chat'
        : notFound(path, settings);
  return { kind: 'counted', client: client?.name, to };
}

const FURTHER_PATHS = new Set(
  ['embeddings', 'completions', 'responses', 'messages', 'messages/count_tokens'].map(
    (name) => `/v1/${name}`,
  ),
);

/** Returns the refusal of a path. The log names the setting that would serve it. */
function notFound(path: string, settings: Settings): Failure {
  if (!FURTHER_PATHS.has(path) || isChat(path, settings)) return NOT_FOUND;
  return { ...NOT_FOUND, reason: 'Resource not found; [server] endpoints would serve it' };
}

/** Whether requests to this path name a model. All such endpoints share the rules of chat. */
function isChat(path: string, { server: { endpoints = [] } }: Settings): boolean {
  return path === '/v1/chat/completions' || endpoints.includes(path);
}

/** Returns the path: the raw target before `?`, without `scheme://authority`. */
export const pathOf = ({ path }: Ask) => path.replace(/^http:\/\/[^/]*/, '').replace(/\?.*/, '');

/** Returns a 404's `Allow` header. */
export function allowOf(ask: Ask, settings: Settings): string | undefined {
  const path = pathOf(ask);
  return isChat(path, settings) ? 'POST' : PATHS[path];
}

/**
 * Whether a page may send the request. Without keys and CORS, pages of other hosts may not, and on
 * loopback the host must be named as loopback (docs/behaviour.md#pages).
 */
function mayComeFrom({ headers }: Ask, { authKeys, clients, server }: Settings): boolean {
  if (server.cors || authKeys.length > 0 || clients.length > 0) return true;
  const header = (name: string) => headers.find(([one]) => one === name)?.[1] ?? '';
  const isOwn = (host: string) =>
    /^(?:(?:[\w-]+\.)?localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?$/i.test(host);
  const isNamed = (host: string) =>
    /^(?:localhost|\d+(?:\.\d+){3}|\[[\da-f:]+\])(?::\d+)?$/i.test(host);
  const [, page] = /^https?:\/\/(.*)$/i.exec(header('origin')) ?? [];
  if (page !== undefined && !isOwn(page)) return false;
  const isLocal = server.host === '127.0.0.1' && !server.trusted_proxies;
  return !isLocal || isNamed(header('host'));
}
