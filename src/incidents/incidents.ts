/**
 * Tracks the incidents of providers and the gateway. Other parts report failures and states, and
 * `advance` decides once a second which incidents begin and end. The rules are in
 * docs/incidents.md.
 */

import type { GatewayError, Outcome } from '../lib/errors.ts';
import { LIMITS } from '../lib/limits.ts';
import { type CircuitBreaker, MAX_MODEL_CHARACTERS } from '../policy/circuit-breaker.ts';
import { causeOf } from '../request/cause.ts';
import { gatewayKindOf, type IncidentKind, providerKindOf } from '../request/incident-kind.ts';
import type { RequestHistory, Attempt } from '../request/history.ts';
import { INCIDENT_OUTCOMES } from './affected-requests.ts';
import { Fault, Incident, moment } from './incident.ts';
import { type CountingLogger, IncidentLog } from './incident-log.ts';
import { Tries } from './tries.ts';

/** The store counts as away after this time without an answer, because an answer may be late. */
const STORE_AWAY_MS = 1000;
/** The least time between two searches for the client with the most memory. */
const HOLDER_FOUND_EVERY_MS = 1000;
/** If `Date.now()` jumps by more than this against `performance.now()`, its clock was set. */
const CLOCK_STEP_MS = 60_000;
/** Kinds with repeated events. Such a fault ends after `QUIET_MS` without an event. */
const HAPPENINGS: ReadonlySet<IncidentKind> = new Set([
  'descriptors',
  'memory',
  'log_lines',
  'clock',
]);
/** States that are reported even if they are good at the start. */
const REPORTED: ReadonlySet<IncidentKind> = new Set(['model_list', 'store']);
const QUIET_MS = 45_000;
/** A request that waited this long for a name lookup was answered slowly. */
const LOOKUP_AWAITED_MS = 500;
/** A failing model without an attempt for this time is forgotten. */
const FORGOTTEN_MS = 900_000;
/**
 * Clients choose model names, so models beyond these limits are counted together as `OTHER_MODELS`.
 */
const MAX_MODELS = 200;
const OTHER_MODELS = '(other models)';
const MAX_ENDED = 50;
const ENDED_SHOWN_MS = 3_600_000;
const FAILURE_KEPT_MS = 60_000;

const clockZeroMs = () => Date.now() - performance.now();

/** The tries at a provider for streams, or for complete answers. */
class AnswerTries {
  readonly isStream: boolean;
  readonly tries = new Tries();
  readonly models = new Map<string, Tries>();
  /** True once the tries of a model were dropped, which may have succeeded. */
  hasDropped = false;

  constructor(isStream: boolean) {
    this.isStream = isStream;
  }

  /** Returns the tries that count the model; undefined before its first. */
  find(model: string): Tries | undefined {
    return this.models.get(model) ?? this.models.get(OTHER_MODELS);
  }

  /** As `find`, but begins to count the model. */
  triesOf(model: string, nowMs: number): Tries {
    const known = this.models.get(model);
    if (known) return known;
    if (this.models.size >= MAX_MODELS) {
      for (const [name, tries] of this.models) {
        if (!tries.fault && !tries.isAsked(nowMs)) {
          this.models.delete(name);
          this.hasDropped = true;
        }
      }
    }
    const isCounted = this.models.size < MAX_MODELS && model.length <= MAX_MODEL_CHARACTERS;
    const name = isCounted ? model : OTHER_MODELS;
    const tries = this.models.get(name) ?? new Tries({ name, isStream: this.isStream });
    this.models.set(name, tries);
    return tries;
  }
}

/**
 * A provider, or the gateway for a single kind of incident. A provider's streams and complete
 * answers are counted apart, because a server can stall in streams and still complete answers.
 */
