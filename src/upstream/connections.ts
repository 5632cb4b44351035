/** Connections to providers for the undici transport: a pool of the Agent class under fetch, and their states. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';

const CONNECT_TIMEOUT_MS = 10_000;
const CONNECT_TICKS = 10;
/** fetch's own 4 s would make a quiet gateway pay a TLS handshake on nearly every request. */
const IDLE_CONNECTION_MS = 90_000;
/** Below the idle time, so that the death of an idle connection's other end is noticed. */
const KEEP_ALIVE_PROBE_MS = 30_000;

/** For each request undici walks past the connections of its agent that are busy: of thousands that costs more than the request. */
const MAX_RUNNING_REQUESTS = 64;

const SEND_HEADERS = 'undici:client:sendHeaders';

/** undici's `Dispatcher`, as far as it is used. */
interface Dispatcher {
  /** Reports to `handler`, also what goes wrong. */
  dispatch(options: object, handler: object): boolean;
  destroy(): Promise<void>;
}

/** An agent, and how many requests it has that are not over. */
export interface CountedAgent {
  readonly dispatcher: Dispatcher;
  running: number;
}

const hasRoom = ({ running }: CountedAgent) => running < MAX_RUNNING_REQUESTS;

export type Connections = NonNullable<ReturnType<typeof createConnections>>;

/**
 * Returns a pool of connections; `undefined` if this Node does not have undici's Agent at its usual place.
 * `connectTimeoutMs` is for a TCP connection and its TLS handshake together.
 */
export function createConnections(connectTimeoutMs = CONNECT_TIMEOUT_MS) {
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
  let listenerOfNextUse: ((socket: Socket, connection: 'new' | 'reused') => void) | undefined;
  // Published when a request is written to a socket, directly after its handler's `onConnect`. Sockets are counted here and not
  // in the connector, which makes none of those behind a proxy.
  const onSendHeaders = (message: unknown) => {
    // Also other code in this process may use fetch.
    if (!listenerOfNextUse) return;
    const { socket } = message as { socket: Socket };
    const isReused = used.has(socket);
    listenerOfNextUse(socket, isReused ? 'reused' : 'new');
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
      let found = ofOrigin.find(hasRoom);
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
    onNextUse(listener: typeof listenerOfNextUse) {
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

/**
 * The class of fetch's own agent, which Node does not export: `Agent`, or `EnvHttpProxyAgent` with
 * `NODE_USE_ENV_PROXY`. undici shares an instance under a global symbol.
 */
function findAgentClass(): (new (options: object) => Dispatcher) | undefined {
  // The first use of fetch's module stores the instance.
  void globalThis.Headers;
  const slots = globalThis as unknown as Record<symbol, object | undefined>;
  // Node 26 keeps a wrapper for undici 6 and 7 in slot 1.
  const shared =
    slots[Symbol.for('undici.globalDispatcher.2')] ??
    slots[Symbol.for('undici.globalDispatcher.1')];
  if (!/^(?:EnvHttpProxy)?Agent$/.test(shared?.constructor.name ?? '')) return undefined;
  return shared!.constructor as new (options: object) => Dispatcher;
}

/** Returns undici's `connect` option, which is called with members of the origin's URL. */
function createConnector(timeoutMs: number) {
  /** The latest TLS session of each origin; resuming one saves most of the handshake's cost. */
  const sessions = new Map<string, Buffer>();

  return (
    { protocol, host, hostname, port }: URL,
    callback: (error: Error | null, socket: Socket) => void,
  ): void => {
    const isTls = protocol === 'https:';
    const socket = isTls
      ? connectTls({
          host: hostname,
          port: Number(port || 443),
          // RFC 6066 3: no address literals in SNI.
          servername: isIP(hostname) ? '' : hostname,
          ALPNProtocols: ['http/1.1'],
          session: sessions.get(host),
        })
      : connectTcp({ host: hostname, port: Number(port || 80) });
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE_PROBE_MS);

    let isSettled = false;
    const settle = (error: Error | null) => {
      if (isSettled) return;
      isSettled = true;
      clearTimeout(timer);
      // The session may be what the upstream stumbles over.
      if (error) sessions.delete(host);
      callback(error, socket);
    };
    // A single timer would fire on a busy event loop before the 'connect' that waits to be reported behind it.
    let ticksLeft = CONNECT_TICKS;
    const timer = setTimeout(() => {
      ticksLeft -= 1;
      if (ticksLeft > 0) timer.refresh();
      else socket.destroy(Object.assign(new Error('connect timed out'), { code: 'ETIMEDOUT' }));
    }, timeoutMs / CONNECT_TICKS);
    // Emitted only after the certificate has been verified; a resumed session is not verified again.
    socket.on('session', (session: Buffer) => sessions.set(host, session));
    // Stays on after the connect: an 'error' without a listener would end the process.
    socket.on('error', settle);
    socket.once(isTls ? 'secureConnect' : 'connect', () => settle(null));
  };
}
