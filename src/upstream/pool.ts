/**
 * Keeps the connections to providers, in agents of the class under fetch. Each agent has a limit on
 * its requests.
 */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';

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
  /** The agent for requests with `reset`. They leave no idle connections behind. */
  readonly reconnectAgent: CountedAgent;
  readonly #agentClass: AgentClass;
  /** Shared by all agents, because its connector holds the TLS sessions to resume. */
  readonly #options: object;
  /**
   * The agents by origin, because a busy origin must not keep requests to another origin from its
   * idle connections.
   */
  readonly #agents = new Map<string, CountedAgent[]>();
  readonly #used = new WeakSet<Socket>();
  readonly #figures = { open: 0, made: 0, reused: 0 };
  #listenerOfNextUse: UseListener | undefined;

  /** Creates the first agent, and observes connections until `close`. */
  constructor(agentClass: AgentClass, connectTimeoutMs: number) {
    this.#agentClass = agentClass;
    this.#options = {
      keepAliveTimeout: IDLE_CONNECTION_MS,
      allowH2: false,
      connect: createConnector(connectTimeoutMs),
    };
    this.reconnectAgent = this.#createAgent();
    // undici publishes this message when it writes a request to a socket, directly after the
    // handler's `onConnect`.
    subscribe(SEND_HEADERS, this.#onSendHeaders);
  }

  /** Counts open connections, connections made, and requests on a reused connection. */
  get figures(): Readonly<Record<'open' | 'made' | 'reused', number>> {
    return this.#figures;
  }

  /**
   * Returns the origin's first agent with room. The caller counts its request in `running` until
   * the request is over.
   */
  agentFor(origin: string): CountedAgent {
    const ofOrigin = this.#agents.get(origin) ?? [];
    this.#agents.set(origin, ofOrigin);
    let found = ofOrigin.find(isFree);
    if (!found) {
      found = this.#createAgent();
      ofOrigin.push(found);
    }
    return found;
  }

  /** Calls `listener` with the connection for the request that undici is about to write. */
  onNextUse(listener: UseListener): void {
    this.#listenerOfNextUse = listener;
  }

  /** Closes all connections at once, because a proxy may never complete an orderly close. */
  async close(): Promise<void> {
    unsubscribe(SEND_HEADERS, this.#onSendHeaders);
    const agents = [...this.#agents.values()].flat().concat(this.reconnectAgent);
    await Promise.all(agents.map(({ dispatcher }) => dispatcher.destroy()));
  }

  #createAgent(): CountedAgent {
    return { dispatcher: new this.#agentClass(this.#options), running: 0 };
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
