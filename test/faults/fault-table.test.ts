/**
 * Each way in which a provider can fail on the wire, the client's answer, and a check that nothing
 * is left.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import { createServer } from 'node:tls';
import { after, before, describe, test, type TestContext } from 'node:test';
import type { AddressInfo } from 'node:net';
import { gzipSync } from 'node:zlib';

import { ALL_SCALES, atSomeScale, startStopwatch } from '../support/clock.ts';
import { startBlackHole, startFaultProxy, type Fault } from '../support/fault-proxy.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  providerToml,
  startGateway,
  type Reply,
} from '../support/gateway.ts';
import { listen } from '../support/listen.ts';
import { startRawUpstream } from '../support/raw-upstream.ts';
import { dataOf, eventually, linesOf } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import {
  NOBODY_LISTENS,
  completion,
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
} from '../support/upstream.ts';

/** Concurrent rows. */
const AT_ONCE = 8;
/** The limit for rows about waiting. All other rows have a limit out of reach. */
const LIMIT_SECONDS = 1;
const AMPLE_SECONDS = 110;

// The client's answer: status, type, code. After a stream's beginning, its error event's.
const WHOLE = '200';
const FAILED = '502 provider_error PROVIDER_ERROR';
const TIMED_OUT = '504 timeout_error TIMEOUT';
const NOT_JSON = '500 internal_error SERIALIZATION_ERROR';
/** After the first event, the status is 200 and the error is an event. */
const inStream = (told: string) => told.replace(/^\d+/, '200');

/** An upstream's answer in bytes. */
interface Wire {
  readonly bytes: Buffer;
  readonly headEnd: number;
  /** A place inside the body; for a stream, inside its second event. */
  readonly middle: number;
}

interface WireOptions {
  readonly status?: string;
  readonly headers?: string;
  readonly framing?: 'length' | 'chunked' | 'close';
  readonly type?: string;
  readonly length?: number;
}

const bodyOf = (stream: boolean, word = 'Hello') =>
  stream ? completionEvents([word, ' there']) : JSON.stringify(completion(word));

/**
 * Replaced by the upstream's host and port, which no client may see. An address is never longer.
 */
const ADDRESS = 'UPSTREAM_ADDRESS';
/** Replaced by the working fallback's address. */
const FALLBACK_ADDRESS = 'FALLBACK_ADDRESS';
const TELLTALE = `server: ${ADDRESS}\r\nvia: 1.1 ${ADDRESS}\r\nset-cookie: a=b\r\n`;

function wire(body: string | Buffer, options: WireOptions = {}): Wire {
  const { status = '200 OK', headers = '', framing = 'length', type, length } = options;
  const bytes = Buffer.from(body);
  const frame = {
    length: `content-length: ${length ?? bytes.length}`,
    chunked: 'transfer-encoding: chunked',
    close: 'connection: close',
  }[framing];
  const mediaType =
    type ?? (bytes.includes('data: ') ? 'text/event-stream' : 'application/json; charset=utf-8');
  const lines = `HTTP/1.1 ${status}\r\ncontent-type: ${mediaType}\r\n${TELLTALE}${headers}${frame}`;
  const head = Buffer.from(`${lines}\r\n\r\n`, 'latin1');
  const parts = bytes.toString().split(/(?<=\n\n)(?=[^])/);
  const chunks = parts.map((part) => `${Buffer.byteLength(part).toString(16)}\r\n${part}\r\n`);
  const framed = framing === 'chunked' ? Buffer.from(`${chunks.join('')}0\r\n\r\n`) : bytes;
  const all = Buffer.concat([head, framed]);
  const middle = Math.max(all.indexOf('Hello'), all.indexOf(' there')) + 2;
  return { bytes: all, headEnd: head.length, middle };
}

