/**
 * The composition root: creates the parts that outlive reloads, a snapshot for each version of the
 * settings, and the admin listener.
 */

import { createAdmin, type Admin } from './admin/admin.ts';
import { oldestAgesMs, type Figures } from './admin/figures.ts';
import type { AdminView } from './admin/view.ts';
import { warningsOf } from './cli/startup-report.ts';
import { formatText } from './request/text-log.ts';
import { allAliases } from './config/aliases-section.ts';
import { nextSettings, ConfigError } from './config/config.ts';
import type { Config, StoreSettings } from './config/config.ts';
import type { CLIENT_TIME_LIMITS } from './downstream/listener.ts';
import type { DrainOptions } from './downstream/drain.ts';
import { createHttpServer } from './downstream/http-server.ts';
import { findMemoryHolder, heldBytesByClient } from './downstream/memory-holder.ts';
import { createBalances } from './gateway/balance.ts';
import type { Services } from './gateway/services.ts';
import { createProviders, disposeFormer } from './gateway/provider-state.ts';
import { Gateway } from './gateway/gateway.ts';
import { ModelList } from './gateway/model-list.ts';
import { RefusalLog } from './gateway/refusal-log.ts';
import { ByteBudget } from './lib/memory/byte-budget.ts';
import { createLogger, type LogSettings } from './lib/log.ts';
import type { RequestObserver } from './request/facts.ts';
import { createRedactor } from './lib/secrets.ts';
import { Incidents } from './incidents/incidents.ts';
import { createLimiters } from './policy/limiters.ts';
import { RedisConnection, type RedisConnectionOptions } from './store/redis-connection.ts';
import { createRedisStore, type StoreConnection } from './store/redis-store.ts';
import { Traces } from './telemetry/traces.ts';
import type { OnReached } from './upstream/connections/http1-transport.ts';
import { createTransport } from './upstream/connections/transport.ts';

/** How often incidents are judged while something fails. */
const JUDGED_EVERY_MS = 1000;
/** How often incidents are judged with an admin listener, because it shows their figures. */
const FIGURES_JUDGED_EVERY_MS = 5000;
/** How often new warnings are looked for, because a key may be about to expire. */
const WARNINGS_EVERY_MS = 3_600_000;

/** Passed in by the program. */
interface Runtime {
  readonly writeLog: (line: string) => void;
  /** Returns how many log lines were lost since the start. */
  readonly droppedLogLines?: () => number;
  /** True if the log goes to a terminal. */
  readonly isTerminal: boolean;
  readonly clientTimeLimits: typeof CLIENT_TIME_LIMITS;
}

/** Creates the parts that connect to other hosts. Tests of whole gateways replace it. */
export const OUTSIDE = {
  createTransport,
  openStore: (settings: StoreSettings, events: RedisConnectionOptions): StoreConnection =>
    new RedisConnection(settings, events),
};

/** The gateway and its admin listener. The constructor neither listens nor connects. */
export class App {
  readonly parts: Parts;
  /** The public port's listener. */
  readonly server: ReturnType<typeof createHttpServer>;
  readonly figures: Figures;
  /** The admin listener and its view, if it has a port. */
  readonly admin: Admin | undefined;
  readonly #runtime: Runtime;
  #snapshot: Snapshot;
  /** The latest warnings about the settings, which are printed at the start or logged. */
  #warnings: readonly string[];
  #lastReload = { isGood: true, successTime: Date.now() };

