/** The connections to providers that are kept: agents of the class under fetch, with a bound on the requests of each. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';

import { createConnector, type Dispatcher, findAgentClass, lookupMsOf } from './connections.ts';

const CONNECT_TIMEOUT_MS = 10_000;
/** fetch's own 4 s would make a quiet gateway pay a TLS handshake on nearly every request. */
const IDLE_CONNECTION_MS = 90_000;
/** For each request undici walks past the connections of its agent that are busy: of thousands that costs more than the request. */
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

export type Pool = NonNullable<ReturnType<typeof createPool>>;

/**
 * Returns a pool; `undefined` if this Node does not have undici's Agent at its usual place. `connectTimeoutMs` is for a TCP
 * connection and its TLS handshake together.
 */
export function createPool(connectTimeoutMs = CONNECT_TIMEOUT_MS) {
  const AgentClass = findAgentClass();
  if (!AgentClass) return undefined;
  const options = {
    keepAliveTimeout: IDLE_CONNECTION_MS,
    allowH2: false,
    connect: createConnector(connectTimeoutMs),
  };
  /** By origin: a busy one must not lead the requests to another away from its idle connections. */
  const agents = new Map<string, CountedAgent[]>();
  const reconnectAgent = { dispatcher: new AgentClass(options), running: 0 };
  const used = new WeakSet<Socket>();
  const figures = { open: 0, made: 0, reused: 0 };
  let listenerOfNextUse: UseListener | undefined;
  // Published when a request is written to a socket, directly after its handler's `onConnect`. Sockets are counted here and not
  // in the connector, which makes none of those behind a proxy.
  const onSendHeaders = (message: unknown) => {
    // Also other code in this process may use fetch.
    if (!listenerOfNextUse) return;
    const { socket } = message as { socket: Socket };
    const isReused = used.has(socket);
    if (isReused) listenerOfNextUse(socket, 'reused');
    else listenerOfNextUse(socket, 'new', lookupMsOf(socket));
    listenerOfNextUse = undefined;
    if (isReused) figures.reused += 1;
    else {
      used.add(socket);
      figures.made += 1;
      figures.open += 1;
      socket.once('close', () => (figures.open -= 1));
    }
  };
  subscribe(SEND_HEADERS, onSendHeaders);
  return {
    /** Returns the first agent with room. Whoever sends a request by it counts that in `running`, until it is over. */
    agentFor(origin: string): CountedAgent {
      const ofOrigin = agents.get(origin) ?? [];
      agents.set(origin, ofOrigin);
      let found = ofOrigin.find(isFree);
      if (!found) {
        // The same options: they hold the TLS sessions, which all of them resume.
        found = { dispatcher: new AgentClass(options), running: 0 };
        ofOrigin.push(found);
      }
      return found;
    },
    /** Has no idle connections, if its requests are sent with `reset`. */
    reconnectAgent,
    figures: figures as Readonly<typeof figures>,
    /** Calls `listener` with the connection of the request that undici starts right now. */
    onNextUse(listener: UseListener) {
      listenerOfNextUse = listener;
    },
    /** Closes all connections at once: a proxy may never complete an orderly close. */
    async close() {
      unsubscribe(SEND_HEADERS, onSendHeaders);
      const all = [...agents.values()].flat().concat(reconnectAgent);
      await Promise.all(all.map(({ dispatcher }) => dispatcher.destroy()));
    },
  };
}
