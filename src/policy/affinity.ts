/**
 * Session affinity: a conversation's requests go to the same key or target, because the provider
 * has cached their common beginning there.
 */

import type { IncomingHttpHeaders } from 'node:http';

import { sha256 } from '../lib/sha256.ts';
import type { RequestHistory } from '../request/history.ts';

/** A request's headers and history, from which its session is read. */
export interface SessionSource {
  readonly headers: IncomingHttpHeaders;
  readonly history: Pick<RequestHistory, 'client' | 'promptCacheKey'> &
    Partial<Pick<RequestHistory, 'affinity'>>;
}

/**
 * Returns the text that all requests of a conversation share; undefined if the request has none.
 */
export function sessionOf({ headers, history }: SessionSource): string | undefined {
  const named = headers['x-session-id'] || headers['x-session-affinity'];
  if (named) return String(named);
  const key = headers.authorization ?? headers['x-api-key'];
  return history.promptCacheKey ?? history.client ?? (key && String(key));
}

/**
 * Returns the session that chooses a request's key, or its target in a balanced alias. Undefined if
 * neither the settings nor the request has an affinity.
 */
export function choosingSession(source: SessionSource, hasAffinity: boolean): string | undefined {
  if (source.history.affinity) return sessionOf(source) ?? '';
  return hasAffinity ? sessionOf(source) : undefined;
}

/**
 * Returns the indices of `names`, the best for this session first, by rendezvous hashing. If a name
 * is removed, only its own sessions move to another name. With `shares`, each name gets sessions in
 * proportion to its share (default 1).
 */
export function rankedFor(
  session: string,
  names: readonly string[],
  shares?: ReadonlyMap<string, number>,
): number[] {
  const weights = names.map((name) => {
    const hash = sha256(`${name}\n${session}`);
    return (shares?.get(name) ?? 1) / -Math.log(hash.readUIntBE(0, 6) / 2 ** 48);
  });
  return [...names.keys()].toSorted((a, b) => weights[b]! - weights[a]!);
}
