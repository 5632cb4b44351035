/**
 * Unchanged SDKs against the built gateway. The tests check what an application sees: the text, and
 * distinguishable errors.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { after, before, beforeEach, describe, test } from 'node:test';

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { Agent, OpenAIProvider, Runner } from '@openai/agents';
import { generateText, streamText } from 'ai';
import OpenAI from 'openai';

import {
  CLIENT_KEY,
  NO_OPENCODE,
  PROVIDER_KEY,
  chunkEvent,
  completion,
  errorEvent,
  opencodeModels,
  sendError,
  sendJson,
  startEvents,
  startGateway,
  startNginx,
  startUpstream,
  stopAll,
  usageEvent,
} from './support.mjs';

// A hanging test means a response without an end, the worst failure.
const LIMIT = { timeout: 20_000 };

/** The provider's next answer: `(response, body) => void`. */
let answer;
/** The chat bodies received by the provider. */
let chats = [];
let baseURL;
let gateway;

before(async () => {
  const upstream = await startUpstream((response, body) => {
    chats.push(body);
    answer(response, body);
  });
  ({ gateway, baseURL } = await startGateway(upstream));
});

beforeEach(() => {
  chats = [];
  answer = sendText;
});

after(stopAll);

const CUT = { type: 'provider_error', code: 'PROVIDER_ERROR' };

describe('the openai SDK', LIMIT, () => {
  test('gets a completion', async () => {
    const completion = await openai().chat.completions.create(chat());
    assert.equal(completion.choices[0].message.content, 'Hello there');
    assert.equal(completion.usage.total_tokens, 2);
    assert.deepEqual(chats, [chat({ model: 'm' })]);
  });

  test('gets a stream', async () => {
    assert.equal(await readStream(await stream()), 'Hello there');
    assert.deepEqual(chats, [chat({ model: 'm', stream: true })]);
  });

  test('gets the list of models under names that it can send back', async () => {
    const models = [];
    for await (const { id } of openai().models.list()) models.push(id);
    assert.deepEqual(models.toSorted(), ['friendly', 'p/m', 'p/vendor/n', 'slow/m']);
    const completion = await openai().chat.completions.create(chat({ model: 'friendly' }));
    assert.equal(completion.choices[0].message.content, 'Hello there');
  });

  const says =
    (...error) =>
    (response) =>
      sendError(response, ...error);
  /** The cause; the error's class and message; its members; the request; the provider's answer. */
  const failures = [
    [
      'a provider that is not registered',
      [OpenAI.BadRequestError, '400 Unknown provider: nobody'],
      { type: 'invalid_request_error', code: 'INVALID_REQUEST' },
      { model: 'nobody/m' },
    ],
    [
      "the provider's 400, with the provider's words",
      [OpenAI.BadRequestError, '400 API error: 400 - temperature is too high'],
      { code: 'API_ERROR', provider: 'p' },
      {},
      says(400, 'temperature is too high'),
    ],
    [
      'a key that the provider rejects, which differs from that for the key of a client',
      [OpenAI.AuthenticationError, '401 Authentication failed'],
      { type: 'provider_error', code: 'API_ERROR', status: 401 },
      {},
      says(401, `Incorrect API key: ${PROVIDER_KEY}`),
    ],
    [
      'a limit, with the time to wait',
      [OpenAI.RateLimitError, /slow down/],
      { type: 'rate_limit_error', code: 'RATE_LIMIT_ERROR', retry_after: 7 },
      {},
      says(429, 'slow down', { 'retry-after': '7' }),
    ],
    [
      'a completion that does not come in time',
      [OpenAI.InternalServerError, '504 Request timed out'],
      { status: 504, type: 'timeout_error', code: 'TIMEOUT' },
      { model: 'slow/m' },
      () => {},
    ],
    [
      'a stream whose first event is an error, as for any other',
      [OpenAI.InternalServerError, '503 API error: 503 - no capacity'],
      { status: 503 },
      { stream: true },
      (response) => startEvents(response, []).end(errorEvent('no capacity', 503)),
    ],
  ];
  for (const [what, [Expected, message], members, request, script] of failures) {
    test(`gets ${Expected.name} for ${what}`, async () => {
      answer = script ?? sendText;
      const error = await failure(request);
      assertApiError(error, [Expected, message], members);
      assert.equal(error.requestID?.length, 36);
      if (members.retry_after) assert.equal(error.headers.get('retry-after'), '7');
    });
  }

  test("gets AuthenticationError for a key that is not the gateway's", async () => {
    const error = await failure({}, openai({ apiKey: 'wrong' }));
    assertApiError(error, [OpenAI.AuthenticationError, '401 Invalid authentication'], {
      type: 'authentication_error',
      code: undefined,
    });
    assert.deepEqual(chats, []);
  });

  test('gets NotFoundError for an endpoint that does not exist', async () => {
    const error = await openai()
      .models.retrieve('p/m')
      .catch((thrown) => thrown);
    assertApiError(error, [OpenAI.NotFoundError, '404 Resource not found'], {
      type: 'not_found_error',
    });
  });

  for (const [how, end, message, members] of [
    [
      'has an error in it',
      (response) => response.end(errorEvent('out of memory', 500)),
      'API error: 500 - out of memory',
      { type: 'provider_error', code: 'API_ERROR', provider: 'p' },
    ],
    ['breaks off', (response) => response.destroy(), /^Provider error: /, CUT],
    ['ends before the answer is finished', (response) => response.end(), /^Provider error: /, CUT],
  ]) {
    test(`gets APIError out of the loop for a stream that ${how}`, async () => {
      answer = (response) => startEvents(response).write(': so far\n\n', () => end(response));
      let text = '';
      const error = await readStream(await stream(), (soFar) => (text = soFar)).then(
        () => assert.fail('the stream ended as if it were complete'),
        (thrown) => thrown,
      );
      assert.equal(text, 'Hello there');
      assertApiError(error, [OpenAI.APIError, message], members);
    });
  }

  test('does not repeat a request that must fail again', async () => {
    answer = (response) => sendJson(response, completion());
    const error = await failure({ stream: true }, openai({ maxRetries: 2 }));
    assert.equal(error.status, 501);
    assert.equal(error.type, 'unsupported_feature');
    assert.equal(error.headers.get('x-should-retry'), 'false');
    assert.equal(chats.length, 1);
  });

  test('repeats a request that may succeed', async () => {
    answer = (response) => {
      answer = sendText;
      sendError(response, 503, 'overloaded');
    };
    const completion = await openai({ maxRetries: 1 }).chat.completions.create(chat());
    assert.equal(completion.choices[0].message.content, 'Hello there');
    assert.equal(chats.length, 2);
  });

  test('ends the stream at the provider when it leaves', async () => {
    let closed;
    answer = (response) => {
      closed = once(response, 'close');
      startEvents(response);
    };
    for await (const chunk of await stream()) if (chunk.choices[0].delta.content) break;
    await closed;
  });
});

