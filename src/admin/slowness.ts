/** Judges whether providers are slow, or the lookups of their names. */

import type { LookupReport } from '../lib/name-lookup.ts';

/** A time is slow from this multiple of the usual time, and stays slow down to half of it. */
const SLOW = 4;
/** A minute's median shows a change half a minute late. */
const MEDIAN_LATE_MS = 30_000;
/**
 * Providers that were slow together may recover one after the other within this time, because
 * typical times are those of a minute.
 */
const SHARED_MS = 60_000;
const MAX_NAMED = 3;

/** Typical times in milliseconds; undefined if there are too few times. */
interface TypicalTimes {
  /** The typical time of the last minute. */
  readonly newestMs: number | undefined;
  /** The typical time of the 14 minutes before. */
  readonly formerMs: number | undefined;
}

const TIMES = [
  { name: 'first_token', words: 'first token after', leastUsualMs: 1 },
  // A few milliseconds more are no fault.
  { name: 'connect', words: 'every fourth connect takes at least', leastUsualMs: 25 },
] as const;
type Time = (typeof TIMES)[number];

/** A provider, and the name of its host. */
interface Host {
  readonly id: string;
  readonly host: string;
}

/** Whether a provider is slow, or all together. */
interface Report {
  /** Undefined for all together: all judged providers, which have two hosts at least. */
  readonly id?: string;
  /** Undefined if the provider is not slow. */
  readonly cause?: string | undefined;
  /** How long ago the slowness began; without a cause, how long ago it ended. */
  readonly lateMs: number;
  /** From how many milliseconds on a time of a slow provider is slow. */
  readonly slowFrom?: Readonly<Partial<Record<Time['name'], number>>>;
}

interface Finding extends Host, Report {
  readonly id: string;
  /** False if there are too few times, or no lookup, for a judgement. */
  readonly isJudged: boolean;
}

const haveTwoHosts = (all: readonly Host[]) => new Set(all.map(({ host }) => host)).size > 1;

/** Tells a fault of single providers from a fault of the machine or the name server. */
class Together {
  /** When all were last slow, on the clock of `performance.now()`. */
  #allSlowAtMs = -Infinity;

  /**
   * Returns the report of all together, then each provider's. While all are slow together, no
   * provider has a cause.
   */
  split(findings: readonly Finding[]): Report[] {
    const slow = findings.filter(({ cause }) => cause !== undefined);
    const judged = findings.filter(({ isJudged }) => isJudged);
    const nowMs = performance.now();
    if (slow.length === judged.length && haveTwoHosts(slow)) this.#allSlowAtMs = nowMs;
    if (slow.length === 0 || nowMs - this.#allSlowAtMs >= SHARED_MS) {
      const ends = findings.flatMap((one) => (one.cause === undefined ? one.lateMs : []));
      return [{ lateMs: Math.min(SHARED_MS, ...ends) }, ...findings];
    }
    const named = slow.slice(0, MAX_NAMED).map(({ id, cause }) => `${id}: ${cause}`);
    const more = slow.length > MAX_NAMED ? [`${slow.length - MAX_NAMED} more`] : [];
    const cause = [...named, ...more].join('; ');
    const lateMs = Math.max(...slow.map((one) => one.lateMs));
    return [{ cause, lateMs }, ...findings.map(({ id }) => ({ id, lateMs: 0 }))];
  }
}

/** A provider's time, compared with the usual time. */
interface Measured {
  readonly name: Time['name'];
  /** The provider's id, and the time's name. */
  readonly key: string;
  readonly words: string;
  readonly newestMs: number;
  /** The usual time, of a slow provider before it became slow. */
  readonly usualMs: number;
  /** The slowest time since the provider became slow. */
  readonly worstMs: number;
  /** Whether the provider was slow by this time at the latest judgement. */
  readonly wasSlow: boolean;
  /** From here on a slow provider stays slow. */
  readonly slowFromMs: number;
  /** The newest time as a multiple of the usual time. */
  readonly factor: number;
}

