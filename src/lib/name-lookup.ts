/**
 * Name lookups that callers share: libuv runs two at a time for the whole process, and cannot
 * cancel one.
 */

import dns, { type LookupAddress, type LookupOptions } from 'node:dns';

/** A lookup that takes longer is answered with the addresses of the last one that succeeded. */
const SLOW_MS = 1000;
/** Names come from settings; this bounds those of earlier reloads. */
const MAX_NAMES = 1000;

type Callback = (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void;

/** Node's own, before anything is put in its place. */
const lookupBySystem = dns.lookup;
/** By name and options. */
const names = new Map<string, SharedLookup>();

/** One name: its last addresses, and everybody who waits while a lookup is under way. */
class SharedLookup {
  readonly #name: string;
  readonly #options: LookupOptions;
  #addresses: LookupAddress[] | undefined;
  #waiting: Callback[] = [];
  /** A lookup is under way: since less, or since more than `SLOW_MS`. */
  #state: 'idle' | 'running' | 'slow' = 'idle';

  constructor(name: string, options: LookupOptions) {
    this.#name = name;
    this.#options = options;
  }

  isRunningFor(name: string): boolean {
    return this.#name === name && this.#state !== 'idle';
  }

  get(callback: Callback): void {
    this.#waiting.push(callback);
    if (this.#state === 'idle') this.#begin();
    // `net` does not expect an answer within its call.
    else if (this.#state === 'slow') process.nextTick(() => this.#useLastAddresses());
  }

  #begin(): void {
    this.#state = 'running';
    const timer = setTimeout(() => {
      this.#state = 'slow';
      this.#useLastAddresses();
    }, SLOW_MS).unref();
    const end: Callback = (error, addresses) => {
      clearTimeout(timer);
      this.#state = 'idle';
      if (!error) this.#addresses = addresses;
      this.#settle(error, addresses);
    };
    try {
      lookupBySystem(this.#name, { ...this.#options, all: true }, end);
    } catch (error) {
      // Node's permission model denies the network.
      end(error as Error, []);
    }
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
 * Looks a name up, as `dns.lookup` does; an option `lookup` of `net.connect` and `tls.connect`.
 * While a lookup is under way, further ones of the same name wait for its result, and after a
 * second they get the addresses of the last one that succeeded.
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

/** Returns true while a lookup of this name is under way. */
export function isLookupRunning(name: string): boolean {
  return [...names.values()].some((shared) => shared.isRunningFor(name));
}

/**
 * Replaces `dns.lookup` by `lookup` in the whole process, because fetch takes no `lookup` option.
 */
export function shareAllLookups(): void {
  const replacement = (name: string, options: LookupOptions, callback: never) =>
    typeof options === 'object'
      ? lookup(name, options, callback)
      : lookupBySystem(name, options, callback);
  dns.lookup = replacement as typeof dns.lookup;
}