const compatible = (id = 'p/m') => createOpenAICompatible({ name: 'gateway', ...target() })(id);
const viaOpenAI = (id = 'p/m') => createOpenAI(target()).chat(id);
const langChain = (model = 'p/m') =>
  new ChatOpenAI({ model, apiKey: CLIENT_KEY, maxRetries: 0, configuration: { baseURL } });
const runAgent = (options, model = 'p/m') => {
  const modelProvider = new OpenAIProvider({ openAIClient: openai(), useResponses: false });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  return runner.run(new Agent({ name: 'clerk', model }), 'hello', options);
};
const callOf = (model) => ({ model, prompt: 'hello', maxRetries: 0 });

/** For each SDK, a completion's text, and a stream's words. They throw the stream's error. */
const aiSdk = (createModel) => ({
  complete: async (id) => (await generateText(callOf(createModel(id)))).text,
  async *words() {
    const errors = [];
    const onError = ({ error }) => errors.push(error);
    try {
      yield* streamText({ ...callOf(createModel()), onError }).textStream;
    } catch (broken) {
      // After the error event, the failed stream's connection ends two seconds later.
      errors.push(broken);
    }
    for (const error of errors) throw error;
  },
});
const sdks = {
  'the AI SDK with createOpenAICompatible': aiSdk(compatible),
  'the AI SDK with createOpenAI().chat': aiSdk(viaOpenAI),
  LangChain: {
    complete: async (model) => (await langChain(model).invoke('hello')).content,
    async *words() {
      for await (const { content } of await langChain().stream('hello')) yield content;
    },
  },
  'the Agents SDK': {
    complete: async (model) => (await runAgent({}, model)).finalOutput,
    async *words() {
      yield* (await runAgent({ stream: true })).toTextStream();
    },
  },
};
for (const [name, { complete, words }] of Object.entries(sdks)) {
  describe(name, LIMIT, () => {
    /** Reads a stream. Returns its text, and its error if it failed. */
    const readAll = async () => {
      let text = '';
      try {
        for await (const word of words()) text += word;
      } catch (error) {
        return { text, error: describeError(error) };
      }
      return { text };
    };

    test('gets a completion', async () => assert.equal(await complete(), 'Hello there'));

    test('gets a stream', async () => assert.deepEqual(await readAll(), { text: 'Hello there' }));

    test('reports a provider that is not registered', async () => {
      const error = await complete('nobody/m').catch((thrown) => thrown);
      assert.equal(error.statusCode ?? error.status, 400);
      assert.match(error.message, /Unknown provider: nobody/);
      assert.ok(!error.isRetryable);
    });

    test('reports an error in mid-stream', async () => {
      answer = (response) => startEvents(response).end(errorEvent('out of memory', 500));
      const { text, error } = await readAll();
      assert.equal(text, 'Hello there');
      assert.match(error, /API error: 500 - out of memory/);
    });

    test('reports a stream that breaks off', async () => {
      answer = (response) => startEvents(response).write(': so far\n\n', () => response.destroy());
      const { text, error } = await readAll();
      assert.equal(text, 'Hello there');
      assert.match(error, /Provider error: /);
    });
  });
}

