/**
 * Properties of everything that reads bytes from outside, tried with damaged bytes. A failure names
 * its case's seed, and FUZZ_SEED=<seed> begins with that case. FUZZ_CASES is the number of all
 * cases. `npm run test:fuzz` runs a million.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import { ConfigError, loadConfig, type Config } from '../../src/config/config.ts';
import { encodeEvent } from '../../src/lib/sse.ts';
import { CLIENT_TIME_LIMITS } from '../../src/downstream/listener.ts';
import { GatewayError } from '../../src/lib/errors.ts';
import { endFailed } from '../../src/upstream/answers/open-answer.ts';
import { TransportError } from '../../src/upstream/connections/network-error.ts';
import { App } from '../../src/app.ts';
import { bodyOf } from '../support/byte-source.ts';
import { parseModelRequest } from '../support/model-request.ts';
import { assertErrorObject, assertStreamEnd, isDoneMark } from '../support/documented.ts';
import { parseReplies } from '../support/raw.ts';
import { ROOT } from '../support/process.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  startGateway,
  providerToml,
} from '../support/gateway.ts';
import { cutUp, mutate } from '../support/mutate.ts';
import { createRandom, type Random, SEED as FIXED_SEED } from '../support/random.ts';
import { rawResponse, startRawUpstream } from '../support/raw-upstream.ts';
import { dataOf, eventually } from '../support/streams.ts';
import { CHUNK, completion, completionEvents } from '../support/upstream.ts';
import { newReplyContext, RecordedReply, relayStream } from '../support/reply-context.ts';
import { sweep } from '../support/sweep.ts';

const CASES = Number(process.env['FUZZ_CASES'] ?? sweep(10_000, 2000));
/** The first seed: another at each `npm run test:fuzz`, but the same in a suite on every day. */
const SEED = Number(
  process.env['FUZZ_SEED'] ?? (process.env['FUZZ_CASES'] ? Date.now() % 2 ** 31 : FIXED_SEED),
);
/** The options for thousands of cases. Each case has its own limit. */
const MANY_CASES = { timeout: Math.max(170_000, CASES * 2) };
/** After this time, a case counts as hanging. In a whole suite, other tests run beside it. */
const HANG_MS = CASES > 10_000 ? 10_000 : 60_000;
/** How many cases over sockets run at once. */
const WORKERS = 32;

interface FuzzCase {
  readonly seed: number;
  readonly random: Random;
  /** The case's description, for a failure. */
  about: string;
}

/** Runs `share` of all cases. Stops at the first failing or hanging case. */
async function forEachCase(
  share: number,
  check: (fuzzCase: FuzzCase) => unknown,
  { workers = 1 } = {},
): Promise<void> {
  const count = Math.max(1, Math.round(CASES * share));
  let next = 0;
  const runWorker = async () => {
    while (next < count) {
      const seed = SEED + next;
      next += 1;
      let failure = await failureOf(check, seed);
      // Try a hang again, because the machine may have been busy.
      if (failure?.isHang) failure = await failureOf(check, seed);
      if (failure === undefined) continue;
      next = count;
      assert.fail(`${failure.reason}\n(repeat with FUZZ_SEED=${seed})\n${failure.about}`);
    }
  };
  await Promise.all(Array.from({ length: workers }, runWorker));
}

async function failureOf(check: (fuzzCase: FuzzCase) => unknown, seed: number) {
  const fuzzCase: FuzzCase = { seed, random: createRandom(seed), about: '' };
  const startedAt = performance.now();
  let reason = '';
  let watchdog: NodeJS.Timeout | undefined;
  const hang = new Promise<void>((resolve) => {
    watchdog = setTimeout(resolve, HANG_MS);
  });
  try {
    const result = check(fuzzCase);
    if (result instanceof Promise) await Promise.race([result, hang]);
  } catch (error) {
    reason = String(error instanceof Error ? (error.stack ?? error) : error);
  }
  clearTimeout(watchdog);
  const tookMs = Math.round(performance.now() - startedAt);
  const isHang = reason === '' && tookMs >= HANG_MS;
  if (isHang) reason = `no end after ${tookMs} ms`;
  const about = JSON.stringify(fuzzCase.about).slice(0, 6000);
  return reason === '' ? undefined : { reason, about, isHang };
}

