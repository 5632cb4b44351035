/** `[server] endpoints`: embeddings, completions and responses. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { idle, useManualTimers } from '../support/clock.ts';
import { assertErrorObject } from '../support/documented.ts';
import { parseMetrics } from '../support/exposition.ts';
import {
  chatBody,
  providerToml,
  startGateway,
  triesOf,
  type TestGateway,
} from '../support/gateway.ts';
import { openRaw, parseReplies, sendRaw } from '../support/raw.ts';
import { modelOf, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { type DocumentedError, errorAfter, eventually, lineOf } from '../support/streams.ts';
import {
  beginStream,
  failWith,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

const ALL = 'endpoints = ["/v1/embeddings", "/v1/completions", "/v1/responses"]';

/** The smallest valid body of each endpoint. */
const BODIES = {
  embeddings: { model: 'p/m', input: 'hello' },
  completions: { model: 'p/m', prompt: 'hello' },
  responses: { model: 'p/m', input: 'hello' },
} as const;
type Name = keyof typeof BODIES;
const NAMES = Object.keys(BODIES) as Name[];

const EMBEDDINGS = {
  object: 'list',
  data: [{ object: 'embedding', index: 0, embedding: [0.25, -1e-7] }],
  model: 'm-1',
  usage: { prompt_tokens: 3, total_tokens: 3 },
};
const COMPLETION = {
  id: 'cmpl-1',
  object: 'text_completion',
  created: 1,
  model: 'm-1',
  choices: [{ text: 'hi', index: 0, logprobs: null, finish_reason: 'length' }],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
};
const USAGE = {
  input_tokens: 3,
  input_tokens_details: { cached_tokens: 1 },
  output_tokens: 4,
  output_tokens_details: { reasoning_tokens: 2 },
  total_tokens: 7,
};
const RESPONSE = {
  id: 'resp_1',
  object: 'response',
  created_at: 1,
  status: 'completed',
  error: null,
  incomplete_details: null,
  model: 'm-1',
  output: [
    {
      type: 'message',
      id: 'msg_1',
      status: 'completed',
      role: 'assistant',
      content: [{ type: 'output_text', text: 'Hel', annotations: [] }],
    },
  ],
  usage: USAGE,
};
const ANSWERS = { embeddings: EMBEDDINGS, completions: COMPLETION, responses: RESPONSE };

/** Answers each endpoint with its complete answer. */
const answerAll: Script = ({ url }, response) => sendJson(response, ANSWERS[nameOf(url)]);
const nameOf = (url: string) => url.slice(url.lastIndexOf('/') + 1) as Name;

