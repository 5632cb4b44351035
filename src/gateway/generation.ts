/** What depends on the settings: made at start and with each reload. */

import type { Config } from '../config/config.ts';
import type { ByteBudget } from '../lib/byte-budget.ts';
import type { ExhaustionLog } from '../lib/exhaustion.ts';
import type { ConfigurableLogger } from '../lib/log.ts';
import type { RequestObserver } from '../lib/request-facts.ts';
import { isSameSetting, type GrowingRedactor } from '../lib/secrets.ts';
import type { SharedCounter, SharedMemory } from '../lib/shared-memory.ts';
import type { CircuitBreaker } from '../policy/circuit-breaker.ts';
import { createConcurrency } from '../policy/concurrency.ts';
import { KeyPool } from '../policy/key-pool.ts';
import type { RateLimitStore } from '../policy/rate-limit-store.ts';
import { createLimits } from '../policy/rate-limits.ts';
import { createOpenAIProvider } from '../upstream/openai.ts';
import type { Provider } from '../upstream/provider.ts';
import type { Transport } from '../upstream/transport.ts';
import { createGateway, type Gateway } from './gateway.ts';
import {
  createModelList,
  type ModelList,
  type ModelListCache,
  type ModelsObserver,
} from './model-list.ts';

/** What is made once and outlives every reload. */
export interface Permanent {
  readonly redact: GrowingRedactor;
  readonly logger: ConfigurableLogger;
  readonly transport: Transport;
  readonly exhaustion: ExhaustionLog;
  readonly breaker: CircuitBreaker;
  readonly budget: ByteBudget;
  /** Counts streamed answers while they are being sent. */
  readonly streams: SharedCounter;
  /** Of the rate limits, if they are shared with other replicas. */
  readonly store?: RateLimitStore | undefined;
  readonly cache: ModelListCache;
  /** Take finished requests and lists of models, if there is an admin listener. */
  readonly observe?: RequestObserver | undefined;
  readonly onModels?: ModelsObserver | undefined;
  /** Answers `GET /v1/models` instead of a list of this thread's own. */
  readonly listModels?: ModelList | undefined;
}

/** Requests that began with it keep it until they end. */
export interface Generation {
  readonly config: Config;
  /** By id. They have state: the next generation takes over those whose settings are the same. */
  readonly providers: ReadonlyMap<string, Provider>;
  /** With the buckets, counters and rests of keys of the settings. */
  readonly memory: SharedMemory;
  readonly listModels: ModelList;
  readonly gateway: Gateway;
}

/** Creates a generation with its state in `memory`. What has the same settings in `former` is taken over. */
export function createGeneration(
  config: Config,
  memory: SharedMemory,
  permanent: Permanent,
  former?: Generation,
): Generation {
  const { transport, logger, redact, exhaustion, breaker, streams, observe, store } = permanent;
  const providers = createProviders(config, former);
  const severalKeys = config.providers.registered.filter(({ apiKeys }) => apiKeys.length > 1);
  const keyPools = new Map(
    severalKeys.map((settings) => [settings.id, new KeyPool(settings, memory, logger)]),
  );
  const limits = createLimits(config, memory, store);
  const concurrency = createConcurrency(config, memory);
  // A fallback without a key is not registered.
  const fallbacks = config.providers.fallback.flatMap((id) => providers.get(id) ?? []);
  const lasting = { transport, logger, redact, exhaustion, breaker };
  const asking = { providers, keyPools, limits, concurrency, config, fallbacks };
  const completion = { ...lasting, ...asking };
  const { aliases } = config;
  const listModels =
    permanent.listModels ?? createModelList({ ...permanent, providers, keyPools, aliases });
  const gateway = createGateway({ completion, observe, listModels, streams, memory });
  return { providers, config, memory, listModels, gateway };
}

/** Returns the providers by id: those of `former` if their settings are the same, else new ones. */
function createProviders(config: Config, former: Generation | undefined): Generation['providers'] {
  const formerSettings = new Map(
    former?.config.providers.registered.map((settings) => [settings.id, settings]),
  );
  return new Map(
    config.providers.registered.map((settings) => {
      const { id } = settings;
      const kept = isSameSetting(formerSettings.get(id), settings) ? former : undefined;
      return [id, kept?.providers.get(id) ?? createOpenAIProvider(settings)];
    }),
  );
}
