/**
 * `incidents`: the rules of docs/incidents.md, applied to the history's tries. The gateway decides
 * each second, by counts over the last seconds, so both decisions are right close to such a moment.
 */

import { drainMsOf, keyRefusalOf, type Course, type Report } from './course.ts';
import { wallClockMs } from './clock.ts';
import type { History, Line } from './history.ts';
import type { Failure } from './oracle.ts';

const TICK_MS = 1100;
const COUNTED_MS = [55_000, 60_000] as const;
const NEWEST_MS = [15_000, 20_000] as const;
const LOGGED_EVERY_MS = 60_000;
const REPEATED_LINES = 40;
const REPEATED_MS = [2000, 61_100] as const;
const FORGOTTEN_MS = 900_000;
const QUIET_MS = 45_000;
const REST_MS = 10_000;
const CLOSE_MS = 0.01;
const MIN_TRIES = 5;
/** This many failures in a row begin an incident if nothing has succeeded for a minute. */
const MIN_ROW = 3;
const STATES = new Set(['model_list', 'slow', 'lookup_slow', 'store', 'reload']);
/**
 * Whether an incident is about refused keys, by their positions. A provider's refused tries make
 * another incident.
 */
const isOfKeys = ({ cause, kind }: Line) =>
  kind === 'key_refused' && /(?:^|: )key \d+: \d/.test(String(cause));
const isState = (line: Line) => STATES.has(String(line['kind'])) || isOfKeys(line);

interface Tried {
  readonly atMs: number;
  /** When the try began. */
  readonly beganAtMs: number;
  readonly provider: string;
  readonly model: string;
  readonly stream: boolean;
  /** The kind of failure. */
  readonly kind?: string;
  /** When a stream failed after it had counted as good. */
  readonly brokeAtMs?: number;
  /** Whether the client has left, so that the answer may have begun or not. */
  readonly isOpen?: boolean;
}

/**
 * A provider, a provider's streams or complete answers, a provider's model, or a model's streams or
 * complete answers.
 */
type Subject = Readonly<Record<string, unknown>>;

/** A failing model in an incident. */
interface Failing {
  readonly model: string;
  /** Absent if both its streams and its complete answers fail. */
  readonly stream?: boolean;
  readonly kind: string;
  readonly since: string;
  readonly failures: number;
}

