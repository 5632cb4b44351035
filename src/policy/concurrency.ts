/** Limits on the requests in flight: in all, of each client, and at each provider. */

import type { ClientSettings, Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Limit } from '../lib/request-facts.ts';
import type { SharedCounter, SharedMemory } from '../lib/shared-memory.ts';

/** When one of them will be over is not known. */
const RETRY_AFTER_SECONDS = 1;

export type Concurrency = ReturnType<typeof createConcurrency>;

/**
 * Finds the counters of the settings in `memory`: what is in flight over a reload counts on. Everything is counted,
 * limited or not.
 */
export function createConcurrency(
  { server, clients, providers }: Pick<Config, 'server' | 'clients' | 'providers'>,
  memory: SharedMemory,
) {
  const bound = (name: string, settings: Parameters<typeof createBound>[2], limit: Limit) =>
    createBound(name, memory.inFlightCounter(name), settings, limit);
  const inServer = bound('server', server, 'server_concurrency');
  const ofClients = new Map(
    clients.map((one) => [one.name, bound(`clients.${one.name}`, one, 'client_concurrency')]),
  );
  const atProviders = new Map(
    providers.registered.map((one) => {
      return [one.id, bound(`providers.${one.id}`, one, 'provider_concurrency')];
    }),
  );
  return {
    /** Counts a request of the client, or returns `rateLimit`. */
    beginRequest(client: ClientSettings | undefined): GatewayError | undefined {
      const refusal = inServer.begin();
      if (refusal || !client) return refusal;
      const own = ofClients.get(client.name)!.begin();
      if (own) inServer.end();
      return own;
    },
    endRequest(client: ClientSettings | undefined): void {
      inServer.end();
      if (client) ofClients.get(client.name)!.end();
    },
    /** Counts a request at the provider, or returns `rateLimit`. */
    beginAttempt: (id: string) => atProviders.get(id)!.begin(),
    endAttempt: (id: string) => atProviders.get(id)!.end(),
  };
}

/** A counter and its limit. */
function createBound(
  name: string,
  counter: SharedCounter,
  { maxConcurrentRequests }: Pick<ClientSettings, 'maxConcurrentRequests'>,
  limit: Limit,
) {
  const max = maxConcurrentRequests || Infinity;
  return {
    begin() {
      if (counter.addWithin(1, max)) return undefined;
      const retryAfterSeconds = RETRY_AFTER_SECONDS;
      const text = 'Too many requests at the same time';
      const limitState = `${name}.max_concurrent_requests: ${counter.value} of ${max}`;
      return new GatewayError('rateLimit', text, { retryAfterSeconds, limit, limitState });
    },
    end: () => void counter.add(-1),
  };
}
