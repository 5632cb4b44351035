/**
 * The soak's rough clients: they pipeline, read slowly or not at all, half-close, reset, leave in the
 * middle of an upload, and send what is no HTTP. Nobody checks their answers; the gateway must hold
 * nothing of them afterwards.
 */

import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import type { Random } from './random.ts';
import { FAULTS, type SoakRequest } from './soak-answers.ts';

/** The key of all clients. */
export const SOAK_KEY = 'key-of-soaking-clients';
const LINES = ['host: soak', `authorization: Bearer ${SOAK_KEY}`, 'content-type: application/json'];
/** How long a client stays at most. */
const STAY_MS = 4000;

/** How a rough client ends its connection. */
const ENDS = ['reads to the end', 'half-closes', 'closes', 'resets'] as const;
/** How it reads until then. */
const READS = ['at once', 'at once', 'slowly', 'not'] as const;

interface Rough {
  readonly port: number;
  readonly random: Random;
  /** Told of the id of each request that is sent. */
  readonly onId: (id: string, what: string) => void;
}

/** Opens a connection, sends some requests, and is gone after `STAY_MS` and a little. */
export async function playRough(id: string, { port, random, onId }: Rough): Promise<void> {
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  socket.on('error', () => {});
  const closed = once(socket, 'close').catch(() => {});
  const end = random.pick(ENDS);
  const reads = random.pick(READS);
  const count = random.oneIn(2) ? 1 : random.integer(2, 12);
  const parts = Array.from({ length: count }, (_, index) => {
    const own = `${id}-${index}`;
    const { what, bytes } = requestOf(own, random);
    onId(own, `${what} (${index + 1} of ${count}, reads ${reads}, ${end})`);
    return bytes;
  });
  const bytes = parts.join('');
  const isWhole = !random.oneIn(4);
  const sent = isWhole ? bytes : bytes.slice(0, random.integer(0, bytes.length));
  read(socket, reads);
  await send(socket, sent, random);
  const staysMs =
    random.next() * (end === 'reads to the end' ? STAY_MS : random.pick([5, 300, STAY_MS]));
  await Promise.race([closed, sleep(staysMs)]);
  if (end === 'half-closes') {
    socket.end();
    await Promise.race([closed, sleep(random.next() * STAY_MS)]);
  } else if (end === 'resets') socket.resetAndDestroy();
  socket.destroy();
  await closed;
}

function read(socket: Socket, how: (typeof READS)[number]): void {
  if (how === 'at once') socket.resume();
  if (how !== 'slowly') return;
  // Reads what is buffered, and little more.
  const timer = setInterval(() => socket.read(), 50);
  socket.once('close', () => clearInterval(timer));
}

async function send(socket: Socket, text: string, random: Random): Promise<void> {
  if (random.oneIn(2)) {
    socket.write(text);
    return;
  }
  const size = Math.ceil(text.length / random.integer(2, 6));
  for (let at = 0; at < text.length && socket.writable; at += size) {
    socket.write(text.slice(at, at + size));
    await sleep(random.integer(0, 30));
  }
}

/** Returns a request as text, and what it is in words. */
function requestOf(id: string, random: Random): { readonly what: string; readonly bytes: string } {
  const simple = (what: string, start: string, ...lines: readonly string[]) => {
    const head = [start, 'host: soak', `x-request-id: ${id}`, ...lines].join('\r\n');
    return { what, bytes: `${head}\r\n\r\n` };
  };
  switch (random.integer(0, 15)) {
    case 0:
      return simple('health', 'GET /health HTTP/1.1');
    case 1:
      return simple('models', 'GET /v1/models HTTP/1.1', LINES[1]!);
    case 2:
      return simple('no key', 'POST /v1/chat/completions HTTP/1.1', 'content-length: 0');
    case 3:
      return random.oneIn(4)
        ? { what: 'no HTTP', bytes: `${id}\r\n\r\n` }
        : simple('path', 'GET / HTTP/1.1', LINES[1]!);
    default:
      return chatOf(id, random);
  }
}

function chatOf(id: string, random: Random) {
  const soak: SoakRequest = {
    nonce: id,
    stream: random.oneIn(2),
    pieces: random.pick([1, 20, 5000]),
    fault: random.oneIn(3) ? random.pick(FAULTS) : undefined,
    everywhere: random.oneIn(2),
  };
  const content = 'x'.repeat(random.pick([1, 1, 1000, 100_000, 1_000_000]));
  const body = JSON.stringify({
    soak,
    model: random.pick(['p/m', 'q/m', 'alias', 'nobody/m']),
    stream: soak.stream,
    messages: [{ role: 'user', content }],
  });
  const isChunked = random.oneIn(3);
  const expects = random.oneIn(12) ? ['expect: 100-continue'] : [];
  const length = isChunked ? 'transfer-encoding: chunked' : `content-length: ${body.length}`;
  const lines = [...LINES, `x-request-id: ${id}`, length, ...expects];
  const head = ['POST /v1/chat/completions HTTP/1.1', ...lines].join('\r\n');
  const sent = isChunked ? `${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n` : body;
  const what = `${soak.stream ? 'stream' : 'chat'}, ${body.length} bytes, ${soak.fault ?? 'good'}`;
  return { what, bytes: `${head}\r\n\r\n${sent}` };
}