export function checkIncidents(history: History, courses: readonly Course[], report: Report): void {
  const reloads = history.events.filter(({ kind }) => kind === 'settings').length - 1;
  if (reloads > 0 || courses.some((course) => course.settings.hasAdmin)) return;
  const tries = courses.flatMap(triesOf).toSorted((a, b) => a.atMs - b.atMs);
  const view = new View(tries, history);
  const happened = happeningsOf(history, courses);
  const drainMs = drainMsOf(history);
  const open = new Set<unknown>();
  for (const { line, others, pastMs } of view.repeated) {
    if (others < REPEATED_LINES || pastMs < REPEATED_MS[0] || pastMs > REPEATED_MS[1])
      report('incidents', `${JSON.stringify(line)}: again after ${others} lines, ${pastMs} ms`);
  }
  for (const { atMs, line } of view.lines.filter((one) => one.atMs < drainMs)) {
    const { kind, provider } = line;
    const wrong = (text: string) => report('incidents', `${JSON.stringify(line)}: ${text}`);
    const isOver = line.message === 'incident ended';
    const place = provider ?? kind;
    if (isOver && !open.delete(place)) wrong('it has not begun');
    if (!isOver) open.add(place);
    if (provider === undefined && isOver && !isState(line)) {
      const lastMs = happened.findLast((one) => one.kind === kind && one.atMs <= atMs)?.atMs ?? 0;
      if (atMs - lastMs < QUIET_MS || atMs - lastMs > QUIET_MS + TICK_MS)
        wrong(`last at ${lastMs}`);
    }
    if (isOfKeys(line)) checkKeyState(line, atMs, courses, wrong);
    const models = (line['models'] ?? []) as readonly Failing[];
    if (provider !== undefined && models.length === 0 && !isState(line)) wrong('no model fails');
    if (models.length > 0 && models[0]!.kind !== kind) wrong('its kind is of another model');
    for (const one of models)
      checkModel(view, { provider: String(provider), line, atMs }, one, wrong);
    const isKnown = models.some((one) =>
      partsOf(one).some((part) => view.isOver({ provider, ...part }, atMs)),
    );
    if (isOver && models.length > 0 && !line['states'] && !isKnown) wrong('no model is well now');
    if (line['all_models'] && !isOver && !line['more_models']) {
      const named = models.flatMap(partsOf);
      const isNamed = (one: Tried) =>
        named.some(({ model, stream }) => model === one.model && stream === one.stream);
      const others = view.of({ provider }).filter((one) => !one.isOpen && !isNamed(one));
      const isNew = others.some(
        (one) => one.atMs < atMs - TICK_MS && one.atMs > atMs - COUNTED_MS[0],
      );
      if (isNew) wrong('others were asked in the last minute');
    }
  }
  for (const kind of ['descriptors', 'memory']) {
    const lines = view.lines.filter(({ line }) => line['kind'] === kind);
    const begun = new Set(lines.map(({ line }) => line['since']));
    const ended = lines.filter(({ line }) => line.message === 'incident ended');
    if (begun.size !== ended.length) report('incidents', `${kind} never ends`);
  }
  for (const { atMs: fromMs, kind, model, provider, stream } of tries) {
    if (!kind) continue;
    const atMs = fromMs + TICK_MS;
    const subject = { provider, model, stream };
    const between = view.of({ provider }).filter((one) => one.atMs >= fromMs && one.atMs <= atMs);
    const times = [...between.map((other) => other.atMs), atMs];
    const isDue = times.every((ms) => view.fails(subject, ms).must && !view.isWell(subject, ms));
    if (isDue && !view.isTold(provider, atMs))
      report('incidents', `${provider}/${model} fails at ${atMs}, and nothing is told`);
  }
}

/** Returns the streams of a listed model, its complete answers, or both. */
const partsOf = ({ model, stream }: Pick<Failing, 'model' | 'stream'>) =>
  (stream === undefined ? [true, false] : [stream]).map((one) => ({ model, stream: one }));

/**
 * Returns whether a time of day is that of a moment. It may be a millisecond early, because the
 * gateway takes a duration from a time of day in whole milliseconds.
 */
const isAt = (atMs: number, timeMs: number) =>
  wallClockMs(atMs - CLOSE_MS) <= timeMs + 1 && wallClockMs(atMs + CLOSE_MS) >= timeMs;

/**
 * A listed model fails, or has failed and recovered, as often as the line counts, and for its
 * reason.
 */
