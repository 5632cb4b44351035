import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import { createServer } from 'node:tls';
import { after, before, describe, test, type TestContext } from 'node:test';
import type { AddressInfo } from 'node:net';
import { gzipSync } from 'node:zlib';

import { ALL_SCALES, atSomeScale, startStopwatch } from '../support/clock.ts';
import {
  startBlackHole,
  startFaultProxy,
  type Fault,
  type FaultProxy,
} from '../support/fault-proxy.ts';
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

/** Cells at work at the same time. */
const AT_ONCE = 24;
/** For cells about waiting; the others have a limit that they never come near. */
const LIMIT_SECONDS = 1;
const AMPLE_SECONDS = 110;

/** What a client is told: status, type, code. In a stream that had begun, those of the error event. */
type Outcome = readonly [status: number, type: string, code: string];

const WHOLE: Outcome = [200, '', ''];
const FAILED: Outcome = [502, 'provider_error', 'PROVIDER_ERROR'];
const TIMED_OUT: Outcome = [504, 'timeout_error', 'TIMEOUT'];
const NOT_JSON: Outcome = [500, 'internal_error', 'SERIALIZATION_ERROR'];
const LIMITED: Outcome = [429, 'rate_limit_error', 'RATE_LIMIT_ERROR'];
const apiError = (status: number): Outcome => [status, 'provider_error', 'API_ERROR'];
/** After the first event the status is sent; the rest is told in the stream. */
const inStream = ([, type, code]: Outcome): Outcome => [200, type, code];

/** One answer of an upstream, as bytes. */
interface Wire {
  readonly bytes: Buffer;
  readonly headEnd: number;
  /** Inside the body: of a stream, inside its second event. */
  readonly middle: number;
}

type Framing = 'length' | 'chunked' | 'close';

interface WireOptions {
  readonly status?: string;
  readonly headers?: string;
  readonly framing?: Framing;
  readonly type?: string;
  readonly length?: number;
}

const bodyOf = (stream: boolean, word = 'Hello') =>
  stream ? completionEvents([word, ' there']) : JSON.stringify(completion(word));

/** Stands for the upstream's host and port, which no client may see; an address is never longer. */
const ADDRESS = 'UPSTREAM_ADDRESS';
/** Stands for that of the fallback, which works. */
const FALLBACK_ADDRESS = 'FALLBACK_ADDRESS';
const TELLTALE = `server: ${ADDRESS}\r\nvia: 1.1 ${ADDRESS}\r\nset-cookie: a=b\r\n`;

function wire(body: string | Buffer, options: WireOptions = {}): Wire {
  const { status = '200 OK', headers = '', framing = 'length', type, length } = options;
  const bytes = Buffer.from(body);
  const frame = {
    length: `content-length: ${length ?? bytes.length}\r\n`,
    chunked: 'transfer-encoding: chunked\r\n',
    close: 'connection: close\r\n',
  }[framing];
  const mediaType =
    type ?? (bytes.includes('data: ') ? 'text/event-stream' : 'application/json; charset=utf-8');
  const head = Buffer.from(
    `HTTP/1.1 ${status}\r\ncontent-type: ${mediaType}\r\n${TELLTALE}${headers}${frame}\r\n`,
    'latin1',
  );
  const framed = framing === 'chunked' ? [...chunks(bytes), '0\r\n\r\n'] : [bytes];
  const all = Buffer.concat([head, ...framed.map((part) => Buffer.from(part))]);
  return {
    bytes: all,
    headEnd: head.length,
    middle: Math.max(all.indexOf('Hello'), all.indexOf(' there')) + 2,
  };
}

function* chunks(bytes: Buffer): Generator<string> {
  for (const part of bytes.toString().split(/(?<=\n\n)/)) {
    if (part !== '') yield `${Buffer.byteLength(part).toString(16)}\r\n${part}\r\n`;
  }
}

interface Row {
  readonly fault: string;
  readonly complete: Outcome;
  readonly stream: Outcome;
  /** The answer stands, and no fallback is asked. */
  readonly isFinal?: boolean;
  readonly isAboutTime?: boolean;
  /** The base URL of something else than the proxy, which stays broken. */
  readonly address?: (t: TestContext) => Promise<string>;
  /** The upstream's bytes; a whole completion where absent. */
  readonly answer?: (stream: boolean) => Wire;
  /** The upstream closes the connection after them. */
  readonly closes?: boolean;
  /** What the proxy makes of them. */
  readonly inflict?: (answer: Wire) => Fault;
  /** The answer is whole by HTTP's rules, so that its connection may be kept. */
  readonly isKept?: boolean;
  /** The connections that fetch has open ahead of the next request are broken too. */
  readonly isForGood?: boolean;
  /** After an answer that is the upstream's own. */
  readonly check?: (reply: Reply) => void;
}

