/** A TCP client for requests that no HTTP client sends. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { connect, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

import { setPatientTimeout } from './clock.ts';

export interface RawReply {
  /** All bytes from the server. */
  readonly text: string;
  /** The status of the first response; 0 if there is none. */
  readonly status: number;
  /** The body of the first response. */
  readonly body: string;
  /** Whether the server closed the connection. False after `waitMs`. */
  readonly isClosed: boolean;
}

/** Parses the first response in a server's bytes. */
export function readReply(text: string): Omit<RawReply, 'isClosed'> {
  const [{ status, body } = { status: 0, body: '' }] = parseReplies(text);
  return { text, status, body };
}

export interface ParsedReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly isWhole: boolean;
}

/**
 * Parses all responses in a server's bytes. A response to HEAD has a length but no body, unless the
 * server did not understand HEAD.
 */
export function parseReplies(text: string, { isHead = false } = {}): ParsedReply[] {
  const replies: ParsedReply[] = [];
  let rest = text;
  while (rest !== '') {
    const end = rest.indexOf('\r\n\r\n');
    if (end < 0) return [...replies, { status: 0, headers: {}, body: rest, isWhole: false }];
    const [first = '', ...lines] = rest.slice(0, end).split('\r\n');
    const status = Number(/^HTTP\/1\.1 (\d{3}) /.exec(first)?.[1] ?? 0);
    const headers = Object.fromEntries(
      lines.map((line) => [
        line.slice(0, line.indexOf(':')).toLowerCase(),
        line.slice(line.indexOf(':') + 1).trim(),
      ]),
    );
    rest = rest.slice(end + 4);
    const hasBody = isHead ? rest.startsWith('{') : status >= 200 && status !== 204;
    const { body, length, isWhole } = bodyOf(rest, hasBody ? headers : {});
    replies.push({ status, headers, body, isWhole });
    rest = rest.slice(length);
  }
  return replies;
}

function bodyOf(text: string, headers: Readonly<Record<string, string>>) {
  if (headers['transfer-encoding'] === undefined) {
    const length = Number(headers['content-length'] ?? 0);
    return { body: text.slice(0, length), length, isWhole: text.length >= length };
  }
  let body = '';
  for (let at = 0; ;) {
    const line = text.indexOf('\r\n', at);
    const size = Number.parseInt(text.slice(at, line), 16);
    const next = line + 2 + size + 2;
    if (line < 0 || next > text.length) return { body, length: text.length, isWhole: false };
    body += text.slice(line + 2, line + 2 + size);
    at = next;
    if (size === 0) return { body, length: at, isWhole: true };
  }
}

/** Returns every status in a server's bytes, interim ones included. */
export function statusesOf(text: string): number[] {
  return [...text.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status));
}

/**
 * Sends bytes (strings as latin1), and collects the answer until the server closes or the process
 * has run for `waitMs`.
 */
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
    // The wait starts here, because a busy machine may take longer to connect.
    socket.write(bytes, 'latin1', () => {
      stopWaiting = setPatientTimeout(() => finish(false), waitMs);
    });
  });
}

/**
 * Opens a connection that a test writes to, until the test ends. `text` returns the received bytes
 * as latin1. `closed` resolves at the connection's end, with the error's message if it broke.
 */
export function openRaw(t: TestContext, port: number, { allowHalfOpen = false } = {}) {
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

/**
 * Watches the server's end of a client's connection until the test ends: the number of parsed
 * request heads, and the socket from the first request on.
 */
export function watchServerSide(t: TestContext, client: Socket) {
  const side = { requests: 0, socket: undefined as Socket | undefined };
  const onStart = (message: unknown) => {
    const { socket } = message as { socket: Socket };
    // Connections to other servers may have the same local port.
    if (socket.remotePort !== client.localPort || socket.localPort !== client.remotePort) return;
    side.requests += 1;
    side.socket = socket;
  };
  subscribe('http.server.request.start', onStart);
  t.after(() => unsubscribe('http.server.request.start', onStart));
  return side;
}

/** Whether the port refuses connections. */
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
