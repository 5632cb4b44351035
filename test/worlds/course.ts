/**
 * The documented course of a request, read from the history: its settings, its tries, and each
 * try's result.
 */

import type { Exchange, History, Try } from './history.ts';
import {
  candidatesFor,
  checkHead,
  namesModel,
  pathOf,
  readReply,
  refusal,
  type Candidate,
  type Candidates,
  type Early,
  type Failure,
  type Limits,
  type Reading,
} from './oracle.ts';
import type { ProviderSettings, Settings } from './plan.ts';

/** Reports a problem under a check's name. */
export type Report = (name: string, text: string, exchange?: Exchange) => void;

export type TryLine = Readonly<{
  provider: string;
  model: string;
  outcome: string;
  key?: number;
  status?: number;
}>;

/** The tries at a candidate, until another candidate is asked. */
export interface Visit {
  readonly candidate: Candidate;
  readonly skipped: 'circuit_open' | 'limit' | undefined;
  readonly tries: readonly ReadTry[];
  /** Whether the candidate was full before, so that the request has waited for a slot. */
  readonly hasWaited: boolean;
  /** When the visit began, or the candidate was passed over. */
  readonly atMs: number;
}

export interface ReadTry {
  readonly try: Try;
  /** Undefined if the try was given up before it had a result. */
  readonly reading: Reading | undefined;
  /** In the world's time. */
  readonly resultAtMs: number;
  readonly endsAtMs: number;
}

export interface Course {
  readonly exchange: Exchange;
  readonly settings: Settings;
  /** When the request's turn on its connection came. */
  readonly begunAtMs: number;
  readonly begunOrder: number;
  readonly endOrder: number;
  readonly endAtMs: number;
  readonly early: Early;
  /** Undefined unless the request names a model and passed the first checks. */
  readonly candidates: Candidates | Failure | undefined;
  readonly tryLines: readonly TryLine[];
  readonly visits: readonly Visit[];
  /** When the client left or the drain ended. From then on, nothing is expected. */
  readonly brokenAtMs: number;
}

export function coursesOf(history: History, brokenAtMs: number): Course[] {
  const settings = history.events.flatMap((event, order) =>
    event.kind === 'settings' ? [{ order, settings: event.settings }] : [],
  );
  return history.exchanges.flatMap((exchange) => {
    const [end] = exchange.lines;
    if (!end || exchange.headSentAtMs === undefined) return [];
    const before = exchange.behind?.lines[0];
    const begunOrder = Math.max(exchange.headOrder, (before?.order ?? -1) + 0.5);
    const begunAtMs = Math.max(exchange.headSentAtMs, before?.atMs ?? 0);
    const used = settings.findLast(({ order }) => order < begunOrder)!.settings;
    const early = checkHead(exchange.ask, used, begunAtMs);
    const { chat } = exchange.ask;
    const isChat = early.kind === 'counted' && early.to === 'chat';
    const client = early.kind === 'counted' ? early.client : undefined;
    const isLimited = used.clients.some(({ models, name }) => name === client && models);
    const refused = chat?.refusedWith ?? (chat?.namesOthers && isLimited ? 400 : undefined);
    // The documents: fallbacks do not apply to embeddings.
    const fallback = chat?.answersWith === 'embeddings' ? [] : used.fallback;
    const candidates =
      isChat && chat
        ? refused
          ? refusal(refused)
          : askedOf(candidatesFor(chat.model, { ...used, fallback }, client), exchange)
        : undefined;
    const tryLines = (end.line['tries'] ?? []) as TryLine[];
    const broken = Math.min(noticedAtMs(exchange), brokenAtMs);
    const course = {
      exchange,
      settings: used,
      begunAtMs,
      begunOrder,
      endOrder: end.order,
      endAtMs: end.atMs,
      early,
      candidates,
      tryLines,
      brokenAtMs: broken,
    };
    return [{ ...course, visits: visitsOf(course) }];
  });
}

/** When the gateway can know that its client has left. */
export function noticedAtMs(exchange: Exchange): number {
  const { isUnnoticed, leftAtMs = Infinity, lines, wastedAtMs = Infinity } = exchange;
  if (!isUnnoticed) return leftAtMs;
  // Or when it reads again, because fewer requests wait.
  const told = lines.find(({ line }) => line['outcome'] === 'client_closed');
  return Math.min(wastedAtMs, told?.atMs ?? Infinity);
}

