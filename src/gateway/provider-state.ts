/** A provider, and what the gateway has learnt of it from the answers to its requests. */

import type { ProviderSettings } from '../config/config.ts';
import { type Incidents, Subject } from '../incidents/incidents.ts';
import type { Logger } from '../lib/log.ts';
import type { Redactor } from '../lib/secrets.ts';
import { CircuitBreaker } from '../policy/circuit-breaker.ts';
import { createOpenAIProvider, type Provider } from '../upstream/provider.ts';

/**
 * A provider of a snapshot of the settings. A reload that leaves the provider's settings as they
 * were keeps its parts. Otherwise the provider gets new parts, so that the results of requests in
 * flight reach only the former ones.
 */
export interface ProviderState extends Provider {
  readonly breaker: CircuitBreaker;
  /** Its tries and its incident. */
  readonly subject: Subject;
}

interface Parts {
  readonly incidents: Incidents;
  readonly logger: Logger;
  readonly redact: Redactor;
}

/** Creates a provider, or takes over `former` if it has the same settings. */
export function createProviderState(
  settings: ProviderSettings,
  { logger, redact }: Parts,
  former: ProviderState | undefined,
): ProviderState {
  const provider = createOpenAIProvider(settings);
  if (former?.digest === provider.digest) return former;
  const breaker = new CircuitBreaker(settings.id, logger, redact);
  return { ...provider, breaker, subject: new Subject(settings.id, breaker) };
}

/** Ends the parts of a provider that a reload has removed or replaced. */
export function disposeProviderState(
  { breaker, subject }: ProviderState,
  incidents: Incidents,
): void {
  breaker.dispose();
  incidents.dispose(subject);
}
