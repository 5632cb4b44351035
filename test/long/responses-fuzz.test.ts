/**
 * Responses of providers, read by the gateway's connection and by Node's own HTTP client, the
 * referee. A response that Node refuses is refused. A response that is accepted has the same status,
 * fields and body at both. FUZZ_CASES is the number of responses, FUZZ_SEED the first seed.
 */

import assert from 'node:assert/strict';
import { request as httpRequest } from 'node:http';
import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { test } from 'node:test';
import { inspect } from 'node:util';

import { Http1Connection } from '../../src/upstream/connections/http1-connection.ts';
import { cutUp, mutate } from '../support/mutate.ts';
import { createRandom, type Random, SEED as FIXED_SEED } from '../support/random.ts';

const CASES = Number(process.env['FUZZ_CASES'] ?? 20_000);
const SEED = Number(
  process.env['FUZZ_SEED'] ?? (process.env['FUZZ_CASES'] ? Date.now() % 2 ** 31 : FIXED_SEED),
);

/** What a reader has made of the bytes. */
interface Reading {
  /** Undefined without a final head. */
  status: number | undefined;
  /** Names in lower case and values, in the order of the first of each name. */
  fields: string[];
  body: string;
  /** True if the response has ended as its head announced. */
  isComplete: boolean;
  /** Why it is incomplete. */
  error: string;
}

/** Heads as providers and the servers in front of them send them, without their framing. */
const HEADS = [
  [
    'HTTP/1.1 200 OK',
    'Date: Sat, 28 Nov 2026 10:00:00 GMT',
    'Content-Type: application/json',
    'Connection: keep-alive',
    'access-control-expose-headers: X-Request-ID',
    'openai-organization: org-1',
    'openai-processing-ms: 412',
    'openai-version: 2020-10-01',
    'x-ratelimit-limit-requests: 10000',
    'x-ratelimit-reset-tokens: 6ms',
    'x-request-id: req_0123456789abcdef',
    'strict-transport-security: max-age=31536000; includeSubDomains; preload',
    'cf-cache-status: DYNAMIC',
    'Set-Cookie: __cf_bm=a.b-c; path=/; expires=Sat, 28-Nov-26 10:30:00 GMT; HttpOnly; Secure',
    'Set-Cookie: _cfuvid=d; path=/; domain=.api.openai.com; HttpOnly; SameSite=None',
    'X-Content-Type-Options: nosniff',
    'Server: cloudflare',
    'CF-RAY: 8e9f00000000abcd-FRA',
    'alt-svc: h3=":443"; ma=86400',
  ],
  [
    'HTTP/1.1 429 Too Many Requests',
    'content-type: application/json; charset=utf-8',
    'retry-after:12',
    'apim-request-id: 00000000-0000-0000-0000-000000000000',
    'x-ms-region: Sweden Central',
  ],
  [
    'HTTP/1.1 200 OK',
    'Server: llama.cpp',
    'Access-Control-Allow-Origin: ',
    'Keep-Alive: timeout=5, max=100',
  ],
  [
    'HTTP/1.1 200 OK',
    'date: Sat, 28 Nov 2026 10:00:00 GMT',
    'server: uvicorn',
    'content-type: text/event-stream; charset=utf-8',
  ],
  ['HTTP/1.0 200 OK', 'Server: BaseHTTP/0.6 Python/3.11.7', 'Content-type: application/json'],
  ['HTTP/1.1 502 Bad Gateway', 'Server: nginx', 'Content-Type: text/html', 'Connection: close'],
  ['HTTP/1.1 503', 'x-note: caf\xe9\t \xa0'],
  ['HTTP/1.1 204 No Content', 'server: Caddy'],
  ['HTTP/2.0 200 OK', 'server: a'],
  ['HTTP/1.1 600 OK', `x-long: ${'a'.repeat(6000)}`],
  ['HTTP/1.1 200 OK', `x-long: ${'a'.repeat(6000)}`],
];
const INTERIM = [
  'HTTP/1.1 100 Continue\r\n\r\n',
  'HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n',
];
const UPGRADE = 'HTTP/1.1 101 Switching Protocols\r\n\r\n';
const BODIES = [
  '',
  '{}',
  '{"choices":[{"message":{"content":"hello"}}]}',
  'data: {"a":1}\n\ndata: [DONE]\n\n',
  '\r\n\r\n0\r\n\r\n',
];
const EXTENSIONS = [
  '',
  '',
  '',
  `;${'a'.repeat(1100)}`,
  ';a',
  ';a=b',
  ';a="b;\\" c"',
  ' ;a',
  '; a',
  ' ',
  ';',
  ';a=',
  ';a="b',
];
const TRAILERS = [
  '',
  '',
  'x-a: b\r\n',
  'Content-Length: 1\r\n',
  'Transfer-Encoding: a\r\n',
  'x-a: b\r\nc\r\n',
];
const TOKENS = [
  '\r',
  '\n',
  '\r\n',
  '\r\n\r\n',
  '\n\n',
  '\0',
  ' ',
  '\t',
  ':',
  ': ',
  ';',
  ',',
  '"',
  '\xff',
  '\x7f',
  '0',
  '5',
  'f',
  '-1',
  '+',
  '0x',
  'Content-Length: 2\r\n',
  'Content-Length: 99999999999999999999\r\n',
  'content-length:2, 2\r\n',
  'Transfer-Encoding: chunked\r\n',
  'Transfer-Encoding: gzip, chunked\r\n',
  'transfer-encoding: identity\r\n',
  'Connection: close\r\n',
  'Connection: upgrade\r\nUpgrade: h2c\r\n',
  ' folded\r\n',
  'X-A : b\r\n',
  ': b\r\n',
  'x-a\r\n',
  'HTTP/1.1 200 OK\r\n',
  'HTTP/1.1 101 Switching Protocols\r\n',
  'HTTP/0.9',
  'HTTP/2',
  'http/1.1',
  '0\r\n\r\n',
];

