/** The state of each provider, for the page and for readiness: its circuits, and its tries of the last minutes. */

import type { Config } from '../config/config.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import type { CircuitReport } from '../policy/circuit-breaker.ts';
import type { Figures } from './figures.ts';
import { isClientError, isFailed, isSent, type RequestMetrics } from './metrics.ts';
import { providerTotals } from './totals.ts';

/** The states look at the tries of so long, in steps. */
const WINDOW_STEPS = 30;
const STEP_MS = 10_000;
/** Fewer tries say nothing about a share. */
const MIN_TRIES = 5;
const MIN_FAILED_SHARE = 0.05;

interface Step {
  readonly number: number;
  tries: number;
  failed: number;
  /** Of those: the provider refused its key, or could not be connected to. */
  refused: number;
  unreachable: number;
}

interface Tries {
  lastError: { readonly at: string; readonly text: string } | null;
  /** The first failure since the last success. */
  since: string | null;
  /** Of the last five minutes, oldest first. */
  steps: Step[];
}

/** The tries of each provider in the last five minutes, and its last error. */
export class ProviderTries {
  readonly #tries = new Map<string, Tries>();

  /** Records the tries of a finished request. A try that fails by the client's mistake shows that the provider works. */
  add({ facts, endedAtMs }: FinishedRequest): void {
    const at = new Date(endedAtMs).toISOString();
    for (const { provider, outcome, status, cause } of facts.tries ?? []) {
      if (!isSent(outcome) || outcome === 'client_closed') continue;
      const known = this.of(provider, endedAtMs);
      this.#tries.set(provider, known);
      const step = known.steps.at(-1)!;
      step.tries += 1;
      if (outcome === 'ok') known.since = null;
      else {
        const text = [status, cause].filter((part) => part !== undefined).join(' ');
        known.lastError = { at, text: text || outcome };
      }
      if (outcome === 'ok' || !isFailed(outcome) || isClientError(status)) continue;
      known.since ??= at;
      step.failed += 1;
      if (status === 401 || status === 403) step.refused += 1;
      if (status === undefined && outcome === 'upstream_error') step.unreachable += 1;
    }
  }

  /** Returns what is known of a provider at a time in milliseconds since the epoch. */
  of(provider: string, nowMs = Date.now()): Tries {
    const known = this.#tries.get(provider) ?? { lastError: null, since: null, steps: [] };
    const number = Math.floor(nowMs / STEP_MS);
    known.steps = known.steps.filter((step) => step.number > number - WINDOW_STEPS);
    if (known.steps.at(-1)?.number !== number) {
      known.steps.push({ number, tries: 0, failed: 0, refused: 0, unreachable: 0 });
    }
    return known;
  }
}

/** Returns the rows of the page: registered providers, and those of the settings without a key. */
export function describeProviders(
  { providers: { registered, skipped } }: Config,
  figures: Figures,
  metrics: RequestMetrics,
  tries: ProviderTries,
) {
  const circuits = figures.circuits();
  const own = (id: string) => circuits.filter(({ provider }) => provider === id);
  const states = new Map<string, object>([
    ...registered.map(({ id }) => [id, describeState(own(id), tries.of(id))] as const),
    // Built-in providers without a key are of interest only if the settings name them.
    ...skipped
      .filter(({ isConfigured }) => isConfigured)
      .map(({ id, reason: why }) => [id, { ...GOOD, state: 'skipped', why }] as const),
  ]);
  return providerTotals(metrics, [...states.keys()]).flatMap((row) => {
    const state = states.get(row.id);
    return state
      ? {
          ...row,
          ...state,
          lastError: tries.of(row.id).lastError,
          inFlight: figures.inFlightOf(`providers.${row.id}`),
        }
      : [];
  });
}

const GOOD = { state: 'good', why: null, since: null, openUntil: null, openModels: [], share: 0 };

/** Returns the state by the provider's circuits that are not closed, else by its tries of the last five minutes. */
function describeState(circuits: readonly CircuitReport[], { lastError, since, steps }: Tries) {
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
  const sum = (name: keyof Step) => steps.reduce((total, step) => total + step[name], 0);
  const [count, failed] = [sum('tries'), sum('failed')];
  if (count === 0) return { ...row, state: 'not asked' };
  const share = failed / count;
  if (share < 1 && (count < MIN_TRIES || share < MIN_FAILED_SHARE)) return row;
  const all = failed === sum('refused') ? 'key refused' : 'failing';
  const whole = failed === sum('unreachable') ? 'unreachable' : all;
  return { ...row, state: share < 1 ? 'partly' : whole, why: lastError?.text, since, share };
}

/** Takes a time on the clock of `performance.now()`. */
function wallClock(ms: number): string {
  return new Date(Date.now() + ms - performance.now()).toISOString();
}

/** Returns `ready` if the public port takes requests and some provider may get them, else what is missing. */
export function readinessOf({ providers }: Config, figures: Figures): string {
  if (figures.isDraining()) return 'draining';
  if (figures.serving() === 0) return 'no worker';
  if (providers.registered.length === 0) return 'no provider';
  const circuits = figures.circuits();
  const open = circuits.filter(({ model, state }) => model === undefined && state === 'open');
  const isOpen = (id: string) => open.some(({ provider }) => provider === id);
  return providers.registered.every(({ id }) => isOpen(id)) ? 'all circuits open' : 'ready';
}