for (const createModel of [compatible, viaOpenAI]) {
  test(`the AI SDK (${createModel.name}) knows that a limit passes, and when`, LIMIT, async () => {
    answer = (response) => sendError(response, 429, 'slow down', { 'retry-after': '7' });
    const error = await generateText(callOf(createModel())).catch((thrown) => thrown);
    assert.equal(error.statusCode, 429);
    assert.match(error.message, /slow down/);
    assert.equal(error.isRetryable, true);
    assert.equal(error.responseHeaders['retry-after'], '7');
  });
}

test("LangChain's request for the usage of a stream reaches the provider", LIMIT, async () => {
  for await (const { content } of await langChain().stream('hello')) assert.ok(content !== null);
  assert.deepEqual(chats[0].stream_options, { include_usage: true });
});

test(
  'opencode reads the context and modalities of models and aliases from the list',
  { ...LIMIT, skip: NO_OPENCODE },
  async () => {
    const models = await opencodeModels(baseURL);
    assert.deepEqual([...models.keys()].toSorted(), ['friendly', 'p/m', 'p/vendor/n', 'slow/m']);
    for (const name of ['friendly', 'p/m']) {
      const { limit, capabilities } = models.get(name);
      assert.deepEqual([limit.context, capabilities.input.image], [54_321, true]);
    }
    assert.equal(models.get('p/vendor/n').limit.context, 0);
  },
);
/** A stream's words through each SDK. */
const streams = {
  'the openai SDK': async function* words() {
    for await (const { choices } of await stream()) yield choices[0].delta.content ?? '';
  },
  ...Object.fromEntries(Object.entries(sdks).map(([name, { words }]) => [name, words])),
};

/** Reads a stream with each SDK, all at once. Returns the texts. */
async function streamAll() {
  const results = Object.entries(streams).map(async ([name, words]) => {
    let text = '';
    try {
      for await (const word of words()) text += word;
    } catch (error) {
      text += ` (${describeError(error)})`;
    }
    return [name, text];
  });
  return Object.entries(Object.fromEntries(await Promise.all(results)));
}

describe(
  'with a provider that sends the role at once, and the first token 300 ms later',
  LIMIT,
  () => {
    for (const [name, words] of Object.entries(streams)) {
      test(`${name} has a token as soon as it comes`, async (t) => {
        const { promise: isSeen, resolve: noteSeen } = Promise.withResolvers();
        let sentAtMs = 0;
        answer = async (response) => {
          startEvents(response, []).write(chunkEvent({ role: 'assistant', content: '' }));
          await sleep(300);
          sentAtMs = performance.now();
          response.write(chunkEvent({ content: 'Hello' }));
          await isSeen;
          response.end(
            `${chunkEvent({ content: ' there' })}${chunkEvent({}, 'stop')}data: [DONE]\n\n`,
          );
        };
        let text = '';
        for await (const word of words()) {
          text += word;
          if (text !== 'Hello') continue;
          t.diagnostic(`${(performance.now() - sentAtMs).toFixed(1)} ms after it was sent`);
          noteSeen();
        }
        assert.equal(text, 'Hello there');
      });
    }
  },
);

