/** `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's own protocol. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { providerToml, startGateway, triesOf, type TestGateway } from '../support/gateway.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
import { eventually, lineOf } from '../support/streams.ts';
import { failWith, sendEvents, sendJson, startUpstream, type Script } from '../support/upstream.ts';

const SERVER = 'endpoints = ["/v1/messages", "/v1/messages/count_tokens"]';
const BODY = {
  model: 'p/m',
  max_tokens: 64,
  messages: [{ role: 'user', content: 'hello' }],
} as const;
const CODE = { type: 'code_execution_20250825', name: 'code_execution' };
const STREAM = { ...BODY, stream: true } as const;
const USAGE = {
  input_tokens: 10,
  cache_creation_input_tokens: 3,
  cache_read_input_tokens: 5,
  output_tokens: 7,
};
const MESSAGE = {
  id: 'msg_1',
  type: 'message',
  role: 'assistant',
  model: 'claude-1',
  content: [{ type: 'text', text: 'hi' }],
  stop_reason: 'end_turn',
  stop_sequence: null,
  usage: USAGE,
};

const event = (type: string, more: object = {}) =>
  `event: ${type}\ndata: ${JSON.stringify({ type, ...more })}\n\n`;
const START = event('message_start', {
  message: {
    ...MESSAGE,
    content: [],
    // A member like those of errors.
    detail: 'high',
    stop_reason: null,
    usage: { ...USAGE, output_tokens: 1 },
  },
});
const PING = event('ping');
const BLOCK = event('content_block_start', { index: 0, content_block: { type: 'text', text: '' } });
const DELTA = event('content_block_delta', { index: 0, delta: { type: 'text_delta', text: 'hi' } });
const END =
  event('content_block_stop', { index: 0 }) +
  event('message_delta', {
    delta: { stop_reason: 'max_tokens', stop_sequence: null },
    usage: { output_tokens: 7 },
  });
const STOP = event('message_stop');
const WHOLE = START + PING + BLOCK + DELTA + END + STOP;
/** The stream of a message: each text comes in two events, a signature in its own. */
function eventsOf(content: readonly object[], stop_reason: string | null) {
  const blocks = content.map((block, index) => {
    const { text = '', thinking = '', signature } = block as Record<string, string>;
    const delta = (more: object) => event('content_block_delta', { index, delta: more });
    return [
      event('content_block_start', {
        index,
        content_block: { ...block, ...('text' in block && { text: '' }) },
      }),
      'text' in block ? delta({ type: 'text_delta', text }) : '',
      'thinking' in block ? delta({ type: 'thinking_delta', thinking }) : '',
      signature ? delta({ type: 'signature_delta', signature }) : '',
      event('content_block_stop', { index }),
    ].join('');
  });
  const end = event('message_delta', { delta: { stop_reason }, usage: { output_tokens: 1 } });
  return START + PING + blocks.join('') + end + STOP;
}
const OVERLOADED = event('error', { error: { type: 'overloaded_error', message: 'Overloaded' } });

const answer: Script = ({ url }, response) =>
  sendJson(response, url.endsWith('count_tokens') ? { input_tokens: 12 } : MESSAGE);
const stream =
  (events: string): Script =>
  (_, response) =>
    sendEvents(response, events);

interface Sent {
  readonly path?: string;
  readonly headers?: Record<string, string | undefined>;
}