/** Counts the outcomes, because a property proves nothing if its outcome never occurs. */
class Tally {
  readonly counts = new Map<string, number>();

  add(outcome: string): void {
    this.counts.set(outcome, (this.counts.get(outcome) ?? 0) + 1);
  }

  assertSome(...outcomes: string[]): void {
    // In fewer cases, a rare outcome may be missing.
    if (CASES < 10_000) return;
    for (const outcome of outcomes)
      assert.ok(this.counts.has(outcome), `no ${outcome}: ${this.toString()}`);
  }

  toString(): string {
    return JSON.stringify(Object.fromEntries(this.counts));
  }
}

/** Returns tokens from these texts, separated by tildes. */
const tokens = (...texts: string[]) => texts.flatMap((text) => text.split('~'));

const BODY_TOKENS = [
  ...'{}[]",:\\ \n0-+.eEtnu/x\u0000\u0001\u007f'.split(''),
  ...tokens(
    'null~true~1e400~-0~"model":"p/m",~"stream":true,~"messages":[~\\u0000~[[[[[[[[~{"a":',
    '__proto__~"constructor":~\xef\xbb\xbf~\xc0\x80~\xed\xa0\x80~\\ud800~//~/* */',
    '"role":"user"~"content":~12345678901234567890~,"stream":false}',
  ),
];
const BODIES = [
  chatBody(),
  chatBody({ stream: true, seed: 1, stop: ['a', 'b'], metadata: { a: null, b: [{}] } }),
  {
    messages: [
      { role: 'system', content: 'h\u00e9llo \u{1F600}', name: 'a' },
      { role: 'user', content: [{ type: 'text', text: 'x' }] },
      { role: 'assistant', content: null, tool_calls: [{ function: { arguments: '{"a":1}' } }] },
    ],
    stream: false,
    model: 'p/org/m',
  },
].map((body) => Buffer.from(JSON.stringify(body)));

function parsed(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString());
  } catch {
    return undefined;
  }
}

/** Whether `parseModelRequest` must accept this value from `JSON.parse`. */
function isChatRequest(json: unknown): boolean {
  const isObject = (value: unknown): value is Record<string, unknown> =>
    typeof value === 'object' && value !== null && !Array.isArray(value);
  const isMessage = (message: unknown) => {
    if (!isObject(message) || typeof message['role'] !== 'string') return false;
    const { role, content, name = '' } = message;
    const isUsable =
      typeof content === 'string' || (Array.isArray(content) && content.every(isObject));
    const mayBeAbsent = role === 'assistant' || role === 'function';
    const mayBeEmpty = content === null ? role !== 'user' : mayBeAbsent;
    const isNamed = name === null || typeof name === 'string';
    return (isUsable || (content == null && mayBeEmpty)) && isNamed;
  };
  if (!isObject(json)) return false;
  const { model, stream, messages } = json;
  if (typeof model !== 'string' || model === '') return false;
  if (stream != null && typeof stream !== 'boolean') return false;
  return Array.isArray(messages) && messages.length > 0 && messages.every(isMessage);
}

test('a request body is accepted whole, or refused with a 4xx', MANY_CASES, async () => {
  const tally = new Tally();
  await forEachCase(0.3, (fuzzCase) => {
    const bytes = mutate(fuzzCase.random, fuzzCase.random.pick(BODIES), BODY_TOKENS);
    fuzzCase.about = bytes.toString('latin1');
    const chunks = cutUp(fuzzCase.random, bytes);
    // The gateway checks both equal members, but JSON.parse returns only the last.
    const isPlain = bytes.toString('latin1').split('messages').length <= 2;
    try {
      const forwarded = Buffer.concat(parseModelRequest(...chunks).bodyWith('other', false));
      const before = JSON.parse(bytes.toString()) as Record<string, unknown>;
      const sent = JSON.parse(forwarded.toString()) as Record<string, unknown>;
      assert.ok(isPlain ? isChatRequest(before) : Array.isArray(before['messages']));
      before['model'] = 'other';
      assert.deepEqual(sent, before);
      tally.add('accepted');
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      assert.ok(error.status >= 400 && error.status < 500);
      assertErrorObject(error.toBody(), error.status);
      const isOurOwnBound =
        /duplicate member|lower case|levels|UTF-8|number or literal longer|model" is too long/.test(
          error.message,
        );
      if (isPlain && !isOurOwnBound) assert.ok(!isChatRequest(parsed(bytes)), error.message);
      tally.add('refused');
    }
  });
  tally.assertSome('accepted', 'refused');
});

