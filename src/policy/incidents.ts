/**
 * What is wrong now: providers and models that fail, by their tries of the last minute, and
 * failures of the gateway's own. It is decided here alone; log, page and metrics show it. All times
 * are on the clock that is passed in.
 */

import { causeOf } from '../request/cause.ts';
import type { RequestHistory, Attempt } from '../request/history.ts';
import type { GatewayError, Outcome } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { CircuitReport } from './circuit-breaker.ts';
import { Incident, type IncidentKind, kindOf, type Moment } from './incident.ts';
import {
  failingOf,
  isOver,
  isWell,
  type OpenCircuits,
  ownKindOf,
  QUIET_MS,
} from './incident-rules.ts';
import { ProviderWatch, stepOf, type Watch, type Watched, Watches } from './watch.ts';

/** The store is late now and then: it is away without an answer for so long. */
const STORE_AWAY_MS = 1000;
/** Between two lines of the log that something begins. */
const LOGGED_EVERY_MS = 60_000;
/** So many times the usual median. That of a minute is half a minute late. */
const SLOW = 4;
const MEDIAN_LATE_MS = 30_000;
const MAX_ENDED = 50;
const ENDED_SHOWN_MS = 3_600_000;
/** These happen. The others of the gateway's own are states. */
const HAPPENINGS = new Set<IncidentKind>(['descriptors', 'memory', 'log_lines']);

/** What may have an incident: a provider, one of its models, or something of the gateway's own. */
type Subject = Pick<Watch, 'incident' | 'loggedAtMs'>;

export class Incidents {
  readonly #options;
  readonly watches: Watches;
  /** The gateway's own, by kind and provider. */
  readonly #own = new Map<string, Subject>();
  /** Begun since the start, by kind. */
  readonly counts = new Map<IncidentKind, number>();
  /** The latest first. */
  #ended: Incident[] = [];
  /** The median times to the first token before it became slow. */
  readonly #usualMs = new Map<string, number>();

  /**
   * `onTrouble` is called when something begins to fail: `advance` is to be called each second
   * until it returns false.
   */
  constructor(options: {
    /** The clock of all times, which never goes back; in milliseconds, as `date`. */
    readonly clock: Pick<Performance, 'now'>;
    /** The system's clock. */
    readonly date: Pick<DateConstructor, 'now'>;
    readonly logger: Logger;
    readonly circuits: () => readonly Pick<CircuitReport, 'provider' | 'model' | 'state'>[];
    readonly onTrouble: () => void;
  }) {
    this.#options = options;
    this.watches = new Watches(options.clock);
  }