/** Applies `x-gateway-fallback: off`: only the first candidate is asked. */
function askedOf(candidates: Candidates | Failure, { ask }: Exchange): Candidates | Failure {
  const isOff = ask.headers.some(
    ([name, value]) => name === 'x-gateway-fallback' && value === 'off',
  );
  return isOff && 'list' in candidates ? { ...candidates, atMost: 1 } : candidates;
}

export function providerOf({ settings }: Pick<Course, 'settings'>, id: string): ProviderSettings {
  return settings.providers.find((one) => one.id === id)!;
}

/** The provider's key in a try. */
export const keyOf = ({ headers }: Try) =>
  headers.get('authorization')?.replace('Bearer ', '') ?? '';

/** When and how a try was refused because of its key: as an answer, or by an event in a stream. */
export function keyRefusalOf({ endsAtMs, reading, resultAtMs }: ReadTry) {
  const failure = reading?.kind === 'answer' ? undefined : reading?.failure;
  if (!failure?.restsKey) return undefined;
  return { failure, atMs: reading?.kind === 'stream' ? endsAtMs : resultAtMs };
}

/** Whether the moment of a skip is known. With a store it is known only after a try. */
export function isTimeKnown(visit: Visit, { settings, visits }: Course): boolean {
  const before = visits.slice(0, visits.indexOf(visit));
  const last = before.findLast(({ skipped }) => skipped !== 'circuit_open');
  return !settings.rateLimit.hasStore || (last !== undefined && !last.skipped);
}

function visitsOf(course: Omit<Course, 'visits'>): Visit[] {
  const visits: (Omit<Visit, 'tries'> & { tries: ReadTry[] })[] = [];
  const made = course.exchange.tries;
  let next = 0;
  let waitedMs = 0;
  for (const { provider, model, outcome } of course.tryLines) {
    const last = visits.at(-1);
    const isSkip = outcome === 'circuit_open' || outcome === 'limit';
    const isAgain = last?.candidate.provider === provider && last.candidate.model === model;
    if (isSkip || !isAgain || last.skipped) {
      const skipped = isSkip ? outcome : undefined;
      const candidate = { provider, model };
      // A first candidate whose circuit was open is asked again last, perhaps after a wait.
      const isAfterAll =
        isSkip && visits[0]?.skipped === 'circuit_open' && isSame(visits[0], { candidate });
      const skippedAtMs = isAfterAll ? course.endAtMs : last?.tries.at(-1)?.resultAtMs;
      const atMs = (isSkip ? skippedAtMs : made[next]?.atMs) ?? last?.atMs;
      const bodyAtMs = course.exchange.sentAtMs ?? course.begunAtMs;
      const beganMs = atMs ?? Math.max(bodyAtMs, course.begunAtMs);
      const hasWaited = visits.some((one) => one.skipped === 'limit' && isSame(one, { candidate }));
      const first = isSkip ? undefined : made[next];
      if (hasWaited && first && last)
        waitedMs += first.atMs - (last.tries.at(-1)?.resultAtMs ?? last.atMs);
      visits.push({ candidate, skipped, tries: [], hasWaited, atMs: beganMs });
    }
    const one = made[next];
    if (isSkip || !one) continue;
    const visit = visits.at(-1)!;
    visit.tries.push(readTry(one, course, visit.hasWaited ? waitedMs : 0));
    next += 1;
  }
  return visits;
}

/** The model in a request to a provider. */
function modelOf({ body = '{}' }: Try): string {
  return String((JSON.parse(body) as { model?: unknown }).model);
}