const whole = (stream: boolean) => wire(bodyOf(stream));
const literal = (bytes: string) => () => ({ bytes: Buffer.from(bytes), headEnd: 0, middle: 0 });
const cut =
  (at: 'headEnd' | 'middle' | number, by: 'close' | 'reset' | 'stall') => (answer: Wire) => ({
    cutAfter: { bytes: typeof at === 'number' ? at : answer[at], by },
  });
const both = (outcome: Outcome) => ({ complete: outcome, stream: outcome });
/** Ends as this error, or as the error event once the stream has begun. */
const midway = (outcome: Outcome) => ({ complete: outcome, stream: inStream(outcome) });
const errorBody = JSON.stringify({ error: { message: `no, ${PROVIDER_KEY}`, code: 'x' } });
const retryAfter =
  (min: number, max = min) =>
  (reply: Reply) => {
    const seconds = Number(reply.headers['retry-after']);
    assert.ok(Number.isInteger(seconds) && seconds >= min && seconds <= max, `${seconds}`);
    assert.equal(reply.json().error.retry_after, seconds);
  };
const inAMinute = () => new Date(Date.now() + 50_000).toUTCString();

const ROWS: Row[] = [
  { fault: 'refused', ...both(FAILED), address: async () => `${NOBODY_LISTENS}/v1` },
  { fault: 'DNS failure', ...both(FAILED), address: async () => 'http://no-such-host.invalid/v1' },
  {
    fault: 'black hole',
    ...both(TIMED_OUT),
    isAboutTime: true,
    address: async (t) => (await startBlackHole(t)).baseUrl,
  },
  { fault: 'TLS handshake fails', ...both(FAILED), address: startTlsWithoutCertificate },
  { fault: 'accept then close', ...both(FAILED), inflict: () => ({ onConnect: 'close' }) },
  { fault: 'accept then RST', ...both(FAILED), inflict: () => ({ onConnect: 'reset' }) },
  {
    fault: 'accept and never answer',
    ...both(TIMED_OUT),
    isAboutTime: true,
    isForGood: true,
    inflict: () => ({ onConnect: 'ignore' }),
  },
  { fault: 'FIN before headers', ...both(FAILED), inflict: cut(0, 'close') },
  { fault: 'RST before headers', ...both(FAILED), inflict: cut(0, 'reset') },
  { fault: 'FIN inside headers', ...both(FAILED), inflict: cut(30, 'close') },
  { fault: 'FIN after headers', ...both(FAILED), inflict: cut('headEnd', 'close') },
  { fault: 'RST after headers', ...both(FAILED), inflict: cut('headEnd', 'reset') },
  { fault: 'RST inside the body', ...midway(FAILED), inflict: cut('middle', 'reset') },
  {
    fault: 'FIN inside a chunk',
    ...midway(FAILED),
    answer: (stream) => wire(bodyOf(stream), { framing: 'chunked' }),
    inflict: cut('middle', 'close'),
  },
  { fault: 'FIN inside Content-Length', ...midway(FAILED), inflict: cut('middle', 'close') },
  {
    fault: 'clean EOF, unfinished',
    complete: NOT_JSON,
    stream: inStream(FAILED),
    answer: (stream) => wire(bodyOf(stream), { framing: 'close' }),
    inflict: cut('middle', 'close'),
  },
  {
    fault: 'clean EOF, finished without [DONE]',
    ...both(WHOLE),
    answer: (stream) => wire(bodyOf(stream).replace('data: [DONE]\n\n', ''), { framing: 'close' }),
    closes: true,
  },
  { fault: '1 byte at a time', ...both(WHOLE), inflict: () => ({ sliceBytes: 1 }), isKept: true },
  {
    fault: '1 byte at a time, chunked',
    ...both(WHOLE),
    answer: (stream) => wire(bodyOf(stream), { framing: 'chunked' }),
    inflict: () => ({ sliceBytes: 1 }),
    isKept: true,
  },
  { fault: 'late, in time', ...both(WHOLE), inflict: () => ({ delayMs: 100 }), isKept: true },
  {
    fault: 'stall before headers',
    ...both(TIMED_OUT),
    isAboutTime: true,
    inflict: cut(0, 'stall'),
  },
  {
    fault: 'stall after headers',
    ...both(TIMED_OUT),
    isAboutTime: true,
    inflict: cut('headEnd', 'stall'),
  },
  {
    fault: 'stall inside the body',
    ...midway(TIMED_OUT),
    isAboutTime: true,
    inflict: cut('middle', 'stall'),
  },
  {
    fault: 'garbage instead of HTTP',
    ...both(FAILED),
    inflict: () => ({ garbage: Buffer.from('\u0000\u00ff'.repeat(500), 'latin1') }),
  },
  {
    fault: 'garbage status line',
    ...both(FAILED),
    answer: literal('HTTP/1.1 OK 200\r\ncontent-length: 0\r\n\r\n'),
  },
  { fault: 'status of two digits', ...both(FAILED), answer: literal('HTTP/1.1 20 OK\r\n\r\n') },
  {
    fault: 'chunked body that is not',
    ...both(FAILED),
    answer: literal('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{"choices":[]}'),
  },
  {
    fault: 'header over 16 KiB',
    ...both(FAILED),
    answer: (stream) => wire(bodyOf(stream), { headers: `x-long: ${'y'.repeat(20_000)}\r\n` }),
  },
  {
    fault: 'Content-Length too long',
    ...both(FAILED),
    // A stream is whole all the same once its `[DONE]` is there.
    stream: WHOLE,
    answer: (stream) => wire(bodyOf(stream), { length: 5000 }),
    closes: true,
  },
  {
    fault: 'Content-Length too short',
    complete: NOT_JSON,
    stream: inStream(FAILED),
    answer: (stream) => {
      const { headEnd, middle } = whole(stream);
      return wire(bodyOf(stream), { length: middle - headEnd });
    },
  },
  {
    fault: '100 unasked, then FIN',
    ...both(FAILED),
    answer: literal('HTTP/1.1 100 Continue\r\n\r\n'),
    closes: true,
  },
  {
    fault: '103 only, then FIN',
    ...both(FAILED),
    answer: literal('HTTP/1.1 103 Early Hints\r\n\r\n'),
    closes: true,
  },
  {
    fault: '102 only, then nothing',
    ...both(TIMED_OUT),
    isAboutTime: true,
    answer: literal('HTTP/1.1 102 Processing\r\n\r\n'),
  },
  {
    fault: '101',
    ...both(FAILED),
    answer: literal(
      'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n',
    ),
  },
  // To another provider, which would answer; fetch asks it with the prompt after a 307, and without after a 303.
  ...['303 See Other', '307 Temporary Redirect'].map((status) => ({
    fault: status.slice(0, 3),
    ...both(FAILED),
    answer: (stream: boolean) =>
      wire(bodyOf(stream), {
        status,
        headers: `location: http://${FALLBACK_ADDRESS}/v1/chat/completions\r\n`,
      }),
    isKept: true,
  })),
  {
    fault: '204',
    ...both(FAILED),
    answer: literal('HTTP/1.1 204 No Content\r\n\r\n'),
    isKept: true,
  },
  {
    fault: '401',
    ...both(apiError(401)),
    isFinal: true,
    answer: () => wire(errorBody, { status: '401 Unauthorized' }),
    isKept: true,
  },
  ...[
    { fault: '429', headers: () => '', check: retryAfter(1) },
    {
      fault: '429, Retry-After in seconds',
      headers: () => 'retry-after: 17\r\n',
      check: retryAfter(17),
    },
    {
      fault: '429, Retry-After as a date',
      headers: () => `retry-after: ${inAMinute()}\r\n`,
      check: retryAfter(2, 50),
    },
  ].map(({ fault, headers, check }) => ({
    fault,
    ...both(LIMITED),
    answer: () => wire(errorBody, { status: '429 Too Many Requests', headers: headers() }),
    isKept: true,
    check,
  })),
  {
    fault: '503 as HTML',
    ...both(apiError(503)),
    answer: () =>
      wire(`<html><h1>${ADDRESS} is down</h1></html>`, {
        status: '503 Service Unavailable',
        type: 'text/html',
      }),
    isKept: true,
    check: ({ text }) => assert.doesNotMatch(text, /</),
  },
  {
    fault: '200 with error JSON',
    ...both(apiError(502)),
    answer: () => wire(errorBody),
    isKept: true,
  },
  {
    fault: 'gzip unasked',
    ...both(FAILED),
    answer: (stream) => encoded(gzipSync(bodyOf(stream)), 'gzip', stream),
    isKept: true,
  },
  {
    // Some versions of Node could read it and some could not.
    fault: 'zstd unasked',
    ...both(FAILED),
    answer: (stream) => encoded(zstd(bodyOf(stream)), 'zstd', stream),
    isKept: true,
  },
  {
    fault: 'latin1 bytes in headers',
    ...both(WHOLE),
    answer: (stream) =>
      wire(bodyOf(stream), {
        headers: 'x-request-id: caf\u00e9\u0080\u00ff\r\nx-ratelimit-caf: \u00ff\r\n',
      }),
    isKept: true,
  },
];