export class Subject {
  /** The provider's id; undefined for the gateway. */
  readonly provider: string | undefined;
  readonly breaker: Pick<CircuitBreaker, 'report'> | undefined;
  /** All tries at the provider. */
  readonly tries = new Tries();
  /** Streams come first: of equally many failures, the incident has the kind of the streams'. */
  readonly answerTries = [new AnswerTries(true), new AnswerTries(false)] as const;
  readonly states = new Map<IncidentKind, Fault>();
  incident: Incident | undefined;
  /**
   * From how many milliseconds on the times of an attempt are slow, while the provider is slow;
   * without a time it is not slow by that.
   */
  slowFrom: { readonly connect?: number; readonly first_token?: number } = {};
  /** True once a reload has removed or replaced the provider. Nothing is counted from then on. */
  isDisposed = false;
  /** Whether it is as at the gateway's start. A reload makes providers with other settings. */
  readonly #isOfStart: boolean;
  /** The states that were good once. */
  readonly #wereGood = new Set<IncidentKind>();

  constructor(provider?: string, breaker?: Pick<CircuitBreaker, 'report'>, isOfStart = true) {
    this.provider = provider;
    this.breaker = breaker;
    this.#isOfStart = isOfStart;
  }

  /** Returns whether all tries of a model have failed since the gateway's start. */
  hasAlwaysFailed({ hasDropped }: AnswerTries, { goods }: Tries): boolean {
    return this.#isOfStart && !hasDropped && goods === 0;
  }

  /** Notes that a state is good, which ends its fault. */
  endState(kind: IncidentKind, lateMs: number): void {
    const fault = this.states.get(kind);
    if (fault) fault.ended = moment(lateMs);
    this.states.delete(kind);
    this.#wereGood.add(kind);
  }

  /** Returns whether a state has been bad since the gateway's start. */
  wasNeverGood(kind: IncidentKind): boolean {
    return this.#isOfStart && REPORTED.has(kind) && !this.#wereGood.has(kind);
  }

  answerTriesOf({ isStream }: Pick<Attempt, 'isStream'>): AnswerTries {
    return this.answerTries[isStream ? 0 : 1];
  }

  get modelTries(): Tries[] {
    return this.answerTries.flatMap(({ models }) => [...models.values()]);
  }
}

/** Returns false for the subject of a provider that a reload has removed or replaced. */
function mayCount(one: object): one is Subject {
  return one instanceof Subject && !one.isDisposed;
}

/** Returns the state that has slowed an attempt at its provider; undefined without such a state. */
function slownessOf(attempt: Attempt, { slowFrom, states }: Subject) {
  const { beganAtMs, connection, decidedAtMs = beganAtMs, lookupMs = 0, sentAtMs } = attempt;
  const { connect = Infinity, first_token: firstToken = Infinity } = slowFrom;
  const ownMs = decidedAtMs - beganAtMs - lookupMs;
  const connectMs = connection === 'new' ? sentAtMs! - beganAtMs - lookupMs : 0;
  const isSlow = ownMs >= firstToken || connectMs >= connect;
  if (states.has('slow') && isSlow) return 'slow';
  const isAwaited = lookupMs >= LOOKUP_AWAITED_MS;
  return states.has('lookup_slow') && isAwaited ? 'lookup_slow' : undefined;
}

/**
 * Returns whether a request failed for a reason of the gateway's own that is no incident: a bug, or
 * a limit of the gateway that is not the client's.
 */
function isOwnFailure({ attempts, failure }: RequestHistory, outcome: Outcome): boolean {
  if (!failure || gatewayKindOf(failure)) return false;
  if (outcome === 'internal_error') return true;
  const { limit } = failure.details;
  const isOfClient = limit !== undefined && LIMITS[limit].of === 'client';
  // An open circuit is a provider's incident.
  const isOfProvider = attempts.some((one) => one.failure || one.outcome === 'circuit_open');
  return INCIDENT_OUTCOMES.has(outcome) && !isOfClient && !isOfProvider;
}

