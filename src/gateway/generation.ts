/** What depends on the settings: made at start and with each reload. */

import type { Config } from '../config/config.ts';
import type { ByteBudget } from '../lib/byte-budget.ts';
import type { ConfigurableLogger } from '../lib/log.ts';
import type { RequestObserver } from '../lib/request-facts.ts';
import { isSameSetting, type GrowingRedactor } from '../lib/secrets.ts';
import type { CircuitBreaker } from '../policy/circuit-breaker.ts';
import { createKeyPools, type KeyPool } from '../policy/key-pool.ts';
import { createLimits, type Limits } from '../policy/rate-limits.ts';
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
  readonly breaker: CircuitBreaker;
  readonly budget: ByteBudget;
  readonly streams: { open: number };
  readonly cache: ModelListCache;
  /** Told of what happens, if there is an admin listener. */
  observe?: RequestObserver | undefined;
  onModels?: ModelsObserver | undefined;
}

/** Requests that began with it keep it until they end. */
export interface Generation {
  readonly config: Config;
  /** By id. */
  readonly providers: ReadonlyMap<string, Provider>;
  /** Of the providers with several keys. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly limits: Limits;
  readonly listModels: ModelList;
  readonly gateway: Gateway;
}

/** Creates a generation. What has the same settings in `former` is kept, with its state. */
export function createGeneration(
  config: Config,
  permanent: Permanent,
  former?: Generation,
): Generation {
  const { transport, logger, redact, breaker, streams, observe } = permanent;
  const { registered, fallback } = config.providers;
  const same = findSame(config, former?.config);
  const created = new Map(registered.map((one) => [one.id, createOpenAIProvider(one)]));
  const providers = keep(created, former?.providers, same);
  const keyPools = keep(createKeyPools(registered, logger), former?.keyPools, same);
  const limits = createLimits(config, former?.limits);
  // A fallback without a key is not registered.
  const fallbacks = fallback.flatMap((id) => providers.get(id) ?? []);
  const parts = { config, transport, logger, providers, keyPools, limits };
  const completion = { ...parts, fallbacks, redact, breaker };
  const { aliases } = config;
  const listModels = createModelList({ ...permanent, providers, keyPools, aliases });
  const gateway = createGateway({ config, logger, completion, observe, listModels, streams });
  return { ...parts, listModels, gateway };
}

/** Returns the ids of the providers whose settings are the same. */
function findSame({ providers }: Config, former: Config | undefined): ReadonlySet<string> {
  const before = new Map(former?.providers.registered.map((one) => [one.id, one]));
  const same = providers.registered.filter((one) => isSameSetting(before.get(one.id), one));
  return new Set(same.map(({ id }) => id));
}

/** Returns `created` with the former parts of these ids. */
function keep<Part>(
  created: ReadonlyMap<string, Part>,
  former: ReadonlyMap<string, Part> | undefined,
  ids: ReadonlySet<string>,
): ReadonlyMap<string, Part> {
  const choose = (id: string, part: Part) => (ids.has(id) && former?.get(id)) || part;
  return new Map([...created].map(([id, part]) => [id, choose(id, part)]));
}
