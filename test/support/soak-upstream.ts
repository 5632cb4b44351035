/**
 * The soak's providers, in a process: `/p/v1` has faults, `/q/v1` only the faults with
 * `everywhere`.
 */

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { answerTo, type Fault, type SoakRequest } from './soak-answers.ts';

const FAULT_BODY = JSON.stringify({ error: { message: 'soaked', code: 'x' } });

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on('error', () => {});
  response.on('error', () => {});
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    if (request.method === 'GET') {
      response.end('{"data":[{"id":"m"}]}');
      return;
    }
    const { soak } = JSON.parse(Buffer.concat(chunks).toString()) as { soak: SoakRequest };
    const isFaulty = soak.everywhere || request.url!.startsWith('/p/');
    void answer(request, response, isFaulty ? soak : { ...soak, fault: undefined });
  });
});

async function answer(
  { socket }: IncomingMessage,
  response: ServerResponse,
  soak: SoakRequest,
): Promise<void> {
  const { fault, stream } = soak;
  const parts = answerTo(soak);
  const type = stream ? 'text/event-stream' : 'application/json';
  if (fault && (await answerAtOnce(fault, response, type))) return;
  // A pipelined response without a socket waits for the response before it, and the stray answer
  // would overtake both.
  if (fault === 'one answer too many' && response.socket)
    return answerTwice(response, type, parts.join(''));
  const isCut = fault === 'cut in body' || fault === 'cut in chunk' || fault === 'early end';
  const text = parts.join('');
  const hasLength = fault === 'cut in body' || soak.pieces % 3 === 0;
  const length = hasLength ? { 'content-length': Buffer.byteLength(text) } : {};
  response.writeHead(200, { 'content-type': type, ...length });
  for (const [index, part] of parts.entries()) {
    if (index > parts.length / 2 || !stream) {
      if (fault === 'later event an error') response.write(`data: ${FAULT_BODY}\n\n`);
      if (fault === 'stall in body') await sleep(60_000, undefined, { ref: false });
      if (isCut) response.write(part.slice(0, part.length / 2));
      if (fault === 'early end') return void response.end();
      if (isCut) return void setImmediate(() => socket.resetAndDestroy());
    }
    if (response.destroyed) return;
    response.write(part);
    if (index % 4 === 0) await sleep(1);
  }
  response.end();
}

/**
 * Writes both answers at once: if the stray bytes came later, nobody could know whose answer they
 * are. `response.end` would write twice.
 */
function answerTwice(response: ServerResponse, type: string, text: string): void {
  const stray = JSON.stringify({ choices: [], id: 'stray' });
  const answers = [
    [type, text],
    ['application/json', stray],
  ].map(([kind, body = '']) => {
    const length = Buffer.byteLength(body);
    return `HTTP/1.1 200 OK\r\ncontent-type: ${kind}\r\ncontent-length: ${length}\r\n\r\n${body}`;
  });
  response.req.socket.write(answers.join(''));
}

/** Applies a fault without any answer. Returns whether there was such a fault. */
async function answerAtOnce(
  fault: Fault,
  response: ServerResponse,
  type: string,
): Promise<boolean> {
  const { socket } = response.req;
  const json = { 'content-type': 'application/json' };
  if (/^\d{3}$/.test(fault)) {
    response.writeHead(Number(fault), { ...json, 'retry-after': '1' });
    response.end(fault === '204' ? '' : FAULT_BODY);
    return true;
  }
  if (fault === 'no answer' || fault === 'stall') {
    if (fault === 'stall') response.writeHead(200, { 'content-type': type }).flushHeaders();
    await sleep(60_000, undefined, { ref: false });
  } else if (fault === 'reset') socket.resetAndDestroy();
  else if (fault === 'closed') socket.destroy();
  else if (fault === 'cut in head') socket.end('HTTP/1.1 200 OK\r\ncontent-ty');
  else if (fault === 'garbage') socket.end('SSH-2.0-soak\r\n\r\n');
  else if (fault === 'html') response.writeHead(502).end('<html><h1>Bad gateway</h1></html>');
  else if (fault === 'error in 200') response.writeHead(200, json).end(FAULT_BODY);
  else if (fault === 'not json') response.writeHead(200, json).end('soaked');
  else if (fault === 'empty') response.writeHead(200, { 'content-type': type }).end();
  else if (fault === 'first event an error') {
    response.writeHead(200, { 'content-type': type }).end(`data: ${FAULT_BODY}\n\n`);
  } else if (fault === 'wrong kind') {
    const other = type === 'application/json' ? 'text/event-stream' : 'application/json';
    response.writeHead(200, { 'content-type': other });
    response.end(other === 'application/json' ? '{"choices":[]}' : 'data: {"choices":[]}\n\n');
  } else return false;
  return true;
}

server.keepAliveTimeout = 5000;
server.listen(0, '127.0.0.1', () =>
  process.send!({ port: (server.address() as AddressInfo).port }),
);
process.on('message', () => server.closeAllConnections());
process.on('disconnect', () => process.exit());
