/**
 * Keeps the connections to providers, in agents of the class under fetch. Each agent has a limit on
 * its requests.
 */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';

import type { UpstreamRequest } from './provider.ts';
import type { TlsSettings } from '../config/config.ts';
import { createConnector, type Dispatcher, findAgentClass, lookupMsOf } from './connections.ts';

/** The time limit for the name lookup, TCP and the TLS handshake together. */
const CONNECT_TIMEOUT_MS = 10_000;
/**
 * How long an idle connection is kept. With fetch's own 4 s, a quiet gateway would pay for a TLS
 * handshake on nearly every request.
 */
const IDLE_CONNECTION_MS = 90_000;
/**
 * The most running requests per agent. For each request undici walks past its agent's busy
 * connections, and with thousands of them the walk costs more than the request.
 */
const MAX_RUNNING_REQUESTS = 64;

/** In place of an origin. */
const RECONNECT = 'reconnect';

const SEND_HEADERS = 'undici:client:sendHeaders';

/** An agent, and how many of its requests are running. */
export interface CountedAgent {
  readonly dispatcher: Dispatcher;
  running: number;
}

/**
 * Receives a request's connection. `lookupMs` is how long the name lookup took, if a new connection
 * needed a lookup.
 */
type UseListener = (socket: Socket, connection: 'new' | 'reused', lookupMs?: number) => void;

const isFree = ({ running }: CountedAgent) => running < MAX_RUNNING_REQUESTS;

type AgentClass = NonNullable<ReturnType<typeof findAgentClass>>;

/**
 * Creates a pool, or returns undefined if this Node does not have undici's Agent at its usual
 * place.
 *
 * @param connectTimeoutMs - time limit for the name lookup, TCP and the TLS handshake together
 */
export function createPool(connectTimeoutMs = CONNECT_TIMEOUT_MS): Pool | undefined {
  const agentClass = findAgentClass();
  return agentClass && new Pool(agentClass, connectTimeoutMs);
}

/** Each origin's agents, and figures about their connections. */
export class Pool {
  readonly #agentClass: AgentClass;
  readonly #connectTimeoutMs: number;
  /**
   * The options of agents, by the digest of their `TlsSettings`. Agents share them, because the
   * connector holds the TLS sessions to resume.
   */
  readonly #options = new Map<string | undefined, object>();
  /**
   * The agents by origin, because a busy origin must not keep requests to another origin from its
   * idle connections. The digest of `TlsSettings` precedes an origin, because a connection shows
   * its certificate only once.
   */
  readonly #agents = new Map<string, CountedAgent[]>();
  readonly #used = new WeakSet<Socket>();
  readonly #figures = { open: 0, made: 0, reused: 0 };
  #listenerOfNextUse: UseListener | undefined;

  /** Observes connections until `close`. */
  constructor(agentClass: AgentClass, connectTimeoutMs: number) {
    this.#agentClass = agentClass;
    this.#connectTimeoutMs = connectTimeoutMs;
    // undici publishes this message when it writes a request to a socket, directly after the
    // handler's `onConnect`.
    subscribe(SEND_HEADERS, this.#onSendHeaders);
  }

  /** Counts open connections, connections made, and requests on a reused connection. */
  get figures(): Readonly<Record<'open' | 'made' | 'reused', number>> {
    return this.#figures;
  }

  /**
   * Returns the first agent with room for the request. The caller counts the request in `running`
   * until it is over. Requests with `reconnect` have agents of their own, and leave no idle
   * connections behind.
   */
  agentFor({ origin, reconnect, tls }: UpstreamRequest): CountedAgent {
    const place = reconnect ? RECONNECT : origin;
    const key = tls ? `${tls.digest} ${place}` : place;
    const alike = this.#agents.get(key) ?? [];
    this.#agents.set(key, alike);
    let found = alike.find(isFree);
    if (!found) {
      found = { dispatcher: new this.#agentClass(this.#optionsFor(tls)), running: 0 };
      alike.push(found);
    }
    return found;
  }

  /** Closes the connections with other `TlsSettings`, once their requests are over. */
  keepOnly(digests: ReadonlySet<string>): void {
    for (const digest of this.#options.keys()) {
      if (digest === undefined || digests.has(digest)) continue;
      this.#options.delete(digest);
      for (const [key, agents] of this.#agents) {
        if (!key.startsWith(`${digest} `)) continue;
        this.#agents.delete(key);
        for (const { dispatcher } of agents) void dispatcher.close();
      }
    }
  }

  /** Calls `listener` with the connection for the request that undici is about to write. */
  onNextUse(listener: UseListener): void {
    this.#listenerOfNextUse = listener;
  }

  /** Closes all connections at once, because a proxy may never complete an orderly close. */
  async close(): Promise<void> {
    unsubscribe(SEND_HEADERS, this.#onSendHeaders);
    const agents = [...this.#agents.values()].flat();
    await Promise.all(agents.map(({ dispatcher }) => dispatcher.destroy()));
  }

  #optionsFor(tls: TlsSettings | undefined): object {
    let options = this.#options.get(tls?.digest);
    if (!options) {
      options = {
        keepAliveTimeout: IDLE_CONNECTION_MS,
        allowH2: false,
        connect: createConnector(this.#connectTimeoutMs, tls?.context),
        // Behind a proxy undici connects by itself.
        requestTls: tls && { secureContext: tls.context },
      };
      this.#options.set(tls?.digest, options);
    }
    return options;
  }

  /**
   * Counts sockets here and not in the connector, because undici creates sockets behind a proxy
   * without the connector.
   */
  readonly #onSendHeaders = (message: unknown): void => {
    const listener = this.#listenerOfNextUse;
    // Other code in this process may use fetch too.
    if (!listener) return;
    const { socket } = message as { socket: Socket };
    const isReused = this.#used.has(socket);
    if (isReused) listener(socket, 'reused');
    else listener(socket, 'new', lookupMsOf(socket));
    this.#listenerOfNextUse = undefined;
    if (isReused) this.#figures.reused += 1;
    else this.#countNew(socket);
  };

  readonly #onClose = () => (this.#figures.open -= 1);

  #countNew(socket: Socket): void {
    const figures = this.#figures;
    this.#used.add(socket);
    figures.made += 1;
    figures.open += 1;
    socket.on('close', this.#onClose);
  }
}
