/**
 * What a client is to get, read from interface.md and decisions.md, and not from `src`: it shares no code with the gateway. Where they are silent,
 * it says nothing.
 */

import { type Ask, type ErrorPlan, type Item, type Reply, type Settings } from './plan.ts';
import { phraseOf } from './replies.ts';

const ERROR_BODY_MS = 1000;

/** An error object with its status. `undefined`: the documents leave it open. */
export interface Failure {
  readonly status: number;
  readonly type: string;
  readonly code: string | undefined;
  /** What the message contains; `exactly`: and nothing else. */
  readonly says?: string | undefined;
  readonly exactly?: string | undefined;
  readonly retryAfter?: number | undefined;
  /** The seconds that the provider itself asks for. */
  readonly asksFor?: number | undefined;
  readonly isOfProvider?: boolean;
  /** It may be tried again at the same provider, if `retries` allows. */
  readonly isRetried?: boolean | undefined;
  /** Whether another provider may be asked. */
  readonly fallsBack?: boolean | undefined;
  /** What it is to a circuit. `provider`: no connection was made. */
  readonly circuit: 'failure' | 'provider' | 'success' | 'maybe' | 'none';
  readonly isPolicy?: boolean;
  readonly isRepeatedAtOnce?: boolean;
  /** A repeat by the client cannot help. */
  readonly isFinal?: boolean | undefined;
}

/** What a reply comes to. Times are counted from the begin of the try. */
export type Reading =
  | {
      readonly kind: 'answer';
      readonly atMs: number;
      readonly text: string;
      /** The total of its usage. */
      readonly tokens: number;
    }
  | { readonly kind: 'failure'; readonly atMs: number; readonly failure: Failure }
  | {
      readonly kind: 'stream';
      readonly atMs: number;
      /** Bytes, and when the client has them at the latest. */
      readonly passes: readonly { readonly atMs: number; readonly text: string }[];
      readonly endMs: number;
      readonly failure: Failure | undefined;
      readonly tokens: number;
    };

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

/** A provider's own error. */
function apiError(error: ErrorPlan, header: string | undefined, isEvent: boolean): Failure {
  const { status, code, message } = error;
  const seconds = header === undefined ? undefined : Math.max(1, Math.ceil(Number(header)));
  const text = message ?? phraseOf(status);
  const isCodeShown = code !== undefined && !text.includes(code);
  const whole = isCodeShown ? `${text} (${code})` : text;
  const isBilling = status === 429 && code === 'insufficient_quota';
  const isTooLong = status === 400 && code === 'context_length_exceeded';
  const isTemporary = status >= 500 || status === 408 || status === 429;
  const failure = {
    status,
    isRetried: isEvent || isBilling ? undefined : RETRIED.has(status) && (seconds ?? 0) <= 30,
    // "A first event that is an error": of any status.
    fallsBack: isTemporary || isTooLong ? true : isEvent ? undefined : false,
    circuit: OUTAGES.has(status) ? 'failure' : status === 500 ? 'none' : 'maybe',
    isPolicy: code === 'content_policy_violation',
    isFinal: isBilling || (seconds ?? 0) > 60,
    retryAfter: seconds,
    asksFor: seconds,
  } as const;
  if (status === 429) {
    const limit = { type: 'rate_limit_error', code: 'RATE_LIMIT_ERROR', says: whole };
    return { ...failure, ...limit, retryAfter: seconds ?? 1 };
  }
  const exactly = status === 401 ? 'Authentication failed' : `API error: ${status} - ${whole}`;
  return { ...failure, type: 'provider_error', code: 'API_ERROR', exactly, isOfProvider: true };
}

export interface Limits {
  /** Of one try, until the answer, or its begin. */
  readonly limitMs: number;
  readonly idleMs: number;
  readonly isStream: boolean;
  readonly takesUsageOut: boolean;
  /** `empty_answers = "fail"`. */
  readonly refusesEmpty: boolean;
}

