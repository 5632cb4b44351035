/** `queues`: who waits for a slot of a provider, in which order, and for how long. */

import { providerOf, type Course, type Report, type Visit } from './course.ts';
import type { History } from './history.ts';

const CLOSE_MS = 0.01;
/** The line has whole milliseconds. */
const ROUNDED_MS = 0.51;
const QUEUE_SECONDS = 30;

/** A request's wait for a slot of any of these providers. */
export interface Wait {
  readonly course: Course;
  /** Undefined for a key without a client. */
  readonly client: string | undefined;
  readonly providers: readonly string[];
  readonly fromMs: number;
  readonly toMs: number;
  /** Undefined if no slot came. */
  readonly granted: { readonly provider: string; readonly order: number } | undefined;
  /** Whether the client left, or a drain ended the wait. */
  readonly isBroken: boolean;
}

/**
 * Whether it is the last visit of a first candidate with an open circuit. The request does not wait
 * for a slot then.
 */
const isAfterAll = (visit: Visit, [opening]: readonly Visit[]) =>
  visit !== opening &&
  opening?.skipped === 'circuit_open' &&
  visit.candidate.provider === opening.candidate.provider &&
  visit.candidate.model === opening.candidate.model;

/** Returns the providers that were full and have a queue, once for each candidate. */
function fullOnes({ settings, visits }: Course): string[] {
  const skipped = visits.filter(
    (visit) => visit.skipped === 'limit' && !visit.hasWaited && !isAfterAll(visit, visits),
  );
  const ids = skipped.map(({ candidate }) => candidate.provider);
  return ids.filter((id) => (providerOf({ settings }, id).max_waiting ?? 0) > 0);
}

export function waitsOf(courses: readonly Course[]): Wait[] {
  return courses.flatMap((course) => {
    const { early, endAtMs, brokenAtMs, exchange, visits } = course;
    const told = exchange.lines[0]!.line['waited_ms'];
    if (told === undefined || early.kind !== 'counted') return [];
    const { client } = early;
    const left = fullOnes(course);
    const waits: Wait[] = [];
    let leftMs = Number(told);
    for (const [index, { hasWaited, tries }] of visits.entries()) {
      const first = tries[0]?.try;
      if (!hasWaited || !first) continue;
      const fromMs = endOf(visits[index - 1]!);
      const granted = { provider: first.provider, order: first.order };
      const providers = [...new Set(left)];
      waits.push({ course, client, providers, fromMs, toMs: first.atMs, granted, isBroken: false });
      left.splice(left.indexOf(first.provider), 1);
      leftMs -= first.atMs - fromMs;
    }
    // The last wait may have brought no slot. A first candidate that was passed over is asked then.
    const [opening, ...others] = visits;
    const before =
      others.findLast((one) => !isAfterAll(one, visits) && !(one.skipped && one.hasWaited)) ??
      opening;
    if (waits.length > 0 && leftMs <= ROUNDED_MS) return waits;
    const fromMs = before ? endOf(before) : NaN;
    const isBroken = endAtMs >= brokenAtMs - CLOSE_MS;
    const toMs = fromMs + leftMs;
    const last = { course, client, providers: [...new Set(left)], fromMs, toMs, isBroken };
    return [...waits, { ...last, granted: undefined }];
  });
}

const endOf = ({ atMs, tries }: Visit) => tries.at(-1)?.resultAtMs ?? atMs;

export function checkQueues({ events }: History, courses: readonly Course[], report: Report): void {
  const waits = waitsOf(courses);
  for (const wait of waits) checkLength(wait, waits, report);
  // A reload changes the slots and the places.
  const isSteady = events.filter(({ kind }) => kind === 'settings').length === 1;
  if (!isSteady) return;
  const ids = new Set(waits.flatMap(({ providers }) => providers));
  for (const id of ids) checkTurns(id, waits, report);
  for (const course of courses) checkRefusal(course, waits, report);
}

