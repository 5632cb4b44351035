/** A provider below HTTP: it answers with exactly the bytes a test gives it, and breaks off when told to. */

import { createServer, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

import { listen } from './listen.ts';

export interface RawRequest {
  /** Head and body as they came. */
  readonly text: string;
  readonly socket: Socket;
  /** How many requests this connection has carried, this one included. */
  readonly onConnection: number;
  /** How many connections there have been, this one included. */
  readonly connection: number;
}

/** Starts one for the length of a test. `answer` is called when a request has come completely. */
export async function startRawUpstream(t: TestContext, answer: (request: RawRequest) => unknown) {
  const requests: RawRequest[] = [];
  let connections = 0;
  const server = createServer((socket) => {
    connections += 1;
    const connection = connections;
    let onConnection = 0;
    let text = '';
    socket.on('data', (chunk: Buffer) => {
      text += chunk.toString('latin1');
      const headEnd = text.indexOf('\r\n\r\n');
      const length = Number(/\r\ncontent-length: (\d+)/i.exec(text)?.[1] ?? 0);
      if (headEnd < 0 || text.length < headEnd + 4 + length) return;
      onConnection += 1;
      const request = { text, socket, onConnection, connection };
      text = '';
      requests.push(request);
      answer(request);
    });
  });
  return { ...(await listen(t, server)), requests };
}

/** A whole HTTP response with a Content-Length. */
export function rawResponse(body: string, { status = '200 OK', type = 'application/json' } = {}) {
  const head = `HTTP/1.1 ${status}\r\ncontent-type: ${type}\r\n`;
  return `${head}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}