/** Returns what a try comes to if nobody leaves or shuts down. */
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
    return fail(connectMs, badGateway({ isRetried: true, circuit: 'provider' }));
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
    const failure = apiError(error ?? { status }, header('retry-after'), false);
    return fail(Math.min(endMs, limit), failure);
  }
  if (status < 200 || status > 299 || status === 204 || header('content-encoding') === 'gzip') {
    return fail(beganMs, badGateway());
  }
  const type = header('content-type') ?? '';
  if (isStream && type.startsWith('text/event-stream')) return readStream(reply, pieces, limits);
  if (!isStream && type.startsWith('text/event-stream')) return fail(beganMs, badGateway());
  if (reply.end === 'hang' || last.atMs > limitMs) return late(true);
  if (reply.end === 'cut') return fail(last.atMs, badGateway());
  const text = reply.items.map((item) => item.text).join('');
  const error = reply.items[0]?.error;
  if (error) return fail(last.atMs, apiError(error, header('retry-after'), false));
  if (!isJson(text)) {
    const wrong = { status: 500, type: 'internal_error', code: 'SERIALIZATION_ERROR' };
    const says = 'Serialization error: ';
    return fail(last.atMs, { ...wrong, says, isRetried: false, fallsBack: true, circuit: 'none' });
  }
  if (limits.refusesEmpty && reply.items[0]?.isEmpty) return fail(last.atMs, EMPTY);
  const tokens = reply.items[0]?.tokens ?? 0;
  if (!isStream) return { kind: 'answer', atMs: last.atMs, text, tokens };
  const unsupported = { status: 501, type: 'unsupported_feature', code: 'UNSUPPORTED_FEATURE' };
  const more = { isRetried: false, fallsBack: true, circuit: 'maybe', isFinal: true } as const;
  return fail(last.atMs, { ...unsupported, ...more });
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

interface Piece {
  readonly atMs: number;
  readonly item: Item | 'end' | 'rest';
  /** The item is whole with it. */
  readonly isLast: boolean;
  /** The line feed that ends the item, which was whole with the carriage return before it. */
  readonly isLateLineFeed?: boolean;
}

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

/** The event stream of WHATWG HTML, with the interventions of decisions.md (Streams). */
function readStream(reply: Reply, pieces: readonly Piece[], limits: Limits): Reading {
  const { idleMs, limitMs, refusesEmpty, takesUsageOut } = limits;
  const passes: { atMs: number; text: string }[] = [];
  let beganMs: number | undefined;
  let tokens = 0;
  let dataMs = 0;
  const begun = new Set<number>();
  const finished = new Set<number>();
  const end = (atMs: number, failure: Failure | undefined, addsDone = false): Reading => {
    if (beganMs === undefined) return { kind: 'failure', atMs, failure: failure ?? badGateway() };
    if (addsDone) passes.push({ atMs, text: 'data: [DONE]\n\n' });
    return { kind: 'stream', atMs: beganMs, passes, endMs: atMs, failure, tokens };
  };
  let isDone = false;
  for (const [place, { atMs, item, isLast, isLateLineFeed }] of pieces.entries()) {
    const isComment =
      item === 'rest' ? reply.rest.startsWith(':') : item !== 'end' && item.kind === 'comment';
    const dueMs = beganMs === undefined ? limitMs : dataMs + (idleMs || Infinity);
    if (atMs > dueMs) return end(dueMs, TIMEOUT);
    if (item === 'end') {
      if (reply.end === 'hang') break;
      const isFinished = begun.size > 0 && [...begun].every((index) => finished.has(index));
      const isWhole =
        reply.end === 'end' && (reply.rest === '' || reply.rest.startsWith(':')) && isFinished;
      if (isWhole && beganMs === undefined) return end(atMs, refusesEmpty ? EMPTY : badGateway());
      return isWhole ? end(atMs, undefined, true) : end(atMs, badGateway());
    }
    if (!isComment && !isLateLineFeed) dataMs = atMs;
    if (item === 'rest' || !isLast) continue;
    if (isLateLineFeed) {
      if (item.kind !== 'usage' || !takesUsageOut) passes.push({ atMs, text: '\n' });
      if (isDone) return end(atMs, undefined);
      continue;
    }
    if (item.kind === 'error') return end(atMs, apiError(item.error!, retryAfterOf(reply), true));
    const index = Number(/"index":(\d)/.exec(item.text)?.[1] ?? 0);
    if (item.kind === 'content' || item.kind === 'preamble') begun.add(index);
    if (item.kind === 'finish') {
      begun.add(index);
      finished.add(index);
    }
    const endsEmpty = item.kind === 'finish' || (item.kind === 'done' && begun.size > 0);
    const begins = item.kind === 'content' || (!refusesEmpty && endsEmpty);
    if (begins) beganMs ??= atMs;
    tokens = item.tokens ?? tokens;
    if (item.kind === 'usage' && takesUsageOut) continue;
    if (item.kind === 'done' && beganMs === undefined) {
      return end(atMs, begun.size > 0 ? EMPTY : badGateway());
    }
    isDone = item.kind === 'done';
    const isOpen = pieces[place + 1]?.isLateLineFeed === true;
    passes.push({ atMs, text: isOpen ? item.text.slice(0, -1) : item.text });
    if (isDone && !isOpen) return end(atMs, undefined);
  }
  return end(beganMs === undefined ? limitMs : dataMs + (idleMs || Infinity), TIMEOUT);
}

