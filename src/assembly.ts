/** The composition root: settings become running parts. */

import { createAdmin } from './admin/admin.ts';
import type { Figures } from './admin/figures.ts';
import { localUrl } from './cli/startup-report.ts';
import type { Config } from './config/config.ts';
import { CLIENT_LIMITS } from './downstream/call.ts';
import { createHttpServer, type HttpServer } from './downstream/http-server.ts';
import { createGateway } from './gateway/gateway.ts';
import { createModelList, type ModelList, type ModelsObserver } from './gateway/model-list.ts';
import { ByteBudget } from './lib/byte-budget.ts';
import { createLogger, type Logger } from './lib/log.ts';
import { createRedactor } from './lib/secrets.ts';
import { CircuitBreaker } from './policy/circuit-breaker.ts';
import { createKeyPools } from './policy/key-pool.ts';
import { createLimits } from './policy/rate-limits.ts';
import { createOpenAIProvider } from './upstream/openai.ts';
import type { Provider } from './upstream/provider.ts';
import { createTransport, type Transport } from './upstream/transport.ts';

export interface Assembly {
  readonly server: HttpServer;
  /** The listener of `[admin]`. */
  readonly admin?: HttpServer | undefined;
  readonly listModels: ModelList;
  readonly transport: Transport;
  readonly logger: Logger;
  readonly budget: ByteBudget;
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
export function assemble(config: Config, runtime: Runtime): Assembly {
  const secrets = [
    ...config.server.auth.keys,
    ...(config.admin?.keys ?? []),
    ...config.clients.flatMap(({ keys }) => keys),
    ...config.providers.registered.flatMap(({ apiKeys, headers }) => [
      ...apiKeys,
      ...Object.values(headers),
    ]),
  ];
  const redact = createRedactor(secrets);
  const { level, format } = config.logging;
  const logger = createLogger({
    level,
    format: format === 'auto' ? (runtime.isTerminal ? 'text' : 'json') : format,
    colour: runtime.colour,
    write: runtime.writeLog,
    redact,
    now: () => Date.now(),
  });
  const transport = createTransport(config.server.upstream);
  const providers = new Map<string, Provider>(
    config.providers.registered.map((settings) => [settings.id, createOpenAIProvider(settings)]),
  );
  const limits = createLimits(config);
  const breaker = new CircuitBreaker(logger);
  // A fallback without a key is not registered.
  const fallbacks = config.providers.fallback.flatMap((id) => providers.get(id) ?? []);
  const keyPools = createKeyPools(config.providers.registered, logger);
  const completion = {
    config,
    transport,
    providers,
    fallbacks,
    keyPools,
    redact,
    limits,
    breaker,
    logger,
  };
  const clientLimits = runtime.clientLimits ?? CLIENT_LIMITS;
  const budget = new ByteBudget(config.server.maxBufferedBytes);
  const figures: Figures = {
    url: () => `${localUrl(config.server.host, server.port)}/v1`,
    isDraining: () => server.isDraining,
    inFlight: () => server.inFlight,
    openStreams: () => gateway.openStreams,
    bufferedBytes: () => budget.reservedBytes,
    droppedLogLines: () => runtime.droppedLogLines?.() ?? 0,
    connections: () => transport.connectionFigures,
    circuits: () =>
      breaker.report().map((circuit) => ({
        ...circuit,
        model: circuit.model && redact(circuit.model),
        cause: circuit.cause && redact(circuit.cause),
      })),
  };
  const admin =
    config.admin &&
    createAdmin({ config, settings: config.admin, figures, logger, limits: clientLimits });
  const { observe } = admin ?? {};
  // A name with a key in it is no label.
  const onModels: ModelsObserver | undefined =
    admin &&
    ((id, names) =>
      admin.onModels(
        id,
        names.filter((name) => redact(name) === name),
      ));
  const { aliases } = config;
  const listModels = createModelList({ providers, aliases, keyPools, transport, logger, onModels });
  const gateway = createGateway({ config, logger, completion, observe, listModels });
  const server = createHttpServer({ ...gateway, limits: clientLimits, budget });
  return { server, admin: admin?.server, listModels, transport, logger, budget };
}
