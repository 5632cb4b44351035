/** A provider that answers with the test's bytes, below HTTP. */

import { createServer, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

import { listen } from './listen.ts';

export interface RawRequest {
  /** The head and the body as they came. */
  readonly text: string;
  readonly socket: Socket;
  /** This request's number on its connection, from 1. */
  readonly onConnection: number;
  /** The number of the request's connection, from 1. */
  readonly connection: number;
}

/** Starts a provider until the test ends. Calls `answer` after each whole request. */
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

/** Returns an HTTP response with a Content-Length. */
export function rawResponse(body: string, { status = '200 OK', type = 'application/json' } = {}) {
  const head = `HTTP/1.1 ${status}\r\ncontent-type: ${type}\r\n`;
  return `${head}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}
