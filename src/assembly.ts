/** The composition root: settings become running parts, at start and with each reload. */

import { createAdmin } from './admin/admin.ts';
import type { Figures, ReloadFigures } from './admin/figures.ts';
import { localUrl, warningsOf } from './cli/startup-report.ts';
import type { Config } from './config/config.ts';
import { secretsOf } from './config/secrets-of.ts';
import { compareSettings, logChanges, logFailure } from './config/reload.ts';
import { CLIENT_LIMITS } from './downstream/call.ts';
import { createHttpServer, type HttpServer } from './downstream/http-server.ts';
import { createGeneration, type Generation, type Permanent } from './gateway/generation.ts';
import { ByteBudget } from './lib/byte-budget.ts';
import { ExhaustionLog } from './lib/exhaustion.ts';
import { createLogger, type Logger, type LogSettings } from './lib/log.ts';
import { createRedactor } from './lib/secrets.ts';
import { CircuitBreaker } from './policy/circuit-breaker.ts';
import { createTransport, type Transport } from './upstream/transport.ts';

export interface Assembly {
  readonly server: HttpServer;
  /** The listener of `[admin]`. */
  readonly admin?: HttpServer | undefined;
  readonly transport: Transport;
  readonly logger: Logger;
  readonly exhaustion: ExhaustionLog;
  readonly budget: ByteBudget;
  /** The settings in use. */
  readonly config: Config;
  /** Asks the providers for their lists of models, so that metrics can name them. */
  learnModels(): void;
  /**
   * Uses the settings that `read` returns for all requests that begin from now on; those in flight keep theirs. If it
   * throws, nothing changes. Both are logged. In a drain it does nothing.
   */
  reload(read: () => Config): void;
}

/** What the gateway needs from the process. */
interface Runtime {
  readonly writeLog: (line: string) => void;
  /** The log goes to a terminal. */
  readonly isTerminal: boolean;
  readonly colour: boolean;
  /** Log lines that were not written, since the start. */
  readonly droppedLogLines?: () => number;
  readonly clientLimits?: typeof CLIENT_LIMITS;
}

/** Builds a gateway from its settings. Nothing listens or connects yet. */
export function assemble(initial: Config, runtime: Runtime): Assembly {
  const parts = createPermanentParts(initial, runtime);
  const { budget, exhaustion, logger, transport } = parts;
  const limits = runtime.clientLimits ?? CLIENT_LIMITS;
  let lastReload: ReloadFigures = { isSuccessful: true, succeededAtMs: Date.now() };
  const figures: Figures = {
    ...figuresOf(parts),
    url: () => `${localUrl(initial.server.host, server.port)}/v1`,
    isDraining: () => server.isDraining,
    inFlight: () => server.inFlight,
    droppedLogLines: () => runtime.droppedLogLines?.() ?? 0,
    lastReload: () => lastReload,
  };
  const config = () => current.config;
  const settings = initial.admin;
  const admin = settings && createAdmin({ config, settings, figures, logger, limits });
  const onModels = admin?.onModels;
  const permanent = { ...parts, observe: admin?.observe, onModels };
  let current = createGeneration(initial, permanent);
  admin?.onConfig(initial);
  const server = createHttpServer({
    handle: (call) => current.gateway.handle(call),
    answerBroken: (...request) => current.gateway.answerBroken(...request),
    limits,
    budget,
  });
  // Metrics name only models that are known.
  const learnModels = () => void (admin && current.listModels());

  return {
    server,
    admin: admin?.server,
    transport,
    logger,
    exhaustion,
    budget,
    get config() {
      return current.config;
    },
    learnModels,
    reload(read) {
      if (server.isDraining) return logger.log('warn', 'reload ignored', { cause: 'draining' });
      const next = createNext(read, current, { permanent, runtime });
      const succeededAtMs = next ? Date.now() : lastReload.succeededAtMs;
      lastReload = { isSuccessful: next !== undefined, succeededAtMs };
      if (!next) return;
      current = next;
      admin?.onConfig(next.config);
      learnModels();
    },
  };
}

/** What outlives every reload, without the observers: they need some of it themselves. */
function createPermanentParts(initial: Config, runtime: Runtime): Permanent {
  const redact = createRedactor(secretsOf(initial));
  const logger = createLogger({
    ...logSettingsOf(initial, runtime),
    colour: runtime.colour,
    write: runtime.writeLog,
    redact,
    now: () => Date.now(),
  });
  return {
    redact,
    logger,
    transport: createTransport(initial.server.upstream),
    exhaustion: new ExhaustionLog(logger),
    breaker: new CircuitBreaker(logger),
    budget: new ByteBudget(initial.server.maxBufferedBytes),
    streams: { open: 0 },
    cache: new WeakMap(),
  };
}

function figuresOf({ breaker, budget, exhaustion, redact, streams, transport }: Permanent) {
  return {
    openStreams: () => streams.open,
    bufferedBytes: () => budget.reservedBytes,
    exhaustions: () => exhaustion.count,
    connections: () => transport.connectionFigures,
    circuits: () =>
      breaker.report().map((circuit) => ({
        ...circuit,
        model: circuit.model && redact(circuit.model),
        cause: circuit.cause && redact(circuit.cause),
      })),
  };
}

function logSettingsOf({ logging }: Config, { isTerminal }: Runtime): LogSettings {
  const { level, format } = logging;
  return { level, format: format === 'auto' ? (isTerminal ? 'text' : 'json') : format };
}

interface ReloadContext {
  readonly permanent: Permanent;
  readonly runtime: Runtime;
}

/** Changes the permanent parts to the settings that `read` returns, and creates the others. Undefined if that fails. */
function createNext(
  read: () => Config,
  current: Generation,
  { permanent, runtime }: ReloadContext,
): Generation | undefined {
  const { logger, redact, breaker, budget } = permanent;
  try {
    const changes = compareSettings(current.config, read());
    const { config } = changes;
    const next = createGeneration(config, permanent, current);
    redact.add(secretsOf(config));
    for (const [id, provider] of current.providers) {
      if (next.providers.get(id) !== provider) breaker.retire(provider);
    }
    logger.configure(logSettingsOf(config, runtime));
    budget.maxBytes = config.server.maxBufferedBytes;
    const known = new Set(warningsOf(current.config));
    logChanges(
      logger,
      changes,
      warningsOf(config).filter((text) => !known.has(text)),
    );
    return next;
  } catch (failure) {
    logFailure(logger, failure);
    return undefined;
  }
}