interface Row {
  readonly fault: string;
  readonly told: string;
  /** The answer to a streaming client, if it differs. */
  readonly stream?: string;
  readonly isAboutTime?: boolean;
  /** Starts a broken address, and returns its base URL. */
  readonly address?: (t: TestContext) => Promise<string>;
  /** The upstream's bytes; a whole completion by default. */
  readonly answer?: (stream: boolean) => Wire;
  /** Whether the upstream then closes the connection. */
  readonly closes?: boolean;
  /** The proxy's fault. */
  readonly inflict?: (answer: Wire) => Fault;
  /** Whether the answer is whole by HTTP's rules, so its connection may be kept. */
  readonly isKept?: boolean;
  /** Whether connections opened ahead by fetch are broken, too. */
  readonly isForGood?: boolean;
}

/** Returns a whole answer with this framing. */
const sent = (options: WireOptions) => (stream: boolean) => wire(bodyOf(stream), options);
const whole = sent({});
const literal = (bytes: string) => () => ({ bytes: Buffer.from(bytes), headEnd: 0, middle: 0 });
const cut = (at: 'headEnd' | 'middle' | number, by: 'close' | 'reset' | 'stall') => ({
  inflict: (answer: Wire) => ({
    cutAfter: { bytes: typeof at === 'number' ? at : answer[at], by },
  }),
});
/** The error as a status, or as an error event once the stream has begun. */
const midway = (told: string) => ({ told, stream: inStream(told) });
const stalls = { told: TIMED_OUT, isAboutTime: true };
const isChunked = { answer: sent({ framing: 'chunked' }) };
const isUntilClose = { answer: sent({ framing: 'close' }) };
const encoded = (encode: (text: string) => Buffer, coding: string) => (stream: boolean) =>
  wire(encode(bodyOf(stream)), {
    headers: `content-encoding: ${coding}\r\n`,
    type: stream ? 'text/event-stream' : 'application/json',
  });