function post(gateway: TestGateway, name: Name, body: object | string = BODIES[name]) {
  return gateway.send(`/v1/${name}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
}

/** Starts provider `p` with this script, and `q`, which answers well. */
async function start(
  t: TestContext,
  script: Script = answerAll,
  settings: ScenarioSettings<'p' | 'q'> = {},
) {
  const providers = { p: script, q: { script: answerAll, lines: 'default_model = "mq"' } };
  return scenario(t, { server: ALL, providers, ...settings });
}

const chunk = (text: string, finish_reason: string | null = null) =>
  `data: ${JSON.stringify({ id: 'cmpl-1', choices: [{ text, index: 0, finish_reason }] })}\n\n`;

/** An event of a response stream. */
function event(type: string, more: object = {}): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, sequence_number: 1, ...more })}\n\n`;
}

const CREATED =
  event('response.queued', { response: { ...RESPONSE, status: 'queued', usage: null } }) +
  event('response.created', { response: { ...RESPONSE, status: 'in_progress', usage: null } }) +
  event('response.in_progress', { response: { ...RESPONSE, status: 'in_progress', usage: null } });
const EMPTY =
  event('response.output_item.added', {
    output_index: 0,
    item: { id: 'rs_1', type: 'reasoning', summary: [], encrypted_content: 'abc' },
  }) +
  event('response.output_item.added', {
    output_index: 1,
    item: { id: 'msg_1', type: 'message', status: 'in_progress', content: [], role: 'assistant' },
  }) +
  event('response.content_part.added', {
    part: { type: 'output_text', text: '', annotations: [], logprobs: [] },
  });
const DELTA = event('response.output_text.delta', { item_id: 'msg_1', delta: 'Hel' });
const COMPLETED = event('response.completed', { response: RESPONSE });
const failed = (error: object) =>
  event('response.failed', { response: { ...RESPONSE, status: 'failed', error } });
const STREAM = { ...BODIES.responses, stream: true };

/** Checks for `before` and then OpenAI's event `error`. Returns the error in it. */
function typedErrorAfter(stream: string, before: string) {
  assert.equal(stream.slice(0, before.length), before);
  const rest = stream.slice(before.length);
  const [, json = ''] =
    /^event: error\ndata: (\{.*\})\n\n$/.exec(rest) ?? assert.fail(`no event error: ${rest}`);
  const { error, ...flat } = JSON.parse(json) as { error: DocumentedError };
  const { code, message } = error;
  assert.deepEqual(flat, { type: 'error', sequence_number: 0, code, message, param: null });
  return error;
}

describe('an endpoint', () => {
  test('that no setting names is 404, and asks no provider', async (t) => {
    const { gateway, asked } = await scenario(t, { providers: { p: answerAll } });
    for (const name of NAMES) {
      const reply = await post(gateway, name);
      assert.equal(reply.status, 404);
      assert.equal(reply.json().error.message, 'Resource not found');
    }
    assert.deepEqual(asked(), [0]);
  });

  test('is added and removed by a reload, while a request in flight goes on', async (t) => {
    const { gateway, p, toml } = await scenario(t, { providers: { p: answerAll } });
    await gateway.reload(toml.replace('[server]\n', `[server]\n${ALL}\n`));
    let answer = () => {};
    p.script = (request, response) => {
      answer = () => void answerAll(request, response);
    };
    const inFlight = post(gateway, 'embeddings');
    await eventually(() => p.requests.length === 1, 'the request');
    await gateway.reload(toml);
    assert.equal((await post(gateway, 'embeddings')).status, 404);
    answer();
    assert.equal((await inFlight).status, 200);
  });

  test('asked for a WebSocket is 426 if it is served, and the connection closes', async (t) => {
    const { gateway, asked } = await start(t);
    const head = 'Host: x\r\nAuthorization: Bearer t\r\n';
    const get = (target: string, connection: string, upgrade = 'WebSocket') =>
      `GET ${target}\r\n${head}Connection: ${connection}, Upgrade\r\nUpgrade: ${upgrade}\r\n\r\n`;
    const { closed, socket, text } = openRaw(t, gateway.port);
    socket.write(get('/v1/responses HTTP/1.1', 'keep-alive'));
    await closed;
    const [refusal] = parseReplies(text());
    assert.equal(refusal!.status, 426);
    const { upgrade, connection, allow } = refusal!.headers;
    assert.deepEqual([upgrade, connection, allow], ['HTTP/1.1', 'upgrade, close', 'POST']);
    assertErrorObject(refusal!.body, 426);
    const { gateway: other } = await scenario(t);
    const last = get('/v1/responses HTTP/1.1', 'close');
    for (const [port, request, status] of [
      [gateway.port, last, 426],
      [gateway.port, get('/v1/embeddings HTTP/1.1', 'close'), 426],
      [gateway.port, get('/v1/responses HTTP/1.1', 'close', 'h2c'), 404],
      [gateway.port, get('/v1/responses/id HTTP/1.1', 'close'), 404],
      [gateway.port, get('/v1/chat/completions HTTP/1.1', 'close'), 404],
      [gateway.port, get('/v1/responses HTTP/1.0', 'close'), 404],
      [gateway.port, last.replace('GET', 'PUT'), 404],
      [gateway.port, last.replace('Authorization', 'X'), 401],
      [other.port, last, 404],
    ] as const) {
      const reply = await sendRaw(port, request);
      assert.deepEqual([reply.status, reply.isClosed], [status, true], request);
    }
    assert.deepEqual(asked(), [0, 0]);
  });

  for (const name of NAMES) {
    test(`/v1/${name} passes the bytes of both sides, but for "model"`, async (t) => {
      const { gateway, p } = await start(t);
      const rest = String.raw`"x":12345678901234567890,"x":1.0,"user":"é\u0041"}`;
      const body = (model: string) =>
        `{ ${JSON.stringify({ ...BODIES[name], model }).slice(1, -1)},${rest}`;
      const answer = JSON.stringify(ANSWERS[name]);
      const { status, text, headers } = await post(gateway, name, body('p/org/m'));
      assert.deepEqual([status, text, headers['x-gateway-provider']], [200, answer, 'p']);
      const [{ url, body: sent } = assert.fail('nothing sent')] = p.requests;
      assert.deepEqual([url, sent.toString()], [`/v1/${name}`, body('org/m')]);
    });

    test(`/v1/${name} needs a key, POST, and its own members`, async (t) => {
      const { gateway, asked } = await start(t);
      const [member] = Object.keys(BODIES[name]).filter((key) => key !== 'model');
      const path = `/v1/${name}`;
      const open = await gateway.send(path, { method: 'POST', headers: { authorization: '' } });
      assert.equal(open.status, 401);
      const { status, headers } = await gateway.send(path);
      assert.deepEqual([status, headers.allow], [404, 'POST']);
      assert.doesNotMatch(gateway.log.join(''), /is not served/);
      assert.equal((await gateway.send(`${path}/id`)).status, 404);
      const refusals = [
        [{ model: 'p/m', messages: [{ role: 'user', content: 'a' }] }, 'must be a string or'],
        [{ model: 'p/m', [member!]: null }, 'must be a string or'],
        [{ model: 'p/m', [member!]: 1 }, 'must be a string or'],
        [{ [member!]: 'hello' }, '"model" must be'],
      ] as const;
      for (const [body, message] of refusals) {
        const reply = await post(gateway, name, body);
        assert.equal(reply.status, 400);
        assert.match(reply.json().error.message, new RegExp(`^Invalid request: .*${message}`));
      }
      assert.deepEqual(asked(), [0, 0]);
      assert.equal((await post(gateway, name, { model: 'p/m', [member!]: ['a'] })).status, 200);
    });

    test(`/v1/${name} is retried, falls back, and tells of the first failure`, async (t) => {
      // Embeddings have no other fallbacks than the targets of an alias.
      const more = '[aliases]\nboth = ["p/m", "q/mq"]\n';
      const isOfEmbeddings = name === 'embeddings';
      const fallback = isOfEmbeddings ? [] : ['q'];
      const { gateway, q } = await start(t, failWith(503), { fallback, more });
      const body = { ...BODIES[name], model: isOfEmbeddings ? 'both' : 'p/m' };
      const { status, text, headers } = await post(gateway, name, body);
      assert.deepEqual([status, headers['x-gateway-provider']], [200, 'q']);
      assert.equal(text, JSON.stringify(ANSWERS[name]));
      assert.equal(modelOf(q.requests[0]!), 'mq');
      q.script = failWith(400);
      const refused = await post(gateway, name, body);
      assert.equal(refused.status, 503);
      assert.equal(refused.json().error.code, 'API_ERROR');
    });

    test(`/v1/${name} is not empty without choices, whatever empty_answers says`, async (t) => {
      const { gateway } = await start(t, answerAll, { server: `${ALL}\nempty_answers = "fail"` });
      assert.equal((await post(gateway, name)).status, 200);
    });
  }

  test('/v1/responses without content is empty, and with empty_answers = "fail" a 502', async (t) => {
    const empty = { ...RESPONSE, output: [] };
    const last = event('response.completed', { response: empty });
    const { gateway, p } = await start(t, (_, response) => sendJson(response, empty), {
      server: `${ALL}\nempty_answers = "fail"`,
    });
    const { status, text } = await post(gateway, 'responses');
    assert.deepEqual([status, /the answer is empty/.test(text)], [502, true]);
    p.script = (_, response) => sendEvents(response, CREATED + EMPTY + last);
    assert.equal((await post(gateway, 'responses', STREAM)).status, 502);
    p.script = (_, response) => sendEvents(response, CREATED + DELTA + last);
    assert.equal((await post(gateway, 'responses', STREAM)).status, 200);
  });

  test('/v1/embeddings never falls back to another model by itself', async (t) => {
    const { gateway, asked } = await start(t, failWith(503), { fallback: ['q'] });
    assert.equal((await post(gateway, 'embeddings')).status, 503);
    assert.deepEqual(asked(), [1, 0]);
    assert.equal((await post(gateway, 'completions')).status, 200);
  });

  test('counts the tokens of its answers for the limits, the log and the metrics', async (t) => {
    const more = '[admin]\nport = 0';
    const clients = { a: 'key = "client-token-canary-9876543210"\ntokens_per_minute = 10' };
    const { gateway } = await start(t, answerAll, { clients, more });
    for (const name of NAMES) assert.equal((await post(gateway, name)).status, 200);
    const refused = await post(gateway, 'embeddings');
    assert.equal(refused.status, 429);
    await eventually(() => gateway.accessLines().length === 4, 'the lines');
    const counts = gateway
      .accessLines()
      .slice(0, 3)
      .map((line) => [
        line['path'],
        line['prompt_tokens'],
        line['completion_tokens'],
        line['cached_tokens'],
        line['reasoning_tokens'],
        line['finish_reason'],
      ]);
    const none = undefined;
    assert.deepEqual(counts, [
      ['/v1/embeddings', 3, none, none, none, 'none'],
      ['/v1/completions', 3, 2, none, none, 'length'],
      ['/v1/responses', 3, 4, 1, 2, 'completed'],
    ]);
    const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
    const metric = 'gen_ai_client_token_usage_sum';
    for (const [operation, tokens] of [
      ['embeddings', 3],
      ['text_completion', 5],
      ['responses', 10],
      ['chat', 0],
    ] as const) {
      assert.equal(sum(metric, { gen_ai_operation_name: operation }), tokens, operation);
    }
  });

  test('/v1/embeddings passes an answer of more than 256 KiB, with its usage', async (t) => {
    const data = [{ embedding: Array.from({ length: 60_000 }, (_, at) => at / 7) }];
    const answer = { ...EMBEDDINGS, data };
    const { gateway } = await start(t, (_, response) => sendJson(response, answer));
    const { status, text } = await post(gateway, 'embeddings', {
      ...BODIES.embeddings,
      // No provider streams embeddings.
      stream: true,
    });
    assert.equal(status, 200);
    assert.equal(text, JSON.stringify(answer));
    const { prompt_tokens, stream } = await lineOf(gateway);
    assert.deepEqual([prompt_tokens, stream], [3, false]);
  });
});

describe('a stream of /v1/completions', () => {
  const body = { ...BODIES.completions, stream: true };

  test('passes, and gets [DONE] if it lacks it', async (t) => {
    const events = chunk('Hel') + chunk('lo') + chunk('', 'stop');
    const { gateway, p } = await start(t, (_, response) => sendEvents(response, events));
    assert.equal((await post(gateway, 'completions', body)).text, `${events}data: [DONE]\n\n`);
    const whole = `${events}data: [DONE]\n\n`;
    p.script = (_, response) => sendEvents(response, whole);
    assert.equal((await post(gateway, 'completions', body)).text, whole);
  });

  test('that is cut or fails ends with the documented error', async (t) => {
    const { gateway, p } = await start(t, (_, response) => sendEvents(response, chunk('Hel')));
    const cut = errorAfter((await post(gateway, 'completions', body)).text, chunk('Hel'));
    assert.equal(cut.code, 'PROVIDER_ERROR');
    const error = `data: ${JSON.stringify({ error: { message: 'out of memory', code: 500 } })}\n\n`;
    p.script = (_, response) => sendEvents(response, chunk('Hel') + error);
    const broken = errorAfter((await post(gateway, 'completions', body)).text, chunk('Hel'));
    assert.equal(broken.message, 'API error: 500 - out of memory');
  });
});

test('text behind a finish_reason opens the answer of /v1/completions again', async (t) => {
  const events = chunk('Hel', 'stop') + chunk('lo', 'stop');
  const { gateway, p } = await start(t, (_, response) => sendEvents(response, events));
  const body = { ...BODIES.completions, stream: true };
  const { message } = errorAfter((await post(gateway, 'completions', body)).text, events);
  assert.equal(message, 'Provider error: the stream ended before the answer was finished');
  const whole = `${events}${chunk('', 'stop')}`;
  p.script = (_, response) => sendEvents(response, whole);
  assert.equal((await post(gateway, 'completions', body)).text, `${whole}data: [DONE]\n\n`);
});

const HEARTBEATS = {
  keepalive: event('keepalive'),
  ping: 'event: ping\ndata: {"type":"ping"}\n\n',
  'response.keep_alive': event('response.keep_alive'),
  'an event without data': 'event: ping\n\n',
  'an event that is not JSON': 'data: hm\n\n',
};

describe('a stream of /v1/responses', () => {
  /** Starts a provider that sends these events and ends. */
  const startWith = (t: TestContext, events: string, settings?: ScenarioSettings<'p' | 'q'>) =>
    start(t, (_, response) => sendEvents(response, events), settings);

  for (const ending of ['completed', 'incomplete']) {
    test(`passes byte for byte up to response.${ending}, and nothing is added`, async (t) => {
      const response = { ...RESPONSE, status: ending };
      const last = event(`response.${ending}`, { response });
      const events = CREATED + EMPTY + DELTA + last;
      const { gateway, p } = await startWith(t, events);
      const { status, text, headers } = await post(gateway, 'responses', STREAM);
      assert.equal(status, 200);
      assert.equal(headers['content-type'], 'text/event-stream');
      assert.equal(text, events);
      const line = await lineOf(gateway);
      const { outcome, finish_reason, prompt_tokens, completion_tokens } = line;
      assert.deepEqual(
        [outcome, finish_reason, prompt_tokens, completion_tokens],
        ['ok', ending, 3, 4],
      );
      assert.equal(modelOf(p.requests[0]!), 'm');
    });
  }

  test('passes nothing behind its last event, and adds its blank line', async (t) => {
    const { gateway, p } = await startWith(t, `${DELTA}${COMPLETED}data: [DONE]\n\n`);
    assert.equal((await post(gateway, 'responses', STREAM)).text, DELTA + COMPLETED);
    p.script = (_, response) => sendEvents(response, (DELTA + COMPLETED).trimEnd());
    assert.equal((await post(gateway, 'responses', STREAM)).text, DELTA + COMPLETED);
    const crlf = (DELTA + COMPLETED).replaceAll('\n', '\r\n');
    p.script = (_, response) => sendEvents(response, crlf);
    assert.equal((await post(gateway, 'responses', STREAM)).text, crlf);
    // The last line feed comes in another packet.
    p.script = (request, response) => {
      beginStream(crlf.slice(0, -1))(request, response);
      setTimeout(() => response.end('\n'), 30);
    };
    assert.equal((await post(gateway, 'responses', STREAM)).text, crlf);
  });

  test('may have events without a name', async (t) => {
    const events = (CREATED + DELTA + COMPLETED).replaceAll(/^event: .*\n/gm, '');
    const { gateway } = await startWith(t, events);
    assert.equal((await post(gateway, 'responses', STREAM)).text, events);
  });

  test('is one of few events: only the last event ends it', async (t) => {
    const { gateway } = await startWith(t, COMPLETED);
    assert.equal((await post(gateway, 'responses', STREAM)).text, COMPLETED);
  });

  test('that is cut, or ends with [DONE] alone, ends with the event error', async (t) => {
    const { gateway, p } = await startWith(t, CREATED + DELTA);
    const before = CREATED + DELTA;
    const cut = typedErrorAfter((await post(gateway, 'responses', STREAM)).text, before);
    assert.equal(cut.code, 'PROVIDER_ERROR');
    p.script = (_, response) => sendEvents(response, `${before}data: [DONE]\n\n`);
    const marked = typedErrorAfter((await post(gateway, 'responses', STREAM)).text, before);
    assert.equal(marked.message, 'Provider error: the stream was cut off');
    p.script = (request, response) => {
      beginStream(before)(request, response);
      setTimeout(() => response.destroy(), 20);
    };
    const reset = typedErrorAfter((await post(gateway, 'responses', STREAM)).text, before);
    assert.equal(reset.type, 'provider_error');
  });

  test('that fails with the event error ends with the documented error in it', async (t) => {
    const flat = { code: 'server_error', message: 'out of memory', param: null };
    const { gateway, p } = await startWith(t, DELTA + event('error', flat));
    const first = typedErrorAfter((await post(gateway, 'responses', STREAM)).text, DELTA);
    assert.equal(first.message, 'API error: 502 - out of memory (server_error)');
    p.script = (_, response) => sendEvents(response, DELTA + event('error', { error: flat }));
    const nested = typedErrorAfter((await post(gateway, 'responses', STREAM)).text, DELTA);
    assert.deepEqual(nested, first);
  });

  test('that ends with response.failed passes it, and is logged as a failure', async (t) => {
    const last = failed({ code: 'rate_limit_exceeded', message: 'too fast' });
    const { gateway } = await startWith(t, CREATED + DELTA + last);
    assert.equal((await post(gateway, 'responses', STREAM)).text, CREATED + DELTA + last);
    const { outcome, status, cause, tries } = await lineOf(gateway);
    const [one] = tries as { cause: string }[];
    assert.deepEqual([outcome, status, cause], ['rate_limited', 200, undefined]);
    assert.equal(one!.cause, 'too fast (rate_limit_exceeded)');
  });

  for (const [what, end] of [
    ['response.failed', failed({ code: 'server_error', message: 'no' })],
    ['the event error', event('error', { code: 'server_error', message: 'no' })],
    ['a cut', ''],
  ]) {
    test(`falls back on ${what} before its first token`, async (t) => {
      const { gateway, q } = await startWith(t, CREATED + EMPTY + end, { fallback: ['q'] });
      q.script = (_, response) => sendEvents(response, DELTA + COMPLETED);
      const reply = await post(gateway, 'responses', STREAM);
      assert.equal(reply.text, DELTA + COMPLETED);
      assert.equal(triesOf(await lineOf(gateway)), 'p:200 q:200');
      q.script = failWith(500);
      const failure = await post(gateway, 'responses', STREAM);
      assert.equal(failure.status, 502);
      assert.equal(failure.json().error.provider, 'p');
    });
  }

  for (const [what, first] of [
    ['a delta', DELTA],
    [
      'a tool call',
      event('response.output_item.added', {
        item: { id: 'fc_1', type: 'function_call', name: 'f', call_id: 'c', arguments: '' },
      }),
    ],
    ['an event of a type to come', event('response.new.delta', { delta: 'x' })],
  ]) {
    test(`begins with ${what}, and does not fall back afterwards`, async (t) => {
      const { gateway, asked } = await startWith(t, CREATED + first, { fallback: ['q'] });
      const { text } = await post(gateway, 'responses', STREAM);
      typedErrorAfter(text, CREATED + first);
      assert.deepEqual(asked(), [1, 0]);
    });
  }

  for (const [what, heartbeat] of Object.entries(HEARTBEATS)) {
    test(`falls back after ${what} alone, and passes it later`, async (t) => {
      const before = CREATED + heartbeat;
      const { gateway, q } = await startWith(t, before, { fallback: ['q'] });
      const events = before + DELTA + heartbeat + COMPLETED;
      q.script = (_, response) => sendEvents(response, events);
      assert.equal((await post(gateway, 'responses', STREAM)).text, events);
    });

    test(`is silent if only ${what} comes, in one packet or in two`, async (t) => {
      const timers = useManualTimers(t);
      const steps: ((text: string) => void)[] = [];
      const { gateway } = await start(
        t,
        (request, response) => {
          beginStream(DELTA)(request, response);
          steps.push((text) => response.write(text));
        },
        { server: `${ALL}\nstream_idle_timeout = 2` },
      );
      const asked = post(gateway, 'responses', STREAM);
      await eventually(() => timers.started(2000) > 0, 'the idle limit');
      const before = timers.started(2000);
      for (const text of [heartbeat, heartbeat.slice(0, 9), heartbeat.slice(9)]) {
        steps[0]!(text);
        await idle(20);
      }
      assert.equal(timers.started(2000), before);
      timers.advance(2000);
      const { code } = typedErrorAfter((await asked).text, DELTA + heartbeat + heartbeat);
      assert.equal(code, 'TIMEOUT');
    });
  }

  test('begins with its preambles if they exceed 1 MiB', async (t) => {
    const instructions = 'x'.repeat(400_000);
    const response = { ...RESPONSE, instructions };
    const preambles = ['queued', 'created', 'in_progress'];
    const events = preambles.map((type) => event(`response.${type}`, { response })).join('');
    const { gateway } = await startWith(t, events);
    const { status, text } = await post(gateway, 'responses', STREAM);
    assert.equal(status, 200);
    assert.equal(typedErrorAfter(text, events).code, 'PROVIDER_ERROR');
  });

  test('falls back after a long response.created, and on a long response.failed', async (t) => {
    const response = { ...RESPONSE, instructions: 'x'.repeat(300_000) };
    const created = event('response.created', { response });
    const error = { code: 'rate_limit_exceeded', message: 'too fast' };
    const last = event('response.failed', { response: { ...response, error } });
    const { gateway, p, q } = await startWith(t, created, { fallback: ['q'] });
    q.script = (_, upstream) => sendEvents(upstream, DELTA + COMPLETED);
    assert.equal((await post(gateway, 'responses', STREAM)).text, DELTA + COMPLETED);
    p.script = (_, upstream) => sendEvents(upstream, created + last);
    q.script = failWith(500);
    const { status, text } = await post(gateway, 'responses', STREAM);
    assert.deepEqual([status, /too fast/.test(text)], [429, true]);
  });

  test('may have events of more than 256 KiB, also as its last', async (t) => {
    const instructions = 'x'.repeat(300_000);
    const response = { ...RESPONSE, tools: [{ usage: { input_tokens: 99 } }], instructions };
    const created = event('response.created', { response });
    const completed = event('response.completed', { response });
    const { gateway, p } = await startWith(t, created + DELTA + completed);
    const { text } = await post(gateway, 'responses', STREAM);
    assert.equal(text, created + DELTA + completed);
    const { outcome, completion_tokens } = await lineOf(gateway);
    assert.deepEqual([outcome, completion_tokens], ['ok', 4]);
    const error = { code: 'server_error', message: 'no' };
    const last = event('response.failed', { response: { ...response, error } });
    p.script = (_, upstream) => sendEvents(upstream, DELTA + last);
    assert.equal((await post(gateway, 'responses', STREAM)).text, DELTA + last);
    await eventually(() => gateway.accessLines().length === 2, 'the line');
    assert.equal(gateway.accessLines()[1]!['outcome'], 'upstream_error');
  });

  // OpenAI's codes of `response.failed`, all but four of which blame the request.
  const CODES =
    'invalid_prompt bio_policy cyber_policy image_content_policy_violation invalid_image ' +
    'invalid_image_format invalid_base64_image invalid_image_url image_too_large ' +
    'image_too_small image_parse_error invalid_image_mode image_file_too_large ' +
    'unsupported_image_media_type empty_image_file failed_to_download_image ' +
    'image_file_not_found';
  for (const kind of ['event', 'complete answer']) {
    test(`whose ${kind} blames the request is a 400, and nobody else is asked`, async (t) => {
      const settings = { server: `${ALL}\nretries = 2`, fallback: ['q'] as const };
      for (const code of CODES.split(' ')) {
        const answer = { ...RESPONSE, status: 'failed', error: { code, message: 'no' } };
        const isStream = kind === 'event';
        const { gateway, asked } = await start(
          t,
          (_, response) =>
            isStream
              ? sendEvents(response, CREATED + event('response.failed', { response: answer }))
              : sendJson(response, answer),
          settings,
        );
        const body = isStream ? STREAM : BODIES.responses;
        const reply = await post(gateway, 'responses', body);
        assert.equal(reply.status, 400, code);
        assert.equal((await lineOf(gateway))['outcome'], 'rejected', code);
        assert.deepEqual(asked(), [1, 0], code);
      }
    });
  }

  test('is answered with 501 if the provider sends a complete response', async (t) => {
    const { gateway } = await start(t);
    const reply = await post(gateway, 'responses', STREAM);
    assert.deepEqual([reply.status, reply.json().error.code], [501, 'UNSUPPORTED_FEATURE']);
  });

  test('is never asked for usage in the way of chat', async (t) => {
    const providers = {
      p: {
        script: ((_, response) => sendEvents(response, DELTA + COMPLETED)) as Script,
        lines: 'stream_usage = true',
      },
    };
    const { gateway, p } = await scenario(t, { server: ALL, providers });
    assert.equal((await post(gateway, 'responses', STREAM)).text, DELTA + COMPLETED);
    assert.doesNotMatch(p.requests[0]!.body.toString(), /stream_options/);
  });
});

test('an item or a conversation that the provider lacks is the fault of the request', async (t) => {
  const errors: readonly (readonly [status: number, message: string])[] = [
    [404, "Item with id 'rs_1' not found. Items are not persisted when `store` is false."],
    [404, "Previous response with id 'resp_1' not found."],
    [409, 'Another process is currently operating on this conversation.'],
  ];
  const settings = { server: `${ALL}\nretries = 2`, fallback: ['q'], fallbackOn: [404, 409] };
  for (const [status, message] of errors) {
    const { gateway, asked, p } = await start(t, failWith(status, { message }), settings);
    for (const name of ['responses', 'responses', 'responses', 'responses'] as const) {
      const reply = await post(gateway, name);
      assert.deepEqual([reply.status, reply.json().error.type], [status, 'provider_error']);
    }
    assert.deepEqual(asked(), [4, 0], 'no circuit has opened, and no fallback was asked');
    await eventually(() => gateway.accessLines().length === 4, 'the lines');
    for (const line of gateway.accessLines()) assert.equal(line['outcome'], 'rejected');
    p.script = (_, response) => sendEvents(response, event('error', { status, message }));
    assert.equal((await post(gateway, 'responses', STREAM)).status, status);
    assert.deepEqual(asked(), [5, 0]);
    p.script = failWith(status, { message });
    await post(gateway, 'completions');
    assert.deepEqual(asked(), [6, 1], 'no other endpoint has references');
  }
});

test('a complete response that has failed is its error, and a reason to fall back', async (t) => {
  const error = { code: 'server_error', message: 'no' };
  const body = { ...RESPONSE, status: 'failed', error };
  const { gateway } = await start(t, (_, response) => sendJson(response, body), {
    fallback: ['q'],
  });
  assert.equal((await post(gateway, 'responses')).text, JSON.stringify(RESPONSE));
  assert.equal(triesOf(await lineOf(gateway)), 'p:200 q:200');
});

test('a response that has failed without an error is the same 502, streamed or not', async (t) => {
  const body = { ...RESPONSE, status: 'failed', error: null };
  const script: Script = (request, response) =>
    request.body.includes('"stream":true')
      ? sendEvents(response, CREATED + event('response.failed', { response: body }))
      : sendJson(response, body);
  const { gateway, p, q } = await start(t, script);
  const replies = [
    await post(gateway, 'responses'),
    await post(gateway, 'responses', { ...BODIES.responses, stream: true }),
  ];
  for (const { status, text } of replies) {
    assert.equal(status, 502);
    assert.equal(text, replies[0]!.text);
  }
  assert.deepEqual([p.requests.length, q.requests.length], [2, 0]);
  const other = await start(t, script, { fallback: ['q'] });
  assert.equal((await post(other.gateway, 'responses')).text, JSON.stringify(RESPONSE));
  assert.equal(triesOf(await lineOf(other.gateway)), 'p:200 q:200');
});

/** Requests that only the organisation that wrote what they refer to can answer. */
const BOUND = {
  previous_response_id: { previous_response_id: 'resp_1' },
  conversation: { conversation: { id: 'conv_1' } },
  background: { background: true },
  'a reference to an item': { input: [{ type: 'item_reference', id: 'rs_1' }] },
  'a reference without a type': { input: [{ role: 'user', content: 'a' }, { id: 'msg_1' }] },
  'a reference whose type is null': { input: [{ id: 'msg_1', type: null, content: [] }] },
  'a picture by its id': { input: [{ type: 'image_generation_call', id: 'ig_1' }] },
  'reasoning by its id': {
    input: [{ type: 'reasoning', id: 'rs_1', summary: [{ type: 'summary_text', text: 'a' }] }],
  },
  'an approval': {
    input: [{ type: 'mcp_approval_response', approval_request_id: 'mcpr_1', approve: true }],
  },
  'a file in a message': {
    input: [{ role: 'user', content: [{ type: 'input_file', file_id: 'file-1' }] }],
  },
  'a file in a mask': {
    tools: [{ type: 'image_generation', input_image_mask: { file_id: 'file-1' } }],
  },
  'a file deep inside': { input: [{ role: 'user', content: [[[{ a: { file_id: 'file-1' } }]]] }] },
  'a vector store': { tools: [{ type: 'file_search', vector_store_ids: ['vs_1'] }] },
  'a container': { tools: [{ type: 'code_interpreter', container: 'cntr_1' }] },
  'files for a container': {
    tools: [{ type: 'code_interpreter', container: { type: 'auto', file_ids: ['file-1'] } }],
  },
  'a call in a container': {
    input: [{ type: 'code_interpreter_call', id: 'ci_1', code: '1', container_id: 'cntr_1' }],
  },
  'a stored prompt': { prompt: { id: 'pmpt_1' } },
  'encrypted reasoning': {
    input: [
      { role: 'user', content: 'a' },
      { type: 'reasoning', summary: [], encrypted_content: 'abc' },
    ],
  },
};
const FREE = {
  'nothing of the kind': {},
  'members without a value': {
    previous_response_id: null,
    conversation: null,
    background: false,
    input: [
      { type: 'reasoning', summary: [], encrypted_content: null },
      { id: '', role: 'user', content: 'a' },
    ],
    prompt: null,
    tools: [
      { type: 'code_interpreter', container: { type: 'auto', file_ids: [] } },
      { type: 'file_search', vector_store_ids: null },
    ],
  },
  'items that have their content beside an id': {
    input: [
      { id: 'msg_1', type: 'message', role: 'assistant', content: [{ text: 'a' }] },
      { id: 'msg_2', role: 'user', content: 'a' },
      { id: 'rs_1', type: 'reasoning', summary: [], content: [{ text: 'a' }] },
      { id: 'fc_1', type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' },
      { role: 'user', content: '' },
    ],
  },
  'names of references that are no references': {
    metadata: { file_id: 'a', container: 'b' },
    tools: [
      {
        type: 'function',
        name: 'f',
        parameters: { type: 'object', properties: { file_id: { type: 'string' }, id: {} } },
      },
    ],
    text: { format: { type: 'text' }, verbosity: { id: 'low' } },
  },
};

for (const [what, more] of Object.entries(BOUND)) {
  test(`a request with ${what} does not fall back`, async (t) => {
    const { gateway, asked } = await start(t, failWith(503), { fallback: ['q'] });
    const { status } = await post(gateway, 'responses', { ...BODIES.responses, ...more });
    assert.equal(status, 503);
    assert.deepEqual(asked(), [1, 0]);
  });
}

for (const [what, more] of Object.entries(FREE)) {
  test(`a request with ${what} falls back`, async (t) => {
    const { gateway } = await start(t, failWith(503), { fallback: ['q'] });
    const { status } = await post(gateway, 'responses', { ...BODIES.responses, ...more });
    assert.equal(status, 200);
  });
}

test('a chat request with a reference does not fall back', async (t) => {
  const { gateway, asked } = await start(t, failWith(503), { fallback: ['q'] });
  const file = { type: 'file', file: { file_id: 'file-1' } };
  for (const message of [
    { role: 'user', content: [file] },
    { role: 'assistant', audio: { id: 'audio_1' } },
  ]) {
    assert.equal((await gateway.chat(chatBody({ messages: [message] }))).status, 503);
  }
  assert.deepEqual(asked(), [2, 0]);
});

test('a member with an id before "input" is no reference', async (t) => {
  const { gateway } = await start(t, failWith(503), { fallback: ['q'] });
  const body = { text: { format: { id: 'f' } }, ...BODIES.responses };
  assert.equal((await post(gateway, 'responses', body)).status, 200);
});

test('the session chooses the key and the target of responses, not of other requests', async (t) => {
  const keys = ['sk-key-canary-000001', 'sk-key-canary-000002', 'sk-key-canary-000003'];
  const upstreams = await Promise.all([startUpstream(t, answerAll), startUpstream(t, answerAll)]);
  const sections = upstreams.map((upstream, at) =>
    providerToml(upstream, `p${at}`).replace(/api_key = .*/, `api_keys = ${JSON.stringify(keys)}`),
  );
  const aliases = [
    '[aliases]',
    'busy = { targets = ["p0/m", "p1/m"], balance = "least_busy" }',
    'drawn = { targets = ["p0/m", "p1/m"], balance = "weighted", weights = [1, 1] }',
  ];
  const gateway = await startGateway(t, {
    toml: [`[server]\n${ALL}`, ...sections, ...aliases].join('\n'),
  });
  /** Returns how many targets and keys 12 requests of the session got. */
  const places = async (name: Name, model: string, session: string) => {
    for (let count = 0; count < 12; count += 1) {
      const more = count % 2 === 0 ? {} : BOUND.previous_response_id;
      const body = { ...BODIES[name], model, ...more, prompt_cache_key: session };
      assert.equal((await post(gateway, name, body)).status, 200);
    }
    const used = upstreams.flatMap(({ requests }, at) =>
      requests.splice(0).map(({ headers }) => `${at} ${headers.authorization}`),
    );
    return new Set(used).size;
  };
  for (const model of ['p0/m', 'busy', 'drawn']) {
    for (const session of ['one', 'two', 'three']) {
      assert.equal(await places('responses', model, session), 1, `${model} ${session}`);
    }
    assert.ok((await places('embeddings', model, 'one')) > 1, model);
  }
});

test('a request that belongs to one organisation is sent with one key only', async (t) => {
  const upstream = await startUpstream(t, failWith(429));
  const keys = ['sk-key-canary-000001', 'sk-key-canary-000002'];
  const section = providerToml(upstream).replace(
    /api_key = .*/,
    `api_keys = ${JSON.stringify(keys)}`,
  );
  const gateway = await startGateway(t, { toml: `[server]\n${ALL}\n${section}` });
  const ask = (more: object) => post(gateway, 'responses', { ...BODIES.responses, ...more });
  assert.equal((await ask(BOUND.previous_response_id)).status, 429);
  assert.equal(upstream.requests.length, 1);
  assert.equal((await ask({})).status, 429);
  // Although it is in cooldown, the first key is the only one that can answer.
  assert.equal((await ask(BOUND.previous_response_id)).status, 429);
  const [first, other, last] = upstream.requests.map(({ headers }) => headers.authorization);
  assert.notEqual(other, first);
  assert.equal(last, first);
});
