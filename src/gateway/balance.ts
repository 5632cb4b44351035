/** Orders the targets of a balanced alias. */

import type { AliasSettings } from '../config/config.ts';
import { type SessionSource, choosingSession, rankedFor } from '../policy/affinity.ts';
import type { FirstTokenTimes } from '../policy/first-token-times.ts';
import type { ProviderState } from './provider-state.ts';

/** With `fastest`, a stream in so many asks another target first, so that its time is known. */
const TRY_OTHERS_EVERY = 20;

/** A target whose provider is registered. */
interface TargetState {
  /** The target as in the settings, because a client chooses the text for a `*`. */
  readonly name: string;
  readonly provider: Pick<ProviderState, 'keyAffinity'> & {
    readonly limiter: Pick<ProviderState['limiter'], 'inFlight'>;
  };
  readonly isCircuitOpen: boolean;
  /** Absent unless the alias has `balance = "fastest"`. */
  readonly times?: FirstTokenTimes | undefined;
}

/** A balanced alias, with its memory of the requests since the settings were read. */
export class Balance {
  readonly #alias: AliasSettings;
  readonly #lastAskedAtMs: Map<string, number>;
  #credits: readonly number[] = [];
  #streams = 0;

  /**
   * `lastAskedAtMs`: when each target was last put first. All aliases share this map, because they
   * may have the same targets.
   */
  constructor(alias: AliasSettings, lastAskedAtMs: Map<string, number>) {
    this.#alias = alias;
    this.#lastAskedAtMs = lastAskedAtMs;
  }

  /**
   * Returns the indices of the targets in the order to ask them. The first index may occur again,
   * because it is put before an order of all targets. The session of the request decides
   * if all their providers have `key_affinity`, or if the request itself has an affinity.
   */
  order(targets: readonly TargetState[], source: SessionSource, isStream: boolean): number[] {
    const { balance, weights } = this.#alias;
    const names = targets.map(({ name }) => name);
    const hasAffinity = targets.every(({ provider }) => provider.keyAffinity);
    const session = choosingSession(source, hasAffinity);
    const ranked = session === undefined ? undefined : rankedFor(session, names, weights);
    // An open circuit must not lead the request to another organisation.
    if (ranked && source.history.affinity === 'organisation') return ranked;
    if (weights) return [ranked?.[0] ?? this.#draw(names, weights), ...names.keys()];
    if (balance === 'fastest' && !ranked) return this.#fastestFirst(targets, isStream);
    return this.#leastBusyFirst(targets, ranked);
  }

  /**
   * Sorts by the usual time to the first token. Busy targets come behind, and targets with an open
   * circuit last. Streams first ask the targets in turn until each has three times, because the
   * first may be that of a cold start. From then on each twentieth stream asks another target
   * first, in turn. Complete answers give no times, so they do neither.
   */
  #fastestFirst(targets: readonly TargetState[], isStream: boolean): number[] {
    const states = targets.map(({ isCircuitOpen, times }, index) => {
      const { isBusy, isKnown, usualMs } = times!.state;
      return { index, usualMs, isKnown, rank: isCircuitOpen ? 2 : Number(isBusy) };
    });
    const sorted = states
      // Two times of Infinity have no difference.
      .toSorted((a, b) => a.rank - b.rank || (a.usualMs === b.usualMs ? 0 : a.usualMs - b.usualMs))
      .map(({ index }) => index);
    if (!isStream) return sorted;
    this.#streams += 1;
    const turn = this.#streams;
    const well = states.filter(({ rank }) => rank === 0);
    if (well.some(({ isKnown }) => !isKnown))
      return [well[(turn - 1) % well.length]!.index, ...sorted];
    const others = states.filter(({ index, rank }) => rank < 2 && index !== sorted[0]);
    if (turn % TRY_OTHERS_EVERY > 0 || others.length === 0) return sorted;
    const round = turn / TRY_OTHERS_EVERY - 1;
    return [others[round % others.length]!.index, ...sorted];
  }

  /**
   * Returns the index of the next name by smooth weighted round robin, as in nginx: each name gains
   * its weight, and the name with the highest credit pays the sum of all weights. A name with
   * weight 0 never has the highest credit.
   */
  #draw(names: readonly string[], weights: ReadonlyMap<string, number>): number {
    const gained = names.map((name, index) => (this.#credits[index] ?? 0) + weights.get(name)!);
    const most = gained.indexOf(Math.max(...gained));
    for (const name of names) gained[most]! -= weights.get(name)!;
    this.#credits = gained;
    return most;
  }

  /**
   * Sorts by requests in flight at the providers, or as `ranked` for a session. Targets with an
   * open circuit come last.
   */
  #leastBusyFirst(
    targets: readonly TargetState[],
    ranked: readonly number[] | undefined,
  ): number[] {
    const states = targets.map(({ isCircuitOpen, name, provider }, index) => ({
      index,
      name,
      isCircuitOpen: Number(isCircuitOpen),
      inFlight: ranked ? 0 : provider.limiter.inFlight,
      place: ranked ? ranked.indexOf(index) : (this.#lastAskedAtMs.get(name) ?? 0),
    }));
    states.sort(
      (a, b) => a.isCircuitOpen - b.isCircuitOpen || a.inFlight - b.inFlight || a.place - b.place,
    );
    this.#lastAskedAtMs.set(states[0]!.name, performance.now());
    return states.map(({ index }) => index);
  }
}

/** Creates the memory of each balanced alias. */
export function createBalances(
  aliases: readonly AliasSettings[],
): ReadonlyMap<AliasSettings, Balance> {
  const balanced = aliases.filter(({ balance }) => balance !== 'order');
  const lastAskedAtMs = new Map<string, number>();
  return new Map(balanced.map((alias) => [alias, new Balance(alias, lastAskedAtMs)]));
}