/** Returns a response as a server would write it, and sometimes with an accident. */
function createResponse(random: Random): Buffer {
  const [statusLine = '', ...fields] = random.pick(HEADS);
  const body = random.pick(BODIES);
  const framing = random.pick(['length', 'chunks', 'chunks', 'end', 'none']);
  const lines = [...fields];
  let content = body;
  if (framing === 'length')
    lines.push(`Content-Length: ${String(body.length).padStart(random.pick([1, 1, 3, 18]), '0')}`);
  if (framing === 'chunks') {
    lines.push(random.pick(['Transfer-Encoding: chunked', 'transfer-encoding:chunked ']));
    content = chunked(random, body);
  }
  if (framing === 'none') content = '';
  if (random.oneIn(3)) lines.sort(() => random.next() - 0.5);
  if (random.oneIn(8))
    lines.push(...Array.from({ length: 3 }, () => lines.at(-1) ?? ''), ...fields);
  const interim = random.pick(random.oneIn(20) ? [UPGRADE] : INTERIM);
  const before = random.oneIn(4) ? interim.repeat(random.integer(1, 9)) : '';
  const after = random.oneIn(6) ? random.pick(['\r\n', 'HTTP/1.1 200 OK\r\n\r\n', 'x']) : '';
  const text = `${before}${[statusLine, ...lines, '', ''].join('\r\n')}${content}${after}`;
  const bytes = Buffer.from(text, 'latin1');
  const damaged = random.oneIn(4) ? bytes : mutate(random, bytes, TOKENS);
  // A close at each byte.
  return random.oneIn(3) ? damaged.subarray(0, random.integer(0, damaged.length)) : damaged;
}

function chunked(random: Random, body: string): string {
  let coded = '';
  for (let at = 0; at < body.length;) {
    const part = body.slice(at, at + random.integer(1, 12));
    const digits = part.length.toString(16).padStart(random.pick([1, 1, 4, 13]), '0');
    coded += `${digits}${random.pick(EXTENSIONS)}\r\n${part}\r\n`;
    at += part.length;
  }
  const trailers = random.pick(TRAILERS);
  return `${coded}${random.pick(['0', '000'])}\r\n${trailers}\r\n`;
}

