/** `balance = "least_busy"` of an alias: which of its targets is asked first. */

import type { Call } from '../downstream/call.ts';
import { rankedFor, sessionOf } from '../policy/affinity.ts';
import type { CircuitBreaker } from '../policy/circuit-breaker.ts';
import type { Limits } from '../policy/limits.ts';
import type { Candidate } from './ask-provider.ts';

export interface BalanceServices {
  readonly breaker: CircuitBreaker;
  readonly limits: Limits;
  readonly lastAsked: LastAsked;
}

/** When each target of a balanced alias was last asked first, of `performance.now()`: those that are alike are asked in turn. */
type LastAsked = Map<string, number>;

/**
 * Returns the candidates in the order in which they are asked: first the one whose provider has the fewest requests in
 * flight, or, if all of their providers have `key_affinity`, the session's own; last those whose circuits are open.
 */
export function leastBusyFirst(
  candidates: readonly Candidate[],
  call: Call,
  { breaker, limits, lastAsked }: BalanceServices,
): Candidate[] {
  const hasAffinity = candidates.every(({ provider }) => provider.keyAffinity);
  const session = hasAffinity ? sessionOf(call) : undefined;
  const names = candidates.map(({ provider, model }) => `${provider.id}/${model}`);
  const order = session === undefined ? undefined : rankedFor(session, names);
  const states = candidates.map((candidate, index) => {
    const { provider, model } = candidate;
    const name = names[index]!;
    return {
      candidate,
      name,
      isOpen: Number(breaker.stateOf(provider, model) === 'open'),
      inFlight: order ? 0 : limits.ofProviders.get(provider.id)!.inFlight,
      place: order ? order.indexOf(index) : (lastAsked.get(name) ?? 0),
    };
  });
  states.sort((a, b) => a.isOpen - b.isOpen || a.inFlight - b.inFlight || a.place - b.place);
  lastAsked.set(states[0]!.name, performance.now());
  return states.map(({ candidate }) => ({ ...candidate, isBalanced: true }));
}
