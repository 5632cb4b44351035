/** `log`: the log lines about keys, circuits and refused requests (docs/log.md). */

import { drainMsOf, keyOf, keyRefusalOf, providerOf, type Course, type Report } from './course.ts';
import type { History, Line } from './history.ts';

const CLOSE_MS = 0.01;
const REFUSED_MS = 60_000;
const MAX_LIMITED_SECONDS = 3600;
const FAILURES_TO_REST = 3;

const SUMMED_MS = 60_000;
/** The least number of lines between two sums of a minute. Lines of the gateway itself count too. */
const REPEATED_LINES = 40;

type Seen = { readonly atMs: number; readonly line: Line };

export function checkLog(history: History, courses: readonly Course[], report: Report): void {
  const { events } = history;
  const reloadedMs = events.flatMap(({ atMs, kind }) => (kind === 'settings' ? atMs : []));
  const lines = events.flatMap((event): Seen[] => (event.kind === 'line' ? [event] : []));
  const ofKeys = lines.filter(({ line }) => line.message === 'key in cooldown');
  const drainMs = drainMsOf(history);
  for (const seen of ofKeys.filter(({ atMs }) => atMs < drainMs)) checkKey(seen, courses, report);
  checkRefusals(lines, history, report);
  const open = new Set<string>();
  for (const { atMs, line } of lines) {
    const [, change] = /^breaker (.*)$/.exec(line.message) ?? [];
    if (change === undefined) continue;
    const { failures, model, operation, provider, reason, stream } = line;
    const name = JSON.stringify([provider, model, operation, stream]);
    const wrong = (text: string) => report('log', `${line.message} of ${name}: ${text}`);
    if (open.has(name) !== (change !== 'opened')) wrong('it was not so before');
    if (change === 'opened' && failures !== FAILURES_TO_REST) wrong(`${String(failures)} failures`);
    if (change === 'opened') open.add(name);
    if (change !== 'closed') continue;
    open.delete(name);
    const isReload = reloadedMs.some((ms) => Math.abs(ms - atMs) < CLOSE_MS);
    if ((reason === 'reload') !== isReload) wrong(`the reason is ${String(reason)}`);
  }
}

/** A key was refused at this time, and is not used for the documented time. */
function checkKey({ atMs, line }: Seen, courses: readonly Course[], report: Report): void {
  const { cooldown_ms, key, provider, status } = line;
  const tries = courses.flatMap((course) =>
    course.visits.flatMap(({ tries: all }) =>
      all.filter((one) => {
        const { resultAtMs, try: made } = one;
        const own = made.provider === provider && providerOf(course, made.provider).api_keys;
        const isNow = Math.abs((keyRefusalOf(one)?.atMs ?? resultAtMs) - atMs) < CLOSE_MS;
        return own && isNow && own.indexOf(keyOf(made)) + 1 === key;
      }),
    ),
  );
  const isDue = tries.some((one) => {
    const refusal = keyRefusalOf(one);
    if (!refusal) return one.reading === undefined;
    const { retryAfter = 1, status: refusedWith } = refusal.failure;
    const limitedMs = Math.min(MAX_LIMITED_SECONDS, retryAfter) * 1000;
    const ms = refusedWith === 429 ? limitedMs : REFUSED_MS;
    return refusedWith === status && ms === cooldown_ms;
  });
  if (!isDue) report('log', `nothing has happened of which it says ${JSON.stringify(line)}`);
}

/** Whether a limit of the gateway has refused the request before any provider was asked. */
export function isRefusal({ outcome, reason, tries = [] }: Line): boolean {
  const wasAsked = (tries as readonly { outcome: string }[]).some(
    (one) => one.outcome !== 'limit' && one.outcome !== 'circuit_open',
  );
  return outcome === 'rate_limited' && reason !== 'upstream' && !wasAsked;
}

/** The refused requests of a client by a limit. */
interface Refused {
  readonly count: number;
  /** How many were refused at the former sum. */
  readonly told: number;
  readonly latestMs: number;
  readonly untilMs: number;
  /** Where the latest line about them is. */
  readonly place: number;
}

/**
 * The first request that a limit refuses is at level warn. A sum follows each minute, and may follow
 * once 40 other lines have followed the latest.
 */
function checkRefusals(lines: readonly Seen[], { events }: History, report: Report): void {
  const all = new Map<string, Refused>();
  const due: string[] = [];
  const sum = (name: string, atMs: number, { count, told }: Pick<Refused, 'count' | 'told'>) => {
    const [client, reason] = JSON.parse(name) as (string | null)[];
    if (count > told) due.push(JSON.stringify([Math.round(atMs), client, reason, count]));
  };
  const passTo = (atMs: number, place: number) => {
    for (const [name, refused] of all) {
      const { count, latestMs, told, untilMs } = refused;
      if (untilMs >= atMs) continue;
      sum(name, untilMs, refused);
      if (count === told && untilMs - latestMs >= SUMMED_MS) all.delete(name);
      else {
        const written = count > told ? { told: count, place } : {};
        all.set(name, { ...refused, ...written, untilMs: untilMs + SUMMED_MS });
      }
    }
  };
  for (const [place, { atMs, line }] of lines.entries()) {
    const { client = null, level, message, provider = null, reason } = line;
    if (message === 'requests refused') {
      // It precedes the access line of its latest request.
      for (const [name, refused] of all) {
        const [ofClient, ofReason, id] = JSON.parse(name) as (string | null)[];
        const isOfProvider =
          id === null || new RegExp(`providers\\.${id}[.:]`).test(String(line['limit']));
        const isOf = ofClient === client && ofReason === reason && isOfProvider;
        const isNext = refused.count + 1 === line['refused'];
        if (!isOf || !isNext || place - refused.place < REPEATED_LINES) continue;
        sum(name, atMs, { count: refused.count + 1, told: 0 });
        all.set(name, { ...refused, told: refused.count + 1, place });
        break;
      }
    }
    if (message !== 'request' || !isRefusal(line)) continue;
    // A sum may have been due twice, the second time without a further refusal.
    passTo(atMs, place);
    passTo(atMs, place);
    const name = JSON.stringify([client, reason, provider]);
    const former = all.get(name);
    const isFormer = former && atMs - former.latestMs < SUMMED_MS;
    const first = { count: 0, told: 1, untilMs: atMs + SUMMED_MS, place };
    const known = isFormer ? former : first;
    if (level !== (known.count > 0 ? 'debug' : 'warn'))
      report('log', `${String(level)} of ${JSON.stringify(line)}`);
    all.set(name, { ...known, count: known.count + 1, latestMs: atMs });
  }
  const endMs = events.find(({ kind }) => kind === 'drained')?.atMs ?? Infinity;
  passTo(endMs, lines.length);
  passTo(endMs, lines.length);
  for (const [name, refused] of all) sum(name, endMs, refused);
  const told = lines
    .filter(({ line }) => line.message === 'requests refused')
    .map(({ atMs, line: { client = null, reason, refused } }) =>
      JSON.stringify([Math.round(atMs), client, reason, refused]),
    );
  if (told.toSorted().join() !== due.toSorted().join())
    report('log', `it sums up ${told.join()}, and not ${due.join()}`);
}
