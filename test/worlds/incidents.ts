/**
 * `incidents`: when one begins and ends, and what it says, by the tries that were seen (docs/log.md, Incidents). That is decided
 * each second by counts of some seconds: near such a moment both is right.
 */

import { drainMsOf, type Course, type Report } from './course.ts';
import { wallClockMs } from './clock.ts';
import type { History, Line } from './history.ts';
import type { Failure } from './oracle.ts';

const TICK_MS = 1100;
const COUNTED_MS = [55_000, 60_000] as const;
const NEWEST_MS = [15_000, 20_000] as const;
const LOGGED_EVERY_MS = 60_000;
const FORGOTTEN_MS = 900_000;
const QUIET_MS = 15_000;
const REST_MS = 10_000;
const CLOSE_MS = 0.01;
const MIN_TRIES = 5;
/** In a row, if nothing has succeeded for a minute. */
const MIN_ROW = 3;
const STATES = new Set(['model_list', 'slow', 'store', 'reload']);
/** That of some of a provider's keys, by their positions; unlike its tries that are refused. */
const isOfKeys = ({ cause, kind }: Line) =>
  kind === 'key_refused' && /^key \d+: \d/.test(String(cause));
const isState = (line: Line) => STATES.has(String(line['kind'])) || isOfKeys(line);

interface Tried {
  readonly atMs: number;
  readonly provider: string;
  readonly model: string;
  /** Why it has failed. */
  readonly kind?: string;
  /** A stream that counted as good until then. */
  readonly brokeAtMs?: number;
  /** Its client has left: it may have begun before. */
  readonly isOpen?: boolean;
}

/** A provider, or one of its models. */
type Subject = Readonly<Record<string, unknown>>;

export function checkIncidents(history: History, courses: readonly Course[], report: Report): void {
  const reloads = history.events.filter(({ kind }) => kind === 'settings').length - 1;
  if (reloads > 0 || courses.some((course) => course.settings.hasAdmin)) return;
  const tries = courses.flatMap(triesOf).toSorted((a, b) => a.atMs - b.atMs);
  const view = new View(tries, history);
  const happened = happeningsOf(history, courses);
  const drainMs = drainMsOf(history);
  for (const { atMs, line } of view.lines.filter((one) => one.atMs < drainMs)) {
    const { failures, kind, provider } = line;
    const wrong = (text: string) => report('incidents', `${JSON.stringify(line)}: ${text}`);
    const since = Date.parse(String(line['since']));
    if (provider === undefined && line.message === 'incident ended' && !isState(line)) {
      const lastMs = happened.findLast((one) => one.kind === kind && one.atMs <= atMs)?.atMs ?? 0;
      if (atMs - lastMs < QUIET_MS || atMs - lastMs > QUIET_MS + TICK_MS)
        wrong(`last at ${lastMs}`);
    }
    if (isOfKeys(line)) checkKeyState(line, atMs, courses, wrong);
    if (provider === undefined || isState(line)) continue;
    const seen = view
      .of(line)
      .filter((one) => wallClockMs(one.atMs + CLOSE_MS) >= since && one.atMs <= atMs);
    const failed = seen.filter((one) => one.kind);
    // What ends in the same moment may be counted, or not yet.
    const before = failed.filter((one) => one.atMs < atMs - CLOSE_MS);
    if (Number(failures) < before.length || Number(failures) > failed.length)
      wrong(`it has failed ${failed.length} times`);
    const own = kind === 'nonsense' ? 'cut' : String(kind);
    const isOther = (all: readonly Tried[]) => {
      const count = (name = '') => all.filter((one) => one.kind === name).length;
      const isMore = all.some((one) => one.kind !== 'cut' && count(one.kind) > count(own));
      return isMore || count(own) === 0;
    };
    if (isOther(before) && isOther(failed)) wrong('it is something else');
    const ticks = Array.from({ length: (atMs - seen[0]!.atMs) / 1000 + 1 }, (_, n) => n * 1000);
    if (line.message === 'incident' && !ticks.some((ms) => view.mayFail(line, atMs - ms)))
      wrong('it does not fail');
    const isOver = view.isWell(line, atMs) && !view.isKeptAway(line, atMs);
    const isForgotten = failed.every((one) => one.atMs < atMs - FORGOTTEN_MS);
    if (line.message === 'incident ended' && !isOver && !isForgotten) wrong('it is not well');
  }
  for (const kind of ['descriptors', 'memory']) {
    const own = view.lines.filter(({ line }) => line['kind'] === kind);
    if (own.length % 2 > 0) report('incidents', `${kind} never ends`);
  }
  for (const one of tries) {
    const atMs = one.atMs + TICK_MS;
    const subject = { provider: one.provider };
    const between = tries.filter((other) => other.atMs >= one.atMs && other.atMs <= atMs);
    const times = [...between.map((other) => other.atMs), atMs];
    const isDue = one.kind && times.every((ms) => view.fails(subject, ms).must);
    // Of a provider the tries of models that are well again do not count.
    const models = new Set(view.of(subject).map(({ model }) => model));
    const isWell = [undefined, ...models].some((model) => view.isWell({ ...subject, model }, atMs));
    if (isDue && !isWell && !view.isTold(one.provider, atMs))
      report('incidents', `${one.provider} fails at ${atMs}, and nothing is told`);
  }
}

