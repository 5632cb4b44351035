import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { assertError, NOT_AUTHENTICATED, parseRaw, refusal } from './support/errors.ts';
import { chatBody, CLIENT_TOKEN, providerToml, startGateway } from './support/gateway.ts';
import { sendRaw } from './support/raw.ts';
import { eventually } from './support/streams.ts';
import { completion, sendJson, startUpstream } from './support/upstream.ts';

const AUTHORIZATION = `Authorization: Bearer ${CLIENT_TOKEN}`;
const BODY = JSON.stringify(chatBody());
const CHAT = 'POST /v1/chat/completions HTTP/1.1';
const JSON_TYPE = 'Content-Type: application/json';
const CLOSE = 'Connection: close';

/** A request from its lines; the body comes after the blank one. */
function request(...lines: string[]): string {
  return `${lines.join('\r\n')}\r\n\r\n`;
}

function chat(...more: string[]): string {
  return request(CHAT, 'Host: x', AUTHORIZATION, JSON_TYPE, ...more);
}

/** A health check that ends its connection, so that nobody has to wait for silence. */
function get(...headers: string[]): string {
  return request('GET /health HTTP/1.1', CLOSE, ...headers);
}

const chunked = (body: string) => `${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`;
const smuggled = request('GET /health HTTP/1.1', 'Host: smuggled');
const many = (count: number) => Array.from({ length: count }, (_, index) => `h${index}:`);