/** A socket without a network. Its peer sends by `push`. */
class FakeSocket extends Duplex {
  override _read(): void {}
  override _write(_: unknown, __: string, done: () => void): void {
    done();
  }
  setNoDelay = () => this;
  setKeepAlive = () => this;
  setTimeout = () => this;
  ref = () => this;
  unref = () => this;
}

const nextTick = () => new Promise<void>((resolve) => process.nextTick(resolve));

/** Sends the pieces and the end. Resolves once both ends have taken notice. */
async function send(socket: FakeSocket, pieces: readonly Buffer[]): Promise<void> {
  for (const piece of pieces) {
    socket.push(piece);
    // Each piece is a read of its own.
    await nextTick();
  }
  socket.push(null);
  await new Promise(setImmediate);
}

/** Node's own client reads the response. */
async function readByNode(pieces: readonly Buffer[]): Promise<Reading> {
  const reading: Reading = {
    status: undefined,
    fields: [],
    body: '',
    isComplete: false,
    error: '',
  };
  const socket = new FakeSocket();
  const request = httpRequest({
    createConnection: () => socket,
    method: 'POST',
    maxHeaderSize: 65_536,
  });
  const ended = new Promise((resolve) => request.once('close', resolve));
  request.on('error', ({ message }) => (reading.error ||= message));
  request.on('upgrade', () => (reading.error = 'an upgrade'));
  request.on('response', (response) => {
    reading.status = response.statusCode!;
    for (let at = 0; at < response.rawHeaders.length; at += 2) {
      reading.fields.push(response.rawHeaders[at]!.toLowerCase(), response.rawHeaders[at + 1]!);
    }
    response.setEncoding('latin1');
    response.on('data', (text: string) => (reading.body += text));
    response.on('end', () => (reading.isComplete = response.complete));
    response.on('error', ({ message }) => (reading.error ||= message));
  });
  request.end();
  await nextTick();
  await send(socket, pieces);
  socket.destroy();
  await ended;
  return reading;
}

/** The gateway's connection reads the response. It pauses at some of the pieces. */
async function readByGateway(pieces: readonly Buffer[], random: Random): Promise<Reading> {
  const reading: Reading = {
    status: undefined,
    fields: [],
    body: '',
    isComplete: false,
    error: '',
  };
  const socket = new FakeSocket();
  const owner = { onFree() {}, onClosed() {} };
  const target = { origin: 'http://p', digest: undefined };
  const connection = new Http1Connection(socket as unknown as Socket, target, owner);
  let ends = 0;
  const hasEnded = () => ends > 0;
  connection.begin({
    onHead(status, headers) {
      assert.equal(reading.status, undefined, 'a second head');
      reading.status = status;
      reading.fields = [...headers].flat();
    },
    onData(chunk) {
      assert.equal(ends, 0, 'bytes behind the end');
      reading.body += chunk.toString('latin1');
      if (!random.oneIn(3)) return true;
      setImmediate(() => connection.resume());
      return false;
    },
    onEnd(error) {
      ends += 1;
      reading.isComplete = error === undefined;
      reading.error = error?.message ?? '';
    },
  });
  await send(socket, pieces);
  // Each pause takes a turn.
  while (!hasEnded()) await new Promise(setImmediate);
  assert.equal(ends, 1);
  assert.ok(socket.destroyed, 'the connection has ended');
  return reading;
}

/** Joins the values of repeated names, as the gateway does. */
function joined(fields: readonly string[]): string[] {
  const map = new Map<string, string>();
  for (let at = 0; at < fields.length; at += 2) {
    const before = map.get(fields[at]!);
    map.set(fields[at]!, before === undefined ? fields[at + 1]! : `${before}, ${fields[at + 1]!}`);
  }
  return [...map].flat();
}

