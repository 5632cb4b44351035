/** Whose time a request took: the gateway's, or the providers'. */

import type { AccessRecord } from '../downstream/access-record.ts';

interface TimeSpent {
  /** Neither the client's upload nor waiting for providers. */
  readonly gatewayMs: number;
  /** From the first attempt to the end of the last one, pauses between them included; undefined if there was none. */
  readonly upstreamMs: number | undefined;
}

/** Returns how long a chat completion took until its answer's head; undefined if its body was never read. */
export function timeSpent(record: AccessRecord, headAtMs: number): TimeSpent | undefined {
  const { bodyReadAtMs, askedAtMs, answeredAtMs } = record;
  if (bodyReadAtMs === undefined) return undefined;
  const upstreamMs = askedAtMs && (answeredAtMs ?? headAtMs) - askedAtMs;
  return { gatewayMs: headAtMs - bodyReadAtMs - (upstreamMs ?? 0), upstreamMs };
}

/** The value of `Server-Timing` (W3C Server Timing): `gateway;dur=0.4, upstream;dur=812.3`. */
export function serverTiming({ gatewayMs, upstreamMs }: TimeSpent): string {
  const gateway = `gateway;dur=${Math.max(gatewayMs, 0).toFixed(1)}`;
  return upstreamMs === undefined ? gateway : `${gateway}, upstream;dur=${upstreamMs.toFixed(1)}`;
}
