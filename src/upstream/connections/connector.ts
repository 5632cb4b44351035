/** Connects to providers. */

import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls, type SecureContext } from 'node:tls';

import { serverNameOf, withoutBrackets } from '../../lib/loopback.ts';
import { lookup } from '../../lib/name-lookup.ts';

const CONNECT_TICKS = 10;
/**
 * Shorter than `IDLE_CONNECTION_MS`, so that the end of an idle connection's peer is noticed.
 */
const IDLE_PROBE_MS = 30_000;
/** Makes a paused socket hold one read instead of two. */
const READ_AHEAD = { highWaterMark: 16_384 };

const ignore = () => {};

/**
 * Returns a function that connects to an origin. It calls `callback` once, with the error or with
 * the time of the name lookup, if there was any.
 *
 * @param timeoutMs - for the name lookup, TCP and the TLS handshake together
 * @param secureContext - the certificates for TLS; by default those that Node trusts
 */
export function createConnector(timeoutMs: number, secureContext?: SecureContext) {
  /** Resuming a session saves most of the handshake's cost. */
  const sessions = new Map<string, Buffer>();

  return (
    origin: string,
    callback: (error: Error | undefined, lookupMs?: number) => void,
  ): Socket => {
    const { protocol, host, hostname, port } = new URL(origin);
    const isTls = protocol === 'https:';
    const address = withoutBrackets(hostname);
    const beganAtMs = performance.now();
    const target = { host: address, lookup, ...READ_AHEAD };
    const socket = isTls
      ? connectTls({
          ...target,
          port: Number(port || 443),
          servername: serverNameOf(address),
          ALPNProtocols: ['http/1.1'],
          session: sessions.get(host),
          secureContext,
        })
      : connectTcp({ ...target, port: Number(port || 80) });
    socket.setNoDelay(true);
    socket.setKeepAlive(true, IDLE_PROBE_MS);
    let syscall = 'connect';
    let lookupMs: number | undefined;
    if (isIP(address) === 0) {
      syscall = 'getaddrinfo';
      socket.once('lookup', () => {
        syscall = 'connect';
        lookupMs = performance.now() - beganAtMs;
      });
    }

    const settle = (error: Error | undefined) => {
      clearTimeout(timer);
      // The socket lives longer than this call, and its listener would keep the timer and the
      // callback. Another listener stays, because an 'error' event without one ends the process.
      socket.off('error', settle).on('error', ignore);
      // The provider may have failed on the resumed session.
      if (error) sessions.delete(host);
      callback(error, lookupMs);
    };
    // On a busy event loop a single timer would fire before a pending 'connect' event behind it.
    let ticksLeft = CONNECT_TICKS;
    const timer = setTimeout(() => {
      ticksLeft -= 1;
      if (ticksLeft > 0) timer.refresh();
      else socket.destroy(createTimeoutError(syscall, address));
    }, timeoutMs / CONNECT_TICKS);
    if (isTls) keepSessions(socket, host, sessions);
    socket.on('error', settle);
    socket.once(isTls ? 'secureConnect' : 'connect', () => settle(undefined));
    return socket;
  };
}

/** Returns an error like the system's for this call. */
function createTimeoutError(syscall: string, hostname: string): Error {
  const error = new Error(`${syscall === 'connect' ? 'connect' : 'name lookup'} timed out`);
  return Object.assign(error, { code: 'ETIMEDOUT', syscall, hostname });
}

/**
 * A session is emitted only after the certificate was verified. A resumed session is not verified
 * again.
 */
function keepSessions(socket: Socket, host: string, sessions: Map<string, Buffer>): void {
  socket.on('session', (session: Buffer) => sessions.set(host, session));
}
