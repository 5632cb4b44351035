/**
 * The SDKs that people use, unchanged, against the built gateway as they would run it. What counts
 * is what an application sees: the text, and an error it can tell from another.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, beforeEach, describe, test } from 'node:test';

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { Agent, OpenAIProvider, Runner } from '@openai/agents';
import { generateText, streamText } from 'ai';
import OpenAI from 'openai';

import {
  CLIENT_KEY,
  PROVIDER_KEY,
  chunkEvent,
  completion,
  errorEvent,
  sendError,
  sendJson,
  startEvents,
  startGateway,
  startUpstream,
  stopAll,
} from './support.mjs';

// A test that hangs is a failure to end a response, the worst of them.
const LIMIT = { timeout: 20_000 };

/** What the provider answers next: `(response, body) => void`. */
let answer;
/** The bodies of the chats the provider was sent. */
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

describe('the openai SDK', LIMIT, () => {
  test('gets a completion', async () => {
    const completion = await openai().chat.completions.create(chat());
    assert.equal(completion.choices[0].message.content, 'Hello there');
    assert.equal(completion.usage.total_tokens, 3);
    assert.deepEqual(chats, [chat({ model: 'm' })]);
  });

  test('gets a stream', async () => {
    assert.equal(await readStream(await stream()), 'Hello there');
    assert.deepEqual(chats, [chat({ model: 'm', stream: true })]);
  });

  test('gets a stream through its helper', async () => {
    const completion = await openai().chat.completions.stream(chat()).finalChatCompletion();
    assert.equal(completion.choices[0].message.content, 'Hello there');
  });

  test('gets the list of models under the names it can send back', async () => {
    const models = [];
    for await (const { id } of openai().models.list()) models.push(id);
    assert.deepEqual(models.toSorted(), ['friendly', 'p/m', 'p/vendor/n', 'slow/m']);
    const completion = await openai().chat.completions.create(chat({ model: 'friendly' }));
    assert.equal(completion.choices[0].message.content, 'Hello there');
  });

  test('gets BadRequestError for a provider that is not registered', async () => {
    const error = await failure({ model: 'nobody/m' });
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.type, 'invalid_request_error');
    assert.equal(error.code, 'INVALID_REQUEST');
    assert.equal(error.message, '400 Unknown provider: nobody');
    assert.equal(error.requestID?.length, 36);
  });

  test("gets BadRequestError for the provider's 400, with the provider's words", async () => {
    answer = (response) => sendError(response, 400, 'temperature is too high');
    const error = await failure();
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, 'API_ERROR');
    assert.equal(error.message, '400 API error: 400 - temperature is too high');
    assert.equal(error.error.provider, 'p');
  });

  test("gets AuthenticationError for a key that is not the gateway's", async () => {
    const error = await failure({}, openai({ apiKey: 'wrong' }));
    assert.ok(error instanceof OpenAI.AuthenticationError);
    assert.equal(error.type, 'authentication_error');
    assert.equal(error.code, undefined);
    assert.equal(error.message, '401 Invalid authentication');
    assert.deepEqual(chats, []);
  });

  test('gets AuthenticationError for a key that the provider rejects, and can tell it from its own', async () => {
    answer = (response) => sendError(response, 401, `Incorrect API key: ${PROVIDER_KEY}`);
    const error = await failure();
    assert.ok(error instanceof OpenAI.AuthenticationError);
    assert.equal(error.type, 'provider_error');
    assert.equal(error.code, 'API_ERROR');
    assert.equal(error.message, '401 Authentication failed');
    assert.equal(error.error.status, 401);
  });

  test('gets NotFoundError for an endpoint that does not exist', async () => {
    const error = await openai()
      .models.retrieve('p/m')
      .catch((thrown) => thrown);
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.type, 'not_found_error');
    assert.equal(error.message, '404 Resource not found');
  });

  test('gets NotFoundError for a model that the provider does not have', async () => {
    answer = (response) => sendError(response, 404, 'no such model');
    const error = await failure();
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.type, 'provider_error');
    assert.equal(error.message, '404 API error: 404 - no such model');
  });

  test('gets RateLimitError with the time to wait', async () => {
    answer = (response) => sendError(response, 429, 'slow down', { 'retry-after': '7' });
    const error = await failure();
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.equal(error.type, 'rate_limit_error');
    assert.equal(error.code, 'RATE_LIMIT_ERROR');
    assert.equal(error.headers.get('retry-after'), '7');
    assert.equal(error.error.retry_after, 7);
  });

  test('gets InternalServerError 502 for a provider that hangs up', async () => {
    answer = (response) => response.destroy();
    const error = await failure();
    assert.ok(error instanceof OpenAI.InternalServerError);
    assert.equal(error.status, 502);
    assert.equal(error.code, 'PROVIDER_ERROR');
    assert.match(error.message, /^502 Provider error: /);
  });

  for (const isStream of [false, true]) {
    const what = isStream ? 'stream' : 'completion';
    test(`gets InternalServerError 504 for a ${what} that does not come in time`, async () => {
      answer = () => {};
      const error = await failure({ model: 'slow/m', stream: isStream });
      assert.ok(error instanceof OpenAI.InternalServerError);
      assert.equal(error.status, 504);
      assert.equal(error.type, 'timeout_error');
      assert.equal(error.code, 'TIMEOUT');
      assert.equal(error.message, '504 Request timed out');
    });
  }

  test('gets an ordinary error for a stream whose first event is one', async () => {
    answer = (response) => startEvents(response, []).end(errorEvent('no capacity', 503));
    const error = await failure({ stream: true });
    assert.ok(error instanceof OpenAI.InternalServerError);
    assert.equal(error.status, 503);
    assert.equal(error.message, '503 API error: 503 - no capacity');
  });

  test('gets APIError out of the loop for an error in mid-stream', async () => {
    answer = (response) => startEvents(response).end(errorEvent('out of memory', 500));
    const { text, error } = await brokenStream();
    assert.equal(text, 'Hello there');
    assert.ok(error instanceof OpenAI.APIError);
    assert.equal(error.type, 'provider_error');
    assert.equal(error.code, 'API_ERROR');
    assert.equal(error.message, 'API error: 500 - out of memory');
    assert.equal(error.error.provider, 'p');
  });

  for (const [how, cut] of [
    ['breaks off', (response) => response.destroy()],
    ['ends before the answer is finished', (response) => response.end()],
  ]) {
    test(`gets APIError out of the loop for a stream that ${how}`, async () => {
      answer = (response) => startEvents(response).write(': so far\n\n', () => cut(response));
      const { text, error } = await brokenStream();
      assert.equal(text, 'Hello there');
      assert.ok(error instanceof OpenAI.APIError);
      assert.equal(error.type, 'provider_error');
      assert.equal(error.code, 'PROVIDER_ERROR');
      assert.match(error.message, /^Provider error: /);
    });
  }

  test('does not ask again where that cannot help', async () => {
    answer = (response) => sendJson(response, completion());
    const error = await failure({ stream: true }, openai({ maxRetries: 2 }));
    assert.equal(error.status, 501);
    assert.equal(error.type, 'unsupported_feature');
    assert.equal(error.headers.get('x-should-retry'), 'false');
    assert.equal(chats.length, 1);
  });

  test('asks again where that may help', async () => {
    answer = (response) => {
      answer = sendText;
      sendError(response, 503, 'overloaded');
    };
    const completion = await openai({ maxRetries: 1 }).chat.completions.create(chat());
    assert.equal(completion.choices[0].message.content, 'Hello there');
    assert.equal(chats.length, 2);
  });

  test('that leaves a stream ends it at the provider', async () => {
    let closed;
    answer = (response) => {
      closed = once(response, 'close');
      startEvents(response);
    };
    for await (const chunk of await stream()) if (chunk.choices[0].delta.content) break;
    await closed;
  });
});

