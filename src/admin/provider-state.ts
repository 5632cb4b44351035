/** The state of each provider, for the page and for readiness: its circuits, and its failures in a row. */

import type { Config } from '../config/config.ts';
import type { FinishedRequest, TryFacts } from '../lib/request-facts.ts';
import type { CircuitReport } from '../policy/circuit-breaker.ts';
import type { Figures } from './figures.ts';
import { isFailed, isSent, type RequestMetrics } from './metrics.ts';
import { countTries, describeUsage, providerUsage } from './totals.ts';

/** In a row, until a provider counts as failing. The breaker's number, but it only works with a fallback. */
const FAILURES_TO_SHOW = 3;
/** The provider works, and the request is at fault. */
const REQUEST_STATUSES: ReadonlySet<number | undefined> = new Set([400, 413, 422]);

interface Failures {
  lastError: { readonly at: string; readonly text: string } | null;
  /** Since the last success, the first of them at `since`. */
  inRow: number;
  since: string;
}

/** The last failures of each provider, as many as the settings have named. */
export class ProviderFailures {
  readonly #failures = new Map<string, Failures>();

  /** Records the tries of a finished request. */
  record({ facts, endedAtMs }: FinishedRequest): void {
    for (const one of facts.tries ?? []) {
      const known = this.of(one.provider);
      this.#failures.set(one.provider, known);
      addTry(known, one, new Date(endedAtMs).toISOString());
    }
  }

  of(provider: string): Failures {
    return this.#failures.get(provider) ?? { lastError: null, inRow: 0, since: '' };
  }
}

function addTry(known: Failures, { outcome, status, cause }: TryFacts, at: string): void {
  if (!isSent(outcome)) return;
  if (outcome === 'ok') known.inRow = 0;
  if (outcome === 'ok' || outcome === 'client_closed') return;
  const text = [status, cause].filter((part) => part !== undefined).join(' ');
  known.lastError = { at, text: text || outcome };
  if (!isFailed(outcome) || REQUEST_STATUSES.has(status)) return;
  if (known.inRow === 0) known.since = at;
  known.inRow += 1;
}

export interface ProviderSources {
  /** The settings in use; a reload replaces them. */
  readonly config: () => Config;
  readonly figures: Figures;
  readonly metrics: RequestMetrics;
  readonly failures: ProviderFailures;
}

/** Returns the rows of the page: registered providers, and those of the settings without a key. */
export function describeProviders({ config, figures, metrics, failures }: ProviderSources) {
  const circuits = figures.circuits();
  const tries = countTries(metrics);
  const usage = providerUsage(metrics);
  const { registered, skipped } = config().providers;
  const countsOf = (id: string) => ({
    ...(tries.get(id) ?? { requests: 0, errors: {} }),
    ...describeUsage(usage.get(id)),
    lastError: failures.of(id).lastError,
  });
  return [
    ...registered.map(({ id }) => {
      const own = circuits.filter(({ provider }) => provider === id);
      return { id, ...describeState(own, failures.of(id)), ...countsOf(id) };
    }),
    // Built-in providers without a key are of interest only if the settings name them.
    ...skipped
      .filter(({ isConfigured }) => isConfigured)
      .map(({ id, reason }) => {
        const state = { state: 'skipped', why: reason, since: null, restsUntil: null, resting: [] };
        return { id, ...state, ...countsOf(id) };
      }),
  ];
}

/** Returns the state by the provider's circuits that are not closed, else by its failures. */
function describeState(circuits: readonly CircuitReport[], failures: Failures) {
  const own = circuits.find(({ model }) => model === undefined);
  const resting = circuits
    .filter(({ state }) => state === 'open')
    .map((circuit) => ({
      model: circuit.model ?? null,
      until: wallClock(circuit.restsUntilMs),
      why: circuit.cause ?? '',
    }));
  if (own) {
    const [state, restsUntil] =
      own.state === 'open' ? ['resting', wallClock(own.restsUntilMs)] : ['half-open', null];
    return { state, why: own.cause ?? null, since: null, restsUntil, resting };
  }
  // Without a fallback there is no breaker, and with one it does not open for each failure.
  const isFailing = failures.inRow >= FAILURES_TO_SHOW;
  const why = isFailing ? failures.lastError?.text : null;
  const since = isFailing ? failures.since : null;
  return { state: isFailing ? 'failing' : 'good', why, since, restsUntil: null, resting };
}

/** Takes a time on the clock of `performance.now()`. */
function wallClock(ms: number): string {
  return new Date(Date.now() + ms - performance.now()).toISOString();
}

/** Returns `ready` if the public port takes requests and some provider may get them, else what is missing. */
export function readinessOf({ providers }: Config, figures: Figures): string {
  if (figures.isDraining()) return 'draining';
  if (!figures.isServing()) return 'no worker';
  if (providers.registered.length === 0) return 'no provider';
  const open = figures.circuits().filter(({ model, state }) => {
    return model === undefined && state === 'open';
  });
  const isResting = (id: string) => open.some(({ provider }) => provider === id);
  return providers.registered.every(({ id }) => isResting(id)) ? 'all providers rest' : 'ready';
}
