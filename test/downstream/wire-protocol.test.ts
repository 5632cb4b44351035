import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { assertError, NOT_AUTHENTICATED, parseRaw, refusal } from '../support/errors.ts';
import { chatBody, CLIENT_TOKEN } from '../support/gateway.ts';
import { sendRaw, openRaw, statusesOf, watchServerSide } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import { answerWell, beginStream, CHUNK } from '../support/upstream.ts';
import { idle } from '../support/clock.ts';

const AUTHORIZATION = `Authorization: Bearer ${CLIENT_TOKEN}`;
const BODY = JSON.stringify(chatBody());
const CHAT = 'POST /v1/chat/completions HTTP/1.1';
const JSON_TYPE = 'Content-Type: application/json';
const CLOSE = 'Connection: close';
const EXPECT = 'Expect: 100-continue';

/** Joins the lines of a head. The body comes after its blank line. */
function request(...lines: string[]): string {
  return `${lines.join('\r\n')}\r\n\r\n`;
}

function chat(...more: string[]): string {
  return request(CHAT, 'Host: x', AUTHORIZATION, JSON_TYPE, ...more);
}

/** A health check with `connection: close`, so no test waits for silence. */
function get(...headers: string[]): string {
  return request('GET /health HTTP/1.1', CLOSE, ...headers);
}

const chunked = (body: string) => `${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`;
const smuggled = request('GET /health HTTP/1.1', 'Host: smuggled');
const CONNECT = request('CONNECT x:443 HTTP/1.1', 'Host: x:443');
const shortHeaders = (count: number) => get('Host: x', ...Array<string>(count).fill('a:'));

const LENGTH = `Content-Length: ${BODY.length}`;
const CHUNKED = 'Transfer-Encoding: chunked';
const coded = (coding: string, ...more: string[]) =>
  chat(CLOSE, `Transfer-Encoding: ${coding}`, ...more) + chunked(BODY);

// Requests refused before authentication, by their status.
const REFUSED: Readonly<Record<number, readonly string[]>> = {
  400: [
    chat('Content-Length: 4', CHUNKED) + chunked(BODY) + smuggled,
    chat(CHUNKED, 'Content-Length: 4') + chunked(BODY) + smuggled,
    chat('Content-Length: 4', LENGTH) + BODY,
    chat('Content-Length: -1'),
    chat(`Content-Length: +${BODY.length}`) + BODY,
    chat('Content-Length: 4, 4') + BODY,
    ...['xchunked', 'gzip, chunked', 'chunked, gzip'].map((coding) => coded(coding)),
    ...['identity', ''].map((coding) => chat(CLOSE, `Transfer-Encoding: ${coding}`, LENGTH) + BODY),
    coded('chunked', CHUNKED),
    coded('chunked').replace('HTTP/1.1', 'HTTP/1.0'),
    `${chat(CHUNKED)}zz\r\n${BODY}\r\n`,
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    ...['2.0', '0.9', '1.2'].map((version) => request(`GET /health HTTP/${version}`, 'Host: x')),
    'GET /health\r\n\r\n',
    get(),
    get('Host: a', 'Host: b'),
    get('Host: a', 'Host: a'),
    request('GET /health HTTP/1.0', 'Host: a', 'Host: b'),
    ...[' a/b', ' u@a', ' a b', ' a,b'].map((host) => get(`Host:${host}`)),
    get('Host:', 'Host:'),
    request('GET /v1/models HTTP/1.1', 'Host:', AUTHORIZATION),
    request('POST /health HTTP/1.1', 'Host:', 'Content-Length: 0'),
    // The gateway is no tunnel.
    CONNECT,
    'canary\r\n\r\n',
    // A TLS handshake.
    '\u0016\u0003\u0001\u0000\u00a5\u0001\u0000\u0000\u00a1\u0003\u0003',
    '\u0000'.repeat(100),
    request('CANARY /health HTTP/1.1', 'Host: x'),
    ...['a b: c', 'a : c', 'canary', 'a: \u0000', 'a: b\rc: d'].map((line) => get('Host: x', line)),
  ],
  417: [chat(CLOSE, 'Expect: foo', 'Content-Length: 2'), get('Host: x', 'Expect: foo')],
  431: [
    get('Host: x', `a: ${'b'.repeat(17_000)}`),
    request(`GET /${'a'.repeat(20_000)} HTTP/1.1`, 'Host: x'),
    get('Host: x', ...Array.from({ length: 4000 }, (_, index) => `h${index}:`)),
    ...[1001, 2001, 8000].map(shortHeaders),
  ],
};
for (const [status, rows] of Object.entries(REFUSED)) {
  test(`a request that cannot be served is a single ${status} with a log line`, async (t) => {
    const { gateway, p } = await scenario(t, { more: '[logging]\nlevel = "debug"\n' });
    for (const bytes of rows) {
      const what = bytes.slice(0, 300);
      gateway.log.length = 0;
      const reply = await sendRaw(gateway.port, bytes);
      const { headers } = parseRaw(reply);
      assert.equal(reply.status, Number(status), what);
      assertError(parseRaw(reply), refusal(status === '431' ? /headers/ : /./, Number(status)));
      assert.equal(statusesOf(reply.text).length, 1, reply.text);
      assert.ok(Math.abs(Date.parse(String(headers['date'])) - Date.now()) < 60_000, 'its Date');
      await eventually(() => gateway.log.length > 0, 'the log line');
      const ids = gateway.lines().map(({ request_id }) => request_id);
      assert.deepEqual(ids, [headers['x-request-id']], what);
      assert.doesNotMatch(reply.text, /canary|request body/i);
    }
    assert.equal(p.requests.length, 0);
    assert.equal((await gateway.send('/health')).status, 200);
  });
}

