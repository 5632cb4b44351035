/** The kinds of incidents, and the kind for a failed try. */

import type { GatewayError } from '../lib/errors.ts';

/** Kinds for failed tries, then for states of a provider, then for states of the gateway. */
export const INCIDENT_KINDS = [
  ...(['unreachable', 'lookup_failed', 'certificate', 'key_refused', 'rate_limited'] as const),
  ...(['errors', 'timeout', 'stall', 'cut', 'nonsense'] as const),
  ...(['slow', 'lookup_slow', 'model_list'] as const),
  ...(['descriptors', 'memory', 'log_lines', 'store', 'reload', 'clock'] as const),
];
export type IncidentKind = (typeof INCIDENT_KINDS)[number];

/**
 * Returns the kind for a provider's failure; undefined if the client or the gateway is at fault.
 *
 * @param hasBegun - whether the failure broke off a running stream
 */
export function providerKindOf(
  { details: { problem, upstreamStatus: status }, kind, scope }: GatewayError,
  hasBegun: boolean,
): IncidentKind | undefined {
  if (scope === 'client' || scope === 'gateway') return undefined;
  if (scope === 'provider' && problem === 'certificate') return 'certificate';
  if (scope === 'provider') return problem === 'lookup' ? 'lookup_failed' : 'unreachable';
  if (scope === 'key') return 'key_refused';
  if (status !== undefined) return status === 429 ? 'rate_limited' : 'errors';
  if (kind === 'timeout') return hasBegun ? 'stall' : 'timeout';
  return problem === 'cut' ? 'cut' : 'nonsense';
}

/** Returns the kind for the gateway's own failure; undefined for other failures. */
export function gatewayKindOf({ details }: GatewayError): IncidentKind | undefined {
  if (details.limit === 'memory') return 'memory';
  return details.problem === 'descriptors' ? 'descriptors' : undefined;
}