export class Incidents {
  readonly #options;
  readonly #log: IncidentLog;
  /** The subjects with an incident that lasts or may begin. */
  readonly #troubled = new Set<Subject>();
  readonly #gateway = new Map<IncidentKind, Subject>();
  /** Incidents begun since the start, by kind. */
  readonly counts = new Map<IncidentKind, number>();
  /** Ended incidents, the latest first. */
  #ended: Incident[] = [];
  /** `Date.now()` minus `performance.now()` at the last check. It jumps if the clock is set. */
  #clockZeroMs = clockZeroMs();
  /**
   * When a try at each provider last failed; under `undefined` the latest own failure that is no
   * incident. `dispose` removes what is older than a minute, so the settings bound it.
   */
  readonly #failedAtMs = new Map<string | undefined, number>();
  /** The client with the most memory in words. */
  #holder: string | undefined;
  #holderFoundAtMs = -Infinity;

  /**
   * @param options - `onTrouble` is called when a failure or a state may begin an incident. From
   * then on `advance` must be called each second until it returns false. `findMemoryHolder` is
   * called while memory is too short for requests, once a second at most.
   */
  constructor(options: {
    readonly logger: CountingLogger;
    readonly findMemoryHolder: () => string | undefined;
    readonly onTrouble: () => void;
  }) {
    this.#options = options;
    this.#log = new IncidentLog(options.logger);
  }

  /** True while an incident lasts or may begin, so that finished requests may be affected. */
  get isTroubled(): boolean {
    return this.#troubled.size > 0;
  }

  /** Ends the incident of a provider that a reload has removed or replaced. */
  dispose(subject: Subject): void {
    subject.isDisposed = true;
    const faults = [...subject.modelTries.map(({ fault }) => fault), ...subject.states.values()];
    for (const fault of faults) if (fault) fault.ended = moment();
    this.#settle(subject);
    this.#troubled.delete(subject);
    const fromAtMs = performance.now() - FAILURE_KEPT_MS;
    for (const [id, atMs] of this.#failedAtMs) if (atMs < fromAtMs) this.#failedAtMs.delete(id);
  }

  /** Counts an attempt whose answer was sent, or whose stream has begun. */
  addGood(attempt: Attempt): void {
    const goodAtMs = attempt.decidedAtMs!;
    const { subject } = attempt;
    if (!mayCount(subject)) return;
    const answers = subject.answerTriesOf(attempt);
    subject.tries.addGood(goodAtMs);
    answers.tries.addGood(goodAtMs);
    answers.triesOf(attempt.model, goodAtMs).addGood(goodAtMs);
    if (subject.incident) subject.incident.goodSince ??= moment();
  }

  /** Counts a failed attempt. A broken stream was counted as a success when it began. */
  recordFailure(attempt: Attempt, failure: GatewayError): void {
    const { hasAnswer, key, subject } = attempt;
    const text = causeOf(failure);
    if (gatewayKindOf(failure) === 'descriptors') this.reportState('descriptors', text);
    const kind = providerKindOf(failure, hasAnswer);
    if (!kind) return;
    const nowMs = performance.now();
    this.#failedAtMs.set(attempt.provider, nowMs);
    if (!mayCount(subject)) return;
    const goodAtMs = hasAnswer ? attempt.decidedAtMs : undefined;
    const answers = subject.answerTriesOf(attempt);
    const tries = answers.triesOf(attempt.model, nowMs);
    for (const counted of [subject.tries, answers.tries, tries])
      counted.addFailure(nowMs, goodAtMs);
    const { retryAfterSeconds: seconds, silentMs = 0, upstreamStatus: status } = failure.details;
    // A provider that does not answer was silent long before a time limit passes.
    const lateMs = hasAnswer ? silentMs : nowMs - attempt.beganAtMs;
    const fault = (tries.fault ??= new Fault(tries.model, lateMs));
    fault.goodSince = undefined;
    const untilTime = seconds === undefined ? undefined : Date.now() + 1000 * seconds;
    const hasStatus = kind === 'errors' || kind === 'key_refused';
    const isTold = !hasStatus || status === undefined || text.startsWith(String(status));
    const cause = isTold ? text : `${status}: ${text}`;
    fault.isFromStart = subject.hasAlwaysFailed(answers, tries);
    fault.add(kind, { text: cause, key: key === undefined ? undefined : key + 1, untilTime });
    this.#startTrouble(subject);
    subject.incident!.goodSince = undefined;
  }

  recordRequest(history: RequestHistory, outcome: Outcome): void {
    const kind = history.failure && gatewayKindOf(history.failure);
    if (kind === 'memory') this.#recordNoMemory();
    if (isOwnFailure(history, outcome)) this.#failedAtMs.set(undefined, performance.now());
    if (!this.isTroubled) return;
    if (kind) this.#gateway.get(kind)?.incident?.requests.add(history, outcome);
    for (const subject of this.#troubled) {
      const incident = subject.incident!;
      const faultOf = (attempt: Attempt) =>
        attempt.subject === subject
          ? subject.answerTriesOf(attempt).find(attempt.model)?.fault
          : undefined;
      const met = history.attempts.flatMap((attempt) => faultOf(attempt) ?? []);
      const { attempt } = history;
      const slow = attempt?.subject === subject && slownessOf(attempt, subject);
      if (met.length === 0 && slow && outcome === 'ok') incident.requests.addSlow(history, slow);
      if (met.length === 0) continue;
      const faults = met.toSorted((a, b) => Number(incident.has(b)) - Number(incident.has(a)));
      const isByFaulty = history.attempt !== undefined && faultOf(history.attempt) !== undefined;
      incident.requests.add(history, outcome, { faults, isByFaulty });
    }
  }

  /** Reports a refusal because memory is short, and names the client with the most of it. */
  #recordNoMemory(): void {
    const nowMs = performance.now();
    if (nowMs - this.#holderFoundAtMs >= HOLDER_FOUND_EVERY_MS) {
      this.#holder = this.#options.findMemoryHolder();
      this.#holderFoundAtMs = nowMs;
    }
    this.reportState('memory', this.memoryState);
  }

