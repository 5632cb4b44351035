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
import { createLimits } from './policy/rate-limits.ts';
import { ANSWER_MS, Connection } from './store/connection.ts';
import { createRedisStore } from './store/redis-store.ts';
import { createOpenAIProvider } from './upstream/openai.ts';
import type { Provider } from './upstream/provider.ts';
import { createTransport } from './upstream/transport.ts';
import type { KnownStates, ThreadEvent, ThreadRuntime } from './workers/thread.ts';

interface Runtime extends ThreadRuntime {
  readonly writeLog: (line: string) => void;
}

/** Connects the thread with the others, and with the admin listener. */
interface Links {
  readonly memory: SharedMemory;
  readonly observe?: RequestObserver | undefined;
  readonly onModels?: ModelsObserver | undefined;
  /** Of a worker: takes what it learns of providers and keys to the other threads. */
  readonly share?: (event: ThreadEvent) => void;
  readonly known?: KnownStates;
  /** How often settings were read again before. */
  readonly reloads?: number;
}

export type App = ReturnType<typeof createApp>;
type Parts = ReturnType<typeof createParts>;

/** Builds the parts. Nothing listens or connects yet. */
export function createApp(initial: Config, runtime: Runtime, links: Links) {
  const parts = createParts(initial, runtime, links);
  const { breaker, budget, inFlight, logger, redact } = parts;
  let snapshot = createSnapshot(initial, parts);
  let { reloads = 0 } = links;
  const apply = (event: ThreadEvent): void => {
    if (event.type !== 'key') breaker.apply(event);
    // Those of former settings have other names.
    else for (const pool of snapshot.keyPools.values()) pool.apply(event);
  };
  links.known?.keys.forEach(apply);
  const server = createHttpServer({
    handle: (call) => snapshot.gateway.handle(call),
    answerBroken: (...request) => snapshot.gateway.answerBroken(...request),
    limits: runtime.clientLimits,
    budget,
    inFlight,
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
      logger.configure(logSettingsOf(config, runtime));
      budget.limits = config.server;
      snapshot = next;
      reloads += 1;
    },
    /** Makes a change that another thread has made. */
    apply,
  };
}

/** Creates what outlives every reload. */
function createParts(config: Config, runtime: Runtime, links: Links) {
  const { memory, observe, onModels, share, known } = links;
  const { store } = config.rateLimit;
  const redact = createRedactor(config.secrets);
  const logger = createLogger({
    ...logSettingsOf(config, runtime),
    colour: runtime.colour,
    write: runtime.writeLog,
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
    redact,
    logger,
    modelLists,
    transport: createTransport(config.server.upstream, memory),
    exhaustion: new ExhaustionLog(logger, memory),
    breaker: new CircuitBreaker(stateLogger, share, known?.circuits),
    createKeyPool: (settings: ConstructorParameters<typeof KeyPool>[0]) =>
      new KeyPool(settings, stateLogger, share),
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
        open: (events) => new Connection(store, { ...events, answerMs: ANSWER_MS }),
      }),
  };
}

/** Creates what depends on the settings: requests keep the one that they began with. What has the same settings in `former` is taken over. */
function createSnapshot(config: Config, parts: Parts, former?: Former) {
  const { breaker, exhaustion, logger, memory, redact, transport } = parts;
  const forAttempts = { breaker, exhaustion, logger, redact, transport };
  const { providers, keyPools } = createProviders(config, parts, former);
  const completion = {
    ...forAttempts,
    config,
    providers,
    keyPools,
    limits: createLimits(config, memory, parts.store),
    concurrency: createConcurrency(config, memory),
    // A fallback without a key is not registered.
    fallbacks: config.providers.fallback.flatMap((id) => providers.get(id) ?? []),
  };
  const { aliases } = config;
  const cache = parts.modelLists;
  const listModels = createModelList({ ...parts, providers, keyPools, aliases, cache });
  const gateway = createGateway({ ...parts, completion, listModels });
  return { config, providers, keyPools, listModels, gateway };
}

interface Providers {
  /** By id. They and the pools have state. */
  readonly providers: ReadonlyMap<string, Provider>;
  /** Of the providers with several keys. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
}

type Former = Providers & { readonly config: Config };

/** Returns those of `former` if their settings are the same, else new ones. */
function createProviders(config: Config, { createKeyPool }: Parts, former?: Former): Providers {
  const providers = new Map<string, Provider>();
  const keyPools = new Map<string, KeyPool>();
  const formerSettings = former?.config.providers.registered ?? [];
  for (const settings of config.providers.registered) {
    const { id, apiKeys } = settings;
    const before = formerSettings.find((one) => one.id === id);
    const kept = isSameSetting(before, settings) ? former : undefined;
    providers.set(id, kept?.providers.get(id) ?? createOpenAIProvider(settings));
    if (apiKeys.length > 1) keyPools.set(id, kept?.keyPools.get(id) ?? createKeyPool(settings));
  }
  return { providers, keyPools };
}

function logSettingsOf({ logging }: Config, { isTerminal }: ThreadRuntime): LogSettings {
  const { level, format } = logging;
  return { level, format: format === 'auto' ? (isTerminal ? 'text' : 'json') : format };
}
