/** Orders the targets of a balanced alias. */

import type { AliasSettings } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { choosingSession, rankedFor } from '../policy/affinity.ts';
import type { Candidate } from './candidates.ts';
import type { Services } from './services.ts';

/** With `fastest`, a stream in so many asks another target first, so that its time is known. */
const TRY_OTHERS_EVERY = 20;

/** Returns the alias's targets whose providers are registered. */
export function registeredTargets(
  { targets }: AliasSettings,
  { providers }: Pick<Services, 'providers'>,
): readonly string[] {
  return targets.filter((target) => providers.has(providerIdOf(target)));
}

/** Returns the provider's id in the target of an alias, which always has a slash. */
export function providerIdOf(target: string): string {
  return target.slice(0, target.indexOf('/'));
}

/**
 * Returns the candidates of a balanced alias in the order to ask them. The session of the request
 * decides if all their providers have `key_affinity`, or if the request itself has an affinity.
 */
export function balanced(
  candidates: readonly Candidate[],
  alias: AliasSettings,
  call: Call,
  services: Services,
): Candidate[] {
  const { weights } = alias;
  const hasAffinity = candidates.every(({ provider }) => provider.keyAffinity);
  const session = choosingSession(call, hasAffinity);
  // The targets as in the settings, because a client chooses the text for a `*`.
  const names = registeredTargets(alias, services);
  const order = session === undefined ? undefined : rankedFor(session, names, weights);
  const balancing = candidates.map((candidate, index) => ({
    ...candidate,
    isBalanced: true,
    times: candidate.provider.firstTokenTimes.get(names[index]!),
  }));
  let indices: number[];
  // An open circuit must not lead the request to another organisation.
  if (order && call.history.affinity === 'organisation') indices = order;
  else if (weights)
    indices = [order?.[0] ?? draw(names, weights, alias, services), ...names.keys()];
  else if (alias.balance === 'fastest' && !order)
    indices = fastestFirst(balancing, alias, call, services);
  else indices = leastBusyFirst(candidates, names, order, services);
  return [...new Set(indices)].map((index) => balancing[index]!);
}

/**
 * Returns the indices of the candidates, sorted by their usual time to the first token. Busy
 * candidates come behind, and those with an open circuit last. Streams first ask the candidates in
 * turn until each has three times, because the first may be that of a cold start. From then on each
 * twentieth stream asks another candidate first, in turn. Complete answers give no times, so they
 * do neither.
 */
function fastestFirst(
  candidates: readonly Candidate[],
  alias: AliasSettings,
  { history }: Call,
  { turns }: Services,
): number[] {
  const states = candidates.map((candidate, index) => {
    const { isBusy, isKnown, usualMs } = candidate.times!.state;
    const isOpen = candidate.provider.breaker.stateOf(candidate) === 'open';
    return { index, usualMs, isKnown, isOpen, rank: isOpen ? 2 : Number(isBusy) };
  });
  const sorted = states
    // Two times of Infinity have no difference.
    .toSorted((a, b) => a.rank - b.rank || (a.usualMs === b.usualMs ? 0 : a.usualMs - b.usualMs))
    .map(({ index }) => index);
  if (!history.stream) return sorted;
  const turn = (turns.get(alias) ?? 0) + 1;
  turns.set(alias, turn);
  const well = states.filter(({ rank }) => rank === 0);
  if (well.some(({ isKnown }) => !isKnown))
    return [well[(turn - 1) % well.length]!.index, ...sorted];
  const others = states.filter(({ index, isOpen }) => !isOpen && index !== sorted[0]);
  if (turn % TRY_OTHERS_EVERY > 0 || others.length === 0) return sorted;
  const round = turn / TRY_OTHERS_EVERY - 1;
  return [others[round % others.length]!.index, ...sorted];
}

/**
 * Returns the index of the next name by smooth weighted round robin, as in nginx: each name gains
 * its weight, and the name with the highest credit pays the sum of all weights. A name with weight
 * 0 never has the highest credit.
 */
function draw(
  names: readonly string[],
  weights: ReadonlyMap<string, number>,
  alias: AliasSettings,
  { credits }: Services,
): number {
  const before = credits.get(alias) ?? [];
  const gained = names.map((name, index) => (before[index] ?? 0) + weights.get(name)!);
  const most = gained.indexOf(Math.max(...gained));
  for (const name of names) gained[most]! -= weights.get(name)!;
  credits.set(alias, gained);
  return most;
}

/**
 * Returns the indices of the candidates, sorted by requests in flight at their providers, or in the
 * `order` of a session. Candidates with an open circuit come last.
 */
function leastBusyFirst(
  candidates: readonly Candidate[],
  names: readonly string[],
  order: readonly number[] | undefined,
  { lastAsked }: Services,
): number[] {
  const states = candidates.map((candidate, index) => {
    const name = names[index]!;
    return {
      index,
      name,
      isCircuitOpen: Number(candidate.provider.breaker.stateOf(candidate) === 'open'),
      inFlight: order ? 0 : candidate.provider.limiter.inFlight,
      place: order ? order.indexOf(index) : (lastAsked.get(name) ?? 0),
    };
  });
  states.sort(
    (a, b) => a.isCircuitOpen - b.isCircuitOpen || a.inFlight - b.inFlight || a.place - b.place,
  );
  lastAsked.set(states[0]!.name, performance.now());
  return states.map(({ index }) => index);
}