for (const [name, createModel] of [
  ['createOpenAICompatible', (id) => createOpenAICompatible({ name: 'gateway', ...target() })(id)],
  ['createOpenAI().chat', (id) => createOpenAI(target()).chat(id)],
]) {
  describe(`the AI SDK with ${name}`, LIMIT, () => {
    const call = (id = 'p/m') => ({ model: createModel(id), prompt: 'hello', maxRetries: 0 });

    test('gets a completion', async () => {
      const { text, finishReason } = await generateText(call());
      assert.equal(text, 'Hello there');
      assert.equal(finishReason, 'stop');
    });

    test('gets a stream', async () => {
      const { text, errors } = await readTextStream(call());
      assert.deepEqual(errors, []);
      assert.equal(text, 'Hello there');
    });

    test("gets the gateway's message and status for an error", async () => {
      answer = (response) => sendError(response, 429, 'slow down', { 'retry-after': '7' });
      const error = await generateText(call()).catch((thrown) => thrown);
      assert.equal(error.statusCode, 429);
      assert.match(error.message, /slow down/);
      assert.equal(error.isRetryable, true);
      assert.equal(error.responseHeaders['retry-after'], '7');
    });

    test('is told of a provider that is not registered', async () => {
      const error = await generateText(call('nobody/m')).catch((thrown) => thrown);
      assert.equal(error.statusCode, 400);
      assert.equal(error.message, 'Unknown provider: nobody');
      assert.equal(error.isRetryable, false);
    });

    test('is told of an error in mid-stream', async () => {
      answer = (response) => startEvents(response).end(errorEvent('out of memory', 500));
      const { text, errors } = await readTextStream(call());
      assert.equal(text, 'Hello there');
      assert.equal(errors.length, 1);
      assert.match(describeError(errors[0]), /API error: 500 - out of memory/);
    });

    test('is told of a stream that breaks off', async () => {
      answer = (response) => startEvents(response).write(': so far\n\n', () => response.destroy());
      const { text, errors } = await readTextStream(call());
      assert.equal(text, 'Hello there');
      assert.equal(errors.length, 1);
      assert.match(describeError(errors[0]), /Provider error: /);
    });
  });
}