describe('a gateway that asks for the usage of streams', LIMIT, () => {
  test('gets it, and no SDK sees a chunk that it did not ask for', async () => {
    const before = baseURL;
    const lines = { provider: 'stream_usage = true' };
    const counting = await startGateway(await startUpstream(sendCounted), lines);
    ({ baseURL } = counting);
    const all = await streamAll();
    baseURL = before;
    assert.deepEqual(
      all,
      Object.keys(streams).map((name) => [name, 'Hello there']),
    );
    await untilLogged(counting, all.length);
    const logged = counting.accessLines();
    for (const { completion_tokens } of logged) assert.equal(completion_tokens, 5);
    // The other SDKs ask for the usage themselves.
    assert.ok(logged.filter(({ usage_added }) => usage_added).length >= 2);
  });
});

describe('behind nginx that waits for 2 s, with a provider that thinks for 6 s', () => {
  /** Streams through a gateway with these lines in `[server]`; undefined without nginx. */
  const streamThrough = async (server, think) => {
    const before = baseURL;
    const upstream = await startUpstream((response, body) => {
      setTimeout(() => think(response, body), 6000);
    });
    baseURL = await startNginx((await startGateway(upstream, { server })).baseURL);
    const all = baseURL && (await streamAll());
    baseURL = before;
    return all;
  };

  for (const [what, server, think, expected] of [
    [
      'every SDK gets its stream with stream_keepalive',
      'stream_keepalive = 1',
      sendText,
      /^Hello there$/,
    ],
    [
      'every SDK gets the error of a provider that fails then',
      'stream_keepalive = 1',
      (response) => sendError(response, 503, 'overloaded'),
      /^ \(.*overloaded.*\)$/,
    ],
    ['none gets its stream without', '', sendText, /^ \(.*(?:504|Gateway Time).*\)$/s],
  ]) {
    test(what, { timeout: 60_000 }, async (t) => {
      const all = await streamThrough(server, think);
      if (!all) return t.skip('there is no nginx');
      for (const [name, text] of all) assert.match(text, expected, name);
    });
  }
});

describe('the gateway, with connections of all these clients open', LIMIT, () => {
  test('ends at SIGTERM', async () => {
    // undici opens a connection ahead after a request was given up, and leaves it unused.
    const unused = connect(Number(new URL(baseURL).port), '127.0.0.1').on('error', () => {});
    await once(unused, 'connect');
    const exit = once(gateway, 'exit', { signal: AbortSignal.timeout(5000) });
    gateway.kill();
    assert.deepEqual(await exit, [0, null]);
  });
});

/** A client without its own retries, so a test sees the first answer. */
function openai(options = {}) {
  return new OpenAI({ ...target(), maxRetries: 0, ...options });
}

function target() {
  return { baseURL, apiKey: CLIENT_KEY };
}

function chat(more = {}) {
  return { model: 'p/m', messages: [{ role: 'user', content: 'hello' }], ...more };
}

async function failure(request, client = openai()) {
  return client.chat.completions.create(chat(request)).then(
    () => assert.fail('no error'),
    (error) => error,
  );
}

async function stream() {
  return openai().chat.completions.create(chat({ stream: true }));
}

async function readStream(chunks, onText = () => {}) {
  let text = '';
  for await (const { choices } of chunks) {
    text += choices[0]?.delta.content ?? '';
    onText(text);
  }
  return text;
}

/** Checks an error. The members may be in the gateway's error object. */
function assertApiError(error, [Expected, message], members) {
  assert.ok(error instanceof Expected, String(error));
  if (typeof message === 'string') assert.equal(error.message, message);
  else assert.match(error.message, message);
  for (const [name, value] of Object.entries(members)) {
    assert.equal(error[name] ?? error.error?.[name], value, name);
  }
}

/** Describes an error. The AI SDK passes an event's error object on unchanged. */
function describeError(error) {
  return error instanceof Error ? error.message : JSON.stringify(error);
}

function sendCounted(response, body) {
  startEvents(response).end(`${chunkEvent({}, 'stop')}${usageEvent(body)}data: [DONE]\n\n`);
}

async function untilLogged({ accessLines }, count) {
  while (accessLines().length < count) await sleep(20);
}

function sendText(response, { stream: isStream }) {
  if (isStream) startEvents(response).end(`${chunkEvent({}, 'stop')}data: [DONE]\n\n`);
  else sendJson(response, completion());
}
