/** The state of each provider, for the page and for readiness: its circuits, and its tries of the last minutes. */

import type { Config } from '../config/config.ts';
import type { Redactor } from '../lib/secrets.ts';
import type { CircuitReport } from '../policy/circuit-breaker.ts';
import type { Figures } from './figures.ts';
import type { Traffic } from './traffic.ts';

/** The states look at the tries of so long. */
const WINDOW_MS = 300_000;
/** Fewer tries say nothing about a share. */
const MIN_TRIES = 5;
const MIN_FAILED_SHARE = 0.05;

/** Returns the rows of the page by their ids: registered providers, and those of the settings without a key. */
export function describeProviders(
  { providers: { registered, skipped } }: Config,
  figures: Figures,
  traffic: Traffic,
  redact: Redactor,
) {
  const circuits = figures.circuits();
  const agesMs = figures.oldestAgesMs();
  const asked = registered.map(({ id }) => {
    const { sums, lastError: raw, ...known } = traffic.provider(id, WINDOW_MS);
    const lastError = raw && { ...raw, text: redact(raw.text) };
    const inFlight = figures.inFlightOf(`providers.${id}`);
    const ageMs = agesMs.get(id);
    const oldestSeconds = ageMs === undefined ? undefined : Math.floor(ageMs / 1000);
    const own = circuits.filter(({ provider }) => provider === id);
    const openModels = own
      .filter(({ model, state }) => model !== undefined && state === 'open')
      .map(({ model, openUntilMs, cause }) => ({
        model,
        until: wallClock(openUntilMs),
        why: cause,
      }));
    const state = describeState(own, { ...known, lastError });
    return [id, { ...state, ...sums, openModels, lastError, inFlight, oldestSeconds }];
  });
  // Built-in providers without a key are of interest only if the settings name them.
  const named = skipped.filter(({ isConfigured }) => isConfigured);
  const rest = named.map(({ id, reason: why }) => [id, { state: 'skipped', why }]);
  return Object.fromEntries([...asked, ...rest]) as Record<string, object>;
}

/** Returns the state by the provider's own circuit if that is not closed, else by its tries of the last five minutes. */
function describeState(
  circuits: readonly CircuitReport[],
  { lastError, since, tries }: Omit<ReturnType<Traffic['provider']>, 'sums'>,
) {
  const circuit = circuits.find(({ model }) => model === undefined);
  if (circuit) {
    const { state, cause, openUntilMs } = circuit;
    return { state, why: cause, openUntil: state === 'open' ? wallClock(openUntilMs) : undefined };
  }
  const countOf = (name: string) => tries.get(name) ?? 0;
  const [count, failed] = [countOf('judged'), countOf('failed')];
  if (count === 0) return { state: 'not asked' };
  const share = failed / count;
  if (share < 1 && (count < MIN_TRIES || share < MIN_FAILED_SHARE)) return { state: 'good' };
  const all = failed === countOf('refused') ? 'key refused' : 'failing';
  const whole = failed === countOf('unreachable') ? 'unreachable' : all;
  return { state: share < 1 ? 'partly' : whole, why: lastError?.text, since, share };
}

/** Takes a time on the clock of `performance.now()`; whole seconds, so that it stays the same. */
function wallClock(ms: number): string {
  const atMs = performance.timeOrigin + ms;
  return new Date(Math.round(atMs / 1000) * 1000).toISOString();
}

/** Returns `ready` if the public port takes requests and some provider may get them, else what is missing. */
export function readinessOf({ providers }: Config, figures: Figures): string {
  if (figures.isDraining()) return 'draining';
  if (!figures.isListening()) return 'not listening';
  if (providers.registered.length === 0) return 'no provider';
  const circuits = figures.circuits();
  const open = circuits.filter(({ model, state }) => model === undefined && state === 'open');
  const isOpen = (id: string) => open.some(({ provider }) => provider === id);
  return providers.registered.every(({ id }) => isOpen(id)) ? 'all circuits open' : 'ready';
}