  /** The limit of memory, and who held most of it at the latest refusal. */
  get memoryState(): string {
    return this.#holder ? `max_buffered_bytes: ${this.#holder}` : 'max_buffered_bytes';
  }

  /**
   * Reports a bad state of the gateway or a provider, or an event. Without a `cause` the state is
   * good again. The report is late by `lateMs`.
   */
  reportState(
    kind: IncidentKind,
    cause: string | undefined,
    subject = this.#subjectOf(kind),
    lateMs = 0,
  ): void {
    if (subject.isDisposed) return;
    const { states } = subject;
    if (cause === undefined) return subject.endState(kind, lateMs);
    const fault = states.get(kind) ?? new Fault(undefined, lateMs);
    fault.isFromStart = subject.wasNeverGood(kind);
    fault.add(kind, { text: cause });
    states.set(kind, fault);
    this.#startTrouble(subject);
  }

  /** Reports a jump of the system's clock since the last call. */
  checkClock(): void {
    const zeroMs = clockZeroMs();
    const stepMs = zeroMs - this.#clockZeroMs;
    this.#clockZeroMs = zeroMs;
    if (Math.abs(stepMs) <= CLOCK_STEP_MS) return;
    const seconds = Math.round(Math.abs(stepMs) / 1000);
    this.reportState('clock', `set ${seconds} s ${stepMs > 0 ? 'ahead' : 'back'}`);
  }

  /**
   * Decides which incidents begin and end. Returns false if no incident lasts or may begin, and
   * the log's lines about ended ones are not repeated any more.
   */
  advance(): boolean {
    for (const subject of this.#troubled) {
      this.#judgeModels(subject);
      this.#judgeStates(subject);
      this.#settle(subject);
    }
    const isRepeating = this.#log.repeatEnds();
    return this.isTroubled || isRepeating;
  }

