/** Puts the rooms together: the one place where settings become running parts. */

import { CLIENT_LIMITS } from './call.ts';
import { CircuitBreaker } from './circuit-breaker.ts';
import type { Config } from './config.ts';
import { createGateway } from './gateway.ts';
import { createHttpServer, type HttpServer } from './http.ts';
import { createLimits } from './limits.ts';
import { createLogger, type Logger } from './log.ts';
import type { Provider } from './provider.ts';
import { createOpenAIProvider } from './providers/openai.ts';
import { createRedactor } from './secrets.ts';
import { createUpstream, type Upstream } from './upstream.ts';

export interface Assembly {
  readonly server: HttpServer;
  readonly upstream: Upstream;
  readonly logger: Logger;
}

interface Surroundings {
  readonly writeLog: (line: string) => void;
  /** Somebody reads the log as it comes. */
  readonly isTerminal: boolean;
  readonly colour: boolean;
  readonly clientLimits?: typeof CLIENT_LIMITS;
}

/** Builds a gateway from its settings. Nothing listens or connects yet. */
export function assemble(config: Config, surroundings: Surroundings): Assembly {
  const now = () => performance.now();
  const secrets = [
    ...config.server.auth.keys,
    ...config.providers.registered.map(({ apiKey }) => apiKey),
  ];
  const redact = createRedactor(secrets);
  const logger = createLogger({
    level: config.logging.level,
    format: surroundings.isTerminal ? 'text' : 'json',
    colour: surroundings.colour,
    write: surroundings.writeLog,
    redact,
    now: () => Date.now(),
  });
  const upstream = createUpstream(config.server.upstream);
  const providers = new Map<string, Provider>(
    config.providers.registered.map((settings) => [settings.id, createOpenAIProvider(settings)]),
  );
  const limits = createLimits(config.rateLimit, now);
  const breaker = new CircuitBreaker(now);
  // Those without a key are not registered.
  const fallbacks = config.providers.fallback.flatMap((id) => providers.get(id) ?? []);
  const completion = { config, upstream, providers, fallbacks, redact, limits, breaker };
  const handle = createGateway({ config, logger, now, completion });
  const server = createHttpServer({
    handle,
    limits: surroundings.clientLimits ?? CLIENT_LIMITS,
    onBrokenRequest: ({ status, message }) =>
      logger.log('info', 'broken request', { status, cause: message, outcome: 'refused' }),
  });
  return { server, upstream, logger };
}