export class Slowness {
  /** The slow times at the latest judgement, by their keys. */
  #slow: ReadonlyMap<string, Measured> = new Map();
  readonly #providers = new Together();
  readonly #lookups = new Together();

  /** Returns which providers are slow now. */
  judge(
    hosts: readonly Host[],
    timesOf: (id: string, time: Time['name']) => TypicalTimes,
  ): Report[] {
    const all = hosts.map((one) => {
      const times = TIMES.flatMap((time) => this.#measure(one.id, time, timesOf) ?? []);
      return { ...one, times, most: Math.max(...times.map(({ factor }) => factor)) };
    });
    const judged = all.filter(({ times }) => times.length > 0);
    // Medians of different providers do not pass a limit at the same moment.
    const areAll =
      haveTwoHosts(judged) &&
      judged.every(({ most }) => most >= SLOW / 2) &&
      judged.some(({ most }) => most >= SLOW);
    const findings = all.map(({ id, host, times }) => {
      const slow = times.filter(
        ({ factor, wasSlow }) => factor >= (wasSlow || areAll ? SLOW / 2 : SLOW),
      );
      return {
        id,
        host,
        isJudged: times.length > 0,
        slow,
        cause: slow.map(timeText).join(', ') || undefined,
        slowFrom: Object.fromEntries(slow.map(({ name, slowFromMs }) => [name, slowFromMs])),
        lateMs: MEDIAN_LATE_MS,
      };
    });
    this.#slow = new Map(findings.flatMap(({ slow }) => slow.map((time) => [time.key, time])));
    return this.#providers.split(findings);
  }

  /** Returns the providers whose names are looked up slowly now. */
  judgeLookups(
    hosts: readonly Host[],
    lookupsOf: (name: string) => LookupReport | undefined,
  ): Report[] {
    const nowMs = performance.now();
    const findings = hosts.map((one) => {
      const { isRecent = false, isSlow = false, spell } = lookupsOf(one.host) ?? {};
      const atMs = isSlow ? spell!.beganAtMs : spell?.endedAtMs;
      const lateMs = atMs === undefined ? SHARED_MS : nowMs - atMs;
      const cause = isSlow ? lookupText(one.host, spell!) : undefined;
      return { ...one, isJudged: isRecent, cause, lateMs };
    });
    return this.#lookups.split(findings);
  }

  /** Returns undefined without enough times, so that no usual time is assumed. */
  #measure(
    id: string,
    { name, words, leastUsualMs }: Time,
    timesOf: (id: string, time: Time['name']) => TypicalTimes,
  ): Measured | undefined {
    const key = `${id} ${name}`;
    const known = this.#slow.get(key);
    const { newestMs, formerMs } = timesOf(id, name);
    const usualMs = known?.usualMs ?? formerMs;
    if (newestMs === undefined || usualMs === undefined) return undefined;
    const comparedMs = Math.max(leastUsualMs, usualMs);
    return {
      name,
      key,
      words,
      newestMs,
      usualMs,
      worstMs: Math.max(newestMs, known?.worstMs ?? 0),
      wasSlow: known !== undefined,
      slowFromMs: (SLOW / 2) * comparedMs,
      factor: newestMs / comparedMs,
    };
  }
}

function timeText({ words, newestMs, usualMs, worstMs }: Measured): string {
  const worst = worstMs > newestMs ? `${worstMs} ms at worst, ` : '';
  return `${words} ${newestMs} ms, ${worst}${usualMs} ms is usual`;
}

function lookupText(name: string, { code, longestMs }: NonNullable<LookupReport['spell']>): string {
  const duration = `${(longestMs / 1000).toFixed(1)} s`;
  const end = code === undefined ? `takes up to ${duration}` : `fails after ${duration} (${code})`;
  return `lookup of ${name} ${end}, its last addresses are in use`;
}
