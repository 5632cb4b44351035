/** The composition root of the main thread: settings become running parts, at start and with each reload. */

import { createAdmin, type Admin } from './admin/admin.ts';
import type { Figures, ReloadFigures } from './admin/figures.ts';
import { localUrl, warningsOf } from './cli/startup-report.ts';
import { packConfig, type Config } from './config/config.ts';
import { compareSettings, logChanges, logFailure, type Changes } from './config/reload.ts';
import type { HttpServer } from './downstream/http-server.ts';
import type { Permanent } from './gateway/generation.ts';

import { placeOfMain, SharedMemory } from './lib/shared-memory.ts';
import { createServing, type Serving, type ThreadRuntime } from './serving.ts';
import { storeCounters } from './store/redis-store.ts';
import { Backlog } from './workers/backlog.ts';
import { WorkerPool } from './workers/pool.ts';

export interface Assembly {
  /** The listener of the public port: this thread's, or those of its workers. */
  readonly server: HttpServer;
  /** The listener of `[admin]`. */
  readonly admin?: HttpServer | undefined;
  readonly permanent: Permanent;
  /** The settings in use. */
  readonly config: Config;
  /** Asks the providers for their lists of models, so that metrics can name them. */
  learnModels(): void;
  /**
   * Uses the settings that `read` returns for all requests that begin from now on; those in flight keep theirs. If it
   * throws, nothing changes. Both are logged. In a drain it does nothing. Resolves when all threads use them.
   */
  reload(read: () => Config): Promise<void>;
}

/** What the gateway needs from the process. */
interface Runtime extends ThreadRuntime {
  /** The program that worker threads run: the file of the gateway itself. */
  readonly workerFile: string;
  /** Log lines that were not written, since the start. */
  readonly droppedLogLines?: () => number;
}

/** Builds a gateway from its settings. Nothing listens or connects yet. */
export function assemble(initial: Config, runtime: Runtime): Assembly {
  const { workers } = initial.server;
  const place = placeOfMain(workers);
  const memory = new SharedMemory(place);
  const settings = initial.admin;
  let lastReload: ReloadFigures = { isSuccessful: true, succeededAtMs: Date.now() };
  const serving = createServing(initial, runtime, {
    memory,
    generationMemory: new SharedMemory(place),
    observe: settings && ((request) => admin?.observe(request)),
    onModels: settings && ((...models) => admin?.onModels(...models)),
  });
  const { permanent, inFlight } = serving;
  const { logger } = permanent;
  const backlog = workers > 1 ? new Backlog(memory) : undefined;
  const store = initial.rateLimit.store && storeCounters(memory);
  const config = () => serving.current.config;
  // Metrics name only models that are known.
  const learnModels = () => void (admin && serving.current.listModels());
  const pool = backlog && createPool(serving, runtime, memory, backlog);
  const server = pool ?? serving.server;
  const figures: Figures = {
    ...figuresOf(permanent),
    store: () => store && { isAway: store.away.value > 0, fallbacks: store.fallbacks.value },
    url: () => `${localUrl(initial.server.host, server.port)}/v1`,
    isDraining: () => server.isDraining,
    inFlight: () => inFlight.value,
    droppedLogLines: () => (runtime.droppedLogLines?.() ?? 0) + (backlog?.droppedLines ?? 0),
    uncountedRequests: () => backlog?.droppedRequests ?? 0,
    isServing: () => pool?.isServing !== false,
    lastReload: () => lastReload,
    loopDelays: () => pool?.loopDelays ?? [],
  };
  const admin: Admin | undefined =
    settings && createAdmin({ config, settings, figures, logger, limits: runtime.clientLimits });
  admin?.onConfig(initial);

  return {
    server,
    admin: admin?.server,
    permanent,
    get config() {
      return config();
    },
    learnModels,
    async reload(read) {
      if (server.isDraining) return logger.log('warn', 'reload ignored', { cause: 'draining' });
      const before = config();
      const changes = readAndUse(read, serving);
      const succeededAtMs = changes ? Date.now() : lastReload.succeededAtMs;
      lastReload = { isSuccessful: changes !== undefined, succeededAtMs };
      if (!changes) return;
      admin?.onConfig(changes.config);
      learnModels();
      if (pool) await pool.use(changes.config, serving.current.memory.blocks);
      const known = new Set(warningsOf(before));
      const warnings = warningsOf(changes.config).filter((text) => !known.has(text));
      logChanges(logger, changes, warnings);
    },
  };
}

/** Uses the settings that `read` returns in this thread. Undefined, and nothing changes, if that fails. */
function readAndUse(read: () => Config, serving: Serving): Changes | undefined {
  const { config, memory } = serving.current;
  try {
    const changes = compareSettings(config, read());
    serving.use(changes.config, new SharedMemory(memory.place, memory.blocks));
    return changes;
  } catch (failure) {
    logFailure(serving.permanent.logger, failure);
    return undefined;
  }
}

function createPool(
  serving: Serving,
  runtime: Runtime,
  memory: SharedMemory,
  backlog: Backlog,
): WorkerPool {
  const { breaker, logger, observe, transport } = serving.permanent;
  const { colour, isTerminal, clientLimits, workerFile: file, writeLog } = runtime;
  return new WorkerPool({
    workers: serving.current.config.server.workers,
    file,
    logger,
    backlog,
    writeLog,
    observe,
    listModels: async (models) => {
      const { body } = await serving.current.listModels({ models });
      return body[0].buffer;
    },
    inFlight: serving.inFlight,
    describeStart: (place) => ({
      place,
      config: packConfig(serving.current.config),
      upstream: transport.setting,
      blocks: memory.blocks,
      generationBlocks: serving.current.memory.blocks,
      colour,
      isTerminal,
      clientLimits,
    }),
    reclaim(thread) {
      breaker.releaseLock(thread);
      memory.reclaim(thread);
      serving.current.memory.reclaim(thread);
    },
  });
}

function figuresOf({ breaker, budget, exhaustion, redact, streams, transport }: Permanent) {
  return {
    connections: () => transport.connectionFigures,
    openStreams: () => streams.value,
    bufferedBytes: () => budget.reservedBytes,
    exhaustions: () => exhaustion.count,
    circuits: () =>
      breaker.report().map((circuit) => ({
        ...circuit,
        model: circuit.model && redact(circuit.model),
        cause: circuit.cause && redact(circuit.cause),
      })),
  };
}