test('a client that still sends can read its refusal, because nothing is reset', async (t) => {
  const { gateway } = await scenario(t, { clientTimeLimits: { lingerCheckMs: 3000 } });
  for (const bytes of [
    `GET /health HTTP/1.1\r\nHost: x\r\na: ${'b'.repeat(3_000_000)}`,
    `${chat('Transfer-Encoding: chunked')}x${'y'.repeat(3_000_000)}`,
  ]) {
    const { closed, socket, text } = openRaw(t, gateway.port);
    socket.write(bytes);
    assert.equal(await closed, undefined);
    assert.match(text(), /^HTTP\/1\.1 4(?:31|00) .*"INVALID_REQUEST"/s);
  }
  const { closed, socket } = openRaw(t, gateway.port, { allowHalfOpen: true });
  socket.write('x');
  socket.end();
  assert.equal(await closed, undefined);
});

test('a refused connection on which the client goes on sending is closed in time', async (t) => {
  const { gateway } = await scenario(t, { clientTimeLimits: { lingerCheckMs: 10 } });
  const { closed, socket, text } = openRaw(t, gateway.port, { allowHalfOpen: true });
  const sending = setInterval(() => socket.write('x\r\n\r\n'), 10);
  await closed;
  clearInterval(sending);
  assert.deepEqual(statusesOf(text()), [400]);
  assert.equal(gateway.lines().length, 1);
});

test('an unusual but correct request is answered with 200', async (t) => {
  const { gateway } = await scenario(t);
  for (const bytes of [
    request('GET /health HTTP/1.0'),
    get('Host: gateway:8080'),
    get('Host: [::1]:8080'),
    get('Host:'),
    request('HEAD /health HTTP/1.1', 'Host:', CLOSE),
    coded('CHUNKED'),
    `${chat(CLOSE, CHUNKED)}${BODY.length.toString(16)};a=b\r\n${BODY}\r\n0\r\nx-trailer: 1\r\n\r\n`,
    get('Host: x', 'Connection: Upgrade', 'Upgrade: websocket'),
    `\r\n${get('Host: x')}`,
    shortHeaders(900),
  ]) {
    assert.equal((await sendRaw(gateway.port, bytes)).status, 200, bytes.slice(0, 200));
  }
  for (const expectation of ['100-continue', '100-Continue']) {
    const bytes = `${chat(CLOSE, LENGTH, `Expect: ${expectation}`)}${BODY}`;
    assert.deepEqual(statusesOf((await sendRaw(gateway.port, bytes)).text), [100, 200]);
  }
  const { headers } = await gateway.send('/health', { headers: { connection: 'keep-alive' } });
  assert.equal(headers['keep-alive'], 'timeout=75');
});

const upgrading = (protocol: string) => [
  chat(LENGTH, 'Connection: Upgrade', `Upgrade: ${protocol}`) + BODY,
  request('GET /health HTTP/1.1', 'Host: x', 'Connection: Upgrade', `Upgrade: ${protocol}`),
];

test('no answer is owed behind a request for another protocol', async (t) => {
  const { gateway } = await scenario(t);
  for (const asked of ['websocket', 'h2c', 'h2c, websocket'].flatMap(upgrading)) {
    // node:http's parser drops the second request.
    const { isClosed, text } = await sendRaw(gateway.port, asked + get('Host: x'));
    assert.ok(isClosed);
    assert.deepEqual(statusesOf(text), [200]);
    assert.match(text, /^connection: close\r$/im);
  }
});

test('a body is no request if its head came behind a request for another protocol', async (t) => {
  const { gateway, p } = await scenario(t);
  const health = get('Host: x');
  const head = chat(`Content-Length: ${health.length}`);
  for (const asked of ['websocket', 'h2c'].flatMap(upgrading)) {
    const late = openRaw(t, gateway.port);
    late.socket.write(asked + head);
    await eventually(() => statusesOf(late.text()).length === 1, 'the first answer');
    late.socket.write(health);
    await late.closed;
    assert.deepEqual(statusesOf(late.text()), [200]);
  }
  const gate = createGate();
  p.script = async (received, response) => {
    await gate.opened;
    return answerWell(received, response);
  };
  const asked = p.requests.length;
  const { closed, socket, text } = openRaw(t, gateway.port);
  const side = watchServerSide(t, socket);
  socket.write(upgrading('h2c')[0] + head);
  await eventually(() => p.requests.length > asked, 'the request to the provider');
  socket.write(health);
  await eventually(() => side.requests === 2, 'the body, parsed as a request');
  gate.open();
  await closed;
  assert.deepEqual(statusesOf(text()), [200]);
});

