/** `circuits`, `keys`, `balance`: what depends on what became of other requests before. */

import { Circuit } from './circuit.ts';
import { providerOf, type Course, type Report, type Visit } from './course.ts';
import type { Exchange, History, Try } from './history.ts';
import type { Failure } from './oracle.ts';
import type { ProviderSettings, Settings } from './plan.ts';

/** What happens at the same moment happens in this order. */
const [RESULT, SKIP, ASK] = [0, 1, 2];
const LASTING_MS = 10_000;

interface Step {
  readonly atMs: number;
  readonly rank: number;
  readonly order: number;
  readonly run: () => void;
}

export function checkOrder(history: History, courses: readonly Course[], report: Report): void {
  const steps: Step[] = [];
  const circuits = new Circuits(report);
  const busy = courses.flatMap((course) =>
    course.visits.flatMap((visit) => intervalOf(visit, course)),
  );
  const sessions = new Map<string, string>();
  const settings = history.events.filter((event) => event.kind === 'settings');
  for (const [index, event] of settings.entries()) {
    const before = settings[index - 1]?.settings;
    const run = () => before && circuits.reload(before, event.settings, event.atMs);
    steps.push({ atMs: event.atMs, rank: RESULT, order: 0, run });
  }
  for (const course of courses) {
    for (const [index, visit] of course.visits.entries()) {
      const isPostponed = index > 0 && visit.candidate === course.visits[0]!.candidate;
      const isAgain = isPostponed || (index > 0 && isSame(visit, course.visits[0]!));
      steps.push(...visitSteps(circuits, course, visit, isAgain));
    }
    const first = course.visits[0]?.tries[0]?.try;
    if (!first) continue;
    const run = () => circuits.choose(course, busy, sessions);
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

/** The steps of a visit: how it began, what its tries came to, how it was over. */
function visitSteps(circuits: Circuits, course: Course, visit: Visit, isAgain: boolean): Step[] {
  const { candidate, skipped, tries } = visit;
  const { exchange } = course;
  if (asksStore(candidate.provider, course)) return [];
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
  if (hasOthers) {
    steps.push({ atMs, rank: ASK, order, run: () => circuits.ask(visit, course, isGuarded) });
  }
  for (const [index, made] of tries.entries()) {
    // Its client may have left in the wait for the next try.
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
    steps.push({ atMs: endsAtMs, rank: RESULT, order: made.try.order, run });
    if (reading?.kind !== 'stream') continue;
    const lastedMs = made.try.atMs + reading.atMs + LASTING_MS;
    const isLong = endsAtMs >= lastedMs;
    if (isLong)
      steps.push({ atMs: lastedMs, rank: RESULT, order: 0, run: () => circuits.lasted(of) });
  }
  return steps;
}

/** While the store is asked for a token of this provider, others begin and end: nobody sees when it was decided. */
function asksStore(id: string, { settings: { rateLimit } }: Course): boolean {
  const { enabled, hasStore, providers } = rateLimit;
  return hasStore && enabled && (providers[id]?.requests_per_second ?? 0) > 0;
}

/** With a store, who is passed over is so at once only after somebody was asked. */
function isTimeKnown(visit: Visit, { settings, visits }: Course): boolean {
  const before = visits.slice(0, visits.indexOf(visit));
  const last = before.findLast(({ skipped }) => skipped !== 'circuit_open');
  return !settings.rateLimit.hasStore || (last !== undefined && !last.skipped);
}

interface Of {
  readonly candidate: Visit['candidate'];
  readonly begunAtMs: number;
  readonly probe: Exchange;
}

/** From its first try to its end a visit counts as a request in flight; places in the history. */
interface Interval {
  readonly provider: string;
  readonly from: number;
  readonly to: number;
}

function intervalOf({ candidate, tries }: Visit, course: Course): Interval[] {
  const [first] = tries;
  if (!first) return [];
  const last = tries.at(-1)!;
  const isLast = course.visits.at(-1)!.tries.at(-1) === last;
  const isBroken = isLast && course.endAtMs >= course.brokenAtMs;
  const isLong = last.reading?.kind === 'stream' || isBroken;
  const to = isLong ? course.endOrder : last.try.endOrder;
  return [{ provider: candidate.provider, from: first.try.order, to }];
}

const nameOf = ({ provider, model }: Visit['candidate']) => `${provider}/${model}`;

/** Of a weighted alias each target is asked first as often as its weight says, but for one time for each of the others. */
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

/** A provider's settings with those that it inherits. */
function effectiveOf(id: string, { providers, server }: Settings): string {
  const own = providers.find((one) => one.id === id);
  const timeout = own?.timeout ?? server.timeout;
  const retries = own?.retries ?? server.retries;
  const rows = Object.entries({ ...own, timeout, retries });
  return JSON.stringify(rows.toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

/** The circuits of all providers, and of their models. */
class Circuits {
  readonly #circuits = new Map<string, Circuit>();
  /** When a reload has changed a provider. */
  readonly #changedAtMs = new Map<string, number>();
  readonly #report: Report;

  constructor(report: Report) {
    this.#report = report;
  }

  #get(name: string): Circuit {
    const circuit = this.#circuits.get(name) ?? new Circuit();
    this.#circuits.set(name, circuit);
    return circuit;
  }

  #both({ provider, model }: Visit['candidate']): [own: Circuit, model: Circuit] {
    return [this.#get(provider), this.#get(`${provider}/${model}`)];
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

  /** It was asked with other settings, which are another provider. */
  #isOther({ provider }: Visit['candidate'], begunAtMs: number): boolean {
    return begunAtMs < (this.#changedAtMs.get(provider) ?? 0);
  }

  ask({ candidate, atMs }: Visit, { begunAtMs, exchange }: Course, isGuarded: boolean): void {
    if (this.#isOther(candidate, begunAtMs)) return;
    const [own, model] = this.#both(candidate);
    for (const circuit of [own, model]) {
      circuit.asked(atMs, exchange, isGuarded);
      if (!circuit.isImpossible) continue;
      this.#report(
        'circuits',
        `${candidate.provider}/${candidate.model} is asked while it rests`,
        exchange,
      );
      circuit.success();
    }
  }

  skip({ candidate, atMs }: Visit, { begunAtMs, exchange }: Course): void {
    if (this.#isOther(candidate, begunAtMs)) return;
    const [own, model] = this.#both(candidate);
    if (!own.mayRest(atMs) && !model.mayRest(atMs)) {
      const text = `${candidate.provider}/${candidate.model} is passed over, and does not rest`;
      this.#report('circuits', text, exchange);
    } else if (!own.mayRest(atMs)) model.skipped(atMs);
    else if (!model.mayRest(atMs)) own.skipped(atMs);
  }

  /** Of an alias with balance the target with the fewest requests is asked first, or, with affinity, the session's own. */
  choose(course: Course, busy: readonly Interval[], sessions: Map<string, string>): void {
    const { candidates, exchange, visits } = course;
    if (!candidates || !('list' in candidates) || candidates.balanced < 2) return;
    const list = candidates.list.slice(0, candidates.balanced);
    if (list.some(({ provider }) => asksStore(provider, course))) return;
    const [chosen] = visits;
    const { order } = chosen!.tries[0]!.try;
    const restless = list.filter(
      (one) => !this.#both(one).some((circuit) => circuit.mayRest(chosen!.atMs)),
    );
    const own = nameOf(chosen!.candidate);
    if (list.every(({ provider }) => providerOf(course, provider).key_affinity)) {
      // A reload may take one of them away.
      const session = `${list.map(nameOf).join()} ${sessionOf(course)}`;
      const before = sessions.get(session);
      if (restless.length < list.length) return;
      if (before !== undefined && before !== own) {
        this.#report('balance', `its session had ${before}, and has ${own}`, exchange);
      }
      sessions.set(session, before ?? own);
      return;
    }
    if (candidates.weights) return;
    const inFlight = (id: string) =>
      busy.filter((one) => one.provider === id && one.from < order && order < one.to).length;
    const count = inFlight(chosen!.candidate.provider);
    const better = restless.find(({ provider }) => inFlight(provider) < count);
    if (better)
      this.#report('balance', `${own} is asked, and ${nameOf(better)} is less busy`, exchange);
  }

  result(
    { candidate, begunAtMs, probe }: Of,
    atMs: number,
    failure: Failure | undefined,
    isFinal: boolean,
  ): void {
    if (this.#isOther(candidate, begunAtMs)) return;
    const [own, model] = this.#both(candidate);
    const isOpen = failure?.circuit === 'maybe' || (!isFinal && failure?.circuit !== 'none');
    if (isOpen) {
      for (const circuit of [own, model]) circuit.maybe(atMs, ['failure', 'success']);
    } else if (!failure) {
      own.success();
      model.success();
    } else if (failure.circuit === 'provider') {
      own.failure(atMs);
      model.maybe(atMs, ['failure']);
    } else if (failure.circuit === 'failure') {
      own.maybe(atMs, ['success']);
      model.failure(atMs);
    } else {
      own.maybe(atMs, ['success']);
      for (const circuit of [own, model]) circuit.unknown(probe, atMs);
    }
  }

  lasted({ candidate, probe }: Of): void {
    for (const circuit of this.#both(candidate)) circuit.lasted(probe);
  }

  gone({ candidate, probe }: Of, atMs: number): void {
    for (const circuit of this.#both(candidate)) circuit.gone(probe, atMs);
  }
}

/** The conversation that a request belongs to. */
function sessionOf({ early, exchange }: Course): string {
  const header = (name: string) => exchange.ask.headers.find(([one]) => one === name)?.[1];
  const client = early.kind === 'counted' ? early.client : undefined;
  const { promptCacheKey = '' } = exchange.ask.chat!;
  const named = header('x-session-id') ?? header('x-session-affinity');
  const body = Buffer.byteLength(promptCacheKey) <= 64 ? promptCacheKey : '';
  return named ?? (body || (client ?? header('authorization') ?? ''));
}

const KEY_STATUSES = new Set([401, 403, 429]);
const REFUSED_MS = 60_000;

interface KeyUse {
  readonly key: string;
  readonly atMs: number;
  readonly order: number;
  readonly course: Course | undefined;
  readonly visit: Visit | undefined;
  /** The key is left alone until then; `undefined` if it was not refused. */
  readonly cooldown: { readonly fromMs: number; readonly untilMs: number } | undefined;
}

/** A refused key is not sent for a while if there is another one, and a session keeps its key. */
function checkKeys(history: History, courses: readonly Course[], report: Report): void {
  const [settings, ...others] = new Set(courses.map((course) => course.settings));
  for (const provider of settings!.providers) {
    // With other settings it is another provider, whose keys have their turns anew.
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
  const sessions = new Map<string, string>();
  for (const [index, use] of uses.entries()) {
    const { atMs, course, key, visit } = use;
    const before = uses.slice(0, index);
    const cools = (one: string) =>
      uses.some(
        ({ cooldown, key: other }) =>
          other === one && cooldown && cooldown.fromMs <= atMs && atMs < cooldown.untilMs,
      );
    const isAnyCool = api_keys.some(cools);
    const isFirst = visit?.tries[0]?.try.order === use.order;
    if (!isAnyCool && course && isFirst && key_affinity) {
      const session = sessionOf(course);
      const own = sessions.get(session) ?? key;
      sessions.set(session, own);
      if (own !== key) report('keys', `its session had ${own}, and has ${key}`, course.exchange);
    }
    const last = before.at(-1);
    // What asks for the list of models tries one key after the other, and tells nobody.
    const isPlain = course !== undefined && last?.course !== undefined;
    if (!isAnyCool && last && isPlain && !key_affinity) {
      const next = api_keys[(api_keys.indexOf(last.key) + 1) % api_keys.length];
      if (next !== key) report('keys', `${key} has no turn after ${last.key}`, course?.exchange);
    }
    // A success may have ended the rest of another key too.
    const isCleared = (sinceMs: number) =>
      before.some((one) => !one.cooldown && one.course && one.atMs > sinceMs);
    const own = before.findLast((one) => one.key === key && one.cooldown);
    const isResting = own?.cooldown && cools(key) && !isCleared(own.cooldown.fromMs - 1);
    const tried = new Set(visit?.tries.map(({ try: made }) => keyOf(made)));
    const other = api_keys.find((one) => !cools(one) && !tried.has(one));
    if (isResting && other && course)
      report('keys', `${key} is sent in its cooldown`, course.exchange);
  }
}

const keyOf = ({ headers }: Try) => headers.get('authorization')?.replace('Bearer ', '') ?? '';

function useOf(made: Try) {
  const { atMs, order, provider } = made;
  return { key: keyOf(made), atMs, order, provider, cooldown: undefined };
}

function usesOf(visit: Visit, course: Course): (KeyUse & { provider: string })[] {
  return visit.tries.map(({ reading, resultAtMs, try: made }) => {
    const failure = reading?.kind === 'failure' ? reading.failure : undefined;
    const isRefused = failure !== undefined && KEY_STATUSES.has(failure.status);
    const ms = failure?.status === 429 ? (failure.retryAfter ?? 1) * 1000 : REFUSED_MS;
    const cooldown = isRefused ? { fromMs: resultAtMs, untilMs: resultAtMs + ms } : undefined;
    return { ...useOf(made), course, visit, cooldown };
  });
}
