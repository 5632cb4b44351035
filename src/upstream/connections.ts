/** Connects to providers: finds the Agent class under fetch, and creates its sockets. */

import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls, type SecureContext } from 'node:tls';

import { serverNameOf } from '../lib/loopback.ts';
import { lookup } from '../lib/name-lookup.ts';

/** A connection's time limit elapses in this many parts. */
const CONNECT_TICKS = 10;
/**
 * Shorter than the pool's `IDLE_CONNECTION_MS`, so that the pool notices if the peer of an idle
 * connection dies.
 */
const KEEP_ALIVE_PROBE_MS = 30_000;
/** Makes a paused socket hold one read instead of two. */
const READ_AHEAD = { highWaterMark: 16_384 };

/** The gateway's view of undici's `Dispatcher`. */
export interface Dispatcher {
  /** Sends a request, and calls the methods of `handler` with its progress and its failure. */
  dispatch(options: object, handler: object): boolean;
  /** Closes the connections when their requests are over. */
  close(): Promise<void>;
  destroy(): Promise<void>;
}

/**
 * Returns the class of fetch's own agent, because Node does not export it: `Agent`, or
 * `EnvHttpProxyAgent` with `NODE_USE_ENV_PROXY`. undici stores an instance under a global symbol.
 * Returns undefined without such an instance.
 */
export function findAgentClass(): (new (options: object) => Dispatcher) | undefined {
  // The first use of a fetch class makes undici store the instance.
  void globalThis.Headers;
  const slots = globalThis as unknown as Record<symbol, object | undefined>;
  // Node 26 keeps a wrapper for undici 6 and 7 in slot 1.
  const shared =
    slots[Symbol.for('undici.globalDispatcher.2')] ??
    slots[Symbol.for('undici.globalDispatcher.1')];
  if (!/^(?:EnvHttpProxy)?Agent$/.test(shared?.constructor.name ?? '')) return undefined;
  return shared!.constructor as new (options: object) => Dispatcher;
}

const ignore = () => {};

const lookupTimes = new WeakMap<Socket, number>();

/**
 * Returns how long a connection's name lookup took, in milliseconds; undefined without a lookup.
 */
export function lookupMsOf(socket: Socket): number | undefined {
  return lookupTimes.get(socket);
}

/**
 * Returns undici's `connect` option, a function of the origin's URL.
 *
 * @param timeoutMs - time limit for the name lookup, TCP and the TLS handshake together
 * @param secureContext - the certificates for TLS; by default those that Node trusts
 */
export function createConnector(timeoutMs: number, secureContext?: SecureContext) {
  /**
   * The latest TLS session for each origin. Resuming a session saves most of the handshake's cost.
   */
  const sessions = new Map<string, Buffer>();

  return (
    { protocol, host, hostname, port }: URL,
    callback: (error: Error | null, socket: Socket) => void,
  ): void => {
    const isTls = protocol === 'https:';
    const beganAtMs = performance.now();
    const target = { host: hostname, lookup, ...READ_AHEAD };
    const socket = isTls
      ? connectTls({
          ...target,
          port: Number(port || 443),
          servername: serverNameOf(hostname),
          ALPNProtocols: ['http/1.1'],
          session: sessions.get(host),
          secureContext,
        })
      : connectTcp({ ...target, port: Number(port || 80) });
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE_PROBE_MS);
    let doing = 'connect';
    if (isIP(hostname) === 0) {
      doing = 'name lookup';
      socket.once('lookup', () => {
        doing = 'connect';
        lookupTimes.set(socket, performance.now() - beganAtMs);
      });
    }

    const settle = (error: Error | null) => {
      clearTimeout(timer);
      // The socket lives longer than this call, and its listener would keep the timer and the
      // callback. Another listener stays, because an 'error' event without one ends the process.
      socket.off('error', settle).on('error', ignore);
      // The provider may have failed on the resumed session.
      if (error) sessions.delete(host);
      callback(error, socket);
    };
    // On a busy event loop a single timer would fire before a pending 'connect' event behind it.
    let ticksLeft = CONNECT_TICKS;
    const timer = setTimeout(() => {
      ticksLeft -= 1;
      if (ticksLeft > 0) timer.refresh();
      else socket.destroy(Object.assign(new Error(`${doing} timed out`), { code: 'ETIMEDOUT' }));
    }, timeoutMs / CONNECT_TICKS);
    if (isTls) keepSessions(socket, host, sessions);
    socket.on('error', settle);
    socket.once(isTls ? 'secureConnect' : 'connect', () => settle(null));
  };
}

/**
 * Stores each TLS session of the socket as the latest session for `host`. A session is emitted only
 * after the certificate was verified. A resumed session is not verified again.
 */
function keepSessions(socket: Socket, host: string, sessions: Map<string, Buffer>): void {
  socket.on('session', (session: Buffer) => sessions.set(host, session));
}
