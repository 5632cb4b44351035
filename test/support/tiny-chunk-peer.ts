/**
 * The other processes of test/long/tiny-chunks.ts. The first argument is the role. `bare` is a Node
 * server that reads bodies until their chunks are tiny, and relays the provider's stream.
 * `provider` sends it. `client` takes the port, the number of connections, the chunk size, and the
 * kind of request.
 */

import { createServer, request as httpRequest } from 'node:http';
import { connect, type AddressInfo, createServer as createTcpServer } from 'node:net';

import { CLIENT_TOKEN } from './gateway.ts';

const BODY_BYTES = 1_500_000;
const EVENT =
  'data: {"choices":[{"index":0,"delta":{"content":"abcdef"},"finish_reason":null}]}\n\n';

const [role, port = '', count = '1', chunkBytes = '1', kind] = process.argv.slice(2);

/** Encodes a text in chunks of `bytes` bytes. */
function inChunks(text: string, bytes: number): Buffer {
  const chunks = text.match(new RegExp(`[^]{1,${bytes}}`, 'g')) ?? [];
  const frames = chunks.map((chunk) => `${chunk.length.toString(16)}\r\n${chunk}\r\n`);
  return Buffer.from(frames.join('') + '0\r\n\r\n');
}

function startBare(): void {
  const server = createServer((request, response) => {
    const { socket } = request;
    const pause = () => void socket.pause();
    let chunks = 0;
    let bytes = 0;
    request.on('error', () => {});
    // From here on, the server only pays for chunks already read by node:http.
    request.on('data', ({ length }: Buffer) => {
      bytes += length;
      chunks += 1;
      if (chunks !== 1000 || bytes >= 16 * chunks) return;
      process.nextTick(pause);
      socket.on('resume', pause);
      response.writeHead(400).end();
    });
    if (request.url === '/health') return response.end('{}');
    return request.on('end', () => {
      if (port === '') return response.end('{}');
      return httpRequest({ host: '127.0.0.1', port, method: 'POST' }, (answer) => {
        answer.on('data', (chunk) => response.write(chunk));
        answer.on('end', () => response.end());
      }).end();
    });
  });
  server.listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
}

/** Answers each connection's first packet with a stream in one-byte chunks. */
function startProvider(): void {
  const stream = inChunks(EVENT.repeat(BODY_BYTES / EVENT.length + 1), 1);
  const head =
    'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n';
  const server = createTcpServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', () => {
      socket.write(head);
      socket.write(stream);
    });
  });
  server.listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
}

/** Sends `count` requests at once. Reports their statuses when all are answered or broken off. */
async function runClient(): Promise<void> {
  const key = kind === 'without a key' ? '' : `authorization: Bearer ${CLIENT_TOKEN}\r\n`;
  const head =
    `POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n${key}` +
    'content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n';
  const json = '{"model":"p/m","stream":true,"messages":[{"role":"user","content":"';
  const pad = kind === 'stream' ? 'x' : 'x'.repeat(BODY_BYTES);
  const body = inChunks(`${json}${pad}"}]}`, kind === 'stream' ? 1000 : Number(chunkBytes));
  const ask = async () =>
    new Promise<string>((resolve) => {
      const socket = connect(Number(port), '127.0.0.1');
      let status = '';
      socket.on('error', () => {});
      socket.on('close', () => resolve(status || 'none'));
      socket.on('data', (chunk: Buffer) => {
        status ||= chunk.toString('latin1', 9, 12);
      });
      socket.write(head);
      socket.write(body);
    });
  process.send?.(await Promise.all(Array.from({ length: Number(count) }, ask)));
}

process.on('disconnect', () => process.exit());
if (role === 'bare') startBare();
else if (role === 'provider') startProvider();
else await runClient();