const EXAMPLE = readFileSync(join(ROOT, 'gateway.toml.example'), 'utf8');
const TOML_TOKENS = [
  ...'[]{}"\'=.,#\\\n\r\t\u0000_-+'.split(''),
  ...tokens(
    '"""~\'\'\'~[[~]]~\r\n~true~inf~-nan~1e999~0x~1979-05-27~99999999999999999999~\\u',
    '[server]\n~[server.auth]\nkeys = [~__proto__~[__proto__]\n~constructor.a = 1\n~${~${HOME}',
    'api_key = "~base_url = "http://~timeout = 0\n~\\UFFFFFFFF~enabled = false\n~[providers.x]\n',
    'fallback = ["x"]\n~primary = "openai"\n~\xff~\xc2\x85~\xef\xbb\xbf',
  ),
];
const ENV = { OPENAI_API_KEY: 'key-of-openai', MY_SERVER_API_KEY: 'key-of-mine', HOME: '/nowhere' };

/** Returns the example with some settings turned on. */
function exampleConfig(random: Random): string {
  return EXAMPLE.replace(/^#(?=[\w[])/gm, (mark) => (random.oneIn(2) ? '' : mark));
}

function startable(toml: string): 'accepted' | 'refused' {
  let config: Config;
  try {
    config = loadConfig({ toml, env: ENV });
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    assert.ok(error.problems.length > 0 && error.problems.every((problem) => problem !== ''));
    for (const key of [ENV.OPENAI_API_KEY, ENV.MY_SERVER_API_KEY]) {
      assert.ok(!error.message.includes(key), error.message);
    }
    return 'refused';
  }
  const app = new App(config, {
    writeLog: () => {},
    isTerminal: false,
    clientTimeLimits: CLIENT_TIME_LIMITS,
  });
  assert.equal(app.config, config);
  return 'accepted';
}

test(
  'settings are accepted and can be started, or refused with their problems',
  MANY_CASES,
  async () => {
    const tally = new Tally();
    await forEachCase(0.2, (fuzzCase) => {
      const { random } = fuzzCase;
      const toml = mutate(random, Buffer.from(exampleConfig(random)), TOML_TOKENS).toString('utf8');
      fuzzCase.about = toml;
      tally.add(startable(toml));
    });
    tally.assertSome('accepted', 'refused');
  },
);

const STREAM_TOKENS = [
  ...'\n\r: {}[]",\\x\u0000'.split(''),
  ...tokens(
    '\n\n~\r\n\r\n~\r\r~data:~data: ~data: [DONE]\n\n~event: error\n~: c\n~[DONE]~data:\n\n',
    'data: {"error":{"message":"no","code":429}}\n\n~data: {"error":"no"}\n\n~"error":',
    'data: {"object":"error","message":"no"}\n\n~id: 1\n~\xef\xbb\xbf~\xff\xfe~"choices":',
    '"usage":{"prompt_tokens":1},~"usage":{~"usage":null,~"model":"b",~"model":""',
    'error: {"message":"no"}\n\n~error: no\n~{"error":"no"}\n~{"error":~[{"error":\n"no"}\n]',
    '"index":1,~"index":0,',
    '"finish_reason":"stop"~"finish_reason":null~event: error\ndata: no\n\n~retry: 1\n\n',
  ),
];
const WITH_USAGE = completionEvents().replace(
  'data: [',
  'data: {"choices":[],"usage":{"completion_tokens":2}}\n\ndata: [',
);
const STREAMS = [
  completionEvents(),
  completionEvents().replaceAll('\n', '\r\n'),
  WITH_USAGE.replaceAll('\n', '\r\n'),
  completionEvents().replace('data: [DONE]\n\n', ''),
  completionEvents().replace('data: [DONE]\n\n', CHUNK.replace('"index":0', '"index":1')),
  WITH_USAGE,
  `: hello\n\n${completionEvents(['h\u00e9', '\u{1F600}'])}: bye\n`,
  `${completionEvents().slice(0, 320)}data: {"error":{"message":"overloaded","code":503}}\n\n`,
].map((text) => Buffer.from(text));

/** Relays these pieces. Returns the client's text, and why the stream ended. */
async function relay(pieces: readonly Buffer[], isCut: boolean, usageAdded: boolean) {
  const reply = new RecordedReply();
  const context = newReplyContext(reply);
  context.attempt.usageAdded = usageAdded;
  let failure = '';
  try {
    const reset = Object.assign(new Error('cut'), { code: 'ECONNRESET' });
    const cut = new TransportError(reset, 'inBody');
    const body = bodyOf(pieces, isCut ? cut : undefined);
    await relayStream(body, context, reply);
    await eventually(() => reply.hasEnded, 'the end');
  } catch (thrown) {
    const error = endFailed(thrown, context);
    if (!(error instanceof GatewayError)) throw error;
    failure = error.message;
    if (!reply.headersSent) return { text: '', failure, hasBegun: false };
    reply.write(encodeEvent(error.toBody()));
  }
  const { responseModel, finishReason, usage } = context.attempt;
  return {
    text: reply.text,
    failure,
    hasBegun: true,
    noted: { responseModel, finishReason, usage },
  };
}

test(
  'a stream reads the same however it is cut up, and shows how it ended',
  MANY_CASES,
  async () => {
    const tally = new Tally();
    await forEachCase(0.3, async (fuzzCase) => {
      const { random } = fuzzCase;
      const bytes = mutate(random, random.pick(STREAMS), STREAM_TOKENS);
      const isCut = random.oneIn(3);
      const usageAdded = random.oneIn(3);
      const how = `${isCut ? 'cut' : ''}${usageAdded ? ' usage' : ''}`;
      fuzzCase.about = `${how}: ${bytes.toString('latin1')}`;
      const whole = await relay(bytes.length === 0 ? [] : [bytes], isCut, usageAdded);
      assert.deepEqual(await relay(cutUp(random, bytes), isCut, usageAdded), whole);
      if (!whole.hasBegun) return tally.add('refused');
      const code = assertStreamEnd(whole.text);
      assert.equal(code === 'ok', whole.failure === '' || dataOf(whole.text).some(isDoneMark));
      tally.add(code);
      // The gateway's own part is at the end. The provider's bytes precede it, or its missing blank
      // line.
      const own = /\n*data: (?:\[DONE\]|\{"error":.*\})\n\n$/.exec(whole.text)?.[0] ?? '';
      const kept = whole.text.slice(0, whole.text.length - own.length);
      assert.ok(usageAdded || `${bytes.toString('latin1')}\n\n`.startsWith(kept));
    });
    tally.assertSome('ok', 'refused', 'PROVIDER_ERROR');
  },
);

/** The headers for a provider, and fetch's own headers. */
const UPSTREAM_HEADERS = new Set(
  `host connection content-type content-length accept authorization accept-encoding user-agent
  x-request-id traceparent tracestate accept-language sec-fetch-mode`.split(/\s+/),
);

function assertForwarded(text: string): void {
  const [head = '', ...body] = text.split('\r\n\r\n');
  const [first, ...lines] = head.split('\r\n');
  assert.equal(first, 'POST /v1/chat/completions HTTP/1.1');
  const headers = lines.map((line) => /^([a-z-]+): (.+)$/i.exec(line) ?? assert.fail(line));
  const names = headers.map(([, name = '']) => name.toLowerCase());
  assert.equal(new Set(names).size, names.length, head);
  for (const name of names) assert.ok(UPSTREAM_HEADERS.has(name), head);
  assert.ok(head.includes(`Bearer ${PROVIDER_KEY}`), head);
  assert.ok(!head.includes(CLIENT_TOKEN), head);
  const chat = JSON.parse(Buffer.from(body.join('\r\n\r\n'), 'latin1').toString()) as object;
  assert.ok('model' in chat && typeof chat.model === 'string', text);
  assert.ok('messages' in chat && Array.isArray(chat.messages), text);
}

const HEAD_TOKENS = [
  ...'\r\n: \t,;/?#%@*\\"\u0000\u007f\x80'.split(''),
  ...tokens(
    '\r\n~\r\n\r\n~\n\n~\r\n ~HTTP/1.0~HTTP/2.0~HTTP/1.1~GET~HEAD~OPTIONS~QUERY~PRI * ~CONNECT a:1',
    '\r\nTransfer-Encoding: chunked~\r\nTransfer-Encoding: gzip~\r\nTransfer-Encoding:',
    '\r\nContent-Length: 0~\r\nContent-Length: 99999999999999999999~\r\nContent-Length: -1',
    '\r\nExpect: 100-continue~\r\nExpect: x~\r\nUpgrade: h2c~\r\nConnection: keep-alive, Upgrade',
    '\r\nHost: b~\r\nAuthorization: Basic a~\r\n__proto__: x~\r\nContent-Encoding: gzip~chunked',
    '\r\nX-Request-Id: \xe9~\r\ntraceparent: \x80~\r\nContent-Type: text/plain~0\r\n\r\n',
    'http://evil~//~/../health~/v1/models~/health~%00',
  ),
  'a'.repeat(20_000),
  'a: b\r\n'.repeat(1200),
];

/** Returns an undamaged request of a common kind. */
function request(random: Random): Buffer {
  const body = random.oneIn(3)
    ? mutate(random, random.pick(BODIES), BODY_TOKENS)
    : random.pick(BODIES);
  const isChunked = random.oneIn(3);
  const framing = isChunked ? 'Transfer-Encoding: chunked' : `Content-Length: ${body.length}`;
  const common = ['Host: gateway', `Authorization: Bearer ${CLIENT_TOKEN}`];
  if (!random.oneIn(4)) common.push('Connection: close');
  const simple = (line: string) => Buffer.from(`${[line, ...common].join('\r\n')}\r\n\r\n`);
  if (random.oneIn(4)) {
    const lines = ['GET /health HTTP/1.1', 'HEAD /health HTTP/1.1', 'GET /v1/models HTTP/1.1'];
    return simple(random.pick([...lines, 'GET /health?x=1 HTTP/1.0', 'OPTIONS * HTTP/1.1']));
  }
  const head = ['POST /v1/chat/completions HTTP/1.1', ...common, 'Content-Type: application/json'];
  head.push(framing, 'X-Request-Id: abc', 'traceparent: 00-a-b-01');
  const chunks = isChunked
    ? [Buffer.from(`${body.length.toString(16)}\r\n`), body, Buffer.from('\r\n0\r\n\r\n')]
    : [body];
  return Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`), ...chunks]);
}

/** Sends the bytes. Returns the answer, whole or up to the connection's end. */
async function exchange(port: number, pieces: readonly Buffer[], isHead: boolean): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    let text = '';
    socket.setNoDelay(true);
    socket.on('error', () => {});
    socket.on('close', () => resolve(text));
    socket.on('data', (chunk: Buffer) => {
      text += chunk.toString('latin1');
      const last = parseReplies(text, { isHead }).at(-1)!;
      if (last.isWhole && last.status >= 200) socket.destroy();
    });
    for (const piece of pieces) socket.write(piece);
  });
}

test(
  'a damaged request gets documented answers, and nothing damaged goes on',
  MANY_CASES,
  async (t) => {
    const upstream = await startRawUpstream(t, ({ text, socket }) => {
      assertForwarded(text);
      socket.write(rawResponse(JSON.stringify(completion())));
    });
    const gateway = await startGateway(t, {
      toml: providerToml(upstream, 'p', 'models = ["m"]'),
      // Short limits, so a request without an end is answered soon.
      clientTimeLimits: { headersMs: 120, requestMs: 120, lingerCheckMs: 200 },
    });
    const tally = new Tally();
    const checkReplies = async (pieces: readonly Buffer[], isHead = false) => {
      const text = await exchange(gateway.port, pieces, isHead);
      const replies = parseReplies(text, { isHead }).filter(({ status }) => status !== 100);
      assert.ok(replies.length > 0, 'no answer');
      for (const { status, headers, body, isWhole } of replies) {
        assert.ok(isWhole || isHead, text);
        assert.match(headers['x-request-id'] ?? '', /^[\x21-\x7e]{1,128}$/, text);
        tally.add(String(status));
        assert.notEqual(status, 500, text);
        if (isHead && body === '') continue;
        if (status !== 200) assertErrorObject(body, status);
        else if (body.startsWith('data:')) assertStreamEnd(body);
        else assert.match(body, /^\{"(?:status":"healthy"|object":"list"|id":"chatcmpl-1")/);
      }
    };
    const check = async (fuzzCase: FuzzCase) => {
      const { random } = fuzzCase;
      const bytes = mutate(random, request(random), HEAD_TOKENS);
      fuzzCase.about = bytes.toString('latin1');
      const isHead = /^\s*HEAD /.test(fuzzCase.about);
      await checkReplies(random.oneIn(8) ? cutUp(random, bytes) : [bytes], isHead);
    };
    await forEachCase(0.1, check, { workers: WORKERS });
    // A separate request, because a thousand damaged requests may have no head this long.
    const longHead = `GET /health HTTP/1.1\r\nHost: gateway\r\nX: ${'a'.repeat(20_000)}\r\n\r\n`;
    await checkReplies([Buffer.from(longHead)]);
    tally.assertSome('200', '400', '401', '404', '408', '431');
    // Repeated, because on a busy machine the 120 ms may pass before the headers are read.
    const isServing = async () => (await gateway.send('/health')).status === 200;
    await eventually(isServing, 'the gateway still answers');
    assert.ok(upstream.requests.length > 0);
  },
);

const ANSWER_TOKENS = [
  ...'\r\n: \t,;{}[]"\u0000\x80'.split(''),
  ...tokens(
    '\r\n~\r\n\r\n~\n~HTTP/1.0~HTTP/2~HTTP/1.1 100 Continue\r\n\r\n~HTTP/1.1 103 x\r\n\r\n',
    '099~101~204~304~400~401~404~429~500~503~529~600~999~1000~0~SSH-2.0-x\r\n~fffffffff',
    '\r\nTransfer-Encoding: chunked~\r\nTransfer-Encoding: gzip~\r\nContent-Length: 5',
    '\r\nContent-Length: 99999~\r\nContent-Encoding: gzip~\r\nContent-Encoding: zstd',
    '\r\nContent-Type: text/html~\r\nContent-Type: text/event-stream~\r\n__proto__: x',
    '\r\nRetry-After: 2~\r\nRetry-After: Fri, 31 Dec 2100 23:59:59 GMT~\r\nRetry-After: -1',
    '\r\nx-ratelimit-a: \xe9~\r\nx-ratelimit-a: \u0001~\r\nx-request-id: \xff~\r\nSet-Cookie: a',
    '\r\nConnection: close~\r\nConnection: keep-alive~\r\nKeep-Alive: timeout=0~0\r\n\r\n',
    '\r\nLocation: http://127.0.0.1:9/~{"error":{"message":"no","code":"x"}}',
  ),
  'x'.repeat(20_000),
  ...STREAM_TOKENS,
];

/** Returns an undamaged answer of a common kind. */
function answer(random: Random, isStream: boolean): Buffer {
  const events = random.pick(STREAMS).toString();
  const fault = JSON.stringify({ error: { message: 'no', code: 'x' } });
  const [body, type] = random.oneIn(4)
    ? [fault, 'application/json']
    : isStream !== random.oneIn(12)
      ? [events, 'text/event-stream']
      : [JSON.stringify(completion()), 'application/json'];
  const codes = ['400 Bad Request', '401 x', '429 x', '500 x', '503 x', '307 x'];
  const status = body === fault && !random.oneIn(4) ? random.pick(codes) : '200 OK';
  const head = `HTTP/1.1 ${status}\r\ncontent-type: ${type}\r\nx-ratelimit-limit: 1\r\n`;
  const size = Buffer.byteLength(body);
  const framed = [
    `${head}content-length: ${size}\r\n\r\n${body}`,
    `${head}transfer-encoding: chunked\r\n\r\n${size.toString(16)}\r\n${body}\r\n0\r\n\r\n`,
    `${head}connection: close\r\n\r\n${body}`,
  ];
  return Buffer.from(random.pick(framed));
}

test('a damaged answer becomes a documented answer', MANY_CASES, async (t) => {
  const answers = new Map<string, { pieces: readonly Buffer[]; staysOpen: boolean }>();
  const upstream = await startRawUpstream(t, async ({ text, socket }) => {
    const id = /\r\nx-request-id: (\d+)\r\n/.exec(text)?.[1] ?? assert.fail(text);
    const planned = answers.get(id);
    // On a busy machine, the gateway may have given the request up already.
    const { pieces, staysOpen } = planned ?? { pieces: [], staysOpen: false };
    socket.setNoDelay(true);
    for (const piece of pieces) {
      socket.write(piece);
      if (pieces.length > 1) await nextTurn();
    }
    if (!staysOpen) socket.end();
  });
  const gateway = await startGateway(t, {
    toml: providerToml(upstream),
    // Shorter than settings allow, so an answer without an end is given up soon.
    adjust: (config) => {
      const registered = config.providers.registered.map((one) => ({ ...one, timeoutMs: 150 }));
      const server = { ...config.server, streamIdleTimeoutMs: 150 };
      return { ...config, server, providers: { ...config.providers, registered } };
    },
  });
  const tally = new Tally();
  const check = async (fuzzCase: FuzzCase) => {
    const { random, seed } = fuzzCase;
    const isStream = random.oneIn(2);
    const bytes = mutate(random, answer(random, isStream), ANSWER_TOKENS);
    fuzzCase.about = `${isStream ? 'stream: ' : ''}${bytes.toString('latin1')}`;
    const id = String(seed);
    const pieces = random.oneIn(4) ? cutUp(random, bytes) : [bytes];
    // After [DONE] the gateway waits five seconds for the provider to close.
    const staysOpen = random.oneIn(6) && !bytes.includes('[DONE]');
    answers.set(id, { pieces, staysOpen });
    const reply = await gateway.chat(chatBody(isStream ? { stream: true } : {}), {
      headers: { 'x-request-id': id },
    });
    answers.delete(id);
    const about = `${reply.status} ${JSON.stringify(reply.headers)} ${reply.text}`;
    assert.equal(reply.headers['x-request-id'], id, about);
    assert.equal(reply.headers['x-gateway-provider'], 'p', about);
    assert.equal(reply.headers['set-cookie'], undefined, about);
    assert.ok(!about.includes(PROVIDER_KEY), about);
    if (reply.status >= 200 && reply.status < 300) {
      if (isStream) tally.add(`stream ${assertStreamEnd(reply.text)}`);
      else tally.add(`complete ${typeof JSON.parse(reply.text)}`);
      return;
    }
    const code = assertErrorObject(reply.text, reply.status);
    assert.notEqual(code, 'INTERNAL_ERROR', about);
    tally.add(code);
  };
  await forEachCase(0.1, check, { workers: WORKERS });
  tally.assertSome('stream ok', 'stream PROVIDER_ERROR', 'complete object', 'API_ERROR');
  tally.assertSome('PROVIDER_ERROR', 'SERIALIZATION_ERROR', 'TIMEOUT');
  const outcomes = gateway.accessLines().map(({ outcome }) => outcome);
  assert.ok(!outcomes.includes('internal_error'));
  // Whatever the answers did to the pool, the next request is served.
  await sleep(0);
  assert.equal((await gateway.send('/health')).status, 200);
});

after(() => {
  if (CASES > 10_000) console.log(`${CASES} cases, FUZZ_SEED=${SEED}`);
});
