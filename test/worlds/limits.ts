/**
 * `limits`: no request beyond a limit is let in, none within it is refused, and `Retry-After` is
 * true.
 */

import {
  isTimeKnown,
  providerOf,
  tryEndsOf,
  type Course,
  type Report,
  type Visit,
} from './course.ts';
import { MIDNIGHT_MS } from './clock.ts';
import type { Exchange, History, StoreAsk } from './history.ts';
import type { StoredWindow } from '../../src/policy/limiter.ts';
import type { Settings } from './plan.ts';
import { findWaiting, waitsOf, type Wait } from './queues.ts';

/** A tolerance in tokens. */
const CLOSE = 1e-6;
const CLOSE_MS = 0.01;
/** After this time without an answer from the store, the buckets in memory are used. */
const STORE_MS = 50;

const DAY_SECONDS = 86_400;

/** A token bucket from the settings, or the window of a day in UTC, whose rate is 0. */
interface Limit {
  readonly name: string;
  readonly rate: number;
  readonly periodSeconds: number;
  readonly capacity: number;
  /** The tokens per request. With 0, the bucket must only be above zero. */
  readonly perRequest: number;
}

/** A token bucket that fills in proportion to time, with its least and greatest possible level. */
class Level {
  readonly limit: Limit;
  #least: number;
  #most: number;
  #atMs = 0;

  constructor(limit: Limit) {
    this.limit = limit;
    this.#least = this.#most = limit.capacity;
  }

