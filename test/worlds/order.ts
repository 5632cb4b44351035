/** `circuits`, `keys`, `balance`: the checks of state shared by requests. */

import { Circuit } from './circuit.ts';
import {
  isTimeKnown,
  keyOf,
  keyRefusalOf,
  providerOf,
  tryEndsOf,
  type Course,
  type Report,
  type Visit,
} from './course.ts';
import type { Exchange, History, Try } from './history.ts';
import type { Candidates, Failure } from './oracle.ts';
import type { ProviderSettings, Settings } from './plan.ts';

/** The order of steps at the same moment. */
const [RESULT, SKIP, ASK] = [0, 1, 2];
const LASTING_MS = 10_000;

interface Step {
  readonly atMs: number;
  readonly rank: number;
  readonly order: number;
  readonly run: () => void;
}

export function checkOrder(history: History, courses: readonly Course[], report: Report): void {
  // A stream's try is over before its client has read the end.
  const tryEnds = tryEndsOf(history);
  const steps: Step[] = [];
  // If a client left before any provider was asked, the turns are not known.
  const seesTurns = courses.every(
    ({ candidates, visits }) =>
      !candidates || !('list' in candidates) || !candidates.isBalanced || visits.length > 0,
  );
  const circuits = new Circuits(report, seesTurns, (id) => asksStore(id, courses));
  const busy = courses.flatMap((course) =>
    course.visits.flatMap((visit) =>
      intervalOf(visit, course, tryEnds.get(course.exchange)?.order),
    ),
  );
  const sessions = new Map<string, string>();
  const settings = history.events.filter((event) => event.kind === 'settings');
  for (const [index, event] of settings.entries()) {
    const before = settings[index - 1]?.settings;
    const run = () => before && circuits.reload(before, event.settings, event.atMs);
    steps.push({ atMs: event.atMs, rank: RESULT, order: 0, run });
  }
  const all = [...history.exchanges.flatMap(({ tries }) => tries), ...history.lists];
  for (const { headAtMs: atMs, order, provider, reply } of all) {
    if (atMs === undefined || reply.connection === 'reused') continue;
    steps.push({ atMs, rank: RESULT, order, run: () => circuits.reached(provider) });
  }
  for (const course of courses) {
    for (const [index, visit] of course.visits.entries()) {
      if (asksStore(visit.candidate.provider, courses)) continue;
      const isPostponed = index > 0 && visit.candidate === course.visits[0]!.candidate;
      const isAgain =
        isPostponed || visit.hasWaited || (index > 0 && isSame(visit, course.visits[0]!));
      const ended = visit === course.visits.at(-1) ? tryEnds.get(course.exchange) : undefined;
      steps.push(...visitSteps(circuits, course, visit, { isAgain, endedAtMs: ended?.atMs }));
    }
    const [chosen] = course.visits;
    const first = chosen?.tries[0]?.try;
    if (chosen && !first)
      steps.push({
        atMs: chosen.atMs,
        rank: SKIP,
        order: course.endOrder,
        run: () => circuits.chosen(chosen, course),
      });
    if (!first) continue;
    const run = () => {
      circuits.choose(course, busy, sessions);
      circuits.chosen(chosen, course);
    };
    steps.push({ atMs: first.atMs, rank: SKIP, order: first.order, run });
  }
  if (settings.length === 1) checkWeights(courses, report);
  steps.sort((a, b) => a.atMs - b.atMs || a.rank - b.rank || a.order - b.order);
  for (const { run } of steps) run();
  if (courses.length > 0) checkKeys(history, courses, report);
}

function isSame({ candidate }: Visit, other: Visit): boolean {
  return JSON.stringify(candidate) === JSON.stringify(other.candidate);
}

