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
  /** The first response's body. */
  readonly body: string;
  /** The server closed the connection, as opposed to `waitMs` having passed. */
  readonly isClosed: boolean;
}

/** The status of the first response in what a server sent, and its body. */
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

/** All responses in what a server sent. One to HEAD has a length and, unless HEAD was not understood, no body. */
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

/**
 * Opens a connection that a test writes to itself; it is closed when the test ends. `text` is everything that came, as latin1;
 * `closed` waits for its end, and is what broke the connection, if anything did.
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
 * Follows the other end of a client's connection, at a server in this process, until the test ends: how many requests it
 * has parsed the heads of, and its socket from the first of them on.
 */
export function watchServerSide(t: TestContext, client: Socket) {
  const side = { requests: 0, socket: undefined as Socket | undefined };
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
