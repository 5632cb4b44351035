/** The one place that builds the gateway: the parts that outlive reloads, a snapshot of the settings, the admin listener. */

import { createAdmin, type Admin } from './admin/admin.ts';
import { oldestAgesMs } from './admin/figures.ts';
import type { AdminView } from './admin/view.ts';
import { warningsOf } from './cli/startup-report.ts';
import { formatText } from './cli/text-log.ts';
import { compareSettings, ConfigError } from './config/config.ts';
import type { AliasSettings, Config, StoreSettings } from './config/config.ts';
import type { CLIENT_LIMITS } from './downstream/call.ts';
import type { DrainOptions } from './downstream/drain.ts';
import { createHttpServer } from './downstream/http-server.ts';
import type { Services } from './gateway/services.ts';
import { Gateway } from './gateway/gateway.ts';
import { ModelList, type ModelListCache } from './gateway/model-list.ts';
import { ByteBudget } from './lib/byte-budget.ts';
import { createLogger, type LogSettings } from './lib/log.ts';
import type { RequestObserver } from './request/facts.ts';
import { createRedactor } from './lib/secrets.ts';
import { CircuitBreaker } from './policy/circuit-breaker.ts';
import { Incidents } from './policy/incidents.ts';
import { KeyPool } from './policy/key-pool.ts';
import { createLimits, type Limits } from './policy/limits.ts';
import { Connection, type ConnectionOptions } from './store/connection.ts';
import { createRedisStore, type StoreConnection } from './store/redis-store.ts';
import { createOpenAIProvider, type Provider } from './upstream/provider.ts';
import { createTransport } from './upstream/transport.ts';

/** While something fails. */
const JUDGED_EVERY_MS = 1000;

export interface Runtime {
  readonly writeLog: (line: string) => void;
  /** Log lines that were not written, since the start. */
  readonly droppedLogLines?: () => number;
  /** The log goes to a terminal. */
  readonly isTerminal: boolean;
  readonly clientLimits: typeof CLIENT_LIMITS;
}

/** What reaches beyond the process: whole gateways are tested with others in its place. */
const OUTSIDE = {
  createTransport,
  openStore: (settings: StoreSettings, events: ConnectionOptions): StoreConnection =>
    new Connection(settings, events),
};

export type Service = ReturnType<typeof createService>;

/** Builds the gateway and its admin listener. Nothing listens or connects yet. */
export function createService(initial: Config, runtime: Runtime, outside = OUTSIDE) {
  const { admin: settings } = initial;
  let lastReload = { isGood: true, succeededAtMs: Date.now() };
  const observe: RequestObserver = (request) => admin?.view.observe(request);
  const onModels: AdminView['onModels'] = (...models) => admin?.view.onModels(...models);
  const parts = {
    ...createParts(initial, runtime, outside),
    observe: settings && observe,
    onModels: settings && onModels,
  };
  const { breaker, budget, incidents, logger, redact, store, transport } = parts;
  let snapshot = createSnapshot(initial, parts);
  const limits = runtime.clientLimits;
  const server = createHttpServer({ handler: snapshot.gateway, limits, budget });
  const figures = {
    isListening: () => server.port !== 0,
    isDraining: () => server.isDraining,
    inFlight: () => server.counts.inFlight,
    inFlightOf: (section: string) => snapshot.limits.state.used.get(section)?.inFlight ?? 0,
    usedOf: (client: string) => snapshot.limits.ofClients.get(client)?.usedOfBuckets() ?? [],
    oldestAgesMs: () => oldestAgesMs(server.calls()),
    keyPools: () => snapshot.keyPools,
    isModelListUp: (id: string) => parts.modelLists.get(snapshot.providers.get(id)!)?.isUp,
    openStreams: () => server.counts.openStreams,
    bufferedBytes: () => budget.reservedBytes,
    droppedLogLines: () => runtime.droppedLogLines?.() ?? 0,
    incidents: () => incidents,
    connections: () => transport.connectionFigures,
    store: () => store?.state,
    circuits: () => breaker.report(redact),
    lastReload: () => lastReload,
    warnings: () => warningsOf(snapshot.config),
    listModels: () => learnModels(),
  };
  const config = () => snapshot.config;
  const admin: Admin | undefined =
    settings && createAdmin(config, settings, figures, { logger, redact, limits });
  admin?.view.onConfig(initial);
  const learnModels = () => void (admin && snapshot.listModels());

  /** Uses these settings for all requests that begin from now on. If it throws, nothing changes. */
  function use(next: Config): void {
    snapshot = createSnapshot(next, parts, snapshot);
    server.setHandler(snapshot.gateway);
    redact.add(next.secrets);
    logger.configure(logSettingsOf(next, runtime));
    budget.limits = next.server;
  }

  return {
    ...parts,
    /** The listener of the public port. */
    server,
    admin: admin?.server,
    figures,
    get config() {
      return snapshot.config;
    },
    /** Asks the providers for their lists of models: metrics name only models that are known. */
    learnModels,
    /** Drains the public port. Resolves with the counts of the requests that have ended since it began. */
    async drain(options: DrainOptions) {
      const { finished, cancelled } = { ...server.counts };
      await server.drain(options);
      const { counts } = server;
      return { finished: counts.finished - finished, cut: counts.cancelled - cancelled };
    },
    /**
     * Uses the settings that `read` returns for all requests that begin from now on; those in flight keep theirs. If it
     * throws, nothing changes. Both are logged. In a drain it does nothing.
     */
    reload(read: () => Config): void {
      if (server.isDraining) return logger.log('warn', 'reload ignored', { cause: 'draining' });
      const known = warningsOf(config());
      let changes: ReturnType<typeof compareSettings>;
      try {
        changes = compareSettings(config(), read());
        use(changes.config);
      } catch (failure) {
        const { message, stack } = failure as Error;
        const { problems } = failure instanceof ConfigError ? failure : { problems: [message] };
        const more = problems.length > 1 ? `, and ${problems.length - 1} more` : '';
        incidents.set('reload', problems[0] + more);
        lastReload = { ...lastReload, isGood: false };
        // The stack of a bug is for the log alone.
        const causes = failure instanceof ConfigError ? problems : [stack];
        for (const cause of causes) logger.log('error', 'reload failed', { cause });
        return;
      }
      lastReload = { isGood: true, succeededAtMs: Date.now() };
      incidents.set('reload', undefined);
      admin?.view.onConfig(changes.config);
      learnModels();
      const { changed, needRestart } = changes;
      logger.log('info', 'reloaded', changed.length > 0 ? { changed } : {});
      if (needRestart.length > 0) logger.log('warn', 'restart needed', { settings: needRestart });
      for (const cause of warningsOf(changes.config)) {
        if (!known.includes(cause)) logger.log('warn', 'settings warning', { cause });
      }
    },
  };
}

