/**
 * Which of several a session is sent to, so that the prompt cache of a provider has its beginning.
 */

import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';

import type { RequestHistory } from '../request/history.ts';

/** The parts of a request that say which conversation it belongs to. */
export interface Caller {
  readonly headers: IncomingHttpHeaders;
  readonly history: Pick<RequestHistory, 'client' | 'promptCacheKey'>;
}

/**
 * Returns what the requests of one conversation have in common: a header that names it, else the
 * body's `prompt_cache_key`, else the client's name, else its key.
 */
export function sessionOf({ headers, history }: Caller): string | undefined {
  const named = headers['x-session-id'] || headers['x-session-affinity'];
  if (named) return String(named);
  return history.promptCacheKey ?? history.client ?? headers.authorization;
}

/**
 * Returns the indices of `names` in the order that this session has among them, by rendezvous
 * hashing (highest random weight): if a name is gone, only the sessions for which it came first
 * have another. With `shares` a name comes first for a part of the sessions that is in proportion
 * to its share.
 */
export function rankedFor(
  session: string,
  names: readonly string[],
  shares?: ReadonlyMap<string, number>,
): number[] {
  const weights = names.map((name) => {
    const hash = createHash('sha256').update(`${name}\n${session}`).digest();
    return (shares?.get(name) ?? 1) / -Math.log(hash.readUIntBE(0, 6) / 2 ** 48);
  });
  return [...names.keys()].toSorted((one, other) => weights[other]! - weights[one]!);
}