// Everything that is refused before authorization, with the status it is refused with.
const refused: Record<string, { bytes: string; status?: number }> = {
  'Content-Length and Transfer-Encoding': {
    bytes: `${chat('Content-Length: 4', 'Transfer-Encoding: chunked')}${chunked(BODY)}${smuggled}`,
  },
  'Transfer-Encoding and Content-Length': {
    bytes: `${chat('Transfer-Encoding: chunked', 'Content-Length: 4')}${chunked(BODY)}${smuggled}`,
  },
  'two different Content-Lengths': {
    bytes: `${chat('Content-Length: 4', `Content-Length: ${BODY.length}`)}${BODY}`,
  },
  'a negative Content-Length': { bytes: chat('Content-Length: -1') },
  'a Content-Length with a sign': { bytes: `${chat(`Content-Length: +${BODY.length}`)}${BODY}` },
  'a Content-Length list': { bytes: `${chat('Content-Length: 4, 4')}${BODY}` },
  'Transfer-Encoding: xchunked': {
    bytes: `${chat('Transfer-Encoding: xchunked')}${chunked(BODY)}${smuggled}`,
  },
  'Transfer-Encoding: gzip, chunked': {
    bytes: `${chat(CLOSE, 'Transfer-Encoding: gzip, chunked')}${chunked(BODY)}`,
  },
  'Transfer-Encoding: chunked, gzip': {
    bytes: `${chat('Transfer-Encoding: chunked, gzip')}${chunked(BODY)}${smuggled}`,
  },
  'Transfer-Encoding: chunked twice': {
    bytes: `${chat(CLOSE, 'Transfer-Encoding: chunked', 'Transfer-Encoding: chunked')}${chunked(BODY)}`,
  },
  'Transfer-Encoding: identity': {
    bytes: `${chat('Transfer-Encoding: identity', `Content-Length: ${BODY.length}`)}${BODY}`,
  },
  'an empty Transfer-Encoding': {
    bytes: `${chat(CLOSE, 'Transfer-Encoding:', `Content-Length: ${BODY.length}`)}${BODY}`,
  },
  'Transfer-Encoding in HTTP/1.0': {
    bytes: chat('Transfer-Encoding: chunked').replace('HTTP/1.1', 'HTTP/1.0') + chunked(BODY),
  },
  'chunk sizes that are not': { bytes: `${chat('Transfer-Encoding: chunked')}zz\r\n${BODY}\r\n` },
  'HTTP/2.0': { bytes: request('GET /health HTTP/2.0', CLOSE, 'Host: x') },
  'the HTTP/2 preface': { bytes: 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' },
  'HTTP/0.9': { bytes: request('GET /health HTTP/0.9', CLOSE, 'Host: x') },
  'HTTP/1.2': { bytes: request('GET /health HTTP/1.2', 'Host: x') },
  'no version': { bytes: 'GET /health\r\n\r\n' },
  'no Host': { bytes: get() },
  'two Hosts': { bytes: get('Host: a', 'Host: b') },
  'the same Host twice': { bytes: get('Host: a', 'Host: a') },
  'two Hosts in HTTP/1.0': { bytes: request('GET /health HTTP/1.0', 'Host: a', 'Host: b') },
  'an empty Host': { bytes: get('Host:') },
  'a Host with a path': { bytes: get('Host: a/b') },
  'a Host with a user': { bytes: get('Host: u@a') },
  'a Host with a space': { bytes: get('Host: a b') },
  'a list of Hosts': { bytes: get('Host: a,b') },
  'an expectation that is unknown': {
    bytes: chat(CLOSE, 'Expect: foo', 'Content-Length: 2'),
    status: 417,
  },
  'an unknown expectation without a body': {
    bytes: get('Host: x', 'Expect: foo'),
    status: 417,
  },
  garbage: { bytes: 'canary\r\n\r\n' },
  'a TLS handshake': {
    bytes: '\u0016\u0003\u0001\u0000\u00a5\u0001\u0000\u0000\u00a1\u0003\u0003',
  },
  'null bytes': { bytes: '\u0000'.repeat(100) },
  'an unknown method': { bytes: request('CANARY /health HTTP/1.1', 'Host: x') },
  'a space in a header name': { bytes: get('Host: x', 'a b: c') },
  'a space before the colon': { bytes: get('Host: x', 'a : c') },
  'a header without a colon': { bytes: get('Host: x', 'canary') },
  'a null byte in a header': { bytes: get('Host: x', 'a: \u0000') },
  'a bare carriage return': { bytes: get('Host: x', 'a: b\rc: d') },
  'one header too long': {
    bytes: get('Host: x', `a: ${'b'.repeat(17_000)}`),
    status: 431,
  },
  'too long a target': {
    bytes: request(`GET /${'a'.repeat(20_000)} HTTP/1.1`, 'Host: x'),
    status: 431,
  },
  'a flood of long headers': {
    bytes: get('Host: x', ...many(4000)),
    status: 431,
  },
  'a flood of short headers': {
    bytes: get('Host: x', ...many(1100).map(() => 'a:')),
    status: 431,
  },
};
for (const [what, { bytes, status = 400 }] of Object.entries(refused)) {
  test(`${what} is refused once, with ${status}, the error object and a log line`, async (t) => {
    const upstream = await startUpstream(t);
    const toml = `[logging]\nlevel = "debug"\n${providerToml(upstream)}`;
    const gateway = await startGateway(t, { toml });
    const reply = await sendRaw(gateway.port, bytes);
    const { headers } = parseRaw(reply);
    assertError(parseRaw(reply), refusal(/./, status));
    assert.equal(statuses(reply.text).length, 1, reply.text);
    assert.ok(Math.abs(Date.parse(String(headers['date'])) - Date.now()) < 60_000, 'its Date');
    await eventually(() => gateway.log.length > 0, 'the log line');
    const ids = gateway.log.map((line) => (JSON.parse(line) as { request_id?: string }).request_id);
    assert.deepEqual(ids, [headers['x-request-id']]);
    assert.doesNotMatch(reply.text, /canary|request body/i);
    assert.equal(upstream.requests.length, 0);
    assert.equal((await gateway.send('/health')).status, 200);
  });
}

// What is unusual and correct.
const allowed: Record<string, string> = {
  'HTTP/1.0 without Host': request('GET /health HTTP/1.0'),
  'a Host with a port': get('Host: gateway:8080'),
  'a Host that is an IPv6 address': get('Host: [::1]:8080'),
  'Transfer-Encoding in capitals': `${chat(CLOSE, 'Transfer-Encoding: CHUNKED')}${chunked(BODY)}`,
  'chunk extensions and trailers': `${chat(CLOSE, 'Transfer-Encoding: chunked')}${BODY.length.toString(16)};a=b\r\n${BODY}\r\n0\r\nx-trailer: 1\r\n\r\n`,
  'an offer to upgrade': get('Host: x', 'Connection: Upgrade', 'Upgrade: websocket'),
  'an empty line before the request': `\r\n${get('Host: x')}`,
  '900 short headers': get('Host: x', ...many(900).map(() => 'a:')),
};
for (const [what, bytes] of Object.entries(allowed)) {
  test(`${what} is answered with 200`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    assert.equal((await sendRaw(gateway.port, bytes)).status, 200);
  });
}