const retryAfterOf = (reply: Reply) => reply.headers.find(([name]) => name === 'retry-after')?.[1];

/** A provider, and the model that it is asked for. */
export interface Candidate {
  readonly provider: string;
  readonly model: string;
}

export interface Candidates {
  readonly list: readonly Candidate[];
  /** So many from the front may be asked in any order. */
  readonly balanced: number;
  /** A target that has no key, no such model or no token left is not the only one to ask. */
  readonly isBalanced: boolean;
  /** Of a weighted alias, one for each of them that is balanced. */
  readonly weights: readonly number[] | undefined;
  /** So many of them. */
  readonly atMost: number;
}

/** Whether a client may ask for this model, or see it. */
export function mayName(name: string, { clients }: Settings, client: string | undefined): boolean {
  const allowed = clients.find((one) => one.name === client)?.models;
  const allows = (one: string) =>
    one.endsWith('*') ? name.startsWith(one.slice(0, -1)) : one === name;
  return allowed?.some(allows) ?? true;
}

/** Returns who may be asked, in order (decisions.md, Model resolution, Retry and fallback, Aliases), or why nobody is. */
export function candidatesFor(
  model: string,
  settings: Settings,
  client?: string,
): Candidates | Failure {
  const registered = new Map(
    settings.providers.filter(({ enabled }) => enabled).map((one) => [one.id, one]),
  );
  const alias = settings.aliases.find(({ name }) => name === model);
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
    // "The requested model name": of a balanced alias that may be each of them.
    list.push({ provider: id, model: provider.default_model ?? models.join(' or ') });
  }
  return { list, balanced, isBalanced, weights, atMost: list.length };
}

const PATHS: Readonly<Record<string, string>> = {
  '/v1/chat/completions': 'POST',
  '/v1/models': 'GET',
  '/health': 'GET, HEAD',
};

export type Early =
  | { readonly kind: 'health' | 'preflight' }
  | { readonly kind: 'refused'; readonly failure: Failure }
  /** It takes a slot and a token; then it is refused, or asks for models or a completion. */
  | {
      readonly kind: 'counted';
      readonly client: string | undefined;
      readonly to: Failure | 'models' | 'chat';
    };

/** The checks before anybody is asked, in the order of decisions.md (Requests). */
export function checkHead({ method, path, headers }: Ask, settings: Settings): Early {
  if (path === '/health' && (method === 'GET' || method === 'HEAD')) return { kind: 'health' };
  const isPreflight = headers.some(([name]) => name === 'access-control-request-method');
  if (settings.server.cors && method === 'OPTIONS' && isPreflight) return { kind: 'preflight' };
  const token = /^bearer +([^ ].*)$/i.exec(
    headers.find(([name]) => name === 'authorization')?.[1] ?? '',
  );
  const { authKeys, clients } = settings;
  const client = clients.find(({ keys }) => keys.includes(token?.[1] ?? ''));
  const needsKey = authKeys.length > 0 || clients.length > 0;
  if (!token || (needsKey && !client && !authKeys.includes(token[1]!))) {
    return { kind: 'refused', failure: UNAUTHORIZED };
  }
  const to =
    path === '/v1/models' && method === 'GET'
      ? 'models'
      : path === '/v1/chat/completions' && method === 'POST'
        ? 'chat'
        : NOT_FOUND;
  return { kind: 'counted', client: client?.name, to };
}

/** The `Allow` of a 404. */
export const allowOf = (path: string) => PATHS[path];
