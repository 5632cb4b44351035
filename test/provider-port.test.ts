import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import type { ChatRequest } from '../src/chat.ts';
import { CircuitBreaker } from '../src/circuit-breaker.ts';
import { loadConfig } from '../src/config.ts';
import { createGateway } from '../src/gateway.ts';
import { CLIENT_LIMITS } from '../src/call.ts';
import { createHttpServer } from '../src/http.ts';
import { createLimits } from '../src/limits.ts';
import { createLogger } from '../src/log.ts';
import type { Provider, UpstreamReply } from '../src/provider.ts';
import { createUpstream } from '../src/upstream.ts';
import { openChat } from './support/streams.ts';
import { LANE_ENV } from './support/lane.ts';
import { sendJson, startUpstream, type FakeUpstream } from './support/upstream.ts';

/** A made-up protocol: `POST /speak` with a prompt; answers are `{said}`, streams are lines of text. */
function createParrotProvider({ baseUrl }: FakeUpstream): Provider {
  const { origin, pathname } = new URL(baseUrl);
  const faultOf = (json: unknown) => {
    const { oops } = (json ?? {}) as { oops?: string };
    return oops === undefined ? undefined : { message: oops, status: 503 };
  };
  return {
    id: 'parrot',
    timeoutMs: 5000,
    retries: 0,
    chatRequest: (chat: ChatRequest, model, forwarded) => {
      const { messages } = JSON.parse(chat.withModel(model).toString()) as {
        messages: { content: string }[];
      };
      return {
        method: 'POST',
        origin,
        path: `${pathname}/speak?live=${chat.stream}`,
        headers: { ...forwarded, 'x-parrot-key': 'polly', 'content-type': 'application/json' },
        body: Buffer.from(JSON.stringify({ bird: model, prompt: messages.at(-1)?.content })),
      };
    },
    modelListRequest: () => ({
      method: 'GET',
      origin,
      path: `${pathname}/birds`,
      headers: {},
    }),
    readModelList: (json) => (json as { birds: string[] }).birds,
    readFault: faultOf,
    readErrorBody: (json) => faultOf(json) ?? {},
    toOpenAI: (reply) => {
      const isStream = reply.headers.get('content-type') === 'text/plain';
      const convert = isStream ? linesToEvents : sayingToCompletion;
      const headers = new Headers([...reply.headers]);
      headers.set('content-type', isStream ? 'text/event-stream' : 'application/json');
      return { ...reply, headers, body: convert(reply.body) };
    },
  } satisfies Provider & { toOpenAI(reply: UpstreamReply): UpstreamReply };
}

async function* linesToEvents(body: AsyncIterable<Buffer>) {
  let held = '';
  for await (const bytes of body) {
    const lines = (held + bytes.toString()).split('\n');
    held = lines.pop()!;
    for (const content of lines) {
      const event = content.startsWith('oops ')
        ? { oops: content.slice(5) }
        : { choices: [{ index: 0, delta: { content }, finish_reason: null }] };
      yield Buffer.from(`data: ${JSON.stringify(event)}\n\n`);
    }
  }
  if (held === 'bye') yield Buffer.from('data: [DONE]\n\n');
}

async function* sayingToCompletion(body: AsyncIterable<Buffer>) {
  const chunks: Buffer[] = [];
  for await (const bytes of body) chunks.push(bytes);
  const answer = JSON.parse(Buffer.concat(chunks).toString()) as { said?: string };
  const choice = { index: 0, message: { role: 'assistant', content: answer.said } };
  const json = answer.said === undefined ? answer : { choices: [choice] };
  yield Buffer.from(JSON.stringify(json));
}

async function startParrotGateway(t: TestContext, parrot: FakeUpstream): Promise<number> {
  const config = loadConfig({ toml: '', env: LANE_ENV });
  const now = () => performance.now();
  const redact = (text: string) => text;
  const upstream = createUpstream(config.server.upstream);
  const server = createHttpServer({
    limits: CLIENT_LIMITS,
    onBrokenRequest: ({ message }) => assert.fail(message),
    handle: createGateway({
      config,
      now,
      logger: createLogger({
        level: 'error',
        format: 'json',
        colour: false,
        write: (line) => assert.fail(line),
        redact,
        now,
      }),
      completion: {
        config,
        upstream,
        redact,
        providers: new Map([['parrot', createParrotProvider(parrot)]]),
        fallbacks: [],
        limits: createLimits(config.rateLimit, now),
        breaker: new CircuitBreaker(now),
      },
    }),
  });
  t.after(async () => {
    await server.drain(0, new Error('test is over'));
    await upstream.close();
  });
  return (await server.listen(0, '127.0.0.1')).port;
}

function parrotBody(stream: boolean): object {
  return { model: 'parrot/grey', stream, messages: [{ role: 'user', content: 'hello' }] };
}

test('a provider with another wire format completes', async (t) => {
  const parrot = await startUpstream(t, (_, response) => sendJson(response, { said: 'hello!' }));
  const chat = openChat(await startParrotGateway(t, parrot), parrotBody(false));
  const json = JSON.parse(await chat.ended) as object;
  assert.deepEqual(json, {
    choices: [{ index: 0, message: { role: 'assistant', content: 'hello!' } }],
  });
  const [asked] = parrot.requests;
  assert.equal(asked?.url, '/v1/speak?live=false');
  assert.equal(asked.headers['x-parrot-key'], 'polly');
  assert.equal(asked.headers.authorization, undefined);
  assert.deepEqual(JSON.parse(asked.body.toString()), { bird: 'grey', prompt: 'hello' });
});

test('a provider with another wire format streams', async (t) => {
  const parrot = await startUpstream(t, (_, response) => {
    response.writeHead(200, { 'content-type': 'text/plain' });
    response.end('hel\nlo\nbye');
  });
  const chat = openChat(await startParrotGateway(t, parrot), parrotBody(true));
  const { statusCode, headers } = await chat.response;
  assert.equal(statusCode, 200);
  assert.equal(headers['content-type'], 'text/event-stream');
  const events = ['hel', 'lo'].map(
    (content) =>
      `data: {"choices":[{"index":0,"delta":{"content":"${content}"},"finish_reason":null}]}\n\n`,
  );
  assert.equal(await chat.ended, `${events.join('')}data: [DONE]\n\n`);
});

test('errors of a provider with another wire format are documented errors', async (t) => {
  const parrot = await startUpstream(t);
  const port = await startParrotGateway(t, parrot);
  const scripts: [stream: boolean, script: FakeUpstream['script']][] = [
    [false, (_, response) => sendJson(response, { oops: 'no seeds' }, { status: 503 })],
    [false, (_, response) => sendJson(response, { oops: 'no seeds' })],
    [
      true,
      (_, response) => {
        response.writeHead(200, { 'content-type': 'text/plain' });
        response.end('oops no seeds\nbye');
      },
    ],
  ];
  for (const [stream, script] of scripts) {
    parrot.script = script;
    const chat = openChat(port, parrotBody(stream));
    assert.equal((await chat.response).statusCode, 503);
    const { error } = JSON.parse(await chat.ended) as { error: object };
    assert.deepEqual(error, {
      type: 'provider_error',
      message: 'API error: 503 - no seeds',
      code: 'API_ERROR',
      provider: 'parrot',
      status: 503,
    });
  }
});
