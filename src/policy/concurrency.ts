/** How many requests may be in flight at the same time: in all, of each client, and at each provider. */

import type { ClientSettings, Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Limit } from '../lib/request-facts.ts';

/** When one of them will be over is not known. */
const RETRY_AFTER_SECONDS = 1;

interface Counter {
  inFlight: number;
}

export interface Concurrency {
  /** By the names of their sections in the settings. */
  readonly counters: ReadonlyMap<string, Counter>;
  /** Counts a request of the client, or returns `rateLimit`. */
  beginRequest(client: ClientSettings | undefined): GatewayError | undefined;
  endRequest(client: ClientSettings | undefined): void;
  /** Counts an attempt at the provider, or returns `rateLimit`. */
  beginAttempt(id: string): GatewayError | undefined;
  endAttempt(id: string): void;
}

/** Takes over the counters of `former`: what is in flight over a reload counts on. Everything is counted, limited or not. */
export function createConcurrency(
  { server, clients, providers }: Pick<Config, 'server' | 'clients' | 'providers'>,
  former?: Concurrency,
): Concurrency {
  const limits = new Map<string, number>([
    [SERVER, server.maxConcurrentRequests],
    ...clients.map((one) => [clientName(one.name), one.maxConcurrentRequests] as const),
    ...providers.registered.map(
      (one) => [providerName(one.id), one.maxConcurrentRequests] as const,
    ),
  ]);
  const counters = new Map(
    [...limits.keys()].map((name) => [name, former?.counters.get(name) ?? { inFlight: 0 }]),
  );

  function begin(name: string, limit: Limit): GatewayError | undefined {
    const counter = counters.get(name)!;
    const max = limits.get(name)!;
    if (max > 0 && counter.inFlight >= max) {
      const retryAfterSeconds = RETRY_AFTER_SECONDS;
      return new GatewayError('rateLimit', 'Too many requests at the same time', {
        retryAfterSeconds,
        limit,
      });
    }
    counter.inFlight += 1;
    return undefined;
  }
  function end(name: string): void {
    counters.get(name)!.inFlight -= 1;
  }

  return {
    counters,
    beginRequest(client) {
      const refusal = begin(SERVER, 'server_concurrency');
      if (refusal || !client) return refusal;
      const own = begin(clientName(client.name), 'client_concurrency');
      if (own) end(SERVER);
      return own;
    },
    endRequest(client) {
      end(SERVER);
      if (client) end(clientName(client.name));
    },
    beginAttempt: (id) => begin(providerName(id), 'provider_concurrency'),
    endAttempt: (id) => end(providerName(id)),
  };
}

const SERVER = 'server';
const clientName = (name: string) => `clients.${name}`;
const providerName = (id: string) => `providers.${id}`;