  at(atMs: number): { readonly least: number; readonly most: number } {
    const { capacity, periodSeconds, rate } = this.limit;
    const isNewDay = rate === 0 && this.#atMs < MIDNIGHT_MS && atMs >= MIDNIGHT_MS;
    const more = isNewDay ? Infinity : ((atMs - this.#atMs) / 1000 / periodSeconds) * rate;
    this.#least = Math.min(capacity, this.#least + more);
    this.#most = Math.min(capacity, this.#most + more);
    this.#atMs = atMs;
    return { least: this.#least, most: this.#most };
  }

  /** Returns the level for this limit. A window keeps its sum when its limit changes. */
  withLimit(limit: Limit): Level {
    const level = new Level(limit);
    const more = limit.capacity - this.limit.capacity;
    level.#least = this.#least + more;
    level.#most = this.#most + more;
    level.#atMs = this.#atMs;
    return level;
  }

  take(least: number, most = least): void {
    this.#least -= most;
    this.#most -= least;
  }

  /** Whether a request is let in; undefined if both are right. */
  allows(atMs: number): boolean | undefined {
    const { least, most } = this.at(atMs);
    if (least > this.limit.perRequest + CLOSE) return true;
    // The sums of windows are whole numbers.
    if (this.limit.rate === 0) return most < CLOSE ? false : undefined;
    return most < this.limit.perRequest - CLOSE ? false : undefined;
  }

  /** The whole seconds until a request is let in, at least 1. */
  waitsAt(atMs: number): readonly [least: number, most: number] {
    const { least, most } = this.at(atMs);
    const { perRequest, periodSeconds, rate } = this.limit;
    if (rate === 0) {
      // The wall clock shows whole milliseconds.
      const endMs = MIDNIGHT_MS + (atMs < MIDNIGHT_MS ? 0 : DAY_SECONDS * 1000);
      const untilEnd = (fromMs: number) => Math.max(1, Math.ceil((endMs - fromMs) / 1000));
      return [untilEnd(atMs), untilEnd(Math.floor(atMs))];
    }
    const waitOf = (tokens: number, more: number) =>
      Math.max(1, Math.ceil(((perRequest - tokens + more) * periodSeconds) / rate));
    return [waitOf(most, -CLOSE), waitOf(least, 2 * CLOSE)];
  }
}

/**
 * All levels, by name and settings. A reload keeps unchanged limits' tokens and the sums of windows,
 * and fills the other buckets.
 */
class Levels {
  #levels = new Map<string, Level>();
  #settings: Settings | undefined;

  /** The slots of a provider in the current settings. */
  slotsOf(id: string): number {
    const provider = this.#settings?.providers.find((one) => one.id === id);
    return provider?.max_concurrent_requests || Infinity;
  }

  use(settings: Settings): void {
    if (settings === this.#settings) return;
    this.#settings = settings;
    const limits = [
      ...limitsOf(settings),
      ...Object.keys(settings.rateLimit.providers).flatMap((id) => limitsOfProvider(id, settings)),
    ];
    this.#levels = new Map(
      limits.map((limit) => {
        const former = this.#levels.get(keyOf(limit));
        const level = limit.rate === 0 ? former?.withLimit(limit) : former;
        return [keyOf(limit), level ?? new Level(limit)];
      }),
    );
  }

  /**
   * Whether these are the current settings. A request keeps its first settings, so its limits may
   * be gone.
   */
  areOf(settings: Settings): boolean {
    return settings === this.#settings;
  }

  of(limits: readonly Limit[]): Level[] {
    return limits.flatMap((limit) => this.#levels.get(keyOf(limit)) ?? []);
  }
}

const keyOf = ({ name, rate, capacity }: Limit) =>
  rate === 0 ? name : `${name} ${rate}/${capacity}`;

/** Returns the limits on clients' requests. */
function limitsOf({ clients, rateLimit }: Settings): Limit[] {
  const all = rateLimit.enabled ? [bySecond('all', rateLimit)] : [];
  const own = clients.flatMap((client) => {
    const name = `client ${client.name}`;
    const { requests_per_minute, tokens_per_minute, tokens_per_day } = client;
    const row = (what: string, rate = 0, periodSeconds = 60, perRequest = 0) => {
      return { name: `${name} ${what}`, rate, periodSeconds, capacity: rate, perRequest };
    };
    return [
      bySecond(name, client),
      row('requests_per_minute', requests_per_minute, 60, 1),
      row('tokens_per_minute', tokens_per_minute),
      { ...row('tokens_per_day', tokens_per_day, DAY_SECONDS), rate: 0 },
    ];
  });
  const isSet = ({ rate, capacity, periodSeconds }: Limit) =>
    periodSeconds === DAY_SECONDS ? capacity > 0 : rate > 0;
  return [...all, ...own].filter(isSet);
}

function limitsOfProvider(id: string, { rateLimit }: Settings): Limit[] {
  const row = rateLimit.providers[id];
  if (!rateLimit.enabled || !row) return [];
  const { requests_per_minute: rate = 0 } = row;
  const name = `provider ${id} requests_per_minute`;
  const byMinute = { name, rate, periodSeconds: 60, capacity: rate, perRequest: 1 };
  return [bySecond(`provider ${id}`, row), byMinute].filter((limit) => limit.rate > 0);
}

function bySecond(
  name: string,
  one: { readonly requests_per_second: number; readonly burst_capacity: number },
): Limit {
  const [rate, capacity] = [one.requests_per_second, one.burst_capacity];
  return { name, rate, periodSeconds: 1, capacity, perRequest: 1 };
}

/** Returns the limits on this client's requests. */
function limitsOfClient(client: string | undefined, settings: Settings): Limit[] {
  return limitsOf(settings).filter(({ name }) => name === 'all' || name.split(' ')[1] === client);
}

interface Step {
  readonly atMs: number;
  readonly order: number;
  readonly run: () => void;
}

interface State {
  readonly courses: readonly Course[];
  readonly add: (name: string, count: number) => void;
  readonly used: ReadonlyMap<string, number>;
  readonly levels: Levels;
  readonly store: StoreView | undefined;
  readonly waits: readonly Wait[];
  /** When each request's latest try ended, by the log. */
  readonly tryEnds: ReadonlyMap<Exchange, { readonly atMs: number; readonly order: number }>;
  readonly report: Report;
}

export function checkLimits(history: History, courses: readonly Course[], report: Report): void {
  const used = new Map<string, number>();
  const add = (name: string, count: number) => used.set(name, (used.get(name) ?? 0) + count);
  const levels = new Levels();
  const hasStore = courses.some(({ settings }) => settings.rateLimit.hasStore);
  const store = hasStore ? new StoreView(history) : undefined;
  const tryEnds = tryEndsOf(history);
  // A reload changes the slots.
  const isSteady = history.events.filter(({ kind }) => kind === 'settings').length === 1;
  const waits = isSteady ? waitsOf(courses) : [];
  const state: State = { add, courses, used, levels, store, tryEnds, report, waits };
  const steps: Step[] = history.events.flatMap((event, order) =>
    event.kind === 'settings'
      ? { atMs: event.atMs, order, run: () => levels.use(event.settings) }
      : [],
  );
  for (const course of courses) {
    steps.push(...requestSteps(course, state));
    for (const visit of course.visits) steps.push(...visitSteps(visit, course, state));
    steps.push(...lostSteps(course, levels));
  }
  steps.sort((a, b) => a.atMs - b.atMs || a.order - b.order);
  for (const { run } of steps) run();
  store?.checkRest(courses, report);
  checkMemory(courses, report);
}

/** A request's bytes beside its body. */
const OTHER_BYTES = 16_384;

/** When a request gives its body's memory back. An open stream holds none. */
function heldUntilMs({ endAtMs, visits }: Course): number {
  const last = visits.at(-1)?.tries.at(-1);
  return last?.reading?.kind === 'stream' ? last.try.atMs + last.reading.atMs : endAtMs;
}

/** Checks that a body is refused only if it may not fit, and that waiting requests' bodies fit. */
function checkMemory(courses: readonly Course[], report: Report): void {
  const bytesOf = ({ exchange }: Course) => Buffer.byteLength(exchange.ask.body ?? '');
  for (const course of courses) {
    const maxBytes = course.settings.server.max_buffered_bytes;
    const { line } = course.exchange.lines[0]!;
    if (maxBytes === undefined || course.early.kind !== 'counted') continue;
    const isRefused = line['reason'] === 'memory';
    const sum = (list: readonly Course[]) => list.reduce((all, one) => all + bytesOf(one), 0);
    const others = courses.filter((one) => one !== course);
    const mayHold = others.filter(
      (one) => one.begunAtMs <= course.endAtMs && heldUntilMs(one) >= course.begunAtMs,
    );
    const most = sum([course, ...mayHold]) + courses.length * OTHER_BYTES;
    if (isRefused && most <= maxBytes) report('limits', 'its body fits', course.exchange);
    const atMs = course.visits[0]?.tries[0]?.try.atMs;
    if (atMs === undefined) continue;
    const isHeld = ({ exchange: { headSentAtMs, tries } }: Course) =>
      tries.some((one) => one.atMs <= atMs && atMs < (one.headAtMs ?? one.endAtMs)) &&
      headSentAtMs !== undefined;
    if (sum([course, ...others.filter(isHeld)]) > maxBytes)
      report('limits', 'bodies are held beyond max_buffered_bytes', course.exchange);
  }
}

/** Whether a limit refused the request. The status counts too, because its client may have left. */
function isLimited({ exchange, visits }: Course): boolean {
  const { line } = exchange.lines[0]!;
  return visits.length === 0 && (line['outcome'] === 'rate_limited' || line['status'] === 429);
}

function requestSteps(
  course: Course,
  { add, courses, levels, report, store, used }: State,
): Step[] {
  const { begunAtMs, begunOrder, early, endAtMs, endOrder, exchange, settings } = course;
  if (early.kind !== 'counted') return [];
  const client = settings.clients.find(({ name }) => name === early.client);
  const slots = [
    ['all', settings.server.max_concurrent_requests] as const,
    ...(client ? [[`client ${client.name}`, client.max_concurrent_requests] as const] : []),
  ];
  const limits = limitsOfClient(early.client, settings);
  const { line } = exchange.lines[0]!;
  const isRefused = isLimited(course) && line['reason'] !== 'memory';
  const wrong = (text: string) => report('limits', text, exchange);
  const told = exchange.answer && Number(exchange.answer.headers.get('retry-after'));
  // Pipelined requests may begin in the same moment, in an order that the history does not show.
  const hasRival = courses.some(
    (one) =>
      one !== course &&
      one.exchange.behind !== undefined &&
      Math.abs(one.begunAtMs - begunAtMs) < CLOSE_MS,
  );
  let hasSlot = false;
  const checkLocally = () => {
    const own = levels.of(limits);
    const allowed = own.map((level) => level.allows(begunAtMs));
    // If the client left, its access line does not show a refusal for memory.
    const isTold = line['outcome'] !== 'client_closed';
    if (isRefused && isTold && !hasRival && allowed.every((one) => one === true))
      wrong('it is refused with tokens left');
    if (!isRefused && allowed.includes(false)) wrong('there is no token for it');
    if (!isRefused) for (const level of own) level.take(level.limit.perRequest);
    const waits = own.map((level) => level.waitsAt(begunAtMs));
    const sure = waits.filter((_, index) => allowed[index] === false);
    // A limit refuses or not if the usage of a client that has left counts or not.
    const possible = waits.filter((_, index) => allowed[index] !== true);
    // The longest wait counts, because after a shorter wait the request is refused again.
    const least = Math.max(0, ...sure.map(([seconds]) => seconds));
    const most = Math.max(...possible.map(([, seconds]) => seconds));
    if (isRefused && told !== undefined && possible.length > 0 && !(told >= least && told <= most))
      wrong(`Retry-After ${told}, and not ${least} to ${most}`);
  };
  const checkStored = () => {
    if (limits.length === 0) return isRefused && wrong('it is refused without a limit');
    const ask = store!.claim(limits, begunAtMs, 'asked', exchange.lines[0]!.atMs);
    if (!ask) return store!.isThere(begunAtMs) && wrong('the store is not asked');
    if (ask.toldAtMs === undefined || course.brokenAtMs <= ask.toldAtMs) return undefined;
    if ((ask.refusedForMs !== undefined) !== isRefused) wrong('the store has said otherwise');
    const seconds = Math.max(1, Math.ceil((ask.refusedForMs ?? 0) / 1000));
    if (isRefused && told !== undefined && told !== seconds)
      wrong(`Retry-After ${told}, and not ${seconds}`);
    return undefined;
  };
  const begin = () => {
    const isFull = slots.some(([name, max]) => max > 0 && (used.get(name) ?? 0) >= max);
    if (isFull && !isRefused) wrong('it is let in beyond max_concurrent_requests');
    if (isFull) return;
    hasSlot = true;
    for (const [name] of slots) add(name, 1);
    if (store) checkStored();
    else checkLocally();
  };
  const wereSkipped = course.visits.length > 0 && course.visits.every(({ skipped }) => skipped);
  const isLeft = course.endAtMs >= course.brokenAtMs;
  const end = () => {
    if (!hasSlot) return;
    for (const [name] of slots) add(name, -1);
    const [least, most] = tokensOf(course);
    for (const level of levels.of(limits)) {
      level.at(endAtMs);
      if (level.limit.perRequest === 0) level.take(least, most);
      // If the client left, the next provider might still have been asked, and the token may be
      // lost.
      else if (wereSkipped) level.take(-level.limit.perRequest, isLeft ? 0 : undefined);
    }
  };
  // A pipelined request may begin later in the same moment, when other requests have ended.
  const firstOrder = course.visits[0]?.tries[0]?.try.order ?? endOrder;
  const isLate = exchange.behind !== undefined && !isRefused;
  const order = isLate ? Math.max(begunOrder, firstOrder - 0.5) : begunOrder;
  return [
    { atMs: begunAtMs, order, run: begin },
    // The slot is free after the access line.
    { atMs: endAtMs, order: endOrder + 0.25, run: end },
  ];
}

/** The answer's reported tokens, at least and at most. */
function tokensOf({ brokenAtMs, endAtMs, visits }: Course): readonly [least: number, most: number] {
  const last = visits.at(-1)?.tries.at(-1);
  if (!last) return [0, 0];
  const { reading } = last;
  if (endAtMs >= brokenAtMs) {
    const all = last.try.reply.items.flatMap(
      ({ text }) => text.match(/(?<="total_tokens": ?)\d+/g) ?? [],
    );
    return [0, all.reduce((sum, one) => sum + Number(one), 0)];
  }
  if (!reading || reading.kind === 'failure') return [0, 0];
  // The documents leave open whether a broken stream's usage counts.
  const isBroken = reading.kind === 'stream' && reading.failure !== undefined;
  const tokens = reading.facts.usage?.total_tokens ?? 0;
  return [isBroken ? 0 : tokens, tokens];
}

/** A provider's token may be taken although it was not asked, if the client left in that moment. */
function lostSteps(
  { endAtMs, endOrder, exchange, settings, visits }: Course,
  levels: Levels,
): Step[] {
  const { line } = exchange.lines[0]!;
  const provider = line['provider'];
  const wasVisited = visits.some(({ candidate }) => candidate.provider === provider);
  if (line['outcome'] !== 'client_closed' || typeof provider !== 'string' || wasVisited) return [];
  const limits = limitsOfProvider(provider, settings);
  const run = () => {
    for (const level of levels.of(limits)) {
      level.at(endAtMs);
      level.take(0, 1);
    }
  };
  return [{ atMs: endAtMs, order: endOrder, run }];
}

/**
 * A visit takes a provider's token and slot. The slot is free after the last try, or after the
 * stream.
 */
function visitSteps(
  visit: Visit,
  course: Course,
  { add, levels, report, store, tryEnds, used, waits }: State,
): Step[] {
  const { candidate, hasWaited, skipped, tries } = visit;
  if (skipped === 'circuit_open') return [];
  const { exchange, settings } = course;
  const { provider } = candidate;
  const name = `provider ${provider}`;
  const max = providerOf(course, provider).max_concurrent_requests;
  const limits = limitsOfProvider(provider, settings);
  const isStored = store !== undefined && limits.length > 0;
  const last = tries.at(-1);
  const atMs = tries[0]?.try.atMs ?? visit.atMs;
  const order = tries[0]?.try.order ?? course.endOrder;
  const wrong = (text: string) => report('limits', `${provider} ${text}`, exchange);
  const ask = () => {
    // A reload changes the slots for requests that wait.
    const most = hasWaited ? Math.max(max, levels.slotsOf(provider)) : max;
    const isFull = max > 0 && (used.get(name) ?? 0) >= most;
    const own = isStored ? [] : levels.of(limits);
    const decisions = own.map((level) => level.allows(atMs));
    const isRefused = decisions.includes(false);
    const allowed = !isRefused && !decisions.includes(undefined);
    // While the store is asked, also for another limit, other requests begin and end.
    const isSeen = !isStored && !hasWaited && isTimeKnown(visit, course) && levels.areOf(settings);
    if (skipped && isSeen && !isFull && allowed) wrong('is passed over within its limits');
    const isFirst = visit === course.visits[0] && course.endAtMs < course.brokenAtMs;
    const others = course.candidates && 'list' in course.candidates ? course.candidates : undefined;
    if (skipped && isFirst && !isStored && others && others.atMost > 1) {
      const goesOn = course.visits.length > 1;
      // The first candidate's rate limit is the answer, but its concurrency limit is not.
      if (isRefused && !others.isBalanced && goesOn)
        wrong('is left for another provider because of its rate limit');
      if (isFull && allowed && !goesOn) wrong('is full, and no other provider is asked');
    }
    if (skipped) return;
    if (isFull) wrong('is asked beyond max_concurrent_requests');
    if (isRefused) wrong('has no token left');
    if (isStored && !store.claim(limits, atMs, 'told') && store.isThere(atMs - STORE_MS, atMs))
      wrong('is asked, and the store was not');
    for (const level of own) level.take(1);
    add(name, 1);
  };
  if (skipped || !last) return [{ atMs, order, run: ask }];
  // The client may have left during the wait for the next try, unless it was in a queue.
  const isLeft =
    visit === course.visits.at(-1) &&
    exchange.lines[0]!.line['waited_ms'] === undefined &&
    course.endAtMs >= course.brokenAtMs &&
    last.reading?.kind !== 'answer';
  const atEnd = { atMs: course.endAtMs, order: course.endOrder + 0.25 };
  const atResult = { atMs: last.resultAtMs, order: last.try.endOrder };
  const isStream = last.reading?.kind === 'stream';
  const checkIdle = () => {
    const waiting = (used.get(name) ?? 0) < max && findWaiting(provider, free.atMs, waits);
    if (waiting) report('queues', `${provider} has a free slot`, waiting.course.exchange);
  };
  // A request that waits gets the slot before the access line of the client that has left.
  const atLeaving = { atMs: course.endAtMs, order: last.try.order + 0.25 };
  const free = isStream ? (tryEnds.get(exchange) ?? atEnd) : isLeft ? atLeaving : atResult;
  return [
    { atMs, order, run: ask },
    { ...free, run: () => add(name, -1) },
    { ...free, order: Infinity, run: checkIdle },
  ];
}

/** The questions to the store. */
class StoreView {
  readonly #asks: { readonly atMs: number; readonly ask: StoreAsk }[] = [];
  /** When its connection came and went. */
  readonly #states: { readonly atMs: number; readonly isUp: boolean }[] = [
    { atMs: -Infinity, isUp: false },
  ];
  readonly #claimed = new Set<StoreAsk>();

  constructor({ events }: History) {
    for (const event of events) {
      if (event.kind === 'store') this.#states.push(event);
      if (event.kind === 'store asked') this.#asks.push(event);
    }
  }

  /** Whether the connection was there all the time. */
  isThere(fromMs: number, toMs = fromMs): boolean {
    const before = this.#states.findLast(({ atMs }) => atMs < fromMs - CLOSE_MS)!;
    const within = this.#states.some(
      ({ atMs, isUp }) => !isUp && atMs >= fromMs - CLOSE_MS && atMs <= toMs + CLOSE_MS,
    );
    return before.isUp && !within;
  }

  /**
   * Claims a question for a token of each limit, asked at this time or answered with yes, and
   * returns it.
   */
  claim(
    limits: readonly Limit[],
    atMs: number,
    by: 'asked' | 'told' = 'asked',
    untilMs = Infinity,
  ): StoreAsk | undefined {
    const rows = rowsOf(limits);
    const found = this.#asks.find((one) => {
      const isSame = one.ask.tokens === undefined && rowsOf(one.ask.buckets) === rows;
      const isFree = isSame && !this.#claimed.has(one.ask);
      const isOk = by === 'asked' || one.ask.refusedForMs === undefined;
      return (
        isFree &&
        isOk &&
        one.atMs <= untilMs &&
        Math.abs((by === 'told' ? (one.ask.toldAtMs ?? NaN) : one.atMs) - atMs) < CLOSE_MS
      );
    });
    if (found) this.#claimed.add(found.ask);
    return found?.ask;
  }

