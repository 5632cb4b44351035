/** `limits`: nothing beyond a limit is let in, nothing within it is refused, and `Retry-After` is true. */

import { providerOf, type Course, type Report, type Visit } from './course.ts';
import type { History } from './history.ts';
import type { Bucket, Settings } from './plan.ts';

/** Of a token. */
const CLOSE = 1e-6;

/** A token bucket by the book: rate and capacity, filled in proportion to time. */
class Level {
  readonly bucket: Bucket;
  #tokens: number;
  #atMs = 0;

  constructor(bucket: Bucket) {
    this.bucket = bucket;
    this.#tokens = bucket.burst_capacity;
  }

  at(atMs: number): number {
    const { requests_per_second, burst_capacity } = this.bucket;
    const refilled = this.#tokens + ((atMs - this.#atMs) / 1000) * requests_per_second;
    this.#tokens = Math.min(burst_capacity, refilled);
    this.#atMs = atMs;
    return this.#tokens;
  }

  add(tokens: number): void {
    this.#tokens += tokens;
  }

  /** The whole seconds until there is a token, one at least. */
  waitAt(atMs: number): number {
    return Math.max(1, Math.ceil((1 - this.at(atMs)) / this.bucket.requests_per_second - CLOSE));
  }
}

/** All levels, by name and settings: those that a reload does not change keep their tokens, and others are full. */
class Levels {
  #levels = new Map<string, Level>();
  #settings: Settings | undefined;