test('an idle connection is closed after keep_alive_timeout, as the latest reload has it', async (t) => {
  const { gateway, toml } = await scenario(t, { server: 'keep_alive_timeout = 620' });
  const { closed, socket, text } = openRaw(t, gateway.port);
  const health = request('GET /health HTTP/1.1', 'Host: x');
  socket.write(health);
  await eventually(() => text().includes('Keep-Alive: timeout=620'), 'the first answer');
  await gateway.reload(toml.replace('620', '1'));
  socket.write(health);
  assert.equal(await closed, undefined);
  assert.deepEqual(statusesOf(text()), [200, 200]);
  assert.match(text(), /Keep-Alive: timeout=1\r\n/);
});

test('a body that would be refused gets no 100 Continue', async (t) => {
  const { gateway } = await scenario(t);
  for (const [bytes, expected] of [
    [request(CHAT, 'Host: x', JSON_TYPE, 'Content-Length: 9', EXPECT), NOT_AUTHENTICATED],
    [chat('Content-Length: 999999999', EXPECT), refusal(/./, 413)],
    [chat('Content-Length: 9', EXPECT).replace(JSON_TYPE, 'X: y'), refusal(/Content-Type/)],
  ] as const) {
    const reply = await sendRaw(gateway.port, bytes);
    assertError(parseRaw(reply), expected);
    assert.deepEqual(statusesOf(reply.text), [expected.httpStatus]);
    // The next bytes on this connection may be the body, or another request.
    assert.equal(parseRaw(reply).headers['connection'], 'close');
    assert.ok(reply.isClosed, 'the gateway closes first');
  }
});

/** Asks for a stream until `finish`, and waits for its first event. */
async function openStream(t: TestContext) {
  let finish = () => {};
  const { gateway } = await scenario(t, {
    providers: {
      p: async (incoming, response) => {
        await beginStream(CHUNK)(incoming, response);
        finish = () => void response.end('data: [DONE]\n\n');
      },
    },
  });
  const connection = openRaw(t, gateway.port);
  const body = JSON.stringify(chatBody({ stream: true }));
  connection.socket.write(chat(`Content-Length: ${body.length}`) + body);
  await eventually(() => connection.text().includes('choices'), 'the first event');
  return { gateway, ...connection, finish: () => finish() };
}

const GARBAGE = 'canary\r\n\r\n';
for (const [what, packets, statuses] of [
  [
    'garbage behind a request',
    [request('GET /health HTTP/1.1', 'Host: x') + GARBAGE],
    [200, 200, 400],
  ],
  ['garbage in many packets', Array<string>(30).fill(`\0${GARBAGE}`), [200, 400]],
  ['CONNECT', [CONNECT], [200, 400]],
] as const) {
  test(`the refusal of ${what} follows a stream, and never gets into it`, async (t) => {
    const { gateway, socket, text, finish, closed } = await openStream(t);
    const warnings: Error[] = [];
    const onWarning = (warning: Error) => void warnings.push(warning);
    process.on('warning', onWarning);
    t.after(() => process.off('warning', onWarning));
    socket.setNoDelay(true);
    for (const packet of packets) {
      socket.write(packet);
      await sleep(2);
    }
    // Enough time for the gateway to read the bytes.
    await idle(60);
    assert.deepEqual(statusesOf(text()), [200], text());
    finish();
    await closed;
    assert.deepEqual(statusesOf(text()), statuses, text());
    assert.match(text(), /\[DONE\]\n\n\r\n0\r\n\r\n/);
    assert.equal(gateway.lines('broken request').length, 1);
    // Node warns of more than ten listeners.
    assert.deepEqual(warnings, []);
    assert.equal((await gateway.send('/health')).status, 200);
  });
}

test('CONNECT is logged like a request that is not HTTP', async (t) => {
  const { gateway } = await scenario(t);
  await sendRaw(gateway.port, CONNECT);
  await sendRaw(gateway.port, 'canary\r\n\r\n');
  await eventually(() => gateway.log.length === 2, 'both lines');
  const [first, second] = gateway.lines().map((line) => ({ ...line, time: '', request_id: '' }));
  assert.deepEqual(first, second);
});

test('a request answered before its body broke gets no second answer', async (t) => {
  const { gateway } = await scenario(t);
  const { socket, text, closed } = openRaw(t, gateway.port);
  socket.write(`${request(CHAT, 'Host: x', 'Transfer-Encoding: chunked')}5\r\nhello\r\n`);
  await eventually(() => text().includes('}}'), 'the answer');
  // Enough time for the answer to be over on the other side too.
  await idle(60);
  socket.write('zz\r\n');
  await closed;
  assert.deepEqual(statusesOf(text()), [401], text());
});