function checkModel(
  view: View,
  { provider, line, atMs }: { provider: string; line: Line; atMs: number },
  { model, stream, kind, since, failures }: Failing,
  wrong: (text: string) => void,
): void {
  const subject = { provider, model, stream };
  const parts = partsOf({ model, stream }).map((part) => ({ provider, ...part }));
  const sinceMs = Date.parse(since);
  const known = view.of(subject).filter((one) => one.atMs <= atMs);
  // A try that began earlier may have failed later.
  const first = known.find((one) => one.kind && isAt(one.beganAtMs, sinceMs));
  if (!first) return wrong(`${model} has no failing try that began at ${since}`);
  // If streams and complete answers both fail, `since` is of one part, and the other part's first
  // failure is not known.
  const isOfBoth = stream === undefined;
  const seen = known.filter((one) => isOfBoth || one.atMs > first.atMs - CLOSE_MS);
  const failed = seen.filter((one) => one.kind);
  // Failures at the same moment may be counted or not.
  const before = failed.filter((one) => one.atMs < atMs - CLOSE_MS);
  const isOver = line.message === 'incident ended';
  // A model no longer counts once it recovers in a lasting incident.
  const isLess = isOver || isOfBoth;
  const most = isLess ? Math.min(failures, before.length) : before.length;
  if (failures < most || failures > failed.length)
    wrong(`${model} has failed ${failed.length} times`);
  const shown = kind === 'nonsense' ? 'cut' : kind;
  const isOther = (all: readonly Tried[]) => {
    const count = (name = '') => all.filter((one) => one.kind === name).length;
    const isMore = all.some((one) => one.kind !== 'cut' && count(one.kind) > count(shown));
    return (isMore && !isLess) || count(shown) === 0;
  };
  const isOfPart = parts.some((part) => {
    const own = (all: readonly Tried[]) => all.filter((one) => one.stream === part.stream);
    return !isOther(own(before)) || !isOther(own(failed));
  });
  if (!isOfPart) wrong(`${model} is something else`);
  const length = Math.max(1, (atMs - (seen[0]?.atMs ?? atMs)) / 1000 + 1);
  const ticks = Array.from({ length }, (_, n) => atMs - n * 1000);
  for (const part of parts) {
    if (!ticks.some((ms) => view.fails(part, ms).may)) wrong(`${model} does not fail`);
    if (isOver && !ticks.some((ms) => view.isOver(part, ms))) wrong(`${model} is not well`);
  }
  const other = { ...subject, stream: !stream };
  const isDue = [atMs - TICK_MS, atMs].every(
    (ms) => view.fails(other, ms).must && !view.isWell(other, ms),
  );
  const failedMs = view.of(other).findLast((one) => one.kind && one.atMs <= atMs)?.atMs ?? atMs;
  // The line of a later minute may come after the other part has recovered.
  const wasWell = ticks.some((ms) => ms > failedMs && view.isOver(other, ms));
  if (!isLess && isDue && !wasWell) wrong(`not only its ${stream ? '' : 'non-'}streams fail`);
}

/**
 * The documents: "From the first refusal to the first success". The success is the key's own, or
 * after a 402 or 403 another such key's.
 */
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
  const isRefusal = (one: (typeof tries)[number]) => {
    const refusal = keyRefusalOf(one);
    return refusal && refusal.failure.status !== 429 && refusal.atMs <= atMs + CLOSE_MS;
  };
  if (!tries.some(isRefusal)) wrong('no key was refused');
  const hasWorked = tries.some((one) => {
    const isDelivered = one.reading !== undefined && one.reading.kind !== 'failure';
    return isDelivered && !keyRefusalOf(one) && Math.abs(atMs - one.endsAtMs) < TICK_MS;
  });
  if (line.message === 'incident ended' && !hasWorked) wrong('no key works again');
}

/** Returns the tries except a client's mistakes and the gateway's own failures. */
function triesOf({ exchange, settings, tryLines, visits }: Course): Tried[] {
  const idleMs = settings.server.stream_idle_timeout * 1000;
  const stream = exchange.ask.chat?.isStream ?? false;
  const lines = tryLines.filter(({ outcome }) => !/^(?:circuit_open|limit)$/.test(outcome));
  const all = visits.flatMap(({ candidate, tries }) => tries.map((one) => ({ ...one, candidate })));
  return all.flatMap(({ candidate, endsAtMs, reading, resultAtMs, try: made }, index): Tried[] => {
    const good = { ...candidate, stream, atMs: resultAtMs, beganAtMs: made.atMs };
    if (!reading) return [{ ...good, isOpen: true }];
    const failure = reading.kind === 'answer' ? undefined : reading.failure;
    const isCut = /^(?:client_closed|internal_error)$/.test(lines[index]?.outcome ?? '');
    const isCounted = failure && !failure.isRejected && failure.code !== 'INTERNAL_ERROR' && !isCut;
    const kind = isCounted ? kindOf(failure, reading.kind === 'stream') : undefined;
    if (reading.kind === 'failure') return kind ? [{ ...good, kind }] : [];
    if (!kind) return [good];
    // A stall began when the stream fell silent.
    const beganAtMs = kind === 'stall' ? endsAtMs - idleMs : endsAtMs;
    return [
      { ...good, brokeAtMs: endsAtMs },
      { ...good, atMs: endsAtMs, beganAtMs, kind },
    ];
  });
}

/** Returns the moments without file descriptors or without memory. */
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