  /**
   * Checks the sums, if the store was always there: all tokens taken and not given back were used.
   */
  checkRest(courses: readonly Course[], report: Report): void {
    const isSteady =
      this.#states.filter(({ isUp }) => !isUp).length === 1 &&
      courses.every(({ begunAtMs }) => this.isThere(begunAtMs));
    if (!isSteady || new Set(courses.map(({ settings }) => settings)).size > 1) return;
    let [requests, tokens] = [0, 0];
    for (const { ask } of this.#asks) {
      const isOfTokens = ask.tokens !== undefined && ask.tokens > 0;
      const ofRequests = ask.buckets.filter(({ perRequest }) => perRequest > 0).length;
      if (isOfTokens) tokens += ask.tokens * ask.buckets.length;
      else if (ask.refusedForMs === undefined) requests += (ask.tokens ?? 1) * ofRequests;
    }
    let [least, most, due] = [0, 0, 0];
    let isOpen = false;
    for (const course of courses) {
      const { early, settings, visits } = course;
      if (early.kind !== 'counted') continue;
      const limits = limitsOfClient(early.client, settings);
      const isRefused = isLimited(course);
      // If the client left, the tokens may be taken or not.
      isOpen ||= course.endAtMs >= course.brokenAtMs;
      const wereSkipped = visits.length > 0 && visits.every(({ skipped }) => skipped);
      const [from, to] = tokensOf(course);
      const ofTokens = limits.filter(({ perRequest }) => perRequest === 0).length;
      least += from * ofTokens;
      most += to * ofTokens;
      if (!isRefused && !wereSkipped) due += limits.length - ofTokens;
      for (const { candidate, skipped } of visits)
        if (!skipped) due += limitsOfProvider(candidate.provider, settings).length;
    }
    if (isOpen) return;
    if (requests !== due)
      report('limits', `the store has given ${requests} tokens for ${due} requests`);
    if (tokens < least || tokens > most)
      report('limits', `the store was told of ${tokens} tokens, and not of ${least} to ${most}`);
  }
}

/** Returns the limits without their names, because the gateway chooses the names. */
const rowsOf = (limits: readonly (Omit<Limit, 'name'> | StoredWindow)[]) =>
  limits
    .map((limit) => {
      const { rate, periodSeconds } =
        'rate' in limit ? limit : { rate: 0, periodSeconds: DAY_SECONDS };
      return [rate, periodSeconds, limit.capacity, limit.perRequest].join('/');
    })
    .toSorted()
    .join(' ');
