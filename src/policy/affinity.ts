/** Which of several a session is sent to, so that the prompt cache of a provider has its beginning. */

import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';

/** What of a request says which conversation it belongs to. */
export interface Caller {
  readonly headers: IncomingHttpHeaders;
  readonly record: { readonly client: string | undefined };
}

/** Returns what the requests of one conversation have in common: `x-session-id`, else the client's name, else its key. */
export function sessionOf({ headers, record }: Caller): string | undefined {
  const session = headers['x-session-id'];
  return typeof session === 'string' ? session : (record.client ?? headers.authorization);
}

/**
 * Returns the indices of `names` in the order that this session has among them, by rendezvous hashing (highest random
 * weight): if a name is gone, only the sessions for which it came first have another.
 */
export function rankedFor(session: string, names: readonly string[]): number[] {
  const weights = names.map((name) =>
    createHash('sha256').update(`${name}\n${session}`).digest().readUIntBE(0, 6),
  );
  return [...names.keys()].toSorted((one, other) => weights[other]! - weights[one]!);
}