/**
 * Returns a failure's kind. `cut` includes `nonsense`, because only the network's error tells them
 * apart.
 */
function kindOf(failure: Failure, hasBegun: boolean): string {
  const { circuit, code, isOfKey, isReported, isUnresolved, status } = failure;
  if (circuit === 'provider') return isUnresolved ? 'lookup_failed' : 'unreachable';
  if (isOfKey) return 'key_refused';
  if (isReported) return status === 429 ? 'rate_limited' : 'errors';
  if (code === 'TIMEOUT') return hasBegun ? 'stall' : 'timeout';
  return 'cut';
}

interface Counts {
  readonly failed: number;
  readonly tries: number;
}

/** The log lines and tries up to a given time, by subject. */
class View {
  /** The lines of incidents, and of several equal ends the first. */
  readonly lines: readonly { readonly atMs: number; readonly line: Line }[];
  /** The further lines of equal ends, with the lines of others and the time since the former. */
  readonly repeated: { line: Line; others: number; pastMs: number }[] = [];
  readonly #breakers: typeof this.lines;
  readonly #tries: readonly Tried[];

  constructor(tries: readonly Tried[], { events }: History) {
    const lines = events.flatMap((event) => (event.kind === 'line' ? [event] : []));
    const told = new Map<string, { atMs: number; others: number }>();
    const isOwn = ({ line }: (typeof lines)[number]) => line.message.startsWith('incident');
    this.lines = lines.filter((one, at) => {
      const { atMs, line } = one;
      if (line.message !== 'incident ended') return isOwn(one);
      const name = JSON.stringify([line['provider'], line['kind'], line['since'], line['ended']]);
      const others = lines.slice(0, at).filter((other) => !isOwn(other)).length;
      const former = told.get(name);
      told.set(name, { atMs, others });
      if (!former) return true;
      const pastMs = atMs - former.atMs;
      this.repeated.push({ line, others: others - former.others, pastMs });
      return false;
    });
    this.#breakers = lines.filter(({ line }) => line.message.startsWith('breaker '));
    this.#tries = tries;
  }