  constructor(initial: Config, runtime: Runtime, outside = OUTSIDE) {
    const { admin } = initial;
    this.#runtime = runtime;
    this.parts = createParts(initial, runtime, outside, {
      findMemoryHolder: () => this.#findMemoryHolder(),
      onReached: (target) => this.#onReached(target),
      observe: admin && ((request) => this.admin!.view.observe(request)),
      onModels: admin && ((...models) => this.admin!.view.onModels(...models)),
    });
    const { budget, logger, redact } = this.parts;
    this.#snapshot = createSnapshot(initial, this.parts);
    const timeLimits = runtime.clientTimeLimits;
    const { keepAliveTimeoutMs } = initial.server;
    const listening = { handler: this.#snapshot.gateway, timeLimits, budget };
    this.server = createHttpServer(listening, keepAliveTimeoutMs);
    this.figures = this.#createFigures();
    const config = () => this.config;
    this.admin = admin && createAdmin(config, admin, this.figures, { logger, redact, timeLimits });
    this.admin?.view.onConfig(initial);
    if (admin) setInterval(() => this.judge(), FIGURES_JUDGED_EVERY_MS).unref();
    this.#warnings = warningsOf(initial);
    setInterval(() => this.#logNewWarnings(), WARNINGS_EVERY_MS).unref();
  }

  get config(): Config {
    return this.#snapshot.config;
  }

  /**
   * Requests the providers' model lists for the admin listener, because metrics name only listed
   * models.
   */
  learnModels(): void {
    if (this.admin) void this.#snapshot.modelList.bodyFor();
  }

  /** Decides which incidents begin and end. Must be called every few seconds. */
  judge(): void {
    const providers = [...this.#snapshot.providers.values()];
    if (providers.some(({ modelList }) => modelList.isUp === false)) this.learnModels();
    this.admin?.view.judgeSlowness();
    this.admin?.view.forgetFormerNames();
    this.parts.incidents.checkClock();
    this.parts.incidents.advance();
  }

  /**
   * Drains the public port. Resolves with how many requests finished during the drain, and how many
   * were cut.
   */
  async drain(options: DrainOptions): Promise<{ finished: number; cut: number }> {
    const { finished, cancelled } = { ...this.server.counts };
    await this.server.drain(options);
    this.parts.refusals.close();
    const { counts } = this.server;
    return { finished: counts.finished - finished, cut: counts.cancelled - cancelled };
  }

  /**
   * Reloads: applies the settings from `read` to all new requests, while requests in flight keep
   * theirs. If `read` throws, nothing changes. Success and failure are logged. During a drain it
   * only logs a warning.
   */
  reload(read: () => Config): void {
    const { logger } = this.parts;
    if (this.server.isDraining) return logger.log('warn', 'reload ignored', { cause: 'draining' });
    let changes: ReturnType<typeof nextSettings>;
    try {
      changes = nextSettings(this.config, read());
      this.#use(changes.config);
    } catch (failure) {
      return this.#onReloadFailed(failure as Error);
    }
    this.#lastReload = { isGood: true, successTime: Date.now() };
    this.parts.incidents.reportState('reload', undefined);
    this.admin?.view.onConfig(changes.config);
    this.learnModels();
    const { changed, needRestart } = changes;
    logger.log('info', 'reloaded', changed.length > 0 ? { changed } : {});
    if (needRestart.length > 0) logger.log('warn', 'restart needed', { settings: needRestart });
    this.#logNewWarnings();
  }

  #logNewWarnings(): void {
    const latest = warningsOf(this.config);
    for (const cause of latest) {
      if (!this.#warnings.includes(cause))
        this.parts.logger.log('warn', 'settings warning', { cause });
    }
    this.#warnings = latest;
  }

  /** Applies the settings to all new requests. If it throws, nothing has changed. */
  #use(next: Config): void {
    const { budget, logger, redact } = this.parts;
    this.#snapshot = createSnapshot(next, this.parts, this.#snapshot);
    this.server.setHandler(this.#snapshot.gateway);
    this.server.setKeepAlive(next.server.keepAliveTimeoutMs);
    redact.add(next.secrets, next.resolved);
    logger.configure(logSettingsOf(next, this.#runtime));
    budget.limits = next.server;
  }

  #onReloadFailed(failure: Error): void {
    const { message, stack } = failure;
    const { problems } = failure instanceof ConfigError ? failure : { problems: [message] };
    const more = problems.length > 1 ? `, and ${problems.length - 1} more` : '';
    const { incidents, logger } = this.parts;
    incidents.reportState('reload', problems[0] + more);
    this.#lastReload = { ...this.#lastReload, isGood: false };
    // An unexpected error's stack goes only to the log.
    const causes = failure instanceof ConfigError ? problems : [stack];
    for (const cause of causes) logger.log('error', 'reload failed', { cause });
  }

  #findMemoryHolder(): string | undefined {
    const { maxBufferedBytes, trustedProxies } = this.config.server;
    return findMemoryHolder(this.server.calls(), trustedProxies, maxBufferedBytes);
  }

  /** Closes the circuits of the providers that the connection has reached. */
  #onReached({ origin, digest }: Parameters<OnReached>[0]): void {
    for (const provider of this.#snapshot.providers.values()) {
      const isReached = provider.origin === origin && provider.tls?.digest === digest;
      if (isReached) provider.breaker.recordReached();
    }
  }

  #createFigures(): Figures {
    const { budget, incidents, store, traces, transport } = this.parts;
    const { server } = this;
    return {
      isListening: () => server.port !== 0,
      isDraining: () => server.isDraining,
      inFlight: () => server.counts.inFlight,
      inFlightOf: (section) => this.#snapshot.limiters.state.used.get(section)?.inFlight ?? 0,
      waitingFor: (id) => this.#snapshot.limiters.ofProviders.get(id)?.queue?.size,
      usedOf: (client) => this.#snapshot.limiters.ofTenants.get(client)?.usedOfBuckets() ?? [],
      oldestAgesMs: () => oldestAgesMs(server.calls()),
      openStreams: () => server.counts.openStreams,
      bufferedBytes: () => budget.reservedBytes,
      bufferedBytesByClient: () => heldBytesByClient(server.calls()),
      droppedLogLines: () => this.#runtime.droppedLogLines?.() ?? 0,
      droppedSpans: () => traces?.droppedSpans,
      incidents: () => incidents,
      connections: () => transport.connectionFigures,
      store: () => store?.state,
      providers: () => this.#snapshot.providers,
      lastReload: () => this.#lastReload,
      warnings: () => warningsOf(this.config),
    };
  }
}

type Snapshot = ReturnType<typeof createSnapshot>;
type Parts = ReturnType<typeof createParts>;

/** The functions of the app that its parts call. */
interface Hooks {
  readonly findMemoryHolder: () => string | undefined;
  readonly onReached: OnReached;
  /** Only with `[admin] port`, as `onModels`. */
  readonly observe: RequestObserver | undefined;
  readonly onModels: AdminView['onModels'] | undefined;
}

/** Creates the parts that outlive every reload. */
function createParts(config: Config, runtime: Runtime, outside: typeof OUTSIDE, hooks: Hooks) {
  const { store } = config.rateLimit;
  const redact = createRedactor(config.secrets, config.resolved);
  const output = { toText: formatText, write: runtime.writeLog, redact };
  const logger = createLogger({ ...logSettingsOf(config, runtime), ...output });
  let timer: NodeJS.Timeout | undefined;
  const incidents = new Incidents({
    logger,
    findMemoryHolder: hooks.findMemoryHolder,
    onTrouble() {
      // `judge` may have ended the former trouble while its timer still runs.
      clearInterval(timer);
      timer = setInterval(() => incidents.advance() || clearInterval(timer), JUDGED_EVERY_MS);
      timer.unref();
    },
  });
  const onStoreState = (cause: string | undefined) => {
    const address = `${store!.host}:${store!.port}`;
    // The system's errors name the address too.
    incidents.reportState(
      'store',
      cause?.includes(address) ? cause : cause && `${address}: ${cause}`,
    );
  };
  return {
    redact,
    logger,
    transport: outside.createTransport(
      config.server.upstream,
      config.values.plain().get('server.upstream')?.origin,
      hooks.onReached,
    ),
    incidents,
    refusals: new RefusalLog(logger),
    budget: new ByteBudget(config.server),
    /** Only with `[telemetry] traces`. */
    traces: config.telemetry && new Traces(config.telemetry, logger, redact),
    warned: new Set<string>(),
    observe: hooks.observe,
    onModels: hooks.onModels,
    /** Only if limits are shared with other gateways. */
    store: store && createRedisStore(onStoreState, (events) => outside.openStore(store, events)),
  };
}

/**
 * Creates the parts that depend on the settings. A request keeps its first snapshot. Providers with
 * unchanged settings are taken over from `former`.
 */
function createSnapshot(
  config: Config,
  parts: Parts,
  former?: Pick<Services, 'limiters' | 'providers'>,
) {
  const { incidents, store, transport } = parts;
  for (const { id, tls } of config.providers.registered) {
    if (tls && !transport.takesCertificates) {
      throw new ConfigError([
        `providers.${id}: fetch takes no certificates: ${transport.description}`,
      ]);
    }
  }
  const limiters = createLimiters(config, store, former?.limiters.state);
  const providers = createProviders(config, parts, limiters.ofProviders, former?.providers);
  const services = {
    ...parts,
    config,
    providers,
    limiters,
    balances: createBalances(allAliases(config)),
    // A fallback without a key is not registered.
    fallbacks: config.providers.fallback.flatMap((id) => providers.get(id) ?? []),
  };
  const modelList = new ModelList(services);
  const gateway = new Gateway({ ...services, modelList });
  transport.keepOnly(new Set([...providers.values()].flatMap(({ tls }) => tls?.digest ?? [])));
  if (former) disposeFormer(former.providers, providers, incidents);
  return { ...services, modelList, gateway };
}

function logSettingsOf({ logging }: Config, { isTerminal }: Runtime): LogSettings {
  const { level, format } = logging;
  return { level, format: format === 'auto' ? (isTerminal ? 'text' : 'json') : format };
}