function encoded(bytes: Buffer, coding: string, stream: boolean): Wire {
  const type = stream ? 'text/event-stream' : 'application/json';
  return wire(bytes, { headers: `content-encoding: ${coding}\r\n`, type });
}

/** A zstd frame (RFC 8878) with its content in one raw block; Node 20 cannot make one. */
function zstd(text: string): Buffer {
  const bytes = Buffer.from(text);
  const head = Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0, 0, 0, 0]);
  head.writeUInt32LE(bytes.length, 5);
  // The last block, raw.
  head.writeUIntLE((bytes.length << 3) | 1, 9, 3);
  return Buffer.concat([head, bytes]);
}

async function startTlsWithoutCertificate(t: TestContext): Promise<string> {
  const server = createServer({});
  server.on('tlsClientError', () => {});
  return (await listen(t, server)).baseUrl.replace('http:', 'https:');
}

interface Cell {
  readonly row: Row;
  readonly stream: boolean;
  readonly hasFallback: boolean;
}

/** What the client is told where there is no other provider, and whether another one answers instead. */
function expectation({ row, stream, hasFallback }: Cell) {
  const expected = row[stream ? 'stream' : 'complete'];
  return { expected, fallsBack: hasFallback && expected[0] !== 200 && !row.isFinal };
}

