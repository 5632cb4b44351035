/** The running parts of one thread: those for its life, and a snapshot of the settings that each reload replaces. */

import type { Config } from './config/config.ts';
import { createHttpServer } from './downstream/http-server.ts';
import { createGateway } from './gateway/gateway.ts';
import { createModelList, type ModelListCache, type ModelsObserver } from './gateway/model-list.ts';
import { ByteBudget } from './lib/byte-budget.ts';
import { ExhaustionLog } from './upstream/network-error.ts';
import { createLogger, type Logger, type LogSettings } from './lib/log.ts';
import type { RequestObserver } from './lib/request-facts.ts';
import { createRedactor, isSameSetting } from './lib/secrets.ts';
import type { SharedMemory } from './lib/shared-memory.ts';
import { CircuitBreaker } from './policy/circuit-breaker.ts';
import { createConcurrency } from './policy/concurrency.ts';
import { KeyPool } from './policy/key-pool.ts';
import { ProviderHealth } from './policy/provider-health.ts';
import { createLimits } from './policy/rate-limits.ts';
import { Connection } from './store/connection.ts';
import { createRedisStore } from './store/redis-store.ts';
import { createOpenAIProvider, type Provider } from './upstream/provider.ts';
import { createTransport } from './upstream/transport.ts';
import type { KnownStates, ThreadEvent, ThreadRuntime } from './workers/thread.ts';

interface AppOptions extends ThreadRuntime {
  readonly writeLog: (line: string) => void;
  readonly memory: SharedMemory;
  readonly observe?: RequestObserver | undefined;
  readonly onModels?: ModelsObserver | undefined;
  /** Of a worker: takes what it learns of providers and keys to the other threads. */
  readonly share?: (event: ThreadEvent) => void;
  /** Of a worker: what the other threads have learned. */
  readonly known?: KnownStates;
  /** The number of reloads before. */
  readonly reloads?: number;
}

export type App = ReturnType<typeof createApp>;
type Parts = ReturnType<typeof createParts>;

/** Builds the parts. Nothing listens or connects yet. */
export function createApp(initial: Config, options: AppOptions) {
  const parts = createParts(initial, options);
  const { breaker, budget, redact } = parts;
  let snapshot = createSnapshot(initial, parts);
  let { reloads = 0 } = options;
  const apply = (event: ThreadEvent): void => {
    if (event.type !== 'key') breaker.apply(event);
    // Those of former settings have other names.
    else for (const pool of snapshot.keyPools.values()) pool.apply(event);
  };
  options.known?.keys.forEach(apply);
  const server = createHttpServer({
    ...parts,
    handle: (call) => snapshot.gateway.handle(call),
    answerBroken: (...request) => snapshot.gateway.answerBroken(...request),
    limits: options.clientLimits,
  });
  return {
    ...parts,
    server,
    get snapshot() {
      return snapshot;
    },
    get reloads() {
      return reloads;
    },
    /** For a thread that starts now. */
    get known(): KnownStates {
      const keys = [...snapshot.keyPools.values()].flatMap(({ events }) => events);
      return { circuits: breaker.circuits, keys };
    },
    /** Uses these settings for all requests that begin from now on; those in flight keep theirs. If it throws, nothing changes. */
    use(config: Config): void {
      const next = createSnapshot(config, parts, snapshot);
      redact.add(config.secrets);
      for (const [id, provider] of snapshot.providers) {
        if (next.providers.get(id) !== provider) breaker.retire(provider);
      }
      parts.logger.configure(logSettingsOf(config, options));
      budget.limits = config.server;
      snapshot = next;
      reloads += 1;
    },
    /** Makes a change that another thread has made. */
    apply,
  };
}

/** Creates what outlives every reload. */
function createParts(config: Config, options: AppOptions) {
  const { memory, observe, onModels, share, known } = options;
  const { store } = config.rateLimit;
  const redact = createRedactor(config.secrets);
  const logger = createLogger({
    ...logSettingsOf(config, options),
    colour: options.colour,
    write: options.writeLog,
    redact,
    now: () => Date.now(),
  });
  // The main thread makes the changes of all workers, and logs them once.
  const stateLogger: Logger = share ? { log() {}, isEnabled: () => false } : logger;
  const modelLists: ModelListCache = new WeakMap();
  return {
    memory,
    observe,
    onModels,
    share,
    redact,
    logger,
    stateLogger,
    cache: modelLists,
    transport: createTransport(config.server.upstream, memory),
    exhaustion: new ExhaustionLog(logger, memory),
    breaker: new CircuitBreaker(stateLogger, share, known?.circuits),
    budget: new ByteBudget(config.server, memory),
    /** Counts streamed answers while they are being sent. */
    streams: memory.inFlightCounter('open streams'),
    /** Counts requests. */
    inFlight: memory.inFlightCounter('requests'),
    /** Of the rate limits, if they are shared with other replicas. */
    store:
      store &&
      createRedisStore({
        logger,
        memory,
        open: (events) => new Connection(store, events),
      }),
  };
}

interface Former {
  readonly config: Config;
  readonly providers: ReadonlyMap<string, Provider>;
  readonly keyPools: ReadonlyMap<string, KeyPool>;
}

/**
 * Creates what depends on the settings: requests keep the one that they began with. Providers and key pools have state:
 * those with the same settings in `former` are taken over.
 */
function createSnapshot(config: Config, parts: Parts, former?: Former) {
  const { logger, memory, stateLogger, share, store } = parts;
  const providers = new Map<string, Provider>();
  const keyPools = new Map<string, KeyPool>();
  for (const settings of config.providers.registered) {
    const { id, apiKeys } = settings;
    const before = former?.config.providers.registered.find((one) => one.id === id);
    const kept = isSameSetting(before, settings) ? former : undefined;
    providers.set(id, kept?.providers.get(id) ?? createOpenAIProvider(settings));
    if (apiKeys.length === 1) continue;
    keyPools.set(id, kept?.keyPools.get(id) ?? new KeyPool(settings, stateLogger, share));
  }
  const all = {
    ...parts,
    config,
    providers,
    keyPools,
    limits: createLimits(config, memory, store),
    concurrency: createConcurrency(config, memory),
    health: new Map(
      [...providers.keys()].map((id) => [id, new ProviderHealth(id, logger, memory)]),
    ),
    // A fallback without a key is not registered.
    fallbacks: config.providers.fallback.flatMap((id) => providers.get(id) ?? []),
  };
  const listModels = createModelList(all);
  return {
    config,
    providers,
    keyPools,
    listModels,
    gateway: createGateway({ ...all, listModels }),
  };
}

function logSettingsOf({ logging }: Config, { isTerminal }: ThreadRuntime): LogSettings {
  const { level, format } = logging;
  return { level, format: format === 'auto' ? (isTerminal ? 'text' : 'json') : format };
}