function readTry(made: Try, course: Omit<Course, 'visits'>, waitedMs: number): ReadTry {
  const { ask } = course.exchange;
  const { chat } = ask;
  const isOfChat = pathOf(ask) === '/v1/chat/completions';
  const { timeout, first_token_timeout, stream_idle_timeout } = course.settings.server;
  const provider = providerOf(course, made.provider);
  const isStream = chat?.isStream ?? false;
  const first = isStream ? (first_token_timeout ?? Infinity) : Infinity;
  const limits = {
    limitMs: Math.max(1, Math.min(provider.timeout ?? timeout, first) * 1000 - waitedMs),
    idleMs: stream_idle_timeout * 1000,
    begunAtMs: made.atMs,
    isStream,
    isNamed: namesModel(provider, modelOf(made), course.settings),
    refusesEmpty: isOfChat && course.settings.server.empty_answers === 'fail',
    takesUsageOut: provider.stream_usage && isStream && !chat!.asksForUsage,
  };
  const reading = readDelayed(readReply(made.reply, limits), limits, made, course.exchange);
  // Sums of fractions differ in their last digit, so use the recorded number.
  const atMs = (ms: number) =>
    [made.endAtMs, course.endAtMs].find((one) => Math.abs(made.atMs + ms - one) < 0.001) ??
    made.atMs + ms;
  const resultAtMs = atMs(reading.atMs);
  const isBroken = resultAtMs >= course.brokenAtMs;
  const endMs = reading.kind === 'stream' ? reading.endMs : reading.atMs;
  return {
    try: made,
    reading: isBroken ? undefined : reading,
    resultAtMs: Math.min(resultAtMs, course.brokenAtMs),
    endsAtMs: Math.min(atMs(endMs), course.brokenAtMs),
  };
}

/**
 * Corrects the reading for a client that did not read for a while: the idle limit passes later, or
 * never.
 */
function readDelayed(
  reading: Reading,
  limits: Limits,
  made: Try,
  { isDelayed, lines }: Exchange,
): Reading {
  const hasIdled = reading.kind === 'stream' && reading.failure?.type === 'timeout_error';
  if (!isDelayed || !hasIdled) return reading;
  const hasPassed = lines[0]!.line['outcome'] === 'timeout';
  const idlesAtMs = hasPassed ? Math.max(reading.endMs, made.endAtMs - made.atMs) : Infinity;
  return readReply(made.reply, { ...limits, idlesAtMs });
}

const isAnswer = (reading: Reading | undefined) =>
  reading?.kind === 'answer' || reading?.kind === 'stream';
function isSame(
  { candidate: one }: Pick<Visit, 'candidate'>,
  { candidate: other }: Pick<Visit, 'candidate'>,
): boolean {
  return one.provider === other.provider && one.model === other.model;
}

/** Whether a content policy has refused the request, so that nobody else is asked. */
export function isFlagged(visit: Visit | undefined): boolean {
  const reading = visit?.tries.at(-1)?.reading;
  return reading?.kind === 'failure' && reading.failure.isPolicy === true;
}

/**
 * Returns the visit whose answer or error the client gets, with its failure; undefined if no
 * provider was asked.
 */
export function answeredBy(course: Course) {
  const { exchange, visits } = course;
  const answering = visits.findLast(({ tries }) => isAnswer(tries.at(-1)?.reading));
  const flagging = isFlagged(visits.at(-1)) ? visits.at(-1) : undefined;
  const told = answering ?? flagging ?? visits.findLast((visit) => isSame(visit, visits[0]!));
  if (!told) return undefined;
  const last = told.tries.at(-1);
  const failures = told.tries.flatMap(({ reading }) =>
    reading?.kind === 'failure' ? reading.failure : [],
  );
  // With several keys, a 429 takes precedence over a 401 or 403.
  const hasKeys = providerOf(course, told.candidate.provider).api_keys.length > 1;
  // The status is 200 if a comment has begun the stream.
  const isLimited = exchange.lines[0]?.line['outcome'] === 'rate_limited';
  const status = isLimited ? 429 : exchange.answer?.status;
  const among = hasKeys ? failures.findLast((one) => one.status === status) : undefined;
  const own = last?.reading?.kind === 'answer' ? undefined : last?.reading?.failure;
  return { told, last, failure: among ?? own };
}

/** When each request's latest try ended, by its log line. */
export function tryEndsOf({ events }: History) {
  return new Map(
    events.flatMap((event, order) =>
      event.kind === 'line' && event.line.message === 'try' && event.exchange
        ? [[event.exchange, { atMs: event.atMs, order: order + 0.25 }]]
        : [],
    ),
  );
}

/** When a drain begins. From then on, a cut request and a failed request look the same. */
export function drainMsOf({ events }: History): number {
  return events.find(({ kind }) => kind === 'drain')?.atMs ?? Infinity;
}
