/**
 * The connections to providers that are kept: agents of the class under fetch, with a bound on the
 * requests of each.
 */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';

import { createConnector, type Dispatcher, findAgentClass, lookupMsOf } from './connections.ts';

const CONNECT_TIMEOUT_MS = 10_000;
/** fetch's own 4 s would make a quiet gateway pay a TLS handshake on nearly every request. */
const IDLE_CONNECTION_MS = 90_000;
/**
 * For each request undici walks past the connections of its agent that are busy: of thousands that
 * costs more than the request.
 */
const MAX_RUNNING_REQUESTS = 64;

const SEND_HEADERS = 'undici:client:sendHeaders';

/** An agent, and how many requests it has that are not over. */
export interface CountedAgent {
  readonly dispatcher: Dispatcher;
  running: number;
}

/** `lookupMs`: how long the lookup of the host's name took, if a new connection needed one. */
type UseListener = (socket: Socket, connection: 'new' | 'reused', lookupMs?: number) => void;

const isFree = ({ running }: CountedAgent) => running < MAX_RUNNING_REQUESTS;

type AgentClass = NonNullable<ReturnType<typeof findAgentClass>>;

/**
 * Returns a pool; `undefined` if this Node does not have undici's Agent at its usual place.
 * `connectTimeoutMs` is for a TCP connection and its TLS handshake together.
 */
export function createPool(connectTimeoutMs = CONNECT_TIMEOUT_MS): Pool | undefined {
  const agentClass = findAgentClass();
  return agentClass && new Pool(agentClass, connectTimeoutMs);
}

/** The agents of each origin, and the figures of their connections. */
export class Pool {
  /** Has no idle connections, if its requests are sent with `reset`. */
  readonly reconnectAgent: CountedAgent;
  readonly #agentClass: AgentClass;
  /** One object for all agents: it holds the TLS sessions, which all of them resume. */
  readonly #options: object;
  /** By origin: a busy one must not lead the requests to another away from its idle connections. */
  readonly #agents = new Map<string, CountedAgent[]>();
  readonly #used = new WeakSet<Socket>();
  readonly #figures = { open: 0, made: 0, reused: 0 };
  #listenerOfNextUse: UseListener | undefined;

  constructor(agentClass: AgentClass, connectTimeoutMs: number) {
    this.#agentClass = agentClass;
    this.#options = {
      keepAliveTimeout: IDLE_CONNECTION_MS,
      allowH2: false,
      connect: createConnector(connectTimeoutMs),
    };
    this.reconnectAgent = this.#createAgent();
    // Published when a request is written to a socket, directly after its handler's `onConnect`.
    subscribe(SEND_HEADERS, this.#onSendHeaders);
  }

  get figures(): Readonly<Record<'open' | 'made' | 'reused', number>> {
    return this.#figures;
  }

  /**
   * Returns the first agent with room. Whoever sends a request by it counts that in `running`,
   * until it is over.
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

  /** Calls `listener` with the connection of the request that undici starts right now. */
  onNextUse(listener: UseListener): void {
    this.#listenerOfNextUse = listener;
  }

  /** Closes all connections at once: a proxy may never complete an orderly close. */
  async close(): Promise<void> {
    unsubscribe(SEND_HEADERS, this.#onSendHeaders);
    const all = [...this.#agents.values()].flat().concat(this.reconnectAgent);
    await Promise.all(all.map(({ dispatcher }) => dispatcher.destroy()));
  }

  #createAgent(): CountedAgent {
    return { dispatcher: new this.#agentClass(this.#options), running: 0 };
  }

  /**
   * Sockets are counted here and not in the connector, which makes none of those behind a proxy.
   */
  readonly #onSendHeaders = (message: unknown): void => {
    const listener = this.#listenerOfNextUse;
    // Also other code in this process may use fetch.
    if (!listener) return;
    const { socket } = message as { socket: Socket };
    const isReused = this.#used.has(socket);
    if (isReused) listener(socket, 'reused');
    else listener(socket, 'new', lookupMsOf(socket));
    this.#listenerOfNextUse = undefined;
    if (isReused) this.#figures.reused += 1;
    else this.#countNew(socket);
  };

  #countNew(socket: Socket): void {
    const figures = this.#figures;
    this.#used.add(socket);
    figures.made += 1;
    figures.open += 1;
    socket.once('close', () => (figures.open -= 1));
  }
}