  use(settings: Settings): void {
    if (settings === this.#settings) return;
    this.#settings = settings;
    const rows = bucketsOf(settings).map(([name, bucket]) => {
      const key = keyOf(name, bucket);
      return [key, this.#levels.get(key) ?? new Level(bucket)] as const;
    });
    this.#levels = new Map(rows);
  }

  get(name: string, bucket: Bucket | undefined): Level[] {
    return bucket && this.#levels.get(keyOf(name, bucket))
      ? [this.#levels.get(keyOf(name, bucket))!]
      : [];
  }
}

const keyOf = (name: string, bucket: Bucket) =>
  `${name} ${bucket.requests_per_second}/${bucket.burst_capacity}`;

function bucketsOf({ clients, rateLimit }: Settings): [string, Bucket][] {
  const { enabled, providers } = rateLimit;
  const limits: [string, Bucket][] = [
    ['all', rateLimit],
    ...Object.entries(providers).map(([id, one]): [string, Bucket] => [`provider ${id}`, one]),
  ];
  return [
    ...(enabled ? limits : []),
    ...clients.map((one): [string, Bucket] => [`client ${one.name}`, one]),
  ].filter(([, { requests_per_second }]) => requests_per_second > 0);
}

interface Step {
  readonly atMs: number;
  readonly order: number;
  readonly run: () => void;
}

export function checkLimits(history: History, courses: readonly Course[], report: Report): void {
  const levels = new Levels();
  const used = new Map<string, number>();
  const add = (name: string, count: number) => used.set(name, (used.get(name) ?? 0) + count);
  const steps: Step[] = history.events.flatMap((event, order) =>
    event.kind === 'settings'
      ? { atMs: event.atMs, order, run: () => levels.use(event.settings) }
      : [],
  );
  for (const course of courses) {
    const { begunAtMs, begunOrder, early, endAtMs, endOrder, exchange, settings } = course;
    if (early.kind !== 'counted') continue;
    const client = settings.clients.find(({ name }) => name === early.client);
    const slots = [
      ['all', settings.server.max_concurrent_requests] as const,
      ...(client ? [[`client ${client.name}`, client.max_concurrent_requests] as const] : []),
    ];
    const buckets = () => [
      ...levels.get('all', settings.rateLimit.enabled ? settings.rateLimit : undefined),
      ...levels.get(`client ${client?.name}`, client),
    ];
    const { answer } = exchange;
    const isRefused =
      course.visits.length === 0 && exchange.lines[0]!.line['outcome'] === 'rate_limited';
    let hasSlot = false;
    const begin = () => {
      const isFull = slots.some(([name, max]) => max > 0 && (used.get(name) ?? 0) >= max);
      if (isFull) {
        if (!isRefused) report('limits', 'it is let in beyond max_concurrent_requests', exchange);
        return;
      }
      hasSlot = true;
      for (const [name] of slots) add(name, 1);
      const own = buckets();
      const short = own.filter((level) => level.at(begunAtMs) < 1 - CLOSE);
      const isClear = own.every((level) => Math.abs(level.at(begunAtMs) - 1) > CLOSE);
      if (isClear && short.length > 0 !== isRefused) {
        report(
          'limits',
          isRefused ? 'it is refused with tokens left' : 'there is no token for it',
          exchange,
        );
      }
      if (!isRefused) for (const level of own) level.add(-1);
      const waits = short.map((level) => `${level.waitAt(begunAtMs)}`);
      const told = answer?.headers.get('retry-after');
      if (isRefused && answer && isClear && !waits.includes(told!)) {
        report('limits', `Retry-After ${told}, and not ${waits.join(' or ')}`, exchange);
      }
    };
    const end = () => {
      if (hasSlot) for (const [name] of slots) add(name, -1);
      const wereSkipped = course.visits.length > 0 && course.visits.every(({ skipped }) => skipped);
      if (wereSkipped) for (const level of buckets()) level.add(1);
    };
    // Behind another one on its connection it may begin later in the same moment, when others have ended.
    const firstOrder = course.visits[0]?.tries[0]?.try.order ?? endOrder;
    const isLate = exchange.behind !== undefined && !isRefused;
    const order = isLate ? Math.max(begunOrder, firstOrder - 0.5) : begunOrder;
    steps.push({ atMs: begunAtMs, order, run: begin });
    // The slot is free behind the access line.
    steps.push({ atMs: endAtMs, order: endOrder + 0.25, run: end });
    for (const visit of course.visits)
      steps.push(...visitSteps(visit, course, { add, levels, report, used }));
  }
  steps.sort((a, b) => a.atMs - b.atMs || a.order - b.order);
  for (const { run } of steps) run();
}

interface State {
  readonly add: (name: string, count: number) => void;
  readonly used: ReadonlyMap<string, number>;
  readonly levels: Levels;
  readonly report: Report;
}

/** A visit takes a token and a slot of its provider; the slot is free with the last try, or with the end of the stream. */
function visitSteps(visit: Visit, course: Course, { add, levels, report, used }: State): Step[] {
  const { candidate, skipped, tries } = visit;
  if (skipped === 'circuit_open') return [];
  const { exchange, settings } = course;
  const name = `provider ${candidate.provider}`;
  const max = providerOf(course, candidate.provider).max_concurrent_requests;
  const bucket = settings.rateLimit.enabled
    ? settings.rateLimit.providers[candidate.provider]
    : undefined;
  const last = tries.at(-1);
  const atMs = tries[0]?.try.atMs ?? visit.atMs;
  const order = tries[0]?.try.order ?? course.endOrder;
  const ask = () => {
    const [level] = levels.get(name, bucket);
    const isFull = max > 0 && (used.get(name) ?? 0) >= max;
    const tokens = level?.at(atMs) ?? Infinity;
    const isClear = Math.abs(tokens - 1) > CLOSE;
    if (skipped && !isFull && tokens > 1 + CLOSE) {
      report('limits', `${candidate.provider} is passed over within its limits`, exchange);
    }
    if (skipped) return;
    if (isFull)
      report('limits', `${candidate.provider} is asked beyond max_concurrent_requests`, exchange);
    if (isClear && tokens < 1)
      report('limits', `${candidate.provider} has no token left`, exchange);
    level?.add(-1);
    add(name, 1);
  };
  if (skipped || !last) return [{ atMs, order, run: ask }];
  // Its client may have left in the wait for the next try.
  const isLeft = visit === course.visits.at(-1) && course.endAtMs >= course.brokenAtMs;
  const free =
    last.reading?.kind === 'stream' || isLeft
      ? { atMs: course.endAtMs, order: course.endOrder + 0.25 }
      : { atMs: last.resultAtMs, order: last.try.endOrder };
  return [
    { atMs, order, run: ask },
    { ...free, run: () => add(name, -1) },
  ];
}