const ROWS: Row[] = [
  { fault: 'refused', told: FAILED, address: async () => `${NOBODY_LISTENS}/v1` },
  { fault: 'DNS failure', told: FAILED, address: async () => 'http://no-such-host.invalid/v1' },
  { fault: 'black hole', ...stalls, address: async (t) => (await startBlackHole(t)).baseUrl },
  { fault: 'TLS handshake fails', told: FAILED, address: startTlsWithoutCertificate },
  { fault: 'accept then close', told: FAILED, inflict: () => ({ onConnect: 'close' }) },
  { fault: 'accept then RST', told: FAILED, inflict: () => ({ onConnect: 'reset' }) },
  {
    fault: 'accept and never answer',
    ...stalls,
    isForGood: true,
    inflict: () => ({ onConnect: 'ignore' }),
  },
  { fault: 'FIN before headers', told: FAILED, ...cut(0, 'close') },
  { fault: 'RST before headers', told: FAILED, ...cut(0, 'reset') },
  { fault: 'FIN inside headers', told: FAILED, ...cut(30, 'close') },
  { fault: 'FIN after headers', told: FAILED, ...cut('headEnd', 'close') },
  { fault: 'RST after headers', told: FAILED, ...cut('headEnd', 'reset') },
  { fault: 'RST inside the body', ...midway(FAILED), ...cut('middle', 'reset') },
  { fault: 'FIN inside a chunk', ...midway(FAILED), ...isChunked, ...cut('middle', 'close') },
  { fault: 'FIN inside Content-Length', ...midway(FAILED), ...cut('middle', 'close') },
  {
    fault: 'clean EOF, unfinished',
    told: NOT_JSON,
    stream: inStream(FAILED),
    ...isUntilClose,
    ...cut('middle', 'close'),
  },
  {
    fault: 'clean EOF, finished without [DONE]',
    told: WHOLE,
    answer: (stream) => wire(bodyOf(stream).replace('data: [DONE]\n\n', ''), { framing: 'close' }),
    closes: true,
  },
  { fault: '1 byte at a time', told: WHOLE, inflict: () => ({ sliceBytes: 1 }), isKept: true },
  {
    fault: '1 byte at a time, chunked',
    told: WHOLE,
    ...isChunked,
    inflict: () => ({ sliceBytes: 1 }),
    isKept: true,
  },
  { fault: 'late, in time', told: WHOLE, inflict: () => ({ delayMs: 100 }), isKept: true },
  { fault: 'stall before headers', ...stalls, ...cut(0, 'stall') },
  { fault: 'stall after headers', ...stalls, ...cut('headEnd', 'stall') },
  { fault: 'stall inside the body', ...stalls, ...midway(TIMED_OUT), ...cut('middle', 'stall') },
  {
    fault: 'garbage instead of HTTP',
    told: FAILED,
    inflict: () => ({ garbage: Buffer.from('\u0000\u00ff'.repeat(500), 'latin1') }),
  },
  {
    fault: 'garbage status line',
    told: FAILED,
    answer: literal('HTTP/1.1 OK 200\r\ncontent-length: 0\r\n\r\n'),
  },
  { fault: 'status of two digits', told: FAILED, answer: literal('HTTP/1.1 20 OK\r\n\r\n') },
  {
    fault: 'chunked body that is not',
    told: FAILED,
    answer: literal('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{"choices":[]}'),
  },
  {
    fault: 'header over 16 KiB',
    told: FAILED,
    answer: sent({ headers: `x-long: ${'y'.repeat(20_000)}\r\n` }),
  },
  // A stream with its `[DONE]` is whole, whatever its length.
  {
    fault: 'Content-Length too long',
    told: FAILED,
    stream: WHOLE,
    answer: sent({ length: 5000 }),
    closes: true,
  },
  {
    fault: 'Content-Length too short',
    told: NOT_JSON,
    stream: inStream(FAILED),
    answer: (stream) => {
      const { headEnd, middle } = whole(stream);
      return wire(bodyOf(stream), { length: middle - headEnd });
    },
  },
  ...['100 Continue', '103 Early Hints'].map((status) => ({
    fault: `${status}, then FIN`,
    told: FAILED,
    answer: literal(`HTTP/1.1 ${status}\r\n\r\n`),
    closes: true,
  })),
  {
    fault: '102, then nothing',
    ...stalls,
    answer: literal('HTTP/1.1 102 Processing\r\n\r\n'),
  },
  {
    fault: '101',
    told: FAILED,
    answer: literal('HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n'),
  },
  // To the fallback, which would answer. fetch would send it the prompt after a 307, but not after
  // a 303.
  ...['303 See Other', '307 Temporary Redirect'].map((status) => {
    const location = `location: http://${FALLBACK_ADDRESS}/v1/chat/completions\r\n`;
    return {
      fault: status,
      told: FAILED,
      answer: sent({ status, headers: location }),
      isKept: true,
    };
  }),
  { fault: '204', told: FAILED, answer: literal('HTTP/1.1 204 None\r\n\r\n'), isKept: true },
  { fault: 'gzip unasked', told: FAILED, answer: encoded(gzipSync, 'gzip'), isKept: true },
  // Only some Node versions could decode it.
  { fault: 'zstd unasked', told: FAILED, answer: encoded(zstd, 'zstd'), isKept: true },
  {
    fault: 'latin1 bytes in headers',
    told: WHOLE,
    answer: sent({ headers: 'x-request-id: caf\u00e9\u0080\u00ff\r\nx-ratelimit-caf: \u00ff\r\n' }),
    isKept: true,
  },
];

/** Encodes a zstd frame (RFC 8878) as one raw block, because Node 20 has no zstd. */
function zstd(text: string): Buffer {
  const bytes = Buffer.from(text);
  const head = Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0, 0, 0, 0]);
  head.writeUInt32LE(bytes.length, 5);
  // The last block's header, with its raw type.
  head.writeUIntLE((bytes.length << 3) | 1, 9, 3);
  return Buffer.concat([head, bytes]);
}

async function startTlsWithoutCertificate(t: TestContext): Promise<string> {
  const server = createServer({});
  server.on('tlsClientError', () => {});
  return (await listen(t, server)).baseUrl.replace('http:', 'https:');
}

const FALLBACK_WORD = 'from the fallback';

interface Cell {
  readonly row: Row;
  readonly stream: boolean;
  readonly hasFallback: boolean;
}

