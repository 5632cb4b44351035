/** One incident: what is wrong, since when, and whom it hits. */

import { type RequestHistory, MAX_NAME_CHARACTERS } from '../request/history.ts';
import type { GatewayError, Outcome } from '../lib/errors.ts';

/** What is wrong at a provider or with one of its models; then the gateway's own. */
export const INCIDENT_KINDS = [
  ...(['unreachable', 'key_refused', 'rate_limited', 'errors', 'timeout'] as const),
  ...(['stall', 'cut', 'nonsense', 'slow', 'model_list'] as const),
  ...(['descriptors', 'memory', 'log_lines', 'store', 'reload'] as const),
];
export type IncidentKind = (typeof INCIDENT_KINDS)[number];

/** Names and clients that are counted, and those that are told, of one incident. */
const MAX_COUNTED = 100;
const MAX_TOLD = 10;
/** In the place of the model's name, of requests that were refused before their body was read. */
const UNREAD = '(body not read)';
/** `ECONNREFUSED: connect ECONNREFUSED 10.0.4.21:8000`, which says the code twice. */
const CODE_TWICE = /^(\w+): \w+ (?=\1)/;

interface Cause {
  readonly text: string | undefined;
  /** The position of the provider's key, from 1. */
  readonly key?: number | undefined;
  /** The end of a provider's limit, as a time of day. */
  readonly until?: string | undefined;
}

/** The requests by one name that an incident has hit. */
interface Hit {
  failed: number;
  /** Answered by what fails, since the first that failed. */
  good: number;
  /** Answered by another provider, the latest of which is `by`. */
  answered: number;
  by: string | undefined;
  readonly clients: Set<string>;
}

/**
 * A moment: on the clock of `performance.now()`, and as the system's clock called it when the
 * moment was noted.
 */
export interface Moment {
  readonly ms: number;
  readonly timeOfDay: string;
}

/** Times in milliseconds are on the clock of `performance.now()`. */
export class Incident {
  readonly provider: string | undefined;
  readonly model: string | undefined;
  /** The first failure. */
  readonly sinceMs: number;
  /** The latest failure. */
  lastMs: number;
  /** The first good try after the failures. */
  goodSinceMs: number | undefined;
  endedMs: number | undefined;
  readonly #since: string;
  #ended: string | undefined;
  /** It is one: until then there are only some failures that may become one. */
  isTold = false;
  isLogged = false;
  failures = 0;
  readonly #causes = new Map<IncidentKind, Cause & { count: number }>();
  readonly #hits = new Map<string, Hit>();

  constructor({ ms, timeOfDay }: Moment, provider?: string, model?: string) {
    this.sinceMs = ms;
    this.lastMs = ms;
    this.#since = timeOfDay;
    this.provider = provider;
    this.model = model;
  }

  /** What most failures say. */
  get kind(): IncidentKind {
    return [...this.#causes].toSorted(([, a], [, b]) => b.count - a.count)[0]![0];
  }

  /** `failures` is 0 for a cause that is only seen again. */
  addFailure(nowMs: number, kind: IncidentKind, cause: Cause, failures = 1): void {
    this.lastMs = nowMs;
    this.failures += failures;
    const count = (this.#causes.get(kind)?.count ?? 0) + failures;
    this.#causes.set(kind, { ...cause, count });
  }

  addGood(nowMs: number): void {
    this.goodSinceMs ??= nowMs;
  }

  end({ ms, timeOfDay }: Moment): void {
    this.endedMs = ms;
    this.#ended = timeOfDay;
  }

  /** Counts a request that has ended, if one of its attempts was about this, made or skipped. */
  addRequest({ attempt, attempts, client, model }: RequestHistory, outcome: Outcome): void {
    const isAbout = (one: (typeof attempts)[number]) =>
      one.provider === this.provider && (this.model ?? one.model) === one.model;
    const isOwn = this.provider === undefined;
    if (!isOwn && !attempts.some(isAbout)) return;
    const name = model ?? UNREAD;
    let hit = this.#hits.get(name);
    if (outcome === 'ok' && isAbout(attempt!)) {
      if (hit) hit.good += 1;
      return;
    }
    const isFailed = isOwn || FAILED.has(outcome);
    if (!isFailed && outcome !== 'ok') return;
    if (!hit) {
      if (this.#hits.size === MAX_COUNTED) return;
      hit = { failed: 0, good: 0, answered: 0, by: undefined, clients: new Set() };
      this.#hits.set(name, hit);
    }
    if (isFailed) hit.failed += 1;
    else {
      hit.answered += 1;
      hit.by = attempt!.provider;
    }
    if (client !== undefined && hit.clients.size < MAX_COUNTED) hit.clients.add(client);
  }

  /** Returns the fields of the log, which the page shows too. */
  toFacts() {
    const { kind } = this;
    const { text, key, until } = this.#causes.get(kind)!;
    const hits = [...this.#hits].toSorted(
      ([, a], [, b]) => b.failed - a.failed || b.answered - a.answered,
    );
    return {
      kind,
      provider: this.provider,
      model: this.model?.slice(0, MAX_NAME_CHARACTERS),
      since: this.#since,
      ended: this.#ended,
      cause: text?.replace(CODE_TWICE, ''),
      key,
      until,
      failures: this.failures || undefined,
      hit: hits.slice(0, MAX_TOLD).map(([name, { clients, good, ...hit }]) => {
        // What is over has answered for a while before that was known, and what is the gateway's
        // own is not asked.
        const isKnown = this.endedMs === undefined && this.provider !== undefined;
        return { name, ...hit, good: isKnown ? good : undefined, clients: listOf([...clients]) };
      }),
      more: hits.length > MAX_TOLD ? hits.length - MAX_TOLD : undefined,
    };
  }
}

const FAILED: ReadonlySet<Outcome> = new Set(['upstream_error', 'timeout', 'rate_limited']);

function listOf(names: readonly string[]): string | undefined {
  const more = names.length > MAX_TOLD ? ` and ${names.length - MAX_TOLD} more` : '';
  return names.slice(0, MAX_TOLD).join(', ') + more || undefined;
}

/**
 * Returns what a failure of a provider is about; `hasBegun` if it has broken the stream of an
 * answer.
 */
export function kindOf({ details, kind, scope }: GatewayError, hasBegun: boolean): IncidentKind {
  const { problem, upstreamStatus: status } = details;
  if (scope === 'provider') return 'unreachable';
  if (status === 401 || status === 403) return 'key_refused';
  if (status !== undefined) return status === 429 ? 'rate_limited' : 'errors';
  if (kind === 'timeout') return hasBegun ? 'stall' : 'timeout';
  return problem === 'cut' ? 'cut' : 'nonsense';
}
