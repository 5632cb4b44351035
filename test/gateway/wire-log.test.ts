import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, test, type TestContext } from 'node:test';

import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  providerToml,
  startGateway,
  type TestGateway,
  type LogLine,
  rawChat,
} from '../support/gateway.ts';
import { openFeed } from '../support/feed.ts';
import { openRaw, sendRaw } from '../support/raw.ts';
import { byModel, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { eventually, openChat, linesOf, lineOf } from '../support/streams.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  NOBODY_LISTENS,
  completion,
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

/** Starts a gateway with this script for provider `p`, and these further sections. */
const start = async (
  t: TestContext,
  script: Script = answerWell,
  more = '',
  settings: ScenarioSettings<'p'> = {},
) => scenario(t, { ...settings, providers: { p: script }, more });

/** Checks that these fields are whole numbers from `least` up. */
function assertCounts(line: LogLine, names: readonly string[], least = 0): void {
  for (const name of names) {
    assert.ok(
      Number.isInteger(line[name]) && (line[name] as number) >= least,
      `${name}: ${String(line[name])}`,
    );
  }
}

/** Returns provider `p`'s section with this key. */
async function providerWith(t: TestContext, key: string): Promise<string> {
  return `[providers.p]\nbase_url = "${(await startUpstream(t)).baseUrl}"\napi_key = '${key}'\n`;
}

const LOUD = '[logging]\nlevel = "trace"\nverbose = true\n';

describe('an access line', { concurrency: true }, () => {
  test('is one line of JSON with the documented fields', async (t) => {
    const { gateway } = await start(t);
    const before = Date.now();
    const reply = await gateway.chat(chatBody({ model: 'p/m/x' }), {
      headers: { 'x-request-id': 'mine-1' },
    });
    const line = await lineOf(gateway);
    assert.equal(gateway.log.length, 1);
    assert.match(gateway.log[0]!, /^\{[^\n]*\}\n$/);
    const { time, duration_ms, first_byte_ms, trace_id, tries, ...others } = line;
    assert.match(time as string, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    assert.ok(Date.parse(time as string) >= before - 1);
    assertCounts({ duration_ms, first_byte_ms }, ['duration_ms', 'first_byte_ms']);
    assert.ok((first_byte_ms as number) <= (duration_ms as number));
    assert.deepEqual(others, {
      level: 'info',
      message: 'request',
      request_id: 'mine-1',
      method: 'POST',
      path: '/v1/chat/completions',
      status: 200,
      provider: 'p',
      model: 'p/m/x',
      upstream_model: 'm/x',
      stream: false,
      bytes: reply.bytes.length,
      outcome: 'ok',
      finish_reason: 'stop',
      prompt_tokens: 1,
      completion_tokens: 1,
      remote: '127.0.0.1',
    });
    assert.match(trace_id as string, /^[\da-f]{32}$/);
    // Over fetch, the connection's fields are missing.
    const [{ duration_ms: tryMs, connect_ms: connectMs = 0, ...tried }, ...more] = tries as [
      LogLine,
    ];
    assert.deepEqual(
      [tried, more],
      [{ provider: 'p', model: 'm/x', outcome: 'ok', status: 200 }, []],
    );
    assertCounts({ tryMs, connectMs }, ['tryMs', 'connectMs']);
    assert.ok((connectMs as number) <= (tryMs as number));
  });

  for (const name of ['x-forwarded-for', 'forwarded']) {
    test(`comes with one warning if a gateway without keys gets ${name}`, async (t) => {
      const { gateway } = await start(t);
      const headers = { [name]: 'for=192.0.2.1' };
      const warnings = () =>
        gateway.log.filter((line) => line.includes('"requests come through a proxy'));
      await gateway.send('/v1/models');
      assert.equal(warnings().length, 0);
      for (let i = 0; i < 3; i += 1) await gateway.send('/v1/models', { headers });
      assert.equal(warnings().length, 1);
      assert.match(warnings()[0]!, /"level":"warn".*set \[server\.auth\] keys"/);
      const toml = `[server.auth]\nkeys = ["${CLIENT_TOKEN}"]\n`;
      const withKeys = await startGateway(t, { toml });
      await withKeys.send('/v1/models', { headers });
      assert.doesNotMatch(withKeys.log.join(''), /a proxy/);
    });
  }

  test('has the outcome client_closed, whenever the client leaves', async (t) => {
    const { gateway, p } = await start(t, () => {});
    const left = async (index: number) => {
      const line = (await linesOf(gateway, index)).at(-1)!;
      return ['outcome', 'status', 'provider', 'bytes', 'reason'].map((name) => line[name]);
    };
    const before = 'client left before the answer';
    const waiting = openChat(gateway.port);
    await eventually(() => p.requests.length === 1, 'the request');
    waiting.leave();
    assert.deepEqual(await left(1), ['client_closed', undefined, 'p', 0, before]);
    const list = openRaw(t, gateway.port);
    list.socket.write(
      `GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${CLIENT_TOKEN}\r\n\r\n`,
    );
    await eventually(() => p.requests.length === 2, 'the list is asked for');
    // A reset, because a client that closes only its sending side gets the list.
    list.socket.resetAndDestroy();
    assert.deepEqual(await left(2), ['client_closed', undefined, undefined, 0, before]);
    p.script = beginStream(CHUNK);
    const begun = openChat(gateway.port);
    await eventually(() => begun.text() !== '', 'the first event');
    begun.leave();
    const during = ['client_closed', 200, 'p', CHUNK.length, 'client left during the answer'];
    assert.deepEqual(await left(3), during);
    const socket = connect(gateway.port, '127.0.0.1');
    socket.write(rawChat({}, ['expect: 100-continue']).slice(0, -'{}'.length));
    // The gateway sends 100 when it begins to read the body.
    assert.match(String(await once(socket, 'data')), /^HTTP\/1\.1 100 /);
    socket.end('{');
    const upload = ['client_closed', undefined, undefined, 0, 'client left during its upload'];
    assert.deepEqual(await left(4), upload);
  });

  test("has the refusal's status and id if a body turns out not to be HTTP", async (t) => {
    const { gateway } = await start(t);
    const [head = ''] = rawChat({}, ['x-request-id: i']).split('\r\n\r\n');
    const chunked = head.replace('content-length: 2', 'transfer-encoding: chunked');
    const { text } = await sendRaw(gateway.port, `${chunked}\r\n\r\nzz\r\n`);
    assert.match(text, /^HTTP\/1\.1 400 [^]*\r\nx-request-id: i\r\n[^]*not valid HTTP/);
    const { level, outcome, status, request_id } = await lineOf(gateway);
    assert.deepEqual([level, outcome, status, request_id], ['info', 'refused', 400, 'i']);
    assert.equal(gateway.log.length, 1);
  });

  test('of a request that is not HTTP has the id from its answer', async (t) => {
    const { gateway } = await start(t);
    const { text } = await sendRaw(gateway.port, 'canary\r\n\r\n');
    const [, id] = /\r\nx-request-id: (\S+)\r\n/.exec(text) ?? [];
    await eventually(() => gateway.log.length > 0, 'the line');
    const [{ time: _, ...line } = {}] = gateway.lines();
    assert.deepEqual(line, {
      level: 'info',
      message: 'broken request',
      request_id: id,
      status: 400,
      reason: 'Invalid request: request is not valid HTTP',
      outcome: 'refused',
      remote: '127.0.0.1',
    });
  });
});

describe("a provider's text that quotes the request", () => {
  const QUOTE = 'canary-of-a-prompt';
  const error = {
    message: `Input should be a list; input: ${QUOTE}`,
    type: 'invalid_request_error',
    code: 'list_type',
  };
  const event = `data: ${JSON.stringify({ error })}\n\n`;
  const scripts: Record<string, Script> = {
    'a 422': (_, response) => sendJson(response, { error }, { status: 422 }),
    'a 429': (_, response) => sendJson(response, { error }, { status: 429 }),
    'a 503': (_, response) => sendJson(response, { error }, { status: 503 }),
    'a plain-text 500': (_, response) =>
      void response.writeHead(500, { 'content-type': 'text/plain' }).end(error.message),
    'a 200 with an error': (_, response) => sendJson(response, { error }),
    'an answer that is not JSON': (_, response) => void response.end(error.message),
    'a first event': (_, response) => sendEvents(response, event),
    'a later event': (_, response) => sendEvents(response, CHUNK + event),
  };
  const isTold = (what: string) => what !== 'an answer that is not JSON';
  const bodyFor = (what: string) =>
    chatBody({ model: `p/${what}`, stream: what.includes('event') });

  test('is in an access line once at most', async (t) => {
    const { gateway } = await start(t, byModel(scripts));
    for (const [index, what] of Object.keys(scripts).entries()) {
      await gateway.chat(bodyFor(what));
      await linesOf(gateway, index + 1);
      // An incident's line may come between the access lines.
      const lines = gateway.log.filter((line) => line.includes('"message":"request"'));
      const count = lines[index]!.split(QUOTE).length - 1;
      assert.equal(count, isTold(what) ? 1 : 0, what);
    }
  });

  test('is in no line, metric or page with provider_messages = false', async (t) => {
    const q = { baseUrl: NOBODY_LISTENS };
    const more = `${LOUD}provider_messages = false\n[admin]\nport = 0\n${providerToml(q, 'q')}`;
    const { gateway, p } = await start(t, byModel(scripts), more, { fallback: ['q'] });
    const whats = Object.keys(scripts);
    for (const [index, what] of whats.entries()) {
      // The third failure in a row opens a circuit, so its cause is logged and shown.
      for (let round = 0; round < 3; round += 1) await gateway.chat(bodyFor(what));
      const { text } = await gateway.chat(bodyFor(what));
      assert.equal(text.includes(QUOTE), isTold(what), "the client's answer");
      const line = (await linesOf(gateway, 4 * (index + 1))).at(-4)!;
      const [first] = line['tries'] as LogLine[];
      const isPlain = what.includes('plain');
      const named = isPlain ? 'Internal Server Error' : 'invalid_request_error list_type';
      if (isTold(what)) assert.equal(first!['cause'], named, what);
      assert.equal(first!['status'], Number(/\d{3}/.exec(what)?.[0] ?? 200), what);
    }
    const feed = await openFeed(t, gateway.adminPort);
    await feed.next('state');
    const metrics = (await gateway.admin('/metrics')).text;
    const shown = [...gateway.log, JSON.stringify(feed.events), metrics].join('');
    feed.close();
    assert.ok(p.requests.length >= 3 * whats.length);
    assert.ok(!shown.includes(QUOTE), shown.slice(shown.indexOf(QUOTE) - 500).slice(0, 700));
  });
});

describe('a header that [logging] headers names', { concurrency: true }, () => {
  const naming = (...names: string[]) => `[logging]\nheaders = ${JSON.stringify(names)}\n`;

  test('is in the line of an answer, a stream and a refusal, in the order of the setting', async (t) => {
    const names = naming('X-Session-Id', 'constructor', 'x-not-sent', 'user-agent');
    const { gateway, toml } = await start(t, answerWell, names);
    const headers = { 'user-agent': 'tester/1', 'x-session-id': 'chat-42', 'x-other': 'x' };
    const requests = [
      async () => gateway.chat(chatBody(), { headers }),
      async () => gateway.chat(chatBody({ stream: true }), { headers }),
      async () => gateway.send('/nothing', { headers }),
      async () => gateway.send('/v1/models', { headers: { ...headers, authorization: undefined } }),
    ];
    for (const [index, request] of requests.entries()) {
      await request();
      const { headers: logged } = (await linesOf(gateway, index + 1)).at(-1)!;
      const expected = '{"x-session-id":"chat-42","user-agent":"tester/1"}';
      assert.equal(JSON.stringify(logged), expected, String(index));
    }
    await gateway.chat(chatBody());
    await linesOf(gateway, requests.length + 1);
    await gateway.reload(toml.replace(names, naming('x-other')));
    await gateway.chat(chatBody(), { headers });
    await linesOf(gateway, requests.length + 2);
    await gateway.reload(toml.replace(names, ''));
    await gateway.chat(chatBody(), { headers });
    const logged = (await linesOf(gateway, requests.length + 3)).map((line) => line['headers']);
    assert.deepEqual(logged.slice(requests.length), [undefined, { 'x-other': 'x' }, undefined]);
  });

  test('is in the line of a client that leaves a running stream', async (t) => {
    const { gateway } = await start(t, beginStream(CHUNK), naming('x-session-id'));
    const socket = connect(gateway.port, '127.0.0.1');
    socket.write(rawChat(chatBody({ stream: true }), ['x-session-id: chat-42']));
    await once(socket, 'data');
    socket.destroy();
    const { headers, outcome } = await lineOf(gateway);
    assert.deepEqual([outcome, headers], ['client_closed', { 'x-session-id': 'chat-42' }]);
  });

  test('is cut, without control characters and keys, and joined if sent twice', async (t) => {
    const more = `${naming('x-a', 'user-agent')}verbose = true\n`;
    const { gateway } = await start(t, answerWell, more);
    const values: [sent: string | string[], logged: string][] = [
      ['x'.repeat(15_000), 'x'.repeat(200)],
      [`"${PROVIDER_KEY}"`, '"[secret]"'],
      [`${'x'.repeat(190)}${PROVIDER_KEY}`, `${'x'.repeat(190)}[secret]`],
      [`a ${CLIENT_TOKEN} Bearer abcdef`, `a ${CLIENT_TOKEN} [secret]`],
      [['a', 'b'], 'a, b'],
      ['', ''],
    ];
    for (const [index, [sent, logged]] of values.entries()) {
      await gateway.chat(chatBody(), { headers: { 'x-a': sent, 'user-agent': 'tester/1' } });
      const line = (await linesOf(gateway, index + 1)).at(-1)!;
      assert.deepEqual(line['headers'], { 'x-a': logged, 'user-agent': 'tester/1' });
      assert.equal(line['user_agent'], 'tester/1');
    }
    const raw = ['connection: close', 'x-a: a\tb\x85\x9b2J', 'X-A: c'];
    await sendRaw(gateway.port, rawChat(chatBody(), raw));
    const { headers } = (await linesOf(gateway, values.length + 1)).at(-1)!;
    assert.deepEqual(headers, { 'x-a': String.raw`a\u0009b\u0085\u009b2J, c` });
    const { text } = await sendRaw(gateway.port, rawChat({}, [`x-a: ${'x'.repeat(100_000)}`]));
    assert.match(text, /^HTTP\/1\.1 431 /);
    assert.ok(Math.max(...gateway.log.map((line) => line.length)) < 2000);
  });
});

describe('logging', { concurrency: true }, () => {
  test("has the cause of the gateway's own failure at level error", async (t) => {
    const gateway = await startGateway(t, {
      toml: '[logging]\nlevel = "error"\n',
      adjust: (config) => {
        const server = Object.defineProperty({ ...config.server }, 'maxBodyBytes', {
          get: () => assert.fail('broken on purpose'),
        });
        return { ...config, server };
      },
    });
    await gateway.send('/nothing');
    await gateway.chat(chatBody());
    const { level, status, outcome, cause } = await lineOf(gateway);
    assert.deepEqual([level, status, outcome], ['error', 500, 'internal_error']);
    assert.match(String(cause), /broken on purpose/);
  });

  test('warns once of a base_url without /v1 or with two, and names the right one', async (t) => {
    const { gateway } = await scenario(t);
    const wrong = ['/chat/completions', '/v1/v1/chat/completions', '/v1//chat/completions'];
    for (const path of [...wrong, ...wrong, '/v2/chat/completions', '/chat/completions/']) {
      const reply = await gateway.send(path, { method: 'POST', body: '{}' });
      assert.equal(reply.status, 404, path);
    }
    assert.equal((await gateway.send('/v1/v1/models')).status, 404);
    const reasons = (await linesOf(gateway, 9)).map(({ reason }) => reason);
    const told = "Resource not found; set the client's base_url to this gateway's URL and /v1";
    const plain = 'Resource not found';
    assert.deepEqual(reasons, [...Array<string>(6).fill(told), plain, plain, told]);
    assert.deepEqual(
      gateway.lines().flatMap(({ level, message }) => (level === 'warn' ? message : [])),
      [...wrong, '/v1/v1/models'].map(
        (path) => `${path} is not served; set the client's base_url to this gateway's URL and /v1`,
      ),
    );
  });

  test('warns once of an endpoint that is not served, after the token was accepted', async (t) => {
    const { gateway } = await start(t, answerWell, '[logging]\nlevel = "warn"\n');
    const paths = ['/v1/responses', '/v1/embeddings', '/v1/completions', '/v1/other'];
    for (const path of paths) {
      const refused = await gateway.send(path, { headers: { authorization: undefined } });
      assert.equal(refused.status, 401);
    }
    assert.deepEqual(gateway.log, []);
    for (const path of [...paths, ...paths]) {
      assert.equal((await gateway.send(path, { method: 'POST', body: '{}' })).status, 404);
    }
    for (const path of ['/v1/models/p/a', '/v1/models/p/b', '/v1/models/']) {
      assert.equal((await gateway.send(path)).status, 404);
    }
    await eventually(() => gateway.log.length >= 4, 'the warnings');
    assert.deepEqual(
      gateway.lines().map(({ level, message }) => [level, message]),
      [...paths.slice(0, 3), '/v1/models/{id}'].map((path) => [
        'warn',
        `${path} is not served; [server] endpoints would serve it`,
      ]),
    );
  });

  test('stays JSON, whatever keys, quotes and backslashes it contains', async (t) => {
    const key = 'canary-that-ends-in-\\';
    const gateway = await startGateway(t, { toml: LOUD + (await providerWith(t, key)) });
    const shapes = [`${key}"`, 'key=x"', 'key=x\\"', 'key=x","z":"', 'sk-123456\\"'];
    for (const shape of shapes) {
      const headers = { 'user-agent': shape };
      await gateway.chat(chatBody({ model: `p/${shape}` }), { headers });
      await sendRaw(gateway.port, `GET /${shape} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n`);
    }
    const lines = await linesOf(gateway, 2 * shapes.length);
    for (const { outcome, model, path, user_agent } of lines) {
      const told = outcome === 'ok' ? [model, user_agent] : [path];
      for (const text of told) assert.match(String(text), /^(?:p?\/)?\[secret\][",:\\z]*$/);
    }
    assert.doesNotMatch(gateway.log.join(''), /canary/);
  });

  test('shows no content of messages, whatever is turned on', async (t) => {
    const words = { asked: 'the-question-asked', answered: 'the-answer-given' };
    // A provider's own error text is logged, because an operator needs it.
    const error = { error: { message: 'the-fault-told', code: 'x' } };
    const event = `data: ${JSON.stringify(error)}\n\n`;
    const { gateway, p } = await start(t, answerWell, LOUD, { server: 'retries = 1' });
    const scripts: Script[] = [
      (_, response) => sendJson(response, completion(words.answered)),
      (_, response) => sendEvents(response, completionEvents([words.answered, '!'])),
      (_, response) => sendEvents(response, CHUNK.replace('"a"', `"${words.answered}"`) + event),
      (_, response) => sendEvents(response, event),
      (_, response) => sendJson(response, error, { status: 400 }),
      (_, response) => response.end(`<p>${words.answered}`),
      (_, response) => response.end(`{"choices": ${words.answered}`),
    ];
    const messages = [
      { role: 'system', content: words.asked },
      { role: 'user', name: words.asked, content: [{ type: 'text', text: words.asked }] },
    ];
    for (p.script of scripts) {
      for (const isStream of [false, true])
        await gateway.chat({ model: 'p/m', stream: isStream, messages, user: words.asked });
    }
    await gateway.chat(`{"model": "p/m", "messages": ${words.asked}`);
    const log = (await linesOf(gateway, 2 * scripts.length + 1)) && gateway.log.join('');
    for (const word of Object.values(words)) assert.ok(!log.includes(word), log);
  });

  for (const key of ['quo"te-0123456789', 'back\\slash-0123456789', '$&-(x)+[y]*0123456789']) {
    test(`hides a key like ${key}`, async (t) => {
      const sections = [LOUD, await providerWith(t, key), `[server.auth]\nkeys = ['${key}']\n`];
      const gateway = await startGateway(t, { toml: sections.join('') });
      const headers = { authorization: `Bearer ${key}`, 'user-agent': `me ${key}` };
      const { status } = await gateway.chat(chatBody({ model: `p/${key}` }), { headers });
      assert.equal(status, 200);
      const line = await lineOf(gateway);
      for (const value of Object.values(line))
        assert.ok(!String(value).includes(key), String(value));
    });
  }
});

describe('a value from the client', { concurrency: true }, () => {
  const forged = '{"level":"info","message":"request","path":"/forged"}';
  const attacks = [
    `a\n${forged}`,
    `a\r\n${forged}`,
    // Terminal sequences.
    'a\u001b[2J\u001b]0;x\u0007',
    'a\u009b2J\u0085b',
    `a\u2028${forged}\u2029b`,
    'a\0b',
    'a\ud800b',
    'a"\\\u202eb\'',
    'm'.repeat(1e6),
  ];
  test('stays on one line of the log as the model, whatever it is', async (t) => {
    const { gateway } = await start(t, answerWell, LOUD);
    for (const text of attacks) {
      for (const model of [text, `p/${text}`, `${text}/m`]) {
        await gateway.chat(JSON.stringify(chatBody({ model })));
      }
    }
    await linesOf(gateway, 3 * attacks.length);
    assertHarmless(gateway);
  });

  test('stays on one line of the log as path, user agent and request id', async (t) => {
    const { gateway } = await start(t, answerWell, LOUD);
    // Raw bytes. The HTTP parser refuses some.
    const bytes = ['\u2028', '\u2029', '\u0085', '\u009b2J'].map((text) =>
      Buffer.from(`a${text}b`).toString('latin1'),
    );
    const others = ['a\x9b2Jb', 'a\x1b[2Jb', 'a\nb', 'a\rb', 'a\tb', 'a\0b', 'x'.repeat(9000)];
    const token = `host: x\r\nauthorization: Bearer x\r\nconnection: close\r\n`;
    for (const text of [...bytes, ...others]) {
      for (const request of [
        `GET /${text} HTTP/1.1\r\n${token}\r\n`,
        `GET /nothing HTTP/1.1\r\n${token}user-agent: ${text}\r\n\r\n`,
        `GET /nothing HTTP/1.1\r\n${token}x-request-id: ${text}\r\n\r\n`,
      ]) {
        const { status } = await sendRaw(gateway.port, request);
        assert.ok(status === 400 || status === 404, `${status}`);
      }
    }
    assertHarmless(gateway);
  });

  function assertHarmless({ log }: TestGateway): void {
    for (const line of log) {
      // oxlint-disable-next-line no-control-regex
      assert.match(line, /^\{[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*\}\n$/);
      assert.ok(line.length < 2000, `${line.length}`);
      const facts = JSON.parse(line) as LogLine;
      assert.notEqual(facts['path'], '/forged');
      for (const value of Object.values(facts)) {
        // oxlint-disable-next-line no-control-regex
        assert.doesNotMatch(String(value), /[\u0000-\u001f\u007f-\u009f\u2028\u2029]/);
      }
    }
  }
});