/** Starts an upstream behind its proxy, the fallback and the gateway. */
async function startCell(
  t: TestContext,
  { row, stream, hasFallback }: Cell,
  limitSeconds = AMPLE_SECONDS,
) {
  let answer = (row.answer ?? whole)(stream).bytes;
  let closes = row.closes ?? false;
  const upstream = await startRawUpstream(t, ({ socket }) => {
    if (closes) socket.end(answer);
    else socket.write(answer);
  });
  const proxy = await startFaultProxy(t, upstream.port);
  const address = `127.0.0.1:${proxy.port}`.padEnd(ADDRESS.length);
  const q = await startUpstream(t, (request, response) => {
    if (request.body.includes('"stream":true')) sendEvents(response, bodyOf(true, FALLBACK_WORD));
    else sendJson(response, completion(FALLBACK_WORD));
  });
  const text = answer.toString('latin1').replaceAll(ADDRESS, address);
  answer = Buffer.from(text.replace(FALLBACK_ADDRESS, new URL(q.baseUrl).host), 'latin1');
  const baseUrl = row.address ? await row.address(t) : proxy.baseUrl;
  const gateway = await startGateway(t, {
    toml: `[server]
timeout = ${AMPLE_SECONDS}
stream_idle_timeout = ${limitSeconds}
[providers]
fallback = [${hasFallback ? '"q"' : ''}]
${providerToml({ baseUrl }, 'p', `timeout = ${limitSeconds}`)}
${providerToml(q, 'q')}`,
  });
  /** Ends the fault. From now on the upstream answers with this word. */
  const answerFrom = (word: string) => {
    answer = wire(bodyOf(false, word)).bytes;
    closes = false;
    proxy.fault = {};
  };
  return { gateway, proxy, q, host: new URL(baseUrl).host, answerFrom };
}

/** Returns a reply's outcome, and checks that its body contains nothing else. */
function outcomeOf({ status, text }: Reply, stream: boolean, word: string): string {
  const last = status === 200 && stream ? dataOf(text).at(-1)! : text;
  const isWhole = stream ? last === '[DONE]' : status === 200;
  if (isWhole) {
    assert.equal(text, bodyOf(stream, word));
    return WHOLE;
  }
  const { error, ...others } = JSON.parse(last) as { error: { type: string; code: string } };
  assert.deepEqual(others, {}, text);
  assert.doesNotMatch(text, /\[DONE\]|finish_reason":"/);
  return `${status} ${error.type} ${error.code}`;
}

const NAMES_OF_LIBRARIES =
  /\bE[A-Z]{4,}|HPE_|UND_|[Uu]ndici|fetch|socket|node:|getaddrinfo|SSL|routines/;