interface Parts extends ReturnType<typeof createParts> {
  readonly observe: RequestObserver | undefined;
  readonly onModels: AdminView['onModels'] | undefined;
}

/** Creates what outlives every reload. */
function createParts(config: Config, runtime: Runtime, outside: typeof OUTSIDE) {
  const { store } = config.rateLimit;
  const redact = createRedactor(config.secrets);
  const output = { toText: formatText, write: runtime.writeLog, redact };
  const logger = createLogger({ ...logSettingsOf(config, runtime), ...output });
  const modelLists: ModelListCache = new WeakMap();
  const breaker = new CircuitBreaker(logger);
  const incidents = new Incidents({
    clock: performance,
    date: Date,
    logger,
    circuits: () => breaker.report(redact),
    onTrouble() {
      const timer = setInterval(() => incidents.advance() || clearInterval(timer), JUDGED_EVERY_MS);
      timer.unref();
    },
  });
  const onStoreState = (cause: string | undefined) =>
    incidents.set('store', cause && `${store!.host}:${store!.port}: ${cause}`);
  return {
    redact,
    logger,
    modelLists,
    transport: outside.createTransport(config.server.upstream),
    breaker,
    incidents,
    budget: new ByteBudget(config.server),
    warned: new Set<string>(),
    /** The store of the rate limits, if they are shared with other gateways. */
    store: store && createRedisStore(onStoreState, (events) => outside.openStore(store, events)),
  };
}

interface Former extends Pick<Services, 'providers' | 'keyPools'> {
  readonly limits: Limits;
}

/** Creates what depends on the settings: requests keep the one that they began with. Providers with the same settings stay. */
function createSnapshot(config: Config, parts: Parts, former?: Former) {
  const { breaker, incidents, logger, store } = parts;
  const providers = new Map<string, Provider>();
  const keyPools = new Map<string, KeyPool>();
  for (const settings of config.providers.registered) {
    const { id } = settings;
    const created = createOpenAIProvider(settings);
    const before = former?.providers.get(id);
    const isSame = before?.digest === created.digest;
    providers.set(id, isSame ? before : created);
    if (settings.apiKeys.length === 1) continue;
    const onRefused = (keys?: string) => incidents.set('key_refused', keys, created);
    const kept = isSame ? former?.keyPools.get(id) : undefined;
    keyPools.set(id, kept ?? new KeyPool(created, logger, onRefused));
  }
  const all = {
    ...parts,
    config,
    providers,
    keyPools,
    limits: createLimits(config, store, former?.limits.state),
    lastAsked: new Map<string, number>(),
    credits: new Map<AliasSettings, readonly number[]>(),
    // A fallback without a key is not registered.
    fallbacks: config.providers.fallback.flatMap((id) => providers.get(id) ?? []),
  };
  const modelList = new ModelList(all);
  const listModels: Services['listModels'] = (client) => modelList.bodyFor(client);
  const gateway = new Gateway({ ...all, listModels });
  breaker.guard(providers.values());
  incidents.watch(providers.values());
  return { ...all, listModels, gateway };
}

function logSettingsOf({ logging }: Config, { isTerminal }: Runtime): LogSettings {
  const { level, format } = logging;
  return { level, format: format === 'auto' ? (isTerminal ? 'text' : 'json') : format };
}
