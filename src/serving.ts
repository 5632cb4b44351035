/** What serves requests in one thread: the parts that stay, and those that each reload makes anew. */

import type { Config } from './config/config.ts';

import type { CLIENT_LIMITS } from './downstream/call.ts';
import { createHttpServer, type HttpServer } from './downstream/http-server.ts';
import { createGeneration, type Generation, type Permanent } from './gateway/generation.ts';
import { ByteBudget } from './lib/byte-budget.ts';
import { ExhaustionLog } from './lib/exhaustion.ts';
import { createLogger, type LogSettings } from './lib/log.ts';
import { createRedactor } from './lib/secrets.ts';
import { SharedMemory, type SharedCounter } from './lib/shared-memory.ts';
import { CircuitBreaker } from './policy/circuit-breaker.ts';
import { ANSWER_MS, Connection } from './store/connection.ts';
import { createRedisStore } from './store/redis-store.ts';
import { createTransport } from './upstream/transport.ts';

/** What the thread needs from its process. */
export interface ThreadRuntime {
  readonly writeLog: (line: string) => void;
  /** The log goes to a terminal. */
  readonly isTerminal: boolean;
  readonly colour: boolean;
  readonly clientLimits: typeof CLIENT_LIMITS;
}

/** What the threads share, and what only one of them does for all. */
interface ThreadContext extends Pick<Permanent, 'observe' | 'onModels' | 'listModels'> {
  /** Of the parts that stay. */
  readonly memory: SharedMemory;
  /** Of the settings that the thread starts with. */
  readonly generationMemory: SharedMemory;
}

export interface Serving {
  readonly permanent: Permanent;
  readonly server: HttpServer;
  /** Requests in all threads. */
  readonly inFlight: SharedCounter;
  readonly current: Generation;
  /** Uses these settings for all requests that begin from now on; those in flight keep theirs. If it throws, nothing changes. */
  use(config: Config, memory: SharedMemory): void;
}

/** Builds them from the settings. Nothing listens or connects yet. */
export function createServing(
  initial: Config,
  runtime: ThreadRuntime,
  context: ThreadContext,
): Serving {
  const { memory, generationMemory } = context;
  const permanent = createPermanentParts(initial, runtime, context);
  const { breaker, budget, logger, redact } = permanent;
  const inFlight = memory.inFlightCounter('requests');
  let current = createGeneration(initial, generationMemory, permanent);
  const server = createHttpServer({
    handle: (call) => current.gateway.handle(call),
    answerBroken: (...request) => current.gateway.answerBroken(...request),
    limits: runtime.clientLimits,
    budget,
    inFlight,
  });
  return {
    permanent,
    server,
    inFlight,
    get current() {
      return current;
    },
    use(config, nextMemory) {
      const next = createGeneration(config, nextMemory, permanent, current);
      redact.add(config.secrets);
      for (const [id, provider] of current.providers) {
        if (next.providers.get(id) !== provider) breaker.retire(provider);
      }
      logger.configure(logSettingsOf(config, runtime));
      budget.limits = config.server;
      current = next;
    },
  };
}

function createPermanentParts(
  initial: Config,
  runtime: ThreadRuntime,
  { memory, observe, onModels, listModels }: ThreadContext,
): Permanent {
  const { store } = initial.rateLimit;
  const redact = createRedactor(initial.secrets);
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
    transport: createTransport(initial.server.upstream, memory),
    exhaustion: new ExhaustionLog(logger, memory),
    breaker: new CircuitBreaker(memory, logger),
    budget: new ByteBudget(initial.server, memory),
    streams: memory.inFlightCounter('open streams'),
    cache: new WeakMap(),
    store:
      store &&
      createRedisStore({
        logger,
        memory,
        open: (events) => new Connection(store, { ...events, answerMs: ANSWER_MS }),
      }),
    observe,
    onModels,
    listModels,
  };
}

function logSettingsOf({ logging }: Config, { isTerminal }: ThreadRuntime): LogSettings {
  const { level, format } = logging;
  return { level, format: format === 'auto' ? (isTerminal ? 'text' : 'json') : format };
}
