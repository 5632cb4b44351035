/** `circuits`, `keys`, `balance`: what depends on what became of other requests before. */

import { Circuit } from './circuit.ts';
import { providerOf, type Course, type Report, type Visit } from './course.ts';
import type { Exchange, History } from './history.ts';
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
  const hasStore = courses.some(({ settings }) => settings.rateLimit.hasStore);
  const steps: Step[] = [];
  const circuits = new Circuits(report);
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
  }
  steps.sort((a, b) => a.atMs - b.atMs || a.rank - b.rank || a.order - b.order);
  // With a store nobody sees when it was decided.
  if (!hasStore) for (const { run } of steps) run();
  checkKeys(history, courses, report);
  checkSessions(courses, report);
}

function isSame({ candidate }: Visit, other: Visit): boolean {
  return JSON.stringify(candidate) === JSON.stringify(other.candidate);
}

/** The steps of a visit: how it began, what its tries came to, how it was over. */
function visitSteps(circuits: Circuits, course: Course, visit: Visit, isAgain: boolean): Step[] {
  const { candidate, skipped, tries } = visit;
  const { exchange } = course;
  const hasOthers =
    course.candidates && 'list' in course.candidates && course.candidates.list.length > 1;
  if (skipped === 'limit') return [];
  const { atMs } = visit;
  if (skipped) {
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
    const isFinal = index === tries.length - 1 && hasOthers === true;
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

interface Of {
  readonly candidate: Visit['candidate'];
  readonly begunAtMs: number;
  readonly probe: Exchange;
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
      const next = after.providers.find(({ id }) => id === one.id);
      const inherited = ({ server }: Settings, own: ProviderSettings | undefined) =>
        JSON.stringify([own, server.timeout, server.retries]);
      if (inherited(before, one) === inherited(after, next)) continue;
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

function checkKeys(_history: History, _courses: readonly Course[], _report: Report): void {}
function checkSessions(_courses: readonly Course[], _report: Report): void {}
void providerOf;
