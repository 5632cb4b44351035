/**
 * Shares name lookups between callers, because libuv runs two at a time for the whole process and
 * cannot cancel a lookup.
 */

import dns, { type LookupAddress, type LookupOptions } from 'node:dns';

/** A slower lookup is answered with the last successful lookup's addresses. */
const SLOW_MS = 1000;
/**
 * Slow lookups count once they have exceeded `SLOW_MS` by so much in all. Two lookups of 4 s do. A
 * single lost packet does not, because resolvers repeat it after 5 s.
 */
const COUNTED_MS = 5000;
/** A spell is over after this time without a slow lookup, if a later lookup was in time. */
const IN_TIME_MS = 15_000;
/** A spell is over after this time without a slow lookup. */
const FORGOTTEN_MS = 60_000;
/** Bounds the names left by earlier reloads, because names come from settings. */
const MAX_NAMES = 1000;

type Callback = (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void;

/** Slow lookups of a name. Times are on the clock of `performance.now()`. */
interface Spell {
  /** When the first slow lookup began. */
  readonly beganAtMs: number;
  /** When the last slow lookup ended; the present while it runs. */
  readonly endedAtMs: number;
  /** The time beyond `SLOW_MS`, summed over the slow lookups. */
  readonly overMs: number;
  readonly longestMs: number;
  /** The code of the latest slow lookup's error; undefined if that lookup has succeeded. */
  readonly code: string | undefined;
}

/** The lookups of a name, for the incident `lookup_slow`. */
export interface LookupReport {
  /** True if the name was looked up in the last minute. */
  readonly isRecent: boolean;
  /** True while lookups are slow and the last successful lookup's addresses are in use. */
  readonly isSlow: boolean;
  /** The latest slow lookups. */
  readonly spell: Spell | undefined;
}

/** Node's own lookup, before `shareAllLookups` replaces it. */
const lookupBySystem = dns.lookup;
const names = new Map<string, SharedLookup>();

class SharedLookup {
  readonly #name: string;
  readonly #options: LookupOptions;
  #addresses: LookupAddress[] | undefined;
  #waiting: Callback[] = [];
  #state: 'idle' | 'running' | 'slow' = 'idle';
  /** When the latest lookup began. */
  #beganAtMs = 0;
  /** When the latest lookup ended that was not slow. */
  #inTimeAtMs = -Infinity;
  /** The latest slow lookups, without a lookup that runs. */
  #spell: Spell | undefined;

  constructor(name: string, options: LookupOptions) {
    this.#name = name;
    this.#options = options;
  }

  isAwaitedFor(name: string): boolean {
    return this.#name === name && this.#waiting.length > 0;
  }

  /** Returns undefined if the lookup is of another name. */
  reportOn(name: string): LookupReport | undefined {
    if (name !== this.#name) return undefined;
    const nowMs = performance.now();
    const spell = this.#spellAt(nowMs);
    const isOver = spell === undefined || this.#isOver(spell, nowMs);
    const endedAtMs = Math.max(this.#inTimeAtMs, spell?.endedAtMs ?? -Infinity);
    const latestAtMs = this.#state === 'idle' ? endedAtMs : nowMs;
    return {
      isRecent: nowMs - latestAtMs < FORGOTTEN_MS,
      isSlow: !isOver && spell.overMs >= COUNTED_MS && this.#addresses !== undefined,
      spell,
    };
  }

  get(callback: Callback): void {
    this.#waiting.push(callback);
    if (this.#state === 'idle') this.#begin();
    // Deferred, because `net` does not expect the callback during its call.
    else if (this.#state === 'slow') process.nextTick(() => this.#useLastAddresses());
  }

  #begin(): void {
    this.#state = 'running';
    this.#beganAtMs = performance.now();
    const timer = setTimeout(() => {
      this.#state = 'slow';
      this.#useLastAddresses();
    }, SLOW_MS).unref();
    const end: Callback = (error, addresses) => {
      clearTimeout(timer);
      this.#noteEnd(error);
      this.#state = 'idle';
      if (!error) this.#addresses = addresses;
      this.#settle(error, addresses);
    };
    try {
      lookupBySystem(this.#name, { ...this.#options, all: true }, end);
    } catch (error) {
      // Node's permission model may deny the network.
      end(error as Error, []);
    }
  }

  #noteEnd(error: NodeJS.ErrnoException | null): void {
    const nowMs = performance.now();
    if (this.#state === 'slow') this.#spell = { ...this.#spellAt(nowMs)!, code: error?.code };
    else this.#inTimeAtMs = nowMs;
  }

  /** Returns the latest slow lookups, with a slow lookup that runs. */
  #spellAt(nowMs: number): Spell | undefined {
    const known = this.#spell;
    if (this.#state !== 'slow') return known;
    const beganAtMs = this.#beganAtMs;
    const tookMs = nowMs - beganAtMs;
    const former = known && !this.#isOver(known, beganAtMs) ? known : undefined;
    return {
      beganAtMs: former?.beganAtMs ?? beganAtMs,
      endedAtMs: nowMs,
      overMs: (former?.overMs ?? 0) + tookMs - SLOW_MS,
      longestMs: Math.max(former?.longestMs ?? 0, tookMs),
      code: former?.code,
    };
  }

  #isOver({ endedAtMs }: Spell, nowMs: number): boolean {
    const quietMs = nowMs - endedAtMs;
    return quietMs >= FORGOTTEN_MS || (quietMs >= IN_TIME_MS && this.#inTimeAtMs > endedAtMs);
  }

  #useLastAddresses(): void {
    if (this.#addresses) this.#settle(null, this.#addresses);
  }

  #settle(error: NodeJS.ErrnoException | null, addresses: LookupAddress[]): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const callback of waiting) callback(error, addresses);
  }
}

/**
 * Looks a name up as `dns.lookup` does, for the option `lookup` of `net.connect` and `tls.connect`.
 * While a lookup runs, further callers with the same name wait for its result. After a second they
 * get the last successful lookup's addresses.
 */
export function lookup(
  name: string,
  options: LookupOptions,
  callback: (
    error: NodeJS.ErrnoException | null,
    address: string | LookupAddress[],
    family?: number,
  ) => void,
): void {
  const key = `${name} ${options.family ?? 0} ${options.hints ?? 0}`;
  let shared = names.get(key);
  if (!shared) {
    shared = new SharedLookup(name, options);
    names.set(key, shared);
    if (names.size > MAX_NAMES) names.delete(names.keys().next().value!);
  }
  shared.get((error, addresses) => {
    const [first] = addresses ?? [];
    if (options.all || !first) callback(error, addresses);
    else callback(error, first.address, first.family);
  });
}

export function isLookupAwaited(name: string): boolean {
  return [...names.values()].some((shared) => shared.isAwaitedFor(name));
}

/** Returns the lookups of this name, the slow ones first; undefined if there were none. */
export function lookupsOf(name: string): LookupReport | undefined {
  const reports = [...names.values()].flatMap((shared) => shared.reportOn(name) ?? []);
  return reports.find(({ isSlow }) => isSlow) ?? reports[0];
}

/**
 * Replaces `dns.lookup` by `lookup` in the whole process, because fetch takes no option `lookup`.
 */
export function shareAllLookups(): void {
  const replacement = (name: string, options: LookupOptions, callback: never) =>
    typeof options === 'object'
      ? lookup(name, options, callback)
      : lookupBySystem(name, options, callback);
  dns.lookup = replacement as typeof dns.lookup;
}