  /**
   * Returns the lasting incidents, the incidents ended in the last hour, the providers with
   * failures that may yet become an incident, and the times of the latest failures.
   */
  report() {
    const fromAtMs = performance.now() - ENDED_SHOWN_MS;
    const incidents = [...this.#troubled].map(({ incident }) => incident!);
    const suspected = incidents.filter(({ isConfirmed }) => !isConfirmed);
    return {
      lasting: incidents.filter(({ isConfirmed }) => isConfirmed),
      ended: this.#ended.filter(({ ended }) => ended!.atMs > fromAtMs),
      suspected: new Set(suspected.flatMap(({ provider }) => provider ?? [])),
      failedAtMs: this.#failedAtMs as ReadonlyMap<string | undefined, number>,
    };
  }

  #subjectOf(kind: IncidentKind): Subject {
    const subject = this.#gateway.get(kind) ?? new Subject();
    this.#gateway.set(kind, subject);
    return subject;
  }

  #startTrouble(subject: Subject): void {
    subject.incident ??= new Incident(subject.provider);
    const { isTroubled } = this;
    this.#troubled.add(subject);
    if (!isTroubled) this.#options.onTrouble();
  }

  /**
   * Ends the faults of models that work again, and adds the other models' faults to the incident.
   */
  #judgeModels({ answerTries, breaker, incident, modelTries, tries: allTries }: Subject): void {
    const nowMs = performance.now();
    // A half-open circuit keeps no request away, and may stay half-open for ever.
    const open = breaker?.report().filter(({ state }) => state === 'open') ?? [];
    for (const answers of answerTries) {
      for (const [name, tries] of answers.models) {
        const { fault } = tries;
        if (!fault) continue;
        // A circuit without a model is the provider's own.
        const isCircuitOpen = open.some(
          (circuit) =>
            (circuit.model ?? name) === name &&
            (circuit.isStream ?? answers.isStream) === answers.isStream,
        );
        const isRecovered = tries.isRecovered(nowMs) && !isCircuitOpen;
        if (isRecovered || nowMs - fault.last.atMs > FORGOTTEN_MS) {
          fault.ended = fault.goodSince ?? fault.last;
          tries.fault = undefined;
          incident!.forgetRequestsOf(fault);
        } else if (isCircuitOpen || tries.isFailing([allTries, answers.tries], nowMs))
          incident!.add(fault);
      }
    }
    const asked = modelTries.filter((tries) => tries.isAsked(nowMs));
    if (incident?.isConfirmed && asked.length > 0)
      incident.setHasAllModels(asked.every(({ fault }) => incident.has(fault)));
  }

  #judgeStates({ incident, states }: Subject): void {
    const nowMs = performance.now();
    for (const [kind, fault] of states) {
      if (HAPPENINGS.has(kind) && nowMs - fault.last.atMs >= QUIET_MS) {
        fault.ended = fault.last;
        states.delete(kind);
      } else if (kind !== 'store' || nowMs - fault.since.atMs >= STORE_AWAY_MS)
        incident!.add(fault);
    }
  }

  /**
   * Counts an incident once for each of its kinds, and logs it. The incident ends with its last
   * fault. A model with too few failures for a fault of this incident may begin a new incident.
   */
  #settle(subject: Subject): void {
    const { incident, modelTries, states } = subject;
    if (!incident) return;
    const hasFault = states.size > 0 || modelTries.some(({ fault }) => fault);
    const isOver = incident.isConfirmed && incident.ended !== undefined;
    if (!hasFault) {
      subject.incident = undefined;
      this.#troubled.delete(subject);
    } else if (isOver) subject.incident = new Incident(incident.provider);
    if (!incident.isConfirmed) return;
    const facts = incident.toFacts();
    if (isOver) {
      this.#ended = [incident, ...this.#ended].slice(0, MAX_ENDED);
      this.#log.tellEnd(subject, incident, facts);
      return;
    }
    const { kind } = facts;
    if (!incident.counted.has(kind)) this.counts.set(kind, (this.counts.get(kind) ?? 0) + 1);
    incident.counted.add(kind);
    this.#log.tell(subject, incident, facts);
  }
}
