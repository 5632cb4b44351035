/** A TCP client for requests that no HTTP client would send. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { connect, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

import { setPatientTimeout } from './clock.ts';

export interface RawReply {
  /** Everything the server sent. */
  readonly text: string;
  /** The status of the first response, 0 where there is none. */
  readonly status: number;
  /** The first response's body, by its Content-Length. */
  readonly body: string;
  /** The server closed the connection, as opposed to `waitMs` having passed. */
  readonly isClosed: boolean;
}

/** The status of the first response in what a server sent, and its body by its Content-Length. */
export function readReply(text: string): Omit<RawReply, 'isClosed'> {
  const [head = '', ...rest] = text.split('\r\n\r\n');
  const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
  const status = Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1] ?? 0);
  return { text, status, body: rest.join('\r\n\r\n').slice(0, length) };
}

/** Every status in what a server sent, interim ones too. */
export function statusesOf(text: string): number[] {
  return [...text.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status));
}

/** Sends bytes (strings as latin1) and collects what comes back until the server closes or `waitMs` of the process's own time have passed. */
export async function sendRaw(
  port: number,
  bytes: string | Buffer,
  { waitMs = 1000 }: { waitMs?: number } = {},
): Promise<RawReply> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    const chunks: Buffer[] = [];
    let stopWaiting = () => {};
    const finish = (isClosed: boolean) => {
      stopWaiting();
      socket.destroy();
      resolve({ ...readReply(Buffer.concat(chunks).toString('latin1')), isClosed });
    };
    socket.on('error', () => finish(true));
    socket.on('close', () => finish(true));
    socket.on('data', (chunk: Buffer) => chunks.push(chunk));
    // On a busy machine the connection alone may take longer.
    socket.write(bytes, 'latin1', () => {
      stopWaiting = setPatientTimeout(() => finish(false), waitMs);
    });
  });
}

export interface RawClient {
  readonly socket: Socket;
  /** Everything that came, as latin1. */
  readonly text: () => string;
  /** What broke the connection, if anything did; waits for its end. */
  readonly closed: Promise<string | undefined>;
}

/** Opens a connection that a test writes to itself; it is closed when the test ends. */
export function openRaw(t: TestContext, port: number, { allowHalfOpen = false } = {}): RawClient {
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen });
  t.after(() => socket.destroy());
  let text = '';
  let broken: string | undefined;
  socket.on('data', (chunk: Buffer) => (text += chunk.toString('latin1')));
  socket.on('error', ({ message }) => (broken = message));
  const closed = new Promise<string | undefined>((resolve) => {
    socket.once('close', () => resolve(broken));
  });
  return { socket, text: () => text, closed };
}

/** The other end of a client's connection, at a server in this process. */
export interface ServerSide {
  /** Requests whose heads it has parsed. */
  requests: number;
  /** Undefined before the first of them. */
  socket: Socket | undefined;
}

/** Follows it until the test ends. */
export function watchServerSide(t: TestContext, client: Socket): ServerSide {
  const side: ServerSide = { requests: 0, socket: undefined };
  const onStart = (message: unknown) => {
    const { socket } = message as { socket: Socket };
    if (socket.remotePort !== client.localPort) return;
    side.requests += 1;
    side.socket = socket;
  };
  subscribe('http.server.request.start', onStart);
  t.after(() => unsubscribe('http.server.request.start', onStart));
  return side;
}

/** Whether nobody accepts connections at the port. */
export async function isRefused(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.on('error', () => resolve(true));
    socket.on('connect', () => {
      socket.destroy();
      resolve(false);
    });
  });
}