  of({ provider, model, stream }: Subject): Tried[] {
    return this.#tries.filter(
      (one) =>
        one.provider === provider &&
        (model ?? one.model) === one.model &&
        (stream ?? one.stream) === one.stream,
    );
  }

  /** Returns the counts for every possible length of the current window. */
  #countsAt(subject: Subject, atMs: number, [least, most]: readonly [number, number]): Counts[] {
    const seen = this.of(subject).filter((one) => one.atMs <= atMs && one.atMs > atMs - most - 1);
    const known = seen.filter(({ brokeAtMs = Infinity }) => brokeAtMs > atMs);
    const ages = known.map((one) => atMs - one.atMs).filter((age) => age >= least && age <= most);
    return [least, most, ...ages.map((age) => age + CLOSE_MS)].flatMap((ms) => {
      const counted = known.filter((one) => one.atMs > atMs - ms);
      const open = counted.filter((one) => one.isOpen).length;
      const failed = counted.filter((one) => one.kind).length;
      // Each open try may have begun its answer or not.
      return Array.from({ length: open + 1 }, (_, n) => ({ tries: counted.length - n, failed }));
    });
  }

  fails(subject: Subject, atMs: number): { readonly may: boolean; readonly must: boolean } {
    const isHalf = ({ failed, tries }: Counts) => tries >= MIN_TRIES && failed * 2 >= tries;
    const counts = this.#countsAt(subject, atMs, COUNTED_MS);
    const isRow = (all: readonly Tried[], least: number) =>
      all.length >= least && all.slice(-least).every((one) => one.kind);
    const isWithoutGood = ({ failed, tries }: Counts) => failed === tries;
    const mayBeRow = (one: Subject) =>
      isRow(
        this.#possible(one, atMs),
        this.#countsAt(one, atMs, COUNTED_MS).some(isWithoutGood) ? MIN_ROW : MIN_TRIES,
      );
    const latest = this.#possible(subject, atMs).at(-1);
    const isNew = latest !== undefined && latest.atMs > atMs - COUNTED_MS[1] - CLOSE_MS;
    const { provider, stream } = subject;
    const isRowOfProvider = mayBeRow({ provider }) || mayBeRow({ provider, stream });
    const isOfProvider = isNew && latest.kind !== undefined && isRowOfProvider;
    const may =
      counts.some(isHalf) ||
      mayBeRow(subject) ||
      isOfProvider ||
      this.isKeptAway(subject, atMs, true);
    const seen = this.of(subject).filter((one) => one.atMs <= atMs);
    const late = seen.filter(({ atMs: ms }) => ms > atMs - FORGOTTEN_MS);
    const mustBeRow = isRow(late, counts.every(isWithoutGood) ? MIN_ROW : MIN_TRIES);
    return { may, must: counts.every(isHalf) || mustBeRow };
  }

  /** Returns the tries possibly counted as good or failed at this time, without broken streams. */
  #possible(subject: Subject, atMs: number): Tried[] {
    return this.of(subject).filter(
      ({ atMs: ms, brokeAtMs = Infinity, isOpen }) => ms <= atMs && brokeAtMs > atMs && !isOpen,
    );
  }

  /** Whether the newest tries are good, or may be. */
  isWell(subject: Subject, atMs: number): boolean {
    const seen = this.of(subject).filter((one) => one.atMs <= atMs);
    const lastMs = seen.findLast(({ isOpen }) => !isOpen)?.atMs ?? 0;
    const latest = seen.filter((one) => one.isOpen || one.atMs > lastMs - CLOSE_MS);
    const counts = this.#countsAt(subject, atMs, NEWEST_MS);
    return (
      latest.some(({ kind }) => !kind) && counts.some(({ failed, tries }) => failed * 10 < tries)
    );
  }

  /**
   * Whether the subject is well and no circuit is open, or nothing has failed for a quarter of an
   * hour.
   */
  isOver(subject: Subject, atMs: number): boolean {
    const failed = this.of(subject).filter((one) => one.kind && one.atMs <= atMs);
    const isForgotten = failed.every((one) => one.atMs < atMs - FORGOTTEN_MS);
    return isForgotten || (this.isWell(subject, atMs) && !this.isKeptAway(subject, atMs));
  }

  /**
   * Whether a circuit is open. `maybe`: or may be open, for a probe, or was open in the last
   * second.
   */
  isKeptAway({ model, provider, stream }: Subject, atMs: number, maybe = false): boolean {
    const before = this.#breakers.filter((one) => one.atMs <= atMs + (maybe ? TICK_MS : -CLOSE_MS));
    return before.some(({ atMs: fromMs, line }, index) => {
      const isOf = ({ line: one }: (typeof before)[number]) =>
        one['provider'] === provider &&
        one['model'] === line['model'] &&
        one['operation'] === line['operation'] &&
        one['stream'] === line['stream'];
      const isOwn = (line['model'] ?? model) === model && (line['stream'] ?? stream) === stream;
      if (line['provider'] !== provider || !isOwn) return false;
      const isOpened = /opened|stays/.test(line.message) || (maybe && /half/.test(line.message));
      const next = before.slice(index + 1).find(isOf);
      const untilMs = Math.min(
        fromMs + Number(line['cooldown_ms'] ?? REST_MS) - CLOSE_MS,
        maybe ? Infinity : (next?.atMs ?? Infinity),
      );
      return isOpened && atMs - (maybe ? TICK_MS : 0) < untilMs;
    });
  }

  /** Whether the log has a lasting incident of the provider, or a line from the last minute. */
  isTold(provider: string, atMs: number): boolean {
    const own = this.lines.filter(
      ({ atMs: ms, line }) =>
        line['provider'] === provider && ms <= atMs && !STATES.has(String(line['kind'])),
    );
    const begun = own.filter(({ line }) => line.message === 'incident');
    const isRecent = begun.some((one) => one.atMs > atMs - LOGGED_EVERY_MS - TICK_MS);
    const last = own.at(-1);
    const lasts = last?.line.message === 'incident';
    return isRecent || lasts;
  }
}