describe('LangChain', LIMIT, () => {
  const createModel = (model = 'p/m') =>
    new ChatOpenAI({
      model,
      apiKey: CLIENT_KEY,
      maxRetries: 0,
      configuration: { baseURL },
    });

  test('gets a completion', async () => {
    const { content } = await createModel().invoke('hello');
    assert.equal(content, 'Hello there');
  });

  test('gets a stream, and its wish for usage reaches the provider', async () => {
    const words = [];
    for await (const { content } of await createModel().stream('hello')) words.push(content);
    assert.equal(words.join(''), 'Hello there');
    assert.deepEqual(chats[0].stream_options, { include_usage: true });
  });

  test('is told of a provider that is not registered', async () => {
    await assert.rejects(createModel('nobody/m').invoke('hello'), {
      status: 400,
      message: /Unknown provider: nobody/,
    });
  });

  test('is told of an error in mid-stream', async () => {
    answer = (response) => startEvents(response).end(errorEvent('out of memory', 500));
    const words = [];
    await assert.rejects(async () => {
      for await (const { content } of await createModel().stream('hello')) words.push(content);
    }, /API error: 500 - out of memory/);
    assert.equal(words.join(''), 'Hello there');
  });
});

describe('the Agents SDK', LIMIT, () => {
  const run = (options, model = 'p/m') => {
    const modelProvider = new OpenAIProvider({ openAIClient: openai(), useResponses: false });
    const runner = new Runner({ modelProvider, tracingDisabled: true });
    return runner.run(new Agent({ name: 'clerk', model }), 'hello', options);
  };

  test('gets a completion', async () => {
    const { finalOutput } = await run();
    assert.equal(finalOutput, 'Hello there');
  });

  test('gets a stream', async () => {
    const words = [];
    const result = await run({ stream: true });
    for await (const word of result.toTextStream()) words.push(word);
    assert.deepEqual(words, ['Hello', ' there']);
  });

  test('is told of a provider that is not registered', async () => {
    await assert.rejects(run({}, 'nobody/m'), {
      status: 400,
      message: '400 Unknown provider: nobody',
    });
  });

  test('is told of an error in mid-stream', async () => {
    answer = (response) => startEvents(response).end(errorEvent('out of memory', 500));
    const words = [];
    await assert.rejects(async () => {
      const result = await run({ stream: true });
      for await (const word of result.toTextStream()) words.push(word);
    }, /API error: 500 - out of memory/);
    assert.equal(words.join(''), 'Hello there');
  });
});

describe('the gateway, with connections of all these clients open', LIMIT, () => {
  test('ends as soon as it is told to', async () => {
    // undici opens one ahead after a request was given up; nothing has been asked on it.
    const unused = connect(Number(new URL(baseURL).port), '127.0.0.1').on('error', () => {});
    await once(unused, 'connect');
    const exit = once(gateway, 'exit', { signal: AbortSignal.timeout(5000) });
    gateway.kill();
    assert.deepEqual(await exit, [0, null]);
  });
});

/** Without retries of its own, so that a test sees the first answer. */
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

/** What came before the error, and the error. */
async function brokenStream() {
  let text = '';
  const error = await readStream(await stream(), (soFar) => (text = soFar)).then(
    () => assert.fail('the stream ended as if it were complete'),
    (thrown) => thrown,
  );
  return { text, error };
}

async function readTextStream(call) {
  const errors = [];
  let text = '';
  const result = streamText({ ...call, onError: ({ error }) => errors.push(error) });
  for await (const word of result.textStream) text += word;
  return { text, errors };
}

/** The AI SDK hands on the error object of an event as it is. */
function describeError(error) {
  return error instanceof Error ? error.message : JSON.stringify(error);
}

function sendText(response, { stream: isStream }) {
  if (isStream) startEvents(response).end(`${chunkEvent({}, 'stop')}data: [DONE]\n\n`);
  else sendJson(response, completion());
}