async function checkCell(t: TestContext, cell: Cell, limitSeconds?: number): Promise<void> {
  const { row, stream, hasFallback } = cell;
  const { gateway, proxy, q, host, answerFrom } = await startCell(t, cell, limitSeconds);
  proxy.fault = row.inflict?.((row.answer ?? whole)(stream)) ?? {};
  const elapsedMs = startStopwatch(t);
  const reply = await gateway.chat(chatBody({ stream }));
  const seconds = elapsedMs() / 1000;

  const told = (stream ? row.stream : undefined) ?? row.told;
  const fallsBack = hasFallback && !told.startsWith('200');
  const outcome = outcomeOf(reply, stream, fallsBack ? FALLBACK_WORD : 'Hello');
  assert.equal(outcome, fallsBack ? WHOLE : told, reply.text);
  assert.equal(reply.headers['x-gateway-provider'], fallsBack ? 'q' : 'p');
  assert.equal(q.requests.length, fallsBack ? 1 : 0);
  if (limitSeconds) assert.ok(seconds < 5 * limitSeconds, `took ${seconds} s`);

  await linesOf(gateway);
  // fetch may open a connection ahead and leave it idle.
  const used = () => [...proxy.sockets].filter(({ bytesRead }) => bytesRead > 0).length;
  await eventually(() => used() <= (row.isKept ? 1 : 0), 'no connection in use');
  assert.equal((await gateway.send('/health')).status, 200);
  const received = [JSON.stringify(reply.headers) + reply.text];
  if (!row.address && !row.isForGood) {
    // The fault is over, so the provider must answer this request with its own answer.
    const word = `word ${Math.random()}`;
    answerFrom(word);
    const next = await gateway.chat(chatBody());
    assert.equal(outcomeOf(next, false, word), WHOLE);
    assert.equal(next.headers['x-gateway-provider'], 'p');
    received.push(JSON.stringify(next.headers) + next.text);
  }

  for (const bytes of received) {
    assert.ok(!bytes.includes(host) && !bytes.includes('127.0.0.1'), bytes);
    assert.doesNotMatch(bytes, NAMES_OF_LIBRARIES);
  }
  for (const bytes of [...received, ...gateway.log]) {
    assert.ok(!bytes.includes(PROVIDER_KEY) && !bytes.includes(CLIENT_TOKEN), bytes);
    assert.doesNotMatch(bytes, /"level":"error"/);
  }
  assert.equal(gateway.reservedBytes(), 0);
  // A drain waits for requests in flight, so it would not end after a leak.
  await gateway.drain();
  if (OVER_FETCH) return;
  const isClosed = () => proxy.sockets.size === 0 && q.sockets.size === 0;
  await eventually(isClosed, 'every connection closed');
}

const warnings: string[] = [];
const onWarning = ({ name, message }: Error) => warnings.push(`${name}: ${message}`);
before(async () => {
  process.on('warning', onWarning);
  // On Node 20, undici's first request hangs if its connection closes before its parser is
  // compiled.
  const server = createHttpServer((_, response) => response.end()).listen(0, '127.0.0.1');
  await once(server, 'listening');
  await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  server.close();
});
after(() => {
  process.off('warning', onWarning);
  assert.deepEqual(warnings, []);
});

/** Checks a complete answer and a stream without a fallback, and a stream with it. */
async function checkRow(t: TestContext, row: Row, limitSeconds?: number): Promise<void> {
  const kinds = [
    [false, false],
    [true, false],
    [true, true],
  ] as const;
  await Promise.all(
    kinds.map(([stream, hasFallback]) => checkCell(t, { row, stream, hasFallback }, limitSeconds)),
  );
}

describe('the fault table', { concurrency: AT_ONCE }, () => {
  for (const row of ROWS) {
    const streamed = row.stream ? `, and ${row.stream} for a stream` : '';
    test(`${row.fault} becomes ${row.told}${streamed}`, ALL_SCALES, async (t) => {
      if (!row.isAboutTime) return checkRow(t, row);
      return atSomeScale(async (scale) => checkRow(t, row, scale * LIMIT_SECONDS));
    });
  }

  for (const stream of [false, true]) {
    const kind = stream ? 'a streamed' : 'a complete';
    test(`bytes pushed on an idle connection reach no client, after ${kind} answer`, async (t) => {
      const row: Row = { fault: 'pushed', told: WHOLE };
      const cell = { row, stream, hasFallback: false };
      const { gateway, proxy, answerFrom } = await startCell(t, cell);
      const first = await gateway.chat(chatBody({ stream }));
      assert.equal(outcomeOf(first, stream, 'Hello'), WHOLE);
      const idle = [...proxy.sockets].filter(({ bytesRead }) => bytesRead > 0);
      assert.equal(idle.length, 1, 'the connection was kept');
      answerFrom('mine');
      proxy.push(wire(bodyOf(stream, 'of another tenant')).bytes.toString());
      // The first request precedes the pushed bytes, and the second follows them.
      const next = [gateway.chat(chatBody())];
      await eventually(() => idle[0]!.destroyed, 'the poisoned connection closed');
      next.push(gateway.chat(chatBody()));
      for (const { text } of await Promise.all(next)) assert.doesNotMatch(text, /another tenant/);
      assert.equal(outcomeOf((await next[1])!, false, 'mine'), WHOLE);
    });
  }
});