/** Returns a visit's steps: its beginning, its tries' results, and its end. */
function visitSteps(
  circuits: Circuits,
  course: Course,
  visit: Visit,
  {
    isAgain,
    endedAtMs = Infinity,
  }: { readonly isAgain: boolean; readonly endedAtMs?: number | undefined },
): Step[] {
  const { candidate, skipped, tries } = visit;
  const { exchange } = course;
  const hasOthers =
    course.candidates && 'list' in course.candidates && course.candidates.atMost > 1;
  if (skipped === 'limit') return [];
  const { atMs } = visit;
  if (skipped) {
    if (!isTimeKnown(visit, course)) return [];
    return [{ atMs, rank: SKIP, order: course.endOrder, run: () => circuits.skip(visit, course) }];
  }
  const first = tries[0];
  if (!first) return [];
  const order = first.try.order;
  const steps: Step[] = [];
  const isGuarded = hasOthers === true && !isAgain;
  if (!hasOthers) checkRepeats(visit, course, circuits.report);
  else {
    steps.push({ atMs, rank: ASK, order, run: () => circuits.ask(visit, course, isGuarded) });
  }
  for (const [index, made] of tries.entries()) {
    // The client may have left during the wait for the next try.
    const isLeft = course.endAtMs >= course.brokenAtMs && made.endsAtMs < course.brokenAtMs;
    const isFinal = index === tries.length - 1 && hasOthers === true && !isLeft;
    const { reading, endsAtMs } = made;
    const failure = reading?.kind === 'answer' ? undefined : reading?.failure;
    const isCut =
      reading === undefined || (reading.kind === 'stream' && endsAtMs >= course.brokenAtMs);
    const of = { candidate, begunAtMs: course.begunAtMs, probe: exchange };
    const run = () => {
      if (isCut) circuits.gone(of, endsAtMs);
      else circuits.result(of, endsAtMs, failure, isFinal);
    };
    const isWhole = made === tries.at(-1) && reading?.kind === 'stream' && !failure && !isCut;
    const overAtMs = isWhole ? Math.min(endsAtMs, endedAtMs) : endsAtMs;
    steps.push({ atMs: overAtMs, rank: RESULT, order: made.try.order, run });
    if (reading?.kind !== 'stream') continue;
    const lastedMs = made.try.atMs + reading.atMs + LASTING_MS;
    const lasts = (sinceMs: number, isSeen: boolean) =>
      steps.push({ atMs: sinceMs, rank: RESULT, order: 0, run: () => circuits.lasted(of, isSeen) });
    if (endsAtMs >= lastedMs) lasts(lastedMs, false);
    // The documents: "When data still comes 10 s after its first". The stream must begin with its
    // answer.
    const [begin, ...others] = reading.passes;
    const isPlain = begin!.atMs === reading.atMs && !begin!.text.startsWith(':');
    const late = others.filter(
      (one) => one.atMs - begin!.atMs > LASTING_MS - 1e-6 && !one.text.startsWith(':'),
    );
    const seenAtMs = late.map((one) => made.try.atMs + one.atMs).filter((ms) => ms < endsAtMs);
    // A pipelined answer may have been read later.
    const isExact = isPlain && !exchange.isDelayed;
    for (const ms of isExact ? seenAtMs.slice(0, 1) : seenAtMs) lasts(ms, isExact);
  }
  return steps;
}

/**
 * Whether a store is asked for a token of this provider. Meanwhile other requests begin and end, so
 * a decision's moment is not known.
 */
function asksStore(id: string, courses: readonly Course[]): boolean {
  return courses.some(({ settings: { rateLimit } }) => {
    const { enabled, hasStore, providers } = rateLimit;
    const { requests_per_second = 0, requests_per_minute = 0 } = providers[id] ?? {};
    return hasStore && enabled && requests_per_second + requests_per_minute > 0;
  });
}

const asksStoreAtAll = ({ settings }: Course) => settings.rateLimit.hasStore;

interface Of {
  readonly candidate: Visit['candidate'];
  readonly begunAtMs: number;
  readonly probe: Exchange;
}

