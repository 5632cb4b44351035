/** The one place that builds the gateway: the parts of each thread, a snapshot of the settings, and what the main thread adds. */

import { createAdmin, type Admin } from './admin/admin.ts';
import { type LastReload, oldestAgesMs } from './admin/figures.ts';
import { localUrl, warningsOf } from './cli/startup-report.ts';
import type { Config } from './config/config.ts';
import { compareSettings, logChanges, logFailure, type Changes } from './config/reload.ts';
import { ConfigError } from './config/setting-values.ts';
import { createHttpServer, requestCounters, type DrainOptions } from './downstream/http-server.ts';
import { createLastAsked } from './gateway/balance.ts';
import type { CompletionServices } from './gateway/chat-completions.ts';
import { createGateway } from './gateway/gateway.ts';
import { createModelList, modelListState } from './gateway/model-list.ts';
import { ByteBudget } from './lib/byte-budget.ts';
import { createLogger, type Logger, type LogSettings } from './lib/log.ts';
import type { RequestObserver } from './lib/request-facts.ts';
import { createRedactor } from './lib/secrets.ts';
import { placeOfMain, SharedMemory } from './lib/shared-memory.ts';
import { CircuitBreaker } from './policy/circuit-breaker.ts';
import { KeyPool } from './policy/key-pool.ts';
import { createProviderHealth, type ProviderHealth } from './policy/provider-health.ts';
import { createLimits } from './policy/limits.ts';
import { Connection } from './store/connection.ts';
import { createRedisStore, storeCounters } from './store/redis-store.ts';
import { ExhaustionLog } from './upstream/network-error.ts';
import { createOpenAIProvider, type Provider } from './upstream/provider.ts';
import { createTransport } from './upstream/transport.ts';
import { WorkerPool } from './workers/pool.ts';
import {
  batchCounters,
  type MainRuntime,
  type ThreadEvent,
  type ThreadRuntime,
} from './workers/thread.ts';

interface AppOptions extends ThreadRuntime {
  readonly writeLog: (line: string) => void;
  readonly memory: SharedMemory;
  readonly observe?: RequestObserver | undefined;
  readonly onModels?: Admin['onModels'] | undefined;
  /** Of a worker: takes what it learns of providers and keys to the other threads. */
  readonly share?: (event: ThreadEvent) => void;
  /** Of a worker: what the other threads have learned. */
  readonly known?: readonly ThreadEvent[];
}

export type Service = ReturnType<typeof createService>;

/** Builds the gateway of the main thread: its app, the workers if there are several, the admin listener. Nothing listens yet. */
export function createService(initial: Config, runtime: MainRuntime) {
  const { admin: settings } = initial;
  const { host, workers } = initial.server;
  let lastReload: LastReload = { succeededAtMs: Date.now() };
  const memory = new SharedMemory(placeOfMain(workers));
  const app = createApp(initial, {
    ...runtime,
    memory,
    observe: settings && ((request) => admin?.observe(request)),
    onModels: settings && ((...models) => admin?.onModels(...models)),
  });
  const { breaker, logger, redact } = app;
  const pool = workers > 1 ? new WorkerPool(app, runtime) : undefined;
  const server = pool ?? app.server;
  const store = app.store && storeCounters(memory);
  const { droppedLines, droppedRequests } = batchCounters(memory);
  const figures = {
    url: () => `${localUrl(host, server.port)}/v1`,
    serving: () => pool?.serving ?? Number(server.port !== 0),
    isDraining: () => server.isDraining,
    inFlight: () => app.inFlight.value,
    inFlightOf: (section: string) => memory.inFlightCounter(section).value,
    oldestAgesMs: () => oldestAgesMs(app.server.calls()),
    keysInCooldown: () =>
      [...app.snapshot.keyPools].map(([id, keys]) => [id, keys.keysInCooldown] as const),
    isModelListUp: (id: string) => modelListState(memory, id).isUp,
    openStreams: () => app.streams.value,
    bufferedBytes: () => app.budget.reservedBytes,
    droppedLogLines: () => (runtime.droppedLogLines?.() ?? 0) + droppedLines.value,
    uncountedRequests: () => droppedRequests.value,
    exhaustions: () => app.exhaustion.count,
    connections: () => app.transport.connectionFigures,
    store: () => store && { isAway: store.away.value > 0, fallbacks: store.fallbacks.value },
    loopDelays: () => [...(pool?.workers.values() ?? [])].flatMap((one) => one.loopDelay ?? []),
    circuits: () => breaker.report(redact),
    lastReload: () => lastReload,
  };
  const config = () => app.snapshot.config;
  const admin: Admin | undefined =
    settings &&
    createAdmin(config, settings, figures, { logger, redact, limits: runtime.clientLimits });
  admin?.onConfig(initial);
  const learnModels = () => void (admin && app.snapshot.listModels());

  return {
    /** The listener of the public port: this thread's, or those of its workers. */
    server,
    admin: admin?.server,
    app,
    /** Asks the providers for their lists of models: metrics name only models that are known. */
    learnModels,
    /** Drains the public port. Resolves with the counts of the requests that have ended since it began, over all threads. */
    async drain(options: DrainOptions) {
      const [finishedBefore, cutBefore] = [app.finished.value, app.cancelled.value];
      await server.drain(options);
      return {
        finished: app.finished.value - finishedBefore,
        cut: app.cancelled.value - cutBefore,
      };
    },
    /**
     * Uses the settings that `read` returns for all requests that begin from now on; those in flight keep theirs. If it
     * throws, nothing changes. Both are logged. In a drain it does nothing. Resolves when all threads use them.
     */
    async reload(read: () => Config): Promise<void> {
      if (server.isDraining) return logger.log('warn', 'reload ignored', { cause: 'draining' });
      const before = config();
      let changes: Changes;
      try {
        changes = compareSettings(before, read());
        app.use(changes.config);
      } catch (failure) {
        const problem = failure instanceof ConfigError ? failure.problems[0] : undefined;
        const text = redact(problem ?? (failure as Error).message);
        lastReload = { ...lastReload, failedAtMs: Date.now(), problem: text };
        return logFailure(logger, failure);
      }
      lastReload = { succeededAtMs: Date.now() };
      admin?.onConfig(changes.config);
      learnModels();
      await pool?.use();
      const known = warningsOf(before);
      const warnings = warningsOf(changes.config).filter((text) => !known.includes(text));
      logChanges(logger, changes, warnings);
    },
  };
}