/** Checks that a wait ends at its slot, at its time, or because another client takes its place. */
function checkLength(wait: Wait, waits: readonly Wait[], report: Report): void {
  const { client, course, fromMs, granted, isBroken, providers, toMs } = wait;
  const { exchange, settings } = course;
  const wrong = (text: string) => report('queues', text, exchange);
  if (providers.length === 0) return wrong('it waits, and no provider with a queue is full');
  const isStream = exchange.ask.chat?.isStream ?? false;
  const first = isStream ? (settings.server.first_token_timeout ?? Infinity) : Infinity;
  const timeouts = providers.map((id) =>
    Math.min(providerOf(course, id).timeout ?? settings.server.timeout, first),
  );
  const most = settings.server.queue_timeout ?? QUEUE_SECONDS;
  const longest = Math.min(most, Math.max(...timeouts) / 2);
  // A queue is left when its slot comes too late, and the wait ends when the last queue is left.
  const shortest = Math.min(most, Math.min(...timeouts) / 2);
  const waitedMs = toMs - fromMs;
  if (waitedMs > longest * 1000 + ROUNDED_MS) wrong(`it waits ${waitedMs} ms`);
  // A drain of 0 ms takes a millisecond.
  if (toMs > course.brokenAtMs + 1 + ROUNDED_MS) wrong('it waits after its client has left');
  const told = Number(exchange.lines[0]!.line['waited_ms']);
  const isSole = waits.filter((one) => one.course === course).length === 1;
  if (granted && isSole && Math.abs(told - waitedMs) > ROUNDED_MS)
    wrong(`it waits ${waitedMs} ms, and the line has ${told}`);
  const isShort = !granted && !isBroken && isSole && waitedMs < shortest * 1000 - ROUNDED_MS;
  const isReplaced = waits.some(
    (one) => one.client !== client && Math.abs(one.fromMs - toMs) < ROUNDED_MS,
  );
  if (isShort && !isReplaced) wrong(`it waits ${waitedMs} ms without a slot`);
  return undefined;
}

/**
 * Whether the request waits for this provider alone, in all this time. Of several queues it may have
 * a place in some only.
 */
function waitsThrough(wait: Wait, id: string, fromMs: number, toMs: number): boolean {
  const isSole = wait.providers.length === 1 && wait.providers[0] === id;
  const isLong = wait.fromMs < fromMs - CLOSE_MS && wait.toMs > toMs + ROUNDED_MS;
  return isSole && isLong && !wait.isBroken;
}

/** Checks that clients take turns at a provider, and that each client's requests keep their order. */
function checkTurns(id: string, waits: readonly Wait[], report: Report): void {
  const grants = waits
    .filter(({ granted }) => granted?.provider === id)
    .toSorted((a, b) => a.granted!.order - b.granted!.order);
  for (const [index, wait] of grants.entries()) {
    const { client, course, fromMs, toMs } = wait;
    const wrong = (text: string) => report('queues', `${id}: ${text}`, course.exchange);
    const elder = waits.find((one) => one.client === client && waitsThrough(one, id, fromMs, toMs));
    if (elder) wrong(`it is asked before ${elder.course.exchange.ask.id} of the same client`);
    const since = grants.slice(0, index).findLastIndex((one) => one.client === client);
    if (since < 0) continue;
    const served = new Set(grants.slice(since, index).map((one) => one.client));
    const passed = waits.find(
      (one) => !served.has(one.client) && waitsThrough(one, id, grants[since]!.toMs, toMs),
    );
    if (passed) wrong(`it is the turn of ${passed.course.exchange.ask.id}`);
  }
}

/** Checks that a full provider refuses a request only if its queue is full too. */
function checkRefusal(course: Course, waits: readonly Wait[], report: Report): void {
  const { endAtMs, brokenAtMs, exchange, visits } = course;
  const { line } = exchange.lines[0]!;
  const [id, ...others] = new Set(fullOnes(course));
  if (id === undefined || others.length > 0 || endAtMs >= brokenAtMs - CLOSE_MS) return;
  const last: Visit = visits.at(-1)!;
  const atMs = last.tries.at(-1)?.resultAtMs ?? last.atMs;
  const inQueue = waits.filter(
    (one) =>
      one.course !== course &&
      one.providers.includes(id) &&
      one.fromMs < atMs + ROUNDED_MS &&
      one.toMs > atMs - ROUNDED_MS,
  );
  const max = providerOf(course, id).max_waiting!;
  const isRefused = line['reason'] === 'provider_concurrency' && line['waited_ms'] === undefined;
  if (isRefused && inQueue.length < max)
    report('queues', `${id} has ${inQueue.length} of ${max} waiting, and refuses it`, exchange);
}

/** Returns a request that waits for this provider before and after this time. */
export function findWaiting(id: string, atMs: number, waits: readonly Wait[]): Wait | undefined {
  return waits.find((one) => waitsThrough(one, id, atMs, atMs));
}
