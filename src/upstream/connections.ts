/**
 * How connections to providers are made: the Agent class under fetch, and the sockets that it gets.
 */

import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';

import { serverNameOf } from '../lib/loopback.ts';
import { lookup } from '../lib/name-lookup.ts';

const CONNECT_TICKS = 10;
/**
 * Below the time for which a pool keeps idle connections, so that the death of an idle connection's
 * other end is noticed.
 */
const KEEP_ALIVE_PROBE_MS = 30_000;
/** A socket that is not read on holds one read, and not two. */
const READ_AHEAD = { highWaterMark: 16_384 };

/** undici's `Dispatcher`, as far as it is used. */
export interface Dispatcher {
  /** Reports to `handler`, also what goes wrong. */
  dispatch(options: object, handler: object): boolean;
  destroy(): Promise<void>;
}

/**
 * The class of fetch's own agent, which Node does not export: `Agent`, or `EnvHttpProxyAgent` with
 * `NODE_USE_ENV_PROXY`. undici shares an instance under a global symbol.
 */
export function findAgentClass(): (new (options: object) => Dispatcher) | undefined {
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

const lookupTimes = new WeakMap<Socket, number>();

/**
 * Returns how long the lookup of the host's name took, in milliseconds; undefined if a connection
 * needed none.
 */
export function lookupMsOf(socket: Socket): number | undefined {
  return lookupTimes.get(socket);
}

/**
 * Returns undici's `connect` option, which is called with members of the origin's URL. `timeoutMs`
 * is for the name lookup, the TCP connection and its TLS handshake together.
 */
export function createConnector(timeoutMs: number) {
  /** The latest TLS session of each origin; resuming one saves most of the handshake's cost. */
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

    let isSettled = false;
    const settle = (error: Error | null) => {
      if (isSettled) return;
      isSettled = true;
      clearTimeout(timer);
      // The session may be what the upstream stumbles over.
      if (error) sessions.delete(host);
      callback(error, socket);
    };
    // A single timer would fire on a busy event loop before the 'connect' that waits to be reported
    // behind it.
    let ticksLeft = CONNECT_TICKS;
    const timer = setTimeout(() => {
      ticksLeft -= 1;
      if (ticksLeft > 0) timer.refresh();
      else socket.destroy(Object.assign(new Error(`${doing} timed out`), { code: 'ETIMEDOUT' }));
    }, timeoutMs / CONNECT_TICKS);
    // Emitted only after the certificate has been verified; a resumed session is not verified
    // again.
    socket.on('session', (session: Buffer) => sessions.set(host, session));
    // Stays on after the connect: an 'error' without a listener would end the process.
    socket.on('error', settle);
    socket.once(isTls ? 'secureConnect' : 'connect', () => settle(null));
  };
}