/** Builds the parts of one thread. Nothing listens or connects yet. */
export function createApp(initial: Config, options: AppOptions) {
  const parts = createParts(initial, options);
  const { breaker, budget, logger, redact } = parts;
  let snapshot = createSnapshot(initial, parts);
  breaker.guard(snapshot.providers.values());
  /** Makes a change that another thread has made. */
  const apply = (event: ThreadEvent): void => {
    if (event.type !== 'key') breaker.apply(event);
    else for (const pool of snapshot.keyPools.values()) pool.apply(event);
  };
  options.known?.forEach(apply);
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
    /** For a thread that starts now. */
    get known(): ThreadEvent[] {
      const pools = [...snapshot.keyPools.values()];
      return [...breaker.events, ...pools.flatMap(({ events }) => events)];
    },
    /** Uses these settings for all requests that begin from now on; those in flight keep theirs. If it throws, nothing changes. */
    use(config: Config): void {
      snapshot = createSnapshot(config, parts, snapshot);
      breaker.guard(snapshot.providers.values());
      redact.add(config.secrets);
      logger.configure(logSettingsOf(config, options));
      budget.limits = config.server;
    },
    apply,
  };
}

/** Creates what outlives every reload. */
function createParts(config: Config, options: AppOptions) {
  const { colour, memory, observe, onModels, share, writeLog: write } = options;
  const { store } = config.rateLimit;
  const redact = createRedactor(config.secrets);
  const logger = createLogger({ ...logSettingsOf(config, options), colour, write, redact });
  // The main thread makes the changes of all workers, and logs them once.
  const stateLogger: Logger = share ? { log() {}, isEnabled: () => false } : logger;
  return {
    memory,
    observe,
    onModels,
    redact,
    logger,
    cache: new WeakMap(),
    transport: createTransport(config.server.upstream, memory),
    exhaustion: new ExhaustionLog(logger, memory),
    breaker: new CircuitBreaker(stateLogger, share),
    createKeyPool: (provider: Provider) => new KeyPool(provider, stateLogger, share),
    budget: new ByteBudget(config.server, memory),
    /** Counts streamed answers while they are being sent. */
    streams: memory.inFlightCounter('open streams'),
    ...requestCounters(memory),
    /** Of the rate limits, if they are shared with other replicas. */
    store: store && createRedisStore(logger, memory, (events) => new Connection(store, events)),
  };
}

/** Creates what depends on the settings: requests keep the one that they began with. Providers with the same settings stay. */
function createSnapshot(
  config: Config,
  parts: ReturnType<typeof createParts>,
  former?: Pick<CompletionServices, 'providers' | 'keyPools'>,
) {
  const { logger, memory, store, createKeyPool } = parts;
  const providers = new Map<string, Provider>();
  const keyPools = new Map<string, KeyPool>();
  const health = new Map<string, ProviderHealth>();
  for (const settings of config.providers.registered) {
    const { id } = settings;
    const created = createOpenAIProvider(settings);
    const before = former?.providers.get(id);
    const isSame = before?.digest === created.digest;
    providers.set(id, isSame ? before : created);
    health.set(id, createProviderHealth(id, logger, memory));
    if (settings.apiKeys.length === 1) continue;
    keyPools.set(id, (isSame && former?.keyPools.get(id)) || createKeyPool(created));
  }
  const all = {
    ...parts,
    config,
    providers,
    keyPools,
    limits: createLimits(config, memory, store),
    health,
    usageRefusals: new Set<string>(),
    lastAsked: createLastAsked(config, memory),
    // A fallback without a key is not registered.
    fallbacks: config.providers.fallback.flatMap((id) => providers.get(id) ?? []),
  };
  const listModels = createModelList(all);
  const gateway = createGateway({ ...all, listModels });
  return { config, providers, keyPools, listModels, gateway };
}

function logSettingsOf({ logging }: Config, { isTerminal }: ThreadRuntime): LogSettings {
  const { level, format } = logging;
  return { level, format: format === 'auto' ? (isTerminal ? 'text' : 'json') : format };
}
