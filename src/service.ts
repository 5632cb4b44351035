/** The gateway of the main thread: its own app, the workers if there are several, the admin listener, and reloads. */

import { createAdmin, type Admin } from './admin/admin.ts';
import type { Figures } from './admin/figures.ts';
import { createApp, type App } from './app.ts';
import { localUrl, warningsOf } from './cli/startup-report.ts';
import type { Config } from './config/config.ts';
import { compareSettings, logChanges, logFailure, type Changes } from './config/reload.ts';
import type { HttpServer } from './downstream/http-server.ts';
import { placeOfMain, SharedMemory } from './lib/shared-memory.ts';
import { modelListState } from './gateway/model-list.ts';
import { storeCounters } from './store/redis-store.ts';
import { WorkerPool, type PoolRuntime } from './workers/pool.ts';

export interface Service {
  /** The listener of the public port: this thread's, or those of its workers. */
  readonly server: HttpServer;
  /** The listener of `[admin]`. */
  readonly admin?: HttpServer | undefined;
  /** Of this thread. */
  readonly app: App;
  /** Asks the providers for their lists of models, so that metrics can name them. */
  learnModels(): void;
  /**
   * Uses the settings that `read` returns for all requests that begin from now on; those in flight keep theirs. If it
   * throws, nothing changes. Both are logged. In a drain it does nothing. Resolves when all threads use them.
   */
  reload(read: () => Config): Promise<void>;
}

interface ServiceRuntime extends PoolRuntime {
  /** Log lines that were not written, since the start. */
  readonly droppedLogLines?: () => number;
}

/** Builds a gateway from its settings. Nothing listens or connects yet. */
export function createService(initial: Config, runtime: ServiceRuntime): Service {
  const { admin: settings } = initial;
  const { workers } = initial.server;
  let lastReload = { isSuccessful: true, succeededAtMs: Date.now() };
  const app = createApp(initial, {
    ...runtime,
    memory: new SharedMemory(placeOfMain(workers)),
    observe: settings && ((request) => admin?.observe(request)),
    onModels: settings && ((...models) => admin?.onModels(...models)),
  });
  const { logger } = app;
  const config = () => app.snapshot.config;
  const pool = workers > 1 ? new WorkerPool(app, runtime) : undefined;
  const server = pool ?? app.server;
  const figures: Figures = {
    ...figuresOf(app),
    url: () => `${localUrl(initial.server.host, server.port)}/v1`,
    isDraining: () => server.isDraining,
    droppedLogLines: () => (runtime.droppedLogLines?.() ?? 0) + (pool?.droppedLines ?? 0),
    uncountedRequests: () => pool?.droppedRequests ?? 0,
    isServing: () => pool?.serving !== 0,
    serving: () => pool?.serving ?? 1,
    lastReload: () => lastReload,
    loopDelays: () => pool?.loopDelays ?? [],
  };
  const admin: Admin | undefined =
    settings && createAdmin(config, settings, figures, { logger, limits: runtime.clientLimits });
  admin?.onConfig(initial);
  // Metrics name only models that are known.
  const learnModels = () => void (admin && app.snapshot.listModels());

  return {
    server,
    admin: admin?.server,
    app,
    learnModels,
    async reload(read) {
      if (server.isDraining) return logger.log('warn', 'reload ignored', { cause: 'draining' });
      const before = config();
      let changes: Changes;
      try {
        changes = compareSettings(before, read());
        app.use(changes.config);
      } catch (failure) {
        lastReload = { ...lastReload, isSuccessful: false };
        return logFailure(logger, failure);
      }
      lastReload = { isSuccessful: true, succeededAtMs: Date.now() };
      admin?.onConfig(changes.config);
      learnModels();
      await pool?.use();
      const known = new Set(warningsOf(before));
      const warnings = warningsOf(changes.config).filter((text) => !known.has(text));
      logChanges(logger, changes, warnings);
    },
  };
}

/** Those that are read from the parts, over all threads. */
function figuresOf(app: App) {
  const { breaker, redact } = app;
  const store = app.snapshot.config.rateLimit.store && storeCounters(app.memory);
  return {
    connections: () => app.transport.connectionFigures,
    inFlight: () => app.inFlight.value,
    inFlightOf: (section: string) => app.memory.inFlightCounter(section).value,
    keysInCooldown: () =>
      [...app.snapshot.keyPools].map(([id, pool]) => [id, pool.keysInCooldown] as const),
    isModelListUp: (id: string) => modelListState(app.memory, id).isUp,
    openStreams: () => app.streams.value,
    bufferedBytes: () => app.budget.reservedBytes,
    exhaustions: () => app.exhaustion.count,
    store: () => store && { isAway: store.away.value > 0, fallbacks: store.fallbacks.value },
    circuits: () =>
      breaker.report().map((circuit) => ({
        ...circuit,
        model: circuit.model && redact(circuit.model),
        cause: circuit.cause && redact(circuit.cause),
      })),
  };
}
