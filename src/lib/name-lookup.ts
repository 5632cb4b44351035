/**
 * Shares name lookups between callers, because libuv runs two at a time for the whole process and
 * cannot cancel a lookup.
 */

import dns, { type LookupAddress, type LookupOptions } from 'node:dns';

/** A slower lookup is answered with the last successful lookup's addresses. */
const SLOW_MS = 1000;
/** Bounds the names left by earlier reloads, because names come from settings. */
const MAX_NAMES = 1000;

type Callback = (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void;

/** Node's own lookup, before `shareAllLookups` replaces it. */
const lookupBySystem = dns.lookup;
const names = new Map<string, SharedLookup>();

class SharedLookup {
  readonly #name: string;
  readonly #options: LookupOptions;
  #addresses: LookupAddress[] | undefined;
  #waiting: Callback[] = [];
  #state: 'idle' | 'running' | 'slow' = 'idle';

  constructor(name: string, options: LookupOptions) {
    this.#name = name;
    this.#options = options;
  }

  isAwaitedFor(name: string): boolean {
    return this.#name === name && this.#waiting.length > 0;
  }

  get(callback: Callback): void {
    this.#waiting.push(callback);
    if (this.#state === 'idle') this.#begin();
    // Deferred, because `net` does not expect the callback during its call.
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
      // Node's permission model may deny the network.
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
