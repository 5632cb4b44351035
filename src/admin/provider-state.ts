/** The state of each provider, for the page and for readiness: its circuits, and its failures in a row. */

import type { Config } from '../config/config.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import type { CircuitReport } from '../policy/circuit-breaker.ts';
import type { Figures } from './figures.ts';
import { isFailed, isSent, type RequestMetrics } from './metrics.ts';
import { providerTotals } from './totals.ts';

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
  add({ facts, endedAtMs }: FinishedRequest): void {
    const at = new Date(endedAtMs).toISOString();
    for (const { provider, outcome, status, cause } of facts.tries ?? []) {
      if (!isSent(outcome)) continue;
      const known = this.of(provider);
      this.#failures.set(provider, known);
      if (outcome === 'ok') known.inRow = 0;
      if (outcome === 'ok' || outcome === 'client_closed') continue;
      const text = [status, cause].filter((part) => part !== undefined).join(' ');
      known.lastError = { at, text: text || outcome };
      if (!isFailed(outcome) || REQUEST_STATUSES.has(status)) continue;
      if (known.inRow === 0) known.since = at;
      known.inRow += 1;
    }
  }

  of(provider: string): Failures {
    return this.#failures.get(provider) ?? { lastError: null, inRow: 0, since: '' };
  }
}

/** Returns the rows of the page: registered providers, and those of the settings without a key. */
export function describeProviders(
  { providers: { registered, skipped } }: Config,
  figures: Figures,
  metrics: RequestMetrics,
  failures: ProviderFailures,
) {
  const circuits = figures.circuits();
  const own = (id: string) => circuits.filter(({ provider }) => provider === id);
  const states = new Map<string, object>([
    ...registered.map(({ id }) => [id, describeState(own(id), failures.of(id))] as const),
    // Built-in providers without a key are of interest only if the settings name them.
    ...skipped
      .filter(({ isConfigured }) => isConfigured)
      .map(({ id, reason: why }) => [id, { ...GOOD, state: 'skipped', why }] as const),
  ]);
  return providerTotals(metrics, [...states.keys()]).flatMap((row) => {
    const state = states.get(row.id);
    return state ? { ...row, ...state, lastError: failures.of(row.id).lastError } : [];
  });
}

const GOOD = { state: 'good', why: null, since: null, openUntil: null, openModels: [] };

/** Returns the state by the provider's circuits that are not closed, else by its failures. */
function describeState(circuits: readonly CircuitReport[], failures: Failures) {
  const own = circuits.find(({ model }) => model === undefined);
  const openModels = circuits
    .filter(({ model, state }) => model !== undefined && state === 'open')
    .map(({ model, openUntilMs, cause: why }) => {
      return { model, until: wallClock(openUntilMs), why };
    });
  const row = { ...GOOD, openModels };
  const { state, cause: why = null, openUntilMs = 0 } = own ?? {};
  if (state === 'half-open') return { ...row, state, why };
  if (state) return { ...row, state: 'open', why, openUntil: wallClock(openUntilMs) };
  // Without a fallback there is no breaker, and with one it does not open for each failure.
  if (failures.inRow < FAILURES_TO_SHOW) return row;
  return { ...row, state: 'failing', why: failures.lastError?.text, since: failures.since };
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
  const circuits = figures.circuits();
  const open = circuits.filter(({ model, state }) => model === undefined && state === 'open');
  const isOpen = (id: string) => open.some(({ provider }) => provider === id);
  return providers.registered.every(({ id }) => isOpen(id)) ? 'all circuits open' : 'ready';
}