/** The places in the history where a visit begins and stops counting as a request in flight. */
interface Interval {
  readonly provider: string;
  readonly from: number;
  readonly to: number;
}

function intervalOf({ candidate, tries }: Visit, course: Course, tryEnd?: number): Interval[] {
  const [first] = tries;
  if (!first) return [];
  const last = tries.at(-1)!;
  const isLast = course.visits.at(-1)!.tries.at(-1) === last;
  const isBroken = isLast && course.endAtMs >= course.brokenAtMs;
  // An arrived complete answer holds no slot while its client does not read it.
  const isLong = last.reading?.kind === 'stream' || (isBroken && last.reading?.kind !== 'answer');
  const isStream = isLast && last.reading?.kind === 'stream';
  const end = isStream && tryEnd !== undefined ? tryEnd : course.endOrder;
  const to = isLong ? end : last.try.endOrder;
  return [{ provider: candidate.provider, from: first.try.order, to }];
}

const nameOf = ({ provider, model }: Visit['candidate']) => `${provider}/${model}`;

/** Returns the target as in the settings, because all names of a wildcard alias share its turns. */
function targetOf(candidate: Visit['candidate'], { list, targets }: Candidates): string {
  const index = list.findIndex((one) => nameOf(one) === nameOf(candidate));
  return targets[index] ?? nameOf(candidate);
}

/**
 * Checks that a weighted alias asks each target first as often as its weight requires, give or take
 * one per other target.
 */
function checkWeights(courses: readonly Course[], report: Report): void {
  const counts = new Map<string, number>();
  const count = (name: string) => counts.set(name, (counts.get(name) ?? 0) + 1).get(name)!;
  for (const course of courses.toSorted((a, b) => a.begunOrder - b.begunOrder)) {
    const { candidates, exchange, visits } = course;
    if (!candidates || !('list' in candidates) || !candidates.weights || !visits[0]) continue;
    const { balanced, weights } = candidates;
    const list = candidates.list.slice(0, balanced);
    const whole = weights.reduce((sum, weight) => sum + weight, 0);
    if (whole === 0) continue;
    const own = nameOf(visits[0].candidate);
    if (weights[list.findIndex((one) => nameOf(one) === own)] === 0)
      report('balance', `${own} has the weight 0, and is asked first`, exchange);
    if (list.every(({ provider }) => providerOf(course, provider).key_affinity)) continue;
    const alias = exchange.ask.chat!.model;
    const all = count(alias);
    count(`${alias} ${own}`);
    for (const [index, one] of list.entries()) {
      const due = (all * weights[index]!) / whole;
      const had = counts.get(`${alias} ${nameOf(one)}`) ?? 0;
      if (Math.abs(had - due) > balanced)
        report('balance', `${nameOf(one)} is asked first ${had} times, and not ${due}`, exchange);
    }
  }
}