/** "From the first refusal to the first success": of a key, or, if that was refused by a 403, of another one that was too. */
function checkKeyState(
  line: Line,
  atMs: number,
  courses: readonly Course[],
  wrong: (text: string) => void,
): void {
  const visits = courses.flatMap((course) => course.visits);
  const tries = visits
    .filter(({ candidate }) => candidate.provider === line['provider'])
    .flatMap((visit) => visit.tries);
  const isRefusal = ({ reading, resultAtMs }: (typeof tries)[number]) => {
    const status = reading?.kind === 'failure' ? reading.failure.status : 0;
    return (status === 401 || status === 403) && resultAtMs <= atMs + CLOSE_MS;
  };
  if (!tries.some(isRefusal)) wrong('no key was refused');
  const hasWorked = tries.some(
    ({ endsAtMs, reading }) =>
      Math.abs(endsAtMs - atMs) < CLOSE_MS && reading !== undefined && reading.kind !== 'failure',
  );
  if (line.message === 'incident ended' && !hasWorked) wrong('no key works again');
}

/** Those that count: not a client's mistake, nor what is the gateway's own. */
function triesOf({ tryLines, visits }: Course): Tried[] {
  const lines = tryLines.filter(({ outcome }) => !/^(?:circuit_open|limit)$/.test(outcome));
  const all = visits.flatMap(({ candidate, tries }) => tries.map((one) => ({ ...one, candidate })));
  return all.flatMap(({ candidate, endsAtMs, reading, resultAtMs }, index): Tried[] => {
    const good = { ...candidate, atMs: resultAtMs };
    if (!reading) return [{ ...good, isOpen: true }];
    const failure = reading.kind === 'answer' ? undefined : reading.failure;
    const isCut = /^(?:client_closed|internal_error)$/.test(lines[index]?.outcome ?? '');
    const isCounted = failure && !failure.isRejected && failure.code !== 'INTERNAL_ERROR' && !isCut;
    const kind = isCounted ? kindOf(failure, reading.kind === 'stream') : undefined;
    if (reading.kind === 'failure') return kind ? [{ ...good, kind }] : [];
    if (!kind) return [good];
    return [
      { ...good, brokeAtMs: endsAtMs },
      { ...good, atMs: endsAtMs, kind },
    ];
  });
}

/** No connection could be opened, and no memory was left. */
function happeningsOf({ exchanges }: History, courses: readonly Course[]) {
  const tries = courses.flatMap(({ visits }) => visits.flatMap((visit) => visit.tries));
  const isOwn = ({ reading }: (typeof tries)[number]) =>
    reading?.kind === 'failure' && reading.failure.code === 'INTERNAL_ERROR';
  const lines = exchanges.flatMap((one) => one.lines);
  const ofMemory = lines.filter(({ line }) => line['reason'] === 'memory');
  return [
    ...tries.filter(isOwn).map(({ resultAtMs }) => ({ kind: 'descriptors', atMs: resultAtMs })),
    ...ofMemory.map(({ atMs }) => ({ kind: 'memory', atMs })),
  ].toSorted((a, b) => a.atMs - b.atMs);
}

/** `cut` also stands for `nonsense`: which of them it is, is in what the network has said. */
function kindOf(failure: Failure, hasBegun: boolean): string {
  const { circuit, code, isReported, status } = failure;
  if (circuit === 'provider') return 'unreachable';
  if (isReported && (status === 401 || status === 403)) return 'key_refused';
  if (isReported) return status === 429 ? 'rate_limited' : 'errors';
  if (code === 'TIMEOUT') return hasBegun ? 'stall' : 'timeout';
  return 'cut';
}

/** What is seen of subjects at a time. */
class View {
  readonly lines: readonly { readonly atMs: number; readonly line: Line }[];
  readonly #breakers: typeof this.lines;
  readonly #tries: readonly Tried[];

  constructor(tries: readonly Tried[], { events }: History) {
    const lines = events.flatMap((event) => (event.kind === 'line' ? [event] : []));
    this.lines = lines.filter(({ line }) => line.message.startsWith('incident'));
    this.#breakers = lines.filter(({ line }) => line.message.startsWith('breaker '));
    this.#tries = tries;
  }