const FALLBACK_WORD = 'from the fallback';

/** Everything of a cell: the upstream behind its proxy, the fallback and the gateway. */
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
  return {
    gateway,
    proxy,
    q,
    host: new URL(baseUrl).host,
    /** Ends the fault: from now on the upstream answers with this word. */
    answerFrom: (word: string) => {
      answer = wire(bodyOf(false, word)).bytes;
      closes = false;
      proxy.fault = {};
    },
  };
}

/** What a reply comes to, and that its body has nothing else in it. */
function outcomeOf({ status, text }: Reply, stream: boolean, word: string): Outcome {
  const last = status === 200 && stream ? dataOf(text).at(-1)! : text;
  const isWhole = stream ? last === '[DONE]' : status === 200;
  if (isWhole) {
    assert.equal(text, bodyOf(stream, word));
    return WHOLE;
  }
  const { error, ...others } = JSON.parse(last) as { error: { type: string; code: string } };
  assert.deepEqual(others, {}, text);
  assert.doesNotMatch(text, /\[DONE\]|finish_reason":"/);
  return [status, error.type, error.code];
}

async function isAtRest(proxy: FaultProxy, isKept: boolean): Promise<boolean> {
  // fetch may open a connection ahead of a request that never comes: that one is idle.
  const used = [...proxy.sockets].filter(({ bytesRead }) => bytesRead > 0);
  return used.length <= (isKept ? 1 : 0);
}

const NAMES_OF_LIBRARIES =
  /\bE[A-Z]{4,}|HPE_|UND_|[Uu]ndici|fetch|socket|node:|getaddrinfo|SSL|routines/;

const observed = new Map<string, string>();