  /**
   * Watches these providers, and no others. A provider whose settings have changed is another one,
   * without incidents.
   */
  watch(all: Iterable<Watched>): void {
    const { providers } = this.watches;
    const former = new Map(providers);
    providers.clear();
    for (const { id, digest } of all) {
      const before = former.get(id);
      const isSame = before?.digest === digest;
      providers.set(id, isSame ? before : new ProviderWatch(digest));
      if (isSame) former.delete(id);
    }
    for (const [id, watch] of former) {
      for (const one of [watch, ...watch.models.values()]) this.#end(one);
      for (const [name, one] of this.#own) if (name.endsWith(` ${id}`)) this.#end(one);
      this.#usualMs.delete(id);
    }
  }

  /** Counts a try that has failed; of a stream, also one that was counted as good when it began. */
  recordFailure(attempt: Attempt, failure: GatewayError): void {
    const { provider: id, digest, model, key, hasAnswer, endedAtMs } = attempt;
    const watch = this.watches.of({ id, digest });
    if (ownKindOf(failure) === 'descriptors') this.set('descriptors', causeOf(failure));
    if (!watch || failure.scope === 'client' || failure.scope === 'gateway') return;
    const nowMs = this.#options.clock.now();
    const step = stepOf(nowMs);
    const own = watch.watchOf(model, step);
    const { retryAfterSeconds: seconds } = failure.details;
    const cause = {
      text: causeOf(failure),
      key: key === undefined ? undefined : key + 1,
      until: seconds === undefined ? undefined : this.#moment(nowMs + 1000 * seconds).timeOfDay,
    };
    for (const one of own ? [watch, own] : [watch]) {
      one.addFailure(nowMs, hasAnswer ? endedAtMs : undefined);
      one.incident ??= new Incident(this.#moment(nowMs), id, one.model);
      one.incident.addFailure(nowMs, kindOf(failure, hasAnswer), cause);
      if (!isWell(one, step)) one.incident.goodSinceMs = undefined;
    }
    this.#startTrouble();
  }

  /** Counts a request that has ended: whom an incident hits. */
  recordRequest(history: RequestHistory, outcome: Outcome): void {
    const { failure } = history;
    if (failure?.details.limit === 'memory') this.set('memory', 'max_buffered_bytes');
    if (!this.watches.isTroubled) return;
    const own = failure && ownKindOf(failure);
    if (own) this.#own.get(`${own} `)?.incident?.addRequest(history, outcome);
    for (const { incident } of this.#all()) incident?.addRequest(history, outcome);
  }

  /**
   * Tells of something that has happened, or of a state that is wrong since `lateMs` before now;
   * without a text it is right again since then. Of a `provider` that is not watched with these
   * settings any more nothing is told. `failures` is 0 if the state is only seen again.
   */
  set(
    kind: IncidentKind,
    text: string | undefined,
    provider?: Watched,
    { lateMs = 0, failures = 1 } = {},
  ): void {
    if (provider && !this.watches.of(provider)) return;
    const name = `${kind} ${provider?.id ?? ''}`;
    const own = this.#own.get(name) ?? { incident: undefined, loggedAtMs: -Infinity };
    const nowMs = this.#options.clock.now();
    if (text === undefined) return this.#end(own, nowMs - lateMs);
    this.#own.set(name, own);
    own.incident ??= new Incident(this.#moment(nowMs - lateMs), provider?.id);
    own.incident.addFailure(nowMs, kind, { text }, failures);
    this.#startTrouble();
  }

  /**
   * Takes a provider's median times to the first token: of the last minute, and of the quarter hour
   * before.
   */
  judgeSlow(
    provider: string,
    { newestMs = 0, formerMs }: Readonly<Record<'newestMs' | 'formerMs', number | undefined>>,
  ): void {
    const known = this.#usualMs.get(provider);
    const usualMs = Math.max(1, known ?? formerMs ?? Infinity);
    const isSlow = newestMs >= usualMs * (known ? SLOW / 2 : SLOW);
    if (isSlow) this.#usualMs.set(provider, usualMs);
    else this.#usualMs.delete(provider);
    const text = isSlow ? `first token after ${newestMs} ms, ${usualMs} ms before` : undefined;
    const digest = this.watches.providers.get(provider)?.digest ?? '';
    this.set('slow', text, { id: provider, digest }, { lateMs: MEDIAN_LATE_MS, failures: 0 });
  }

  /**
   * Decides what has begun and what has ended. Returns false if there is nothing that could change
   * by itself.
   */
  advance(): boolean {
    const nowMs = this.#options.clock.now();
    // One that is half-open keeps nobody away, and may never be asked again.
    const all = this.watches.isTroubled ? this.#options.circuits() : [];
    const circuits = all.filter(({ state }) => state === 'open');
    for (const [id, provider] of this.watches.providers) {
      const open = circuits.filter((one) => one.provider === id);
      this.#judge(provider, nowMs, open);
    }
    for (const own of this.#own.values()) {
      const { incident } = own;
      if (!incident) continue;
      const isEarly = incident.kind === 'store' && nowMs - incident.sinceMs < STORE_AWAY_MS;
      if (!isEarly && !this.#isExplained(incident)) this.#tell(incident);
      const isQuiet = nowMs - incident.lastMs >= QUIET_MS;
      if (isQuiet && HAPPENINGS.has(incident.kind)) this.#end(own, incident.lastMs);
    }
    const subjects = [...this.#all(), ...this.#own.values()];
    for (const one of subjects) this.#log(one, nowMs);
    this.watches.isTroubled = subjects.some(({ incident }) => incident);
    return this.watches.isTroubled;
  }

  /** Returns those that last, the latest first, and those that have ended in the last hour. */
  report(): { readonly lasting: readonly Incident[]; readonly ended: readonly Incident[] } {
    this.advance();
    const fromMs = this.#options.clock.now() - ENDED_SHOWN_MS;
    const own = [...this.#own.values()].filter(({ incident }) => !this.#isExplained(incident));
    const subjects = [...this.#all(), ...own];
    const lasting = subjects.flatMap(({ incident }) => (incident?.isTold ? incident : []));
    return { lasting, ended: this.#ended.filter(({ endedMs = 0 }) => endedMs > fromMs) };
  }

  /** A provider that fails has no list of models, and is slow: that is not told beside it. */
  #isExplained(own: Incident | undefined): boolean {
    return this.watches.providers.get(own?.provider ?? '')?.incident?.isTold ?? false;
  }

  *#all(): Generator<Watch> {
    for (const watch of this.watches.providers.values()) {
      yield watch;
      yield* watch.models.values();
    }
  }

  /**
   * Takes a time of `clock.now()`. The time of day is computed once, so that a later step of the
   * system's clock changes nothing.
   */
  #moment(ms: number): Moment {
    const { clock, date } = this.#options;
    return { ms, timeOfDay: new Date(date.now() + ms - clock.now()).toISOString() };
  }

  #startTrouble(): void {
    if (this.watches.isTroubled) return;
    this.watches.isTroubled = true;
    this.#options.onTrouble();
  }

  /** Tells of what has begun at a provider and its models, and ends what is over. */
  #judge(provider: ProviderWatch, nowMs: number, open: OpenCircuits): void {
    const all = [provider, ...provider.models.values()];
    for (const one of all) {
      if (one.incident && isOver(one, nowMs, open))
        this.#end(one, one.incident.goodSinceMs ?? one.incident.lastMs);
    }
    const watches = all.filter(({ incident }) => incident);
    const told = failingOf(provider, stepOf(nowMs), open);
    if (told.length === 0) return;
    const isWhole = told.includes(provider);
    // What was told of models goes on as that of the provider, or that as one of a model: a line
    // goes on once.
    const isReplaced = (one: Watch) => (one === provider) !== isWhole;
    let isLogged = watches.some((one) => one.incident!.isLogged && isReplaced(one));
    for (const one of watches) {
      const incident = one.incident!;
      if (told.includes(one)) {
        if (!incident.isLogged) [incident.isLogged, isLogged] = [isLogged, false];
        this.#tell(incident);
      } else if (isReplaced(one)) incident.isTold = incident.isLogged = false;
    }
  }

  #tell(incident: Incident): void {
    if (incident.isTold) return;
    incident.isTold = true;
    const { isLogged, kind } = incident;
    if (!isLogged) this.counts.set(kind, (this.counts.get(kind) ?? 0) + 1);
  }

  #log(subject: Subject, nowMs: number): void {
    const { incident } = subject;
    const isDue = nowMs - subject.loggedAtMs >= LOGGED_EVERY_MS;
    // A line that says that lines are lost would be.
    if (!incident?.isTold || incident.isLogged || incident.kind === 'log_lines' || !isDue) return;
    incident.isLogged = true;
    subject.loggedAtMs = nowMs;
    this.#options.logger.log('warn', 'incident', incident.toFacts());
  }

  #end(subject: Subject, endedMs = this.#options.clock.now()): void {
    const { incident } = subject;
    subject.incident = undefined;
    if (!incident?.isTold) return;
    incident.end(this.#moment(endedMs));
    this.#ended = [incident, ...this.#ended].slice(0, MAX_ENDED);
    if (incident.isLogged) this.#options.logger.log('info', 'incident ended', incident.toFacts());
  }
}