  of({ provider, model }: Subject): Tried[] {
    const isOf = (one: Tried) => one.provider === provider && (model ?? one.model) === one.model;
    return this.#tries.filter(isOf);
  }

  /** The counts of all times between these two that end then. */
  #countsAt(subject: Subject, atMs: number, [least, most]: readonly [number, number]) {
    const seen = this.of(subject).filter((one) => one.atMs <= atMs && one.atMs > atMs - most - 1);
    const known = seen.filter(({ brokeAtMs = Infinity }) => brokeAtMs > atMs);
    const ages = known.map((one) => atMs - one.atMs).filter((age) => age >= least && age <= most);
    return [least, most, ...ages.map((age) => age + CLOSE_MS)].flatMap((ms) => {
      const counted = known.filter((one) => one.atMs > atMs - ms);
      const open = counted.filter((one) => one.isOpen).length;
      const failed = counted.filter((one) => one.kind).length;
      // Each of those that are open may have begun.
      return Array.from({ length: open + 1 }, (_, n) => ({ tries: counted.length - n, failed }));
    });
  }

  fails(subject: Subject, atMs: number): { readonly may: boolean; readonly must: boolean } {
    const isHalf = ({ failed, tries }: { failed: number; tries: number }) =>
      tries >= MIN_TRIES && failed * 2 >= tries;
    const counts = this.#countsAt(subject, atMs, COUNTED_MS);
    const seen = this.of(subject).filter((one) => one.atMs <= atMs);
    const isRow = (all: readonly Tried[], least: number) =>
      all.length >= least && all.slice(-least).every((one) => one.kind);
    const isWithoutGood = ({ failed, tries }: { failed: number; tries: number }) =>
      failed === tries;
    // A stream that has broken was good before, or never.
    const possible = seen.filter(({ brokeAtMs = Infinity, isOpen }) => brokeAtMs > atMs && !isOpen);
    const mayBeRow = isRow(possible, counts.some(isWithoutGood) ? MIN_ROW : MIN_TRIES);
    const may = counts.some(isHalf) || mayBeRow || this.isKeptAway(subject, atMs, true);
    const late = seen.filter(({ atMs: ms }) => ms > atMs - FORGOTTEN_MS);
    const mustBeRow = isRow(late, counts.every(isWithoutGood) ? MIN_ROW : MIN_TRIES);
    return { may, must: counts.every(isHalf) || mustBeRow };
  }

  /** A provider may also have the incident of one of its models. */
  mayFail(subject: Subject, atMs: number): boolean {
    const ofModels = subject['model'] === undefined ? this.of(subject) : [];
    const models = new Map(ofModels.map(({ model, provider }) => [model, { model, provider }]));
    return [subject, ...models.values()].some((one) => this.fails(one, atMs).may);
  }

  /** The newest tries are good, or may be. */
  isWell(subject: Subject, atMs: number): boolean {
    const counts = this.#countsAt(subject, atMs, NEWEST_MS);
    return counts.some(({ failed, tries }) => failed * 10 < tries);
  }

  /** A circuit is open; `maybe`: or may be, because of a probe, or was in the last second. */
  isKeptAway({ model, provider }: Subject, atMs: number, maybe = false): boolean {
    const before = this.#breakers.filter((one) => one.atMs <= atMs + (maybe ? TICK_MS : -CLOSE_MS));
    return before.some(({ atMs: fromMs, line }, index) => {
      const isOf = ({ line: one }: (typeof before)[number]) =>
        one['provider'] === provider && one['model'] === line['model'];
      if (line['provider'] !== provider || (model ?? line['model']) !== line['model']) return false;
      const isOpened = /opened|stays/.test(line.message) || (maybe && /half/.test(line.message));
      const next = before.slice(index + 1).find(isOf);
      const untilMs = Math.min(
        fromMs + Number(line['cooldown_ms'] ?? REST_MS) - CLOSE_MS,
        maybe ? Infinity : (next?.atMs ?? Infinity),
      );
      return isOpened && atMs - (maybe ? TICK_MS : 0) < untilMs;
    });
  }

  /** The log has a line that its provider, or a model of it, fails, or has had one in the last minute. */
  isTold(provider: string, atMs: number): boolean {
    const own = this.lines.filter(
      ({ atMs: ms, line }) => line['provider'] === provider && ms <= atMs && !isState(line),
    );
    const begun = own.filter(({ line }) => line.message === 'incident');
    const isRecent = begun.some((one) => one.atMs > atMs - LOGGED_EVERY_MS - TICK_MS);
    // One may go on as that of the whole provider, or as those of several models, and those end.
    const lasts = begun.some(
      (one) =>
        !own.some(
          ({ atMs: ms, line }) =>
            line.message !== 'incident' && ms >= one.atMs && line['model'] === one.line['model'],
        ),
    );
    return isRecent || lasts;
  }
}