function post(gateway: TestGateway, body: object = BODY, { path = '', headers = {} }: Sent = {}) {
  return gateway.send(`/v1/messages${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  });
}

/** Starts provider `p` with this script, and `q`, which answers well. */
async function start(
  t: TestContext,
  script: Script = answer,
  settings: ScenarioSettings<'p' | 'q'> = {},
) {
  const providers = { p: script, q: { script: answer, lines: 'default_model = "mq"' } };
  return scenario(t, { server: SERVER, providers, ...settings });
}

/** Checks Anthropic's error object, and returns its type and message. */
function errorIn(text: string, requestId: string | undefined) {
  const json = JSON.parse(text) as { error: { type: string; message: string } };
  const { type, message } = json.error;
  assert.deepEqual(json, { type: 'error', error: { type, message }, request_id: requestId });
  return [type, message];
}

/** Checks for `before` and then one `event: error`, and returns its type and message. */
function errorAfter(reply: { text: string; headers: object }, before: string) {
  assert.equal(reply.text.slice(0, before.length), before);
  const rest = reply.text.slice(before.length);
  const [, json = ''] = /^event: error\ndata: (\{.*\})\n\n$/.exec(rest) ?? assert.fail(rest);
  return errorIn(json, (reply.headers as Record<string, string>)['x-request-id']);
}

describe('a message', () => {
  test('is 404 in the documented shape unless a setting names the endpoint', async (t) => {
    const { gateway, asked } = await scenario(t, { providers: { p: answer } });
    const reply = await post(gateway);
    assert.deepEqual([reply.status, reply.json().error.code], [404, 'NOT_FOUND']);
    assert.deepEqual(asked(), [0]);
  });

  test('passes byte for byte but for the model, with the version and betas of Anthropic', async (t) => {
    const { gateway, p } = await start(t);
    const body = { ...BODY, thinking: { type: 'enabled', budget_tokens: 1024 }, tools: [] };
    const headers = {
      'anthropic-version': '2024-01-01',
      'anthropic-beta': 'a-1,b-2',
      'x-api-key': 'of the client',
      'x-stainless-os': 'Linux',
    };
    const reply = await post(gateway, body, { headers });
    assert.equal(reply.text, JSON.stringify(MESSAGE));
    const [request] = p.requests;
    assert.equal(request!.url, '/v1/messages');
    assert.equal(request!.body.toString(), JSON.stringify({ ...body, model: 'm' }));
    assert.equal(request!.headers['anthropic-version'], '2024-01-01');
    assert.equal(request!.headers['anthropic-beta'], 'a-1,b-2');
    assert.equal(request!.headers['x-api-key'], undefined);
    assert.equal(request!.headers['x-stainless-os'], undefined);
    assert.match(String(request!.headers.authorization), /^Bearer /);
    const line = await lineOf(gateway);
    assert.deepEqual(
      [line['outcome'], line['finish_reason'], line['prompt_tokens'], line['completion_tokens']],
      ['ok', 'end_turn', 18, 7],
    );
    assert.equal(line['cached_tokens'], 5);
  });

  test('has the version 2023-06-01 if the client sends none', async (t) => {
    const { gateway, p } = await start(t);
    await post(gateway);
    const { headers } = p.requests[0]!;
    assert.deepEqual(
      [headers['anthropic-version'], headers['anthropic-beta']],
      ['2023-06-01', undefined],
    );
  });

  test("has the version 2023-06-01 if the client's may not pass", async (t) => {
    const { gateway, p } = await start(t);
    const name = 'anthropic-version';
    const cases: readonly Record<string, string>[] = [
      { [name]: '' },
      { [name]: '2024-01-01\u00e9' },
      { [name]: '2024-01-01', connection: `close, ${name}` },
    ];
    for (const headers of cases) {
      await post(gateway, BODY, { headers });
      assert.equal(p.requests.at(-1)!.headers[name], '2023-06-01', JSON.stringify(headers));
    }
    assert.equal(p.requests.length, 3);
  });

  test('has the version of the settings if they name one', async (t) => {
    const lines = 'headers = { "Anthropic-Version" = "2025-01-01" }';
    const { gateway, p } = await scenario(t, {
      server: SERVER,
      providers: { p: { script: answer, lines } },
    });
    await post(gateway, BODY, { headers: { 'anthropic-version': '2024-01-01' } });
    assert.equal(p.requests[0]!.headers['anthropic-version'], '2025-01-01');
  });

  test("has the provider's key in x-api-key at anthropic and with key_header, there alone", async (t) => {
    const lines = 'key_header = "x-api-key"';
    const providers = { anthropic: answer, r: { script: answer, lines } };
    const { gateway, anthropic, r } = await scenario(t, { server: SERVER, providers });
    for (const [name, upstream] of Object.entries({ anthropic, r })) {
      await post(gateway, { ...BODY, model: `${name}/m` });
      await post(gateway, { ...BODY, model: `${name}/m` }, { path: '/count_tokens' });
      await gateway.chat(JSON.stringify({ ...BODY, model: `${name}/m` }));
      const [message, count, chat] = upstream.requests.slice(-3);
      for (const { headers } of [message!, count!]) {
        assert.equal(headers.authorization, undefined);
        assert.equal(typeof headers['x-api-key'], 'string');
        assert.equal(chat!.headers.authorization, `Bearer ${String(headers['x-api-key'])}`);
      }
      assert.equal(chat!.headers['x-api-key'], undefined);
    }
  });

  test('is no reason to leave the key in x-api-key out of a list of models', async (t) => {
    const lines = 'key_header = "x-api-key"';
    const list: Script = (_, response) => sendJson(response, { data: [{ id: 'm' }] });
    const { gateway, p } = await scenario(t, {
      server: SERVER,
      providers: { p: { script: list, lines } },
    });
    assert.equal((await gateway.send('/v1/models')).status, 200);
    const { headers } = p.requests[0]!;
    assert.equal(headers.authorization, `Bearer ${String(headers['x-api-key'])}`);
    assert.equal(headers['anthropic-version'], '2023-06-01');
  });

  test('is of the session of its key, also in x-api-key', async (t) => {
    const lines = 'api_keys = ["k1", "k2", "k3", "k4"]\nkey_affinity = true';
    const providers = { p: { script: answer, lines } };
    const { gateway, p } = await scenario(t, { server: SERVER, providers });
    for (const key of ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']) {
      const sent = [1, 2, 3].map(() => {
        const headers = { authorization: undefined, 'x-api-key': key };
        return post(gateway, BODY, { headers });
      });
      await Promise.all(sent);
      const keys = p.requests.slice(-3).map((request) => request.headers.authorization);
      assert.equal(new Set(keys).size, 1, `the key of ${key}`);
    }
    assert.ok(new Set(p.requests.map((request) => request.headers.authorization)).size > 1);
  });

  test('needs max_tokens, model and messages; a count needs no max_tokens', async (t) => {
    const { gateway, asked } = await start(t);
    const cases: readonly (readonly [object, string])[] = [
      [{ ...BODY, max_tokens: undefined }, '"max_tokens" must be a number'],
      [{ ...BODY, max_tokens: '64' }, '"max_tokens" must be a number'],
      [{ ...BODY, metadata: { max_tokens: 1 }, max_tokens: null }, '"max_tokens" must be a number'],
      [{ ...BODY, model: undefined }, '"model" must be a non-empty string'],
      [{ ...BODY, messages: [] }, '"messages" must be a non-empty array'],
    ];
    for (const [body, fault] of cases) {
      const reply = await post(gateway, body);
      assert.equal(reply.status, 400);
      assert.deepEqual(errorIn(reply.text, reply.headers['x-request-id'] as string), [
        'invalid_request_error',
        `Invalid request: ${fault}`,
      ]);
    }
    assert.deepEqual(asked(), [0, 0]);
    const { max_tokens: _, ...count } = BODY;
    const reply = await post(gateway, count, { path: '/count_tokens' });
    assert.equal(reply.text, '{"input_tokens":12}');
    assert.deepEqual(asked(), [1, 0]);
  });

  test("counts its tokens for the client's limit, cached ones too", async (t) => {
    const clients = { alice: 'key = "alice-key"\ntokens_per_minute = 20' };
    const { gateway } = await start(t, answer, { clients });
    const headers = { authorization: 'Bearer alice-key' };
    const statuses: number[] = [];
    // The first answer takes 25 tokens.
    for (let count = 0; count < 2; count += 1) {
      const reply = await post(gateway, BODY, { headers });
      statuses.push(reply.status);
      if (reply.status === 429) {
        const [type] = errorIn(reply.text, reply.headers['x-request-id'] as string);
        assert.equal(type, 'rate_limit_error');
      }
    }
    assert.deepEqual(statuses, [200, 429]);
  });

  test('without content fails if empty answers fail, streamed or not', async (t) => {
    const contents: readonly (readonly [readonly object[], string | null, number])[] = [
      [[], 'end_turn', 502],
      [[], 'stop_sequence', 502],
      [[], null, 502],
      [[{ type: 'text', text: '' }], 'end_turn', 502],
      [[{ type: 'thinking', thinking: '', signature: 'x' }], 'end_turn', 502],
      [[{ type: 'tool_use', id: 't', name: 'f', input: {} }], 'end_turn', 200],
      [[{ type: 'redacted_thinking', data: 'x' }], 'end_turn', 200],
      [[{ type: 'text', text: 'hi' }], 'end_turn', 200],
      // Nobody else is asked, because these are answers.
      ...['refusal', 'max_tokens', 'tool_use', 'pause_turn'].map(
        (reason) => [[], reason, 200] as const,
      ),
    ];
    for (const [server, expected] of [
      [`${SERVER}\nempty_answers = "fail"`, undefined],
      [SERVER, 200],
    ] as const) {
      const { gateway, p, q } = await start(t, answer, { server });
      for (const [content, stop_reason, status] of contents) {
        const name = JSON.stringify([content, stop_reason]);
        p.script = (_, response) => sendJson(response, { ...MESSAGE, content, stop_reason });
        assert.equal((await post(gateway)).status, expected ?? status, name);
        const events = eventsOf(content, stop_reason);
        p.script = stream(events);
        const reply = await post(gateway, STREAM);
        assert.equal(reply.status, expected ?? status, `${name} as a stream`);
        if (reply.status === 200) assert.equal(reply.text, events);
        else assert.match(reply.text, /the answer is empty/);
      }
      assert.equal(q.requests.length, 0);
    }
  });

  test('without content is a reason to fall back if empty answers fail', async (t) => {
    const server = `${SERVER}\nempty_answers = "fail"`;
    const empty = eventsOf([{ type: 'text', text: '' }], 'end_turn');
    const { gateway, q } = await start(t, stream(empty), { server, fallback: ['q'] });
    q.script = stream(WHOLE);
    assert.equal((await post(gateway, STREAM)).text, WHOLE);
  });
});

test('the session chooses the key of messages that execute code, and of no others', async (t) => {
  const keys = ['sk-key-canary-000001', 'sk-key-canary-000002', 'sk-key-canary-000003'];
  const upstream = await startUpstream(t, answer);
  const section = providerToml(upstream).replace(
    /api_key = .*/,
    `api_keys = ${JSON.stringify(keys)}`,
  );
  const gateway = await startGateway(t, { toml: `[server]\n${SERVER}\n${section}` });
  const { messages } = BODY;
  const code = [...messages, { role: 'assistant', content: 'b', type: CODE.type }];
  const cases: readonly (readonly [object, isBound: boolean])[] = [
    [{ tools: [{ name: 'f', input_schema: {} }, CODE] }, true],
    [{ tools: [CODE], messages }, true],
    [{ tools: [{ name: 'f', input_schema: { type: CODE.type } }] }, false],
    [{ tools: [], messages: code }, false],
    [{ messages: code, tools: [{ type: 'web_search_20250305', name: 'web_search' }] }, false],
    [{}, false],
  ];
  for (const [more, isBound] of cases) {
    for (const session of ['one', 'two', 'three']) {
      for (const container of [undefined, undefined, undefined, isBound ? 'c' : undefined]) {
        // The members of `more` come first.
        const body = { ...more, ...BODY, ...more, model: 'p/m', container };
        const reply = await post(gateway, body, { headers: { 'x-session-id': session } });
        assert.equal(reply.status, 200);
      }
      const used = upstream.requests.splice(0).map(({ headers }) => headers.authorization);
      assert.equal(new Set(used).size === 1, isBound, JSON.stringify([more, session]));
    }
  }
});

describe("a client's key", () => {
  const KEYS = `${SERVER}\n[server.auth]\nkeys = ["the-key"]`;
  /** Answers with the status, and the access line's reason. */
  async function sendTo(
    gateway: TestGateway,
    path: string,
    headers: Record<string, string | string[]>,
  ) {
    const before = gateway.accessLines().length;
    const { status, text } = await gateway.send(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: undefined, ...headers },
      body: JSON.stringify(BODY),
    });
    await eventually(() => gateway.accessLines().length > before, 'the line');
    return { status, text, reason: gateway.accessLines()[before]!['reason'] };
  }

  test('may be in x-api-key where there is no Authorization, at this endpoint alone', async (t) => {
    const { gateway } = await start(t, answer, { server: KEYS });
    const right = { 'x-api-key': 'the-key' };
    const wrong = { 'x-api-key': 'another' };
    const bearer = (key: string) => ({ authorization: `Bearer ${key}` });
    const path = '/v1/messages';
    assert.equal((await sendTo(gateway, path, right)).status, 200);
    assert.equal((await sendTo(gateway, `${path}/count_tokens`, right)).status, 200);
    assert.equal((await sendTo(gateway, path, bearer('the-key'))).status, 200);
    assert.equal((await sendTo(gateway, path, { ...right, ...bearer('another') })).status, 401);
    assert.equal((await sendTo(gateway, path, { ...wrong, ...bearer('the-key') })).status, 200);
    assert.equal((await sendTo(gateway, path, wrong)).status, 401);
    assert.equal((await sendTo(gateway, path, {})).status, 401);
    const elsewhere = await sendTo(gateway, '/v1/chat/completions', right);
    assert.equal(elsewhere.status, 401);
    assert.equal(elsewhere.reason, 'no token; x-api-key was sent, and no Authorization');
    const azure = await sendTo(gateway, '/v1/chat/completions', { 'api-key': 'the-key' });
    assert.match(String(azure.reason), /^no token; api-key was sent/);
    assert.equal((await sendTo(gateway, '/v1/chat/completions', {})).reason, 'no token');
    const both = await sendTo(gateway, '/v1/chat/completions', { ...right, ...bearer('another') });
    assert.equal(both.reason, 'unknown token');
  });

  test('is looked for by the log where no Authorization and no such header is read', async (t) => {
    const { gateway } = await start(t, answer, { server: KEYS });
    const hint = 'x-api-key was sent, and no Authorization';
    const chat = '/v1/chat/completions';
    const key = { 'x-api-key': 'the-key' };
    const cases: readonly (readonly [string, Record<string, string | string[]>, string])[] = [
      [chat, key, `no token; ${hint}`],
      [chat, { ...key, authorization: 'Basic eDp5' }, 'no token'],
      [chat, { ...key, authorization: '' }, 'no token'],
      ['/v1/messages', { 'x-api-key': ['the-key', 'the-key'] }, 'no token'],
      ['/v1/messages', { 'api-key': 'the-key' }, `no token; ${hint.slice('x-'.length)}`],
      ['/v1/messages', { 'api-key': 'the-key', 'x-api-key': 'another' }, 'unknown token'],
    ];
    for (const [path, headers, expected] of cases) {
      const { status, reason } = await sendTo(gateway, path, headers);
      assert.deepEqual([status, reason], [401, expected], JSON.stringify(headers));
    }
  });

  test('that is wrong is refused in the shape of Anthropic', async (t) => {
    const { gateway } = await start(t, answer, { server: KEYS });
    const { text } = await sendTo(gateway, '/v1/messages', { 'x-api-key': 'another' });
    const { error } = JSON.parse(text) as { error: object };
    assert.deepEqual(error, { type: 'authentication_error', message: 'Invalid authentication' });
  });
});

describe('a failure', () => {
  test('has the status of the gateway and the type of Anthropic', async (t) => {
    const cases: readonly (readonly [number, string])[] = [
      [400, 'invalid_request_error'],
      [401, 'authentication_error'],
      [402, 'billing_error'],
      [403, 'permission_error'],
      [404, 'not_found_error'],
      [413, 'request_too_large'],
      [422, 'invalid_request_error'],
      [429, 'rate_limit_error'],
      [500, 'api_error'],
      [503, 'overloaded_error'],
      [504, 'timeout_error'],
      [529, 'overloaded_error'],
    ];
    const { gateway, p } = await start(t);
    for (const [status, expected] of cases) {
      p.script = failWith(status, { message: 'no' });
      const reply = await post(gateway);
      assert.equal(reply.status, status);
      const [type, message] = errorIn(reply.text, reply.headers['x-request-id'] as string);
      assert.equal(type, expected);
      if (status === 401) assert.equal(message, 'Authentication failed');
    }
  });

  test('falls back, also after a 404 of a provider that lacks the path', async (t) => {
    for (const status of [404, 500, 529]) {
      const script = failWith(status, { message: 'Not Found' });
      const { gateway } = await start(t, script, { fallback: ['q'] });
      assert.equal((await post(gateway)).status, 200, String(status));
      assert.equal(triesOf(await lineOf(gateway)), `p:${status} q:200`);
    }
    const missing = failWith(404, { message: 'model: m', code: 'not_found_error' });
    const { gateway, asked } = await start(t, missing, { fallback: ['q'] });
    assert.equal((await post(gateway)).status, 404, 'the client has named the model');
    assert.deepEqual(asked(), [1, 0]);
  });

  test('of one endpoint leaves the circuits of all others closed', async (t) => {
    const script: Script = (request, response) =>
      request.url.endsWith('count_tokens')
        ? failWith(502)(request, response)
        : answer(request, response);
    const { gateway, asked } = await start(t, script, { fallback: ['q'] });
    const { max_tokens: _, ...count } = BODY;
    for (let time = 0; time < 4; time += 1) {
      await post(gateway, count, { path: '/count_tokens' });
    }
    assert.deepEqual(asked(), [3, 4], 'the circuit of count_tokens has opened');
    assert.equal((await post(gateway)).headers['x-gateway-provider'], 'p');
    for (let time = 0; time < 2; time += 1) {
      await post(gateway, count, { path: '/count_tokens' });
    }
    assert.deepEqual(asked(), [4, 6], 'a good message does not close it');
  });

  test('of a request with a container does not fall back', async (t) => {
    const { gateway, asked } = await start(t, failWith(503), { fallback: ['q'] });
    for (const container of ['container_1', { id: 'container_1' }]) {
      assert.equal((await post(gateway, { ...BODY, container })).status, 503);
    }
    assert.deepEqual(asked(), [2, 0]);
    assert.equal((await post(gateway, { ...BODY, container: null })).status, 200);
  });

  test('of a request that executes code falls back, because it has no container yet', async (t) => {
    const { gateway, asked } = await start(t, failWith(503), { fallback: ['q'] });
    assert.equal((await post(gateway, { ...BODY, tools: [CODE] })).status, 200);
    assert.deepEqual(asked(), [1, 1]);
  });

  test('of a provider in the words of Anthropic has its own account', async (t) => {
    const wrong = { type: 'invalid_request_error', message: 'max_tokens: too large' };
    const script: Script = (_, response) =>
      sendJson(response, { type: 'error', error: wrong }, { status: 400 });
    const { gateway, asked } = await start(t, script, { fallback: ['q'] });
    const reply = await post(gateway);
    const [, message] = errorIn(reply.text, reply.headers['x-request-id'] as string);
    assert.equal(message, 'API error: 400 - max_tokens: too large');
    assert.equal((await lineOf(gateway))['outcome'], 'rejected');
    assert.deepEqual(asked(), [1, 0]);
  });
});

describe('a stream of messages', () => {
  test('passes byte for byte, and its facts are logged', async (t) => {
    const lines = 'stream_usage = true';
    const { gateway, p } = await scenario(t, {
      server: SERVER,
      providers: { p: { script: stream(WHOLE), lines } },
    });
    assert.equal((await post(gateway, STREAM)).text, WHOLE);
    assert.doesNotMatch(p.requests[0]!.body.toString(), /stream_options/);
    const line = await lineOf(gateway);
    assert.deepEqual(
      [line['outcome'], line['finish_reason'], line['prompt_tokens'], line['completion_tokens']],
      ['ok', 'max_tokens', 18, 7],
    );
  });

  test('has the last positive count of each kind of token', async (t) => {
    const usages: readonly (readonly [object | null, readonly unknown[]])[] = [
      [null, [18, 1, 5]],
      [{ input_tokens: 0, cache_read_input_tokens: null, output_tokens: 7 }, [18, 7, 5]],
      [{ cache_creation_input_tokens: -3, output_tokens: 1.5 }, [18, 1, 5]],
      [{ input_tokens: '11', cache_read_input_tokens: [1], output_tokens: 0 }, [18, 1, 5]],
      [{ ...USAGE, input_tokens: 11, cache_read_input_tokens: 6 }, [20, 7, 6]],
    ];
    for (const [usage, expected] of usages) {
      const events = START + BLOCK + DELTA + event('message_delta', { delta: {}, usage }) + STOP;
      const { gateway } = await start(t, stream(events));
      assert.equal((await post(gateway, STREAM)).text, events);
      const line = await lineOf(gateway);
      const names = ['prompt_tokens', 'completion_tokens', 'cached_tokens'];
      assert.deepEqual(
        names.map((name) => line[name]),
        expected,
      );
    }
  });

  test('falls back before its first block, and never behind it', async (t) => {
    for (const events of ['', OVERLOADED, START, START + PING, START + PING + OVERLOADED]) {
      const { gateway, q } = await start(t, stream(events), { fallback: ['q'] });
      q.script = stream(WHOLE);
      assert.equal((await post(gateway, STREAM)).text, WHOLE, events);
    }
    for (const events of [START + BLOCK, START + PING + BLOCK + DELTA]) {
      const { gateway, asked } = await start(t, stream(events), { fallback: ['q'] });
      const [type, message] = errorAfter(await post(gateway, STREAM), events);
      assert.deepEqual(
        [type, message],
        ['api_error', 'Provider error: the stream ended before the answer was finished'],
      );
      assert.deepEqual(asked(), [1, 0]);
    }
  });

  test('is whole with message_stop alone', async (t) => {
    for (const events of [START + BLOCK + DELTA + END, `${START}${BLOCK}${END}data: [DONE]\n\n`]) {
      const { gateway } = await start(t, stream(events));
      const before = events.replace('data: [DONE]\n\n', '');
      errorAfter(await post(gateway, STREAM), before);
      assert.equal((await lineOf(gateway))['outcome'], 'upstream_error');
    }
    const { gateway } = await start(t, stream(WHOLE + DELTA));
    assert.equal((await post(gateway, STREAM)).text, WHOLE, 'nothing passes behind the end');
  });

  test('that fails ends with one event in the shape of Anthropic', async (t) => {
    const { gateway } = await start(t, stream(START + BLOCK + DELTA + OVERLOADED));
    const reply = await post(gateway, STREAM);
    assert.deepEqual(errorAfter(reply, START + BLOCK + DELTA), [
      'overloaded_error',
      'API error: 503 - Overloaded',
    ]);
  });
});