test('a client may keep an idle connection for longer than the 60 s of load balancers', async (t) => {
  const gateway = await startGateway(t, {});
  const { headers } = await gateway.send('/health', { headers: { connection: 'keep-alive' } });
  assert.equal(headers['keep-alive'], 'timeout=75');
});

test('CONNECT is refused: the gateway is no tunnel', async (t) => {
  const gateway = await startGateway(t, {});
  const bytes = request('CONNECT x:443 HTTP/1.1', 'Host: x:443');
  assertError(parseRaw(await sendRaw(gateway.port, bytes)), refusal());
});

test('with Expect: 100-continue the body is asked for, and then answered', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  for (const expectation of ['100-continue', '100-Continue']) {
    const bytes = `${chat(CLOSE, `Content-Length: ${BODY.length}`, `Expect: ${expectation}`)}${BODY}`;
    const { text } = await sendRaw(gateway.port, bytes);
    assert.deepEqual(statuses(text), [100, 200]);
  }
});

const unasked: Record<string, { bytes: string; expected: Parameters<typeof assertError>[1] }> = {
  'no token': {
    bytes: request(CHAT, 'Host: x', JSON_TYPE, 'Content-Length: 9', 'Expect: 100-continue'),
    expected: NOT_AUTHENTICATED,
  },
  'a body that is too large': {
    bytes: chat('Content-Length: 999999999', 'Expect: 100-continue'),
    expected: refusal(/./, 413),
  },
  'a body of another type': {
    bytes: chat('Content-Length: 9', 'Expect: 100-continue').replace(JSON_TYPE, 'X: y'),
    expected: refusal(/Content-Type/),
  },
};
for (const [what, { bytes, expected }] of Object.entries(unasked)) {
  test(`with Expect: 100-continue and ${what} the body is not asked for`, async (t) => {
    const gateway = await startGateway(t, {});
    const reply = await sendRaw(gateway.port, bytes);
    assertError(parseRaw(reply), expected);
    assert.deepEqual(statuses(reply.text), [expected.httpStatus]);
    // What comes next on this connection may be that body, or another request.
    assert.equal(parseRaw(reply).headers['connection'], 'close');
  });
}

test('pipelined requests are answered each, in their order', async (t) => {
  const upstream = await startUpstream(t, ({ body }, response) => {
    const { model } = JSON.parse(body.toString()) as { model: string };
    setTimeout(() => sendJson(response, completion(model)), model === 'slow' ? 60 : 0);
  });
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const bodies = ['p/slow', 'p/fast'].map((model) => JSON.stringify(chatBody({ model })));
  const bytes = bodies.map((body) => chat(`Content-Length: ${body.length}`) + body).join('');
  const last = request('GET /health HTTP/1.1', 'Host: x', 'Connection: close');
  const { text, isClosed } = await sendRaw(gateway.port, bytes + last);
  assert.deepEqual(statuses(text), [200, 200, 200]);
  const places = ['"slow"', '"fast"', '"healthy"'].map((content) => text.indexOf(content));
  assert.deepEqual(
    places,
    places.toSorted((a, b) => a - b),
  );
  assert.ok(!places.includes(-1));
  assert.ok(isClosed);
});

test('a refused request leaves its connection to the next one', async (t) => {
  const gateway = await startGateway(t, {});
  const bytes =
    request('GET /v1/models HTTP/1.1', 'Host: x') +
    request('GET /nothing HTTP/1.1', 'Host: x', AUTHORIZATION) +
    request('GET /health HTTP/1.1', 'Host: x', 'Connection: close');
  const { text } = await sendRaw(gateway.port, bytes);
  assert.deepEqual(statuses(text), [401, 404, 200]);
});

test('garbage after a request never takes the place of its answer', async (t) => {
  const upstream = await startUpstream(t, (_, response) => {
    setTimeout(() => sendJson(response, completion()), 50);
  });
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const bytes = `${chat(`Content-Length: ${BODY.length}`)}${BODY}canary\r\n\r\n`;
  const { text } = await sendRaw(gateway.port, bytes, { waitMs: 2000 });
  const [first, second] = statuses(text);
  assert.ok(first === undefined || first === 200, text);
  assert.ok(second === undefined || second === 400, text);
});