/** The responses that Node takes and the gateway refuses: the reason, its error, and their bytes. */
const STRICTER: readonly (readonly [reason: string, error: string, bytes: RegExp])[] = [
  // RFC 9112 2.2 lets only servers ignore an empty line before a message.
  ['an empty line before a status line', 'malformed head', /^\r?\n|\r\n\r\n\r?\n/],
  // RFC 9112 2.3 and 4: HTTP/1, and a status code that RFC 9110 15 knows.
  ['another version or status', 'malformed head', /(?:^|\n)(?!HTTP\/1\.[01] [1-5]\d\d)[A-Z]+\//],
  [
    'a control character in the reason',
    'malformed head',
    /\d{3}[^\n]*(?:[^\t\r\n -~\x80-\xff]|\r(?!\n))/,
  ],
  ['an upgrade', 'an upgrade that nobody asked for', /HTTP\/1\.[01] 101/],
  ['more than 200 fields', 'too many headers', /(?:\r\n[^\r\n]+){201}/],
  ['a head over 16 KiB', 'a line or head that is too long', /^[^]{16385}/],
  ['a chunk size line over 1 KiB', 'a line or head that is too long', /[^\r\n]{1025}/],
  // RFC 9112 6.1: `chunked` alone, and not from HTTP/1.0.
  [
    'a coding other than chunked',
    'malformed Transfer-Encoding',
    /transfer-encoding:(?![\t ]*chunked[\t ]*\r\n)/i,
  ],
  ['two codings', 'malformed Transfer-Encoding', /transfer-encoding:[^]*transfer-encoding:/i],
  ['a coding from HTTP/1.0', 'malformed Transfer-Encoding', /HTTP\/1\.0[^]*transfer-encoding:/i],
  ['a length beyond 15 digits', 'malformed Content-Length', /content-length:[\t ]*\d{16}/i],
  ['a chunk size beyond 12 digits', 'malformed chunk', /[\da-f]{13}/i],
  // RFC 9110 6.5.1. Node refuses only Content-Length.
  ['a coding in trailers', 'malformed trailers', /\n0+[^\n]*\n[^]*transfer-encoding:/i],
  // RFC 9112 7.1.1 has no value without a character.
  ['an extension with an empty value', 'malformed chunk', /;\w+=\r\n/],
  ['more than eight interim responses', 'too many interim responses', /(?:HTTP\/1\.1 1[^]*){9}/],
];

/** Node does not take this tab for white space, as RFC 9110 5.6.3 does, and reads another body. */
const TAB_BEHIND_CODING = /transfer-encoding:[^\r\n]*\t/i;

/** Compares both readings. Returns the reason if the gateway alone refuses the response. */
function compare(text: string, ours: Reading, theirs: Reading): string | undefined {
  if (ours.status !== undefined) {
    assert.equal(ours.status, theirs.status);
    assert.deepEqual(ours.fields, joined(theirs.fields));
  }
  if (TAB_BEHIND_CODING.test(text)) return undefined;
  assert.ok(theirs.body.startsWith(ours.body) || ours.body.startsWith(theirs.body));
  if (ours.isComplete) {
    assert.ok(theirs.isComplete);
    assert.equal(ours.body, theirs.body);
  }
  if (ours.isComplete || !theirs.isComplete || theirs.error === 'an upgrade') return undefined;
  const stricter = STRICTER.find(([, error, bytes]) => error === ours.error && bytes.test(text));
  assert.ok(stricter, 'refused without a reason');
  return stricter[0];
}

const TITLE = "the gateway reads of a response the same as Node's client, or refuses it";
test(TITLE, { timeout: 3_600_000 }, async () => {
  const refused = new Map<string, number>();
  let complete = 0;
  for (let seed = SEED; seed < SEED + CASES; seed += 1) {
    const random = createRandom(seed);
    const bytes = createResponse(random);
    const text = bytes.toString('latin1');
    const theirs = await readByNode(cutUp(random, bytes));
    const ours = await readByGateway(cutUp(random, bytes), random);
    complete += Number(ours.isComplete);
    try {
      const reason = compare(text, ours, theirs);
      if (reason) refused.set(reason, (refused.get(reason) ?? 0) + 1);
    } catch (error) {
      const shown = inspect({ text, ours, theirs }, { maxStringLength: 5000 });
      assert.fail(`${(error as Error).message}\n(repeat with FUZZ_SEED=${seed})\n${shown}`);
    }
  }
  assert.ok(complete > CASES / 20, `${complete} complete responses`);
  const reasons = STRICTER.map(([reason]) => reason);
  // Each reason is needed.
  if (CASES >= 20_000) assert.deepEqual([...refused.keys()].toSorted(), reasons.toSorted());
});
