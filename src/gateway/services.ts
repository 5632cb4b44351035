/**
 * What requests are worked on with: the settings, and what outlives a request. A reload makes new
 * ones.
 */

import type { AliasSettings, Tenant, Config } from '../config/config.ts';
import type { Logger } from '../lib/log.ts';
import type { CircuitBreaker } from '../policy/circuit-breaker.ts';
import type { Incidents } from '../incidents/incidents.ts';
import type { KeyPool } from '../policy/key-pool.ts';
import type { Limiters } from '../policy/limiters.ts';
import type { RequestObserver } from '../request/facts.ts';
import type { AttemptServices } from '../upstream/attempt-context.ts';
import type { Provider } from '../upstream/provider.ts';

export interface Services extends AttemptServices {
  readonly config: Config;
  /** By their ids. */
  readonly providers: ReadonlyMap<string, Provider>;
  readonly fallbacks: readonly Provider[];
  /** By the provider's id; absent if it has one key. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly limiters: Limiters;
  readonly breaker: CircuitBreaker;
  readonly incidents: Incidents;
  /** When each target of a balanced alias was last asked first, of `performance.now()`. */
  readonly lastAsked: Map<string, number>;
  /** What each target of a weighted alias has gained and not paid for. */
  readonly credits: Map<AliasSettings, readonly number[]>;
  /**
   * Returns the body of `GET /v1/models`, with the models that the tenant may name; all without a
   * tenant. Never rejects.
   */
  readonly listModels: (tenant?: Tenant) => Promise<Buffer>;
  readonly logger: Logger;
  /** Is told of every finished request but those for /health. */
  readonly observe?: RequestObserver | undefined;
  /** The warnings that were logged, each of which is logged once. */
  readonly warned: Set<string>;
}