test('garbage after pipelined requests never gets into a stream', async (t) => {
  const upstream = await startUpstream(t, (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: {"choices":[]}\n\n');
  });
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const body = JSON.stringify(chatBody({ stream: true }));
  const stream = chat(`Content-Length: ${body.length}`) + body;
  const health = request('GET /health HTTP/1.1', 'Host: x');
  const socket = connect(gateway.port, '127.0.0.1');
  t.after(() => socket.destroy());
  socket.on('error', () => {});
  let text = '';
  socket.on('data', (chunk: Buffer) => {
    text += chunk.toString();
  });
  socket.write(stream);
  while (!text.includes('choices')) await once(socket, 'data');
  socket.write(`${health}canary\r\n\r\n`);
  // The stream never ends by itself: whatever comes is the gateway's own, or it hangs up.
  await Promise.race([once(socket, 'close'), sleep(500, undefined, { ref: false })]);
  assert.deepEqual(statuses(text), [200], text);
});

/** Asks for a stream that goes on until `finish`, and waits for its first event. */
async function openStream(t: TestContext) {
  let finish = () => {};
  const upstream = await startUpstream(t, (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: {"choices":[]}\n\n');
    finish = () => void response.end('data: [DONE]\n\n');
  });
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const socket = connect(gateway.port, '127.0.0.1');
  t.after(() => socket.destroy());
  let text = '';
  socket.on('error', () => {});
  socket.on('data', (chunk: Buffer) => (text += chunk.toString()));
  const body = JSON.stringify(chatBody({ stream: true }));
  socket.write(chat(`Content-Length: ${body.length}`) + body);
  while (!text.includes('choices')) await once(socket, 'data');
  return { gateway, socket, text: () => text, finish: () => finish() };
}

test('garbage in many packets costs no more than garbage in one', async (t) => {
  const { gateway, socket, text, finish } = await openStream(t);
  const warnings: Error[] = [];
  const onWarning = (warning: Error) => void warnings.push(warning);
  process.on('warning', onWarning);
  t.after(() => process.off('warning', onWarning));
  socket.setNoDelay(true);
  for (let packet = 0; packet < 30; packet += 1) {
    socket.write('\0canary\r\n');
    await sleep(2);
  }
  // Node warns of more than ten listeners.
  assert.deepEqual(warnings, []);
  finish();
  await once(socket, 'close');
  assert.match(text(), /\[DONE\]\n\n\r\n0\r\n\r\n$/);
  assert.equal((await gateway.send('/health')).status, 200);
});

test('CONNECT after a request never gets into its answer, which is finished', async (t) => {
  const { socket, text, finish } = await openStream(t);
  socket.write(request('CONNECT x:443 HTTP/1.1', 'Host: x:443'));
  // Long enough for it to be read.
  await sleep(50);
  finish();
  await once(socket, 'close');
  assert.deepEqual(statuses(text()), [200], text());
  assert.match(text(), /\[DONE\]\n\n\r\n0\r\n\r\n$/);
});

test('CONNECT is logged as a request that is not HTTP is', async (t) => {
  const gateway = await startGateway(t, {});
  await sendRaw(gateway.port, request('CONNECT x:443 HTTP/1.1', 'Host: x:443'));
  await sendRaw(gateway.port, 'canary\r\n\r\n');
  await eventually(() => gateway.log.length === 2, 'both lines');
  const entries = gateway.log.map((line) => JSON.parse(line) as Record<string, unknown>);
  const [first, second] = entries.map((entry) => ({ ...entry, time: '', request_id: '' }));
  assert.deepEqual(first, second);
});

test('a request that was answered before its body broke gets no second answer', async (t) => {
  const gateway = await startGateway(t, {});
  const socket = connect(gateway.port, '127.0.0.1');
  t.after(() => socket.destroy());
  let text = '';
  socket.on('data', (chunk: Buffer) => (text += chunk.toString()));
  socket.write(`${request(CHAT, 'Host: x', 'Transfer-Encoding: chunked')}5\r\nhello\r\n`);
  while (!text.includes('}}')) await once(socket, 'data');
  // Long enough for the answer to be over on the other side too.
  await sleep(50);
  socket.write('zz\r\n');
  await once(socket, 'close');
  assert.deepEqual(statuses(text), [401], text);
});

/** Every status in a raw exchange, interim ones too. */
function statuses(text: string): number[] {
  return [...text.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status));
}