async function checkCell(t: TestContext, cell: Cell, limitSeconds?: number): Promise<void> {
  const { row, stream, hasFallback } = cell;
  const { gateway, proxy, q, host, answerFrom } = await startCell(t, cell, limitSeconds);
  proxy.fault = row.inflict?.((row.answer ?? whole)(stream)) ?? {};
  const elapsedMs = startStopwatch(t);
  const reply = await gateway.chat(chatBody({ stream }));
  const seconds = elapsedMs() / 1000;

  const { expected, fallsBack } = expectation(cell);
  const outcome = outcomeOf(reply, stream, fallsBack ? FALLBACK_WORD : 'Hello');
  const answeredBy = reply.headers['x-gateway-provider'];
  const fallback = hasFallback ? (answeredBy === 'q' ? 'answers' : 'not asked') : 'none';
  observed.set(
    keyOf(cell),
    [row.fault, stream ? 'yes' : 'no', fallback, ...outcome.map((value) => value || '-')].join(
      ' | ',
    ),
  );
  assert.deepEqual(outcome, fallsBack ? WHOLE : expected, reply.text);
  assert.equal(answeredBy, fallsBack ? 'q' : 'p');
  assert.equal(q.requests.length, fallsBack ? 1 : 0);
  if (!fallsBack) row.check?.(reply);
  if (limitSeconds) assert.ok(seconds < 5 * limitSeconds, `took ${seconds} s`);

  await linesOf(gateway);
  await eventually(async () => isAtRest(proxy, row.isKept ?? false), 'no connection in use');
  assert.equal((await gateway.send('/health')).status, 200);
  const received = [JSON.stringify(reply.headers) + reply.text];
  if (!row.address && !row.isForGood) {
    // The fault is over: the provider answers, and this request gets its own answer.
    const word = `word ${Math.random()}`;
    answerFrom(word);
    const next = await gateway.chat(chatBody());
    assert.deepEqual(outcomeOf(next, false, word), WHOLE);
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
  // Waits for requests in flight, so that one that leaked would keep it from ending.
  await gateway.drain();
  if (OVER_FETCH) return;
  await eventually(
    () => proxy.sockets.size === 0 && q.sockets.size === 0,
    'every connection closed',
  );
}

/** `FAULT_TABLE=1` prints what was observed. */
const IS_PRINTED = Boolean(process.env['FAULT_TABLE']);
const CELLS: Cell[] = ROWS.flatMap((row) =>
  [false, true].flatMap((stream) =>
    [false, true].map((hasFallback) => ({ row, stream, hasFallback })),
  ),
);
const keyOf = ({ row, stream, hasFallback }: Cell) => `${row.fault} ${stream} ${hasFallback}`;

const warnings: string[] = [];
const onWarning = ({ name, message }: Error) => warnings.push(`${name}: ${message}`);
before(async () => {
  process.on('warning', onWarning);
  // undici on Node 20 never fails its first request if the connection is closed before its parser has been compiled.
  const server = createHttpServer((_, response) => response.end()).listen(0, '127.0.0.1');
  await once(server, 'listening');
  await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  server.close();
});
after(() => {
  process.off('warning', onWarning);
  assert.deepEqual(warnings, []);
  if (!IS_PRINTED) return;
  console.log('| fault | stream | fallback | status | type | code |');
  console.log('|---|---|---|---|---|---|');
  for (const cell of CELLS) console.log(`| ${observed.get(keyOf(cell)) ?? keyOf(cell)} |`);
});

describe('the fault table', { concurrency: AT_ONCE }, () => {
  for (const cell of CELLS) {
    const { expected, fallsBack } = expectation(cell);
    const asked = `${cell.stream ? 'a stream' : 'an answer'} with${cell.hasFallback ? '' : 'out'} a fallback`;
    const told = fallsBack ? 'the fallback\u2019s answer' : expected.join(' ').trim();
    const title = `${cell.row.fault}: ${asked} becomes ${told}`;
    if (!cell.row.isAboutTime) test(title, async (t) => checkCell(t, cell));
    else {
      test(title, ALL_SCALES, async (t) =>
        atSomeScale(async (scale) => checkCell(t, cell, scale * LIMIT_SECONDS)),
      );
    }
  }

  for (const stream of [false, true]) {
    const kind = stream ? 'a streamed' : 'a complete';
    test(`an answer that the provider pushes on an idle connection reaches no client, after ${kind} answer`, async (t) => {
      const row: Row = { fault: 'pushed', ...both(WHOLE) };
      const { gateway, proxy, answerFrom } = await startCell(t, {
        row,
        stream,
        hasFallback: false,
      });
      const first = await gateway.chat(chatBody({ stream }));
      assert.deepEqual(outcomeOf(first, stream, 'Hello'), WHOLE);
      const idle = [...proxy.sockets].filter(({ bytesRead }) => bytesRead > 0);
      assert.equal(idle.length, 1, 'the connection was kept');
      answerFrom('mine');
      proxy.push(wire(bodyOf(stream, 'of another tenant')).bytes.toString());
      // Both while the pushed bytes are on their way and when they are there.
      const next = [gateway.chat(chatBody())];
      await eventually(() => idle[0]!.destroyed, 'the poisoned connection closed');
      next.push(gateway.chat(chatBody()));
      for (const reply of await Promise.all(next)) {
        assert.doesNotMatch(reply.text, /another tenant/);
      }
      assert.deepEqual(outcomeOf((await next[1])!, false, 'mine'), WHOLE);
    });
  }
});