/** Returns a provider's settings as text, with inherited settings. */
function effectiveOf(id: string, { providers, server }: Settings): string {
  const own = providers.find((one) => one.id === id);
  const timeout = own?.timeout ?? server.timeout;
  const retries = own?.retries ?? server.retries;
  const all = Object.entries({ ...own, timeout, retries });
  // A member removed by a change is there, with the value undefined.
  const rows = all.filter(([, value]) => value !== undefined);
  return JSON.stringify(rows.toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

/** Returns the tries after a wait. A change of key or connection has none. */
const waitsOf = ({ tries }: Visit) =>
  tries.filter(({ try: made }, index) => index > 0 && made.atMs - tries[index - 1]!.resultAtMs > 1);

/**
 * Checks that a temporary failure is repeated as often as `retries` allows, unless the provider
 * asks for a longer wait.
 */
function checkRepeats(visit: Visit, course: Course, report: Report): void {
  const { candidate, tries } = visit;
  const { api_keys, retries = course.settings.server.retries } = providerOf(
    course,
    candidate.provider,
  );
  const failures = tries.map(({ reading }) =>
    reading?.kind === 'failure' ? reading.failure : undefined,
  );
  const isOfKeys = failures.some((one) => one?.restsKey);
  if (course.endAtMs >= course.brokenAtMs - 0.01 || (api_keys.length > 1 && isOfKeys)) return;
  if (failures.at(-1)?.isRetried !== true) return;
  if (waitsOf(visit).length < retries)
    report('order', `${candidate.provider} is not asked again`, course.exchange);
}

/** The circuits of all providers and models. */
class Circuits {
  readonly #circuits = new Map<string, Circuit>();
  /**
   * When each target of a balanced alias was first in turn. Keyed by settings, because a request
   * that began before a reload counts with its own settings.
   */
  readonly #lastAskedMs = new Map<Settings, Map<string, number>>();
  /** When a reload changed each provider. */
  readonly #changedAtMs = new Map<string, number>();
  readonly report: Report;
  readonly #seesTurns: boolean;
  readonly #asksStore: (provider: string) => boolean;

  constructor(report: Report, seesTurns: boolean, asks: (provider: string) => boolean) {
    this.report = report;
    this.#seesTurns = seesTurns;
    this.#asksStore = asks;
  }

  #get(name: string): Circuit {
    const circuit = this.#circuits.get(name) ?? new Circuit();
    this.#circuits.set(name, circuit);
    return circuit;
  }

  /**
   * The provider's own circuit, and that of the model's streams or complete answers at the
   * endpoint.
   */
  #both(
    { provider, model }: Visit['candidate'],
    { ask }: Exchange,
  ): [own: Circuit, model: Circuit] {
    const kind = ask.chat?.isStream ? 'stream' : 'complete';
    const answer = ask.chat?.answersWith ?? 'chat';
    return [this.#get(provider), this.#get(`${provider}/${answer} ${kind} ${model}`)];
  }

  reload(before: Settings, after: Settings, atMs: number): void {
    for (const one of before.providers) {
      if (effectiveOf(one.id, before) === effectiveOf(one.id, after)) continue;
      this.#changedAtMs.set(one.id, atMs);
      for (const [name] of this.#circuits) {
        if (name.split('/', 1)[0] === one.id) this.#circuits.delete(name);
      }
    }
  }

  /**
   * Whether the request began with other settings for the provider. It then counts as another
   * provider.
   */
  #isOther({ provider }: Visit['candidate'], begunAtMs: number): boolean {
    return begunAtMs < (this.#changedAtMs.get(provider) ?? 0);
  }

  ask(visit: Visit, course: Course, isGuarded: boolean): void {
    const { begunAtMs, exchange } = course;
    const { candidate, atMs } = visit;
    if (this.#isOther(candidate, begunAtMs)) return;
    const [own, model] = this.#both(candidate, exchange);
    if (!own.mayProbe() && !model.mayProbe()) checkRepeats(visit, course, this.report);
    for (const circuit of [own, model]) {
      const isProbe = isGuarded && circuit.mustProbe() && !circuit.mayRest(atMs);
      if (isProbe && waitsOf(visit).length > 0)
        this.report('circuits', `a probe of ${candidate.provider} is repeated`, exchange);
      circuit.asked(atMs, exchange, isGuarded);
      if (!circuit.isImpossible) continue;
      this.report(
        'circuits',
        `${candidate.provider}/${candidate.model} is asked while it rests`,
        exchange,
      );
      circuit.success();
    }
  }

  skip(visit: Visit, course: Course): void {
    const { candidate, atMs } = visit;
    const { begunAtMs, candidates, exchange, visits } = course;
    if (this.#isOther(candidate, begunAtMs)) return;
    if (visit === visits[0] && candidates && 'list' in candidates && !candidates.weights) {
      // Resting providers are not balanced by their requests in flight.
      const list = candidates.isBalanced ? candidates.list.slice(0, candidates.balanced) : [];
      const other = list.find(
        (one) => !this.#both(one, exchange).some((circuit) => circuit.mayRest(atMs)),
      );
      if (other)
        this.report('balance', `${nameOf(other)} does not rest, and is not the first`, exchange);
    }
    const [own, model] = this.#both(candidate, exchange);
    if (!own.mayRest(atMs) && !model.mayRest(atMs)) {
      const text = `${candidate.provider}/${candidate.model} is passed over, and does not rest`;
      this.report('circuits', text, exchange);
    } else if (!own.mayRest(atMs)) model.skipped(atMs);
    else if (!model.mayRest(atMs)) own.skipped(atMs);
  }

  /**
   * Checks that a balanced alias asks its least busy target first, or with affinity the session's
   * own.
   */
  choose(course: Course, busy: readonly Interval[], sessions: Map<string, string>): void {
    const { candidates, exchange, visits } = course;
    if (!candidates || !('list' in candidates) || candidates.balanced < 2) return;
    const list = candidates.list.slice(0, candidates.balanced);
    if (list.some(({ provider }) => this.#asksStore(provider))) return;
    const [chosen] = visits;
    const { order } = chosen!.tries[0]!.try;
    const restless = list.filter(
      (one) => !this.#both(one, exchange).some((circuit) => circuit.mayRest(chosen!.atMs)),
    );
    const own = nameOf(chosen!.candidate);
    if (list.every(({ provider }) => providerOf(course, provider).key_affinity)) {
      // A reload may remove a target.
      const session = `${list.map(nameOf).join()} ${candidates.weights?.join()} ${sessionOf(course)}`;
      const before = sessions.get(session);
      if (restless.length < list.length) return;
      if (before !== undefined && before !== own) {
        this.report('balance', `its session had ${before}, and has ${own}`, exchange);
      }
      sessions.set(session, before ?? own);
      return;
    }
    if (candidates.weights || candidates.isFastest) return;
    const inFlight = (id: string) =>
      busy.filter((one) => one.provider === id && one.from < order && order < one.to).length;
    const count = inFlight(chosen!.candidate.provider);
    const better = restless.find(({ provider }) => inFlight(provider) < count);
    if (better)
      this.report('balance', `${own} is asked, and ${nameOf(better)} is less busy`, exchange);
    // The documents: "Those with equally many are asked in turn."
    const turns = this.#lastAskedMs.get(course.settings);
    const lastMs = (one: Visit['candidate']) => turns?.get(targetOf(one, candidates)) ?? -Infinity;
    const waits = restless.find(
      (one) => inFlight(one.provider) === count && lastMs(one) < lastMs(chosen!.candidate) - 0.01,
    );
    if (waits && this.#seesTurns && !asksStoreAtAll(course))
      this.report('balance', `${own} is asked, and it is the turn of ${nameOf(waits)}`, exchange);
  }

  /** Records that a target was first in turn, whether or not it could be asked. */
  chosen({ candidate, atMs }: Visit, { candidates, settings }: Course): void {
    if (!candidates || !('list' in candidates)) return;
    if (!candidates.isBalanced || candidates.isFastest || candidates.weights) return;
    const turns = this.#lastAskedMs.get(settings) ?? new Map<string, number>();
    this.#lastAskedMs.set(settings, turns.set(targetOf(candidate, candidates), atMs));
  }

  result(
    { candidate, begunAtMs, probe }: Of,
    atMs: number,
    failure: Failure | undefined,
    isFinal: boolean,
  ): void {
    if (this.#isOther(candidate, begunAtMs)) return;
    const [own, model] = this.#both(candidate, probe);
    const isOpen = failure?.circuit === 'maybe' || (!isFinal && failure?.circuit !== 'none');
    if (isOpen) {
      for (const circuit of [own, model]) circuit.maybe(atMs, ['failure', 'success'], probe);
    } else if (!failure) {
      own.success();
      model.success();
    } else if (failure.circuit === 'provider') {
      own.failure(atMs, probe);
      model.maybe(atMs, ['failure'], probe);
    } else if (failure.circuit === 'failure') {
      own.maybe(atMs, ['success']);
      model.failure(atMs, probe);
    } else {
      // The gateway may itself have failed, so the provider may not have been reached.
      own.maybe(atMs, ['success']);
      for (const circuit of [own, model]) circuit.unknown(probe, atMs);
    }
  }

  /** An answer on a new connection shows that the provider can be reached. */
  reached(provider: string): void {
    this.#get(provider).success();
  }

  lasted({ candidate, probe }: Of, isSeen: boolean): void {
    for (const circuit of this.#both(candidate, probe)) circuit.lasted(probe, isSeen);
  }

  gone({ candidate, probe }: Of, atMs: number): void {
    for (const circuit of this.#both(candidate, probe)) circuit.gone(probe, atMs);
  }
}

/** Returns the request's session. */
function sessionOf({ early, exchange }: Course): string {
  const header = (name: string) => exchange.ask.headers.find(([one]) => one === name)?.[1];
  const client = early.kind === 'counted' ? early.client : undefined;
  const { promptCacheKey = '' } = exchange.ask.chat!;
  const named = header('x-session-id') ?? header('x-session-affinity');
  const body = Buffer.byteLength(promptCacheKey) <= 64 ? promptCacheKey : '';
  return named ?? (body || (client ?? header('authorization') ?? ''));
}

const REFUSED_MS = 60_000;

interface KeyUse {
  readonly key: string;
  readonly atMs: number;
  readonly order: number;
  readonly course: Course | undefined;
  readonly visit: Visit | undefined;
  /** Undefined if the key was not refused. */
  readonly cooldown: Cooldown | undefined;
  readonly workedAtMs?: number | undefined;
}

/** The time in which a refused key is not used. */
interface Cooldown {
  readonly fromMs: number;
  readonly untilMs: number;
  readonly status: number;
}

/** Checks that a refused key rests if there is another, and that a session keeps its key. */
function checkKeys(history: History, courses: readonly Course[], report: Report): void {
  const [settings, ...others] = new Set(courses.map((course) => course.settings));
  for (const provider of settings!.providers) {
    // With other settings it is another provider, whose keys begin their turns anew.
    const isKept = others.every(
      (one) => effectiveOf(provider.id, one) === effectiveOf(provider.id, settings!),
    );
    if (provider.api_keys.length > 1 && isKept) checkKeysOf(provider, history, courses, report);
  }
}

function checkKeysOf(
  { id, api_keys, key_affinity }: ProviderSettings,
  { lists }: History,
  courses: readonly Course[],
  report: Report,
): void {
  const uses = courses
    .flatMap((course) => course.visits.flatMap((visit) => usesOf(visit, course)))
    .concat(lists.map((made) => ({ ...useOf(made), course: undefined, visit: undefined })))
    .filter((use) => use.provider === id)
    .toSorted((a, b) => a.order - b.order);
  const cooldowns = cooldownsOf(uses);
  const sessions = new Map<string, string>();
  for (const [index, use] of uses.entries()) {
    const { atMs, course, key, visit } = use;
    const states = api_keys.map((one) => {
      const own = cooldowns.filter((cooldown) => cooldown.key === one);
      const isOpen = own.some(
        ({ fromMs, untilMs }) => isClose(fromMs, atMs) || isClose(untilMs, atMs),
      );
      return isOpen ? 'open' : own.some(({ fromMs, untilMs }) => fromMs < atMs && atMs < untilMs);
    });
    if (states.includes('open') || !course) continue;
    const cools = (one: string) => states[api_keys.indexOf(one)] === true;
    const isFirst = visit?.tries[0]?.try.order === use.order;
    if (!states.includes(true) && isFirst && key_affinity) {
      const session = sessionOf(course);
      const own = sessions.get(session) ?? key;
      sessions.set(session, own);
      if (own !== key) report('keys', `its session had ${own}, and has ${key}`, course.exchange);
    }
    const last = uses[index - 1];
    // A model list's fetch tries one key after another, and does not count as a turn.
    if (last?.course && isFirst && !key_affinity) {
      const next = api_keys.indexOf(last.key) + 1;
      const inTurn = [...api_keys.slice(next), ...api_keys.slice(0, next)];
      const due = inTurn.find((one) => !cools(one));
      if (due && due !== key)
        report('keys', `${key} is sent, and it is the turn of ${due}`, course.exchange);
    }
    const tried = new Set(visit?.tries.map(({ try: made }) => keyOf(made)));
    const other = api_keys.find((one) => !cools(one) && !tried.has(one));
    if (cools(key) && other) report('keys', `${key} is sent in its cooldown`, course.exchange);
  }
}

const isClose = (oneMs: number, otherMs: number) => Math.abs(oneMs - otherMs) < 0.01;

/**
 * Returns the cooldowns of keys. A cooldown ends at its time, when a later cooldown replaces it, or
 * when its key works. After a 402 or 403 it also ends when another such key works.
 */
function cooldownsOf(uses: readonly KeyUse[]) {
  const all: { key: string; status: number; fromMs: number; untilMs: number }[] = [];
  const latestAt = (key: string, atMs: number) =>
    all.findLast((one) => one.key === key && one.fromMs < atMs);
  const begin = (key: string, next: Cooldown) => {
    const latest = latestAt(key, next.fromMs);
    if (latest && latest.untilMs > next.fromMs) {
      if (latest.untilMs >= next.untilMs) return;
      latest.untilMs = next.fromMs;
    }
    all.push({ ...next, key });
  };
  const work = ({ key, atMs: sentAtMs }: KeyUse, atMs: number) => {
    const before = latestAt(key, sentAtMs + 0.01);
    if (!before || before !== latestAt(key, atMs)) return;
    const isForbidden = ({ status }: Cooldown) => status === 402 || status === 403;
    const alike = isForbidden(before) ? all.filter(isForbidden) : [before];
    if (before.untilMs <= atMs) return;
    for (const one of alike) one.untilMs = Math.min(one.untilMs, atMs);
  };
  const steps = uses.flatMap((use) => [
    ...(use.cooldown
      ? [{ atMs: use.cooldown.fromMs, run: () => begin(use.key, use.cooldown!) }]
      : []),
    ...(use.workedAtMs === undefined
      ? []
      : [{ atMs: use.workedAtMs, run: () => work(use, use.workedAtMs!) }]),
  ]);
  for (const { run } of steps.toSorted((one, other) => one.atMs - other.atMs)) run();
  return all;
}

function useOf(made: Try) {
  const { atMs, order, provider } = made;
  return { key: keyOf(made), atMs, order, provider, cooldown: undefined };
}

function usesOf(visit: Visit, course: Course): (KeyUse & { provider: string })[] {
  return visit.tries.map((one) => {
    const { endsAtMs, reading, try: made } = one;
    const refusal = keyRefusalOf(one);
    const { retryAfter = 1, status = 0 } = refusal?.failure ?? {};
    const ms = status === 429 ? retryAfter * 1000 : REFUSED_MS;
    const cooldown = refusal && { fromMs: refusal.atMs, untilMs: refusal.atMs + ms, status };
    const isDelivered = reading !== undefined && reading.kind !== 'failure';
    const hasWorked = isDelivered && !refusal && endsAtMs < course.brokenAtMs;
    const workedAtMs = hasWorked ? endsAtMs : undefined;
    return { ...useOf(made), course, visit, cooldown, workedAtMs };
  });
}
