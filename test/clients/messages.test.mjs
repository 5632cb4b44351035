/** Unchanged SDKs and Claude Code against `/v1/messages`. */

import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';

import { createAnthropic } from '@ai-sdk/anthropic';
import Anthropic from '@anthropic-ai/sdk';
import { ChatAnthropic } from '@langchain/anthropic';
import { generateText, jsonSchema, streamText, tool } from 'ai';

import {
  CLIENT_KEY,
  NO_CLAUDE,
  askClaude,
  message,
  messageEnd,
  messageEvent,
  sendError,
  sendJson,
  startGateway,
  startMessage,
  startUpstream,
  stopAll,
} from './support.mjs';

const LIMIT = { timeout: 60_000 };
const ENDPOINTS = 'endpoints = ["/v1/messages", "/v1/messages/count_tokens"]';
const OVERLOADED = { error: { type: 'overloaded_error', message: 'Overloaded' } };
const CALL = { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Oslo' } };

/** The provider's next answer: `(response, body, url) => void`. */
let answer;
/** The bodies received by the provider. */
let bodies = [];
let baseURL;

before(async () => {
  const upstream = await startUpstream((...request) => {
    bodies.push(request[1]);
    answer(...request);
  });
  ({ baseURL } = await startGateway(upstream, { server: ENDPOINTS }));
});

beforeEach(() => {
  bodies = [];
  answer = sendAnswer;
});

after(stopAll);

function sendAnswer(upstream, { stream }, url) {
  if (url === '/v1/messages/count_tokens') sendJson(upstream, { input_tokens: 12 });
  else if (stream) startMessage(upstream).end(messageEnd());
  else sendJson(upstream, message());
}

const origin = () => new URL(baseURL).origin;
const anthropic = (more = { apiKey: CLIENT_KEY }) =>
  new Anthropic({ baseURL: origin(), maxRetries: 0, ...more });
const request = (model = 'p/m') => ({
  model,
  max_tokens: 64,
  messages: [{ role: 'user', content: 'hello' }],
});
const model = (id = 'p/m') => createAnthropic({ baseURL, apiKey: CLIENT_KEY })(id);
const call = (id) => ({ model: model(id), prompt: 'hello', maxRetries: 0, maxOutputTokens: 64 });
const langChain = (id = 'p/m') =>
  new ChatAnthropic({
    model: id,
    apiKey: CLIENT_KEY,
    anthropicApiUrl: origin(),
    maxRetries: 0,
    maxTokens: 64,
  });

/** For each SDK, an answer's text, and a stream's words. They throw the stream's error. */
const sdks = {
  'the Anthropic SDK': {
    complete: async (id) => (await anthropic().messages.create(request(id))).content[0].text,
    async *words() {
      for await (const { delta } of anthropic().messages.stream(request())) {
        if (delta?.type === 'text_delta') yield delta.text;
      }
    },
  },
  "the AI SDK's createAnthropic()": {
    complete: async (id) => (await generateText(call(id))).text,
    async *words() {
      const errors = [];
      const onError = ({ error }) => errors.push(error);
      try {
        yield* streamText({ ...call(), onError }).textStream;
      } catch (broken) {
        errors.push(broken);
      }
      for (const error of errors) throw error;
    },
  },
  LangChain: {
    complete: async (id) => (await langChain(id).invoke('hello')).text,
    async *words() {
      for await (const { text } of await langChain().stream('hello')) yield text;
    },
  },
};

for (const [name, { complete, words }] of Object.entries(sdks)) {
  describe(`${name} at /v1/messages`, LIMIT, () => {
    /** Reads a stream. Returns its text, and its error if it failed. */
    const readAll = async () => {
      let text = '';
      try {
        for await (const word of words()) text += word;
      } catch (error) {
        return { text, error: error instanceof Error ? error.message : JSON.stringify(error) };
      }
      return { text };
    };

    test('gets an answer', async () => {
      assert.equal(await complete(), 'Hello there');
      assert.equal(bodies[0].model, 'm');
    });

    test('gets a stream', async () => assert.deepEqual(await readAll(), { text: 'Hello there' }));

    test('reports a provider that is not registered', async () => {
      const error = await complete('nobody/m').catch((thrown) => thrown);
      assert.equal(error.statusCode ?? error.status, 400);
      assert.match(error.message, /Unknown provider: nobody/);
    });

    for (const [what, end, expected] of [
      [
        'an event error',
        (upstream) => upstream.end(messageEvent('error', OVERLOADED)),
        /Overloaded/,
      ],
      ['a cut', (upstream) => upstream.destroy(), /Provider error: /],
      ['an end without message_stop', (upstream) => upstream.end(), /Provider error: /],
    ]) {
      test(`reports ${what} in mid-stream`, async () => {
        answer = (upstream) => startMessage(upstream).write(': so far\n\n', () => end(upstream));
        const { text, error } = await readAll();
        assert.equal(text, 'Hello there');
        assert.match(error ?? 'no error', expected);
      });
    }

    test('reports an answer that fails before its first token', async () => {
      answer = (upstream) => startMessage(upstream, []).end(messageEvent('error', OVERLOADED));
      const { text, error } = await readAll();
      assert.equal(text, '');
      assert.match(error ?? 'no error', /Overloaded/);
    });
  });
}

describe('the Anthropic SDK', LIMIT, () => {
  test('sends its key as x-api-key or as Bearer', async () => {
    for (const more of [{ apiKey: CLIENT_KEY }, { apiKey: null, authToken: CLIENT_KEY }]) {
      const { content } = await anthropic(more).messages.create(request());
      assert.equal(content[0].text, 'Hello there');
    }
    const wrong = anthropic({ apiKey: 'another' }).messages.create(request());
    const error = await wrong.catch((thrown) => thrown);
    assert.ok(error instanceof Anthropic.AuthenticationError, String(error));
  });

  test('raises the error of each status, with its message', async () => {
    for (const [status, type] of [
      [400, Anthropic.BadRequestError],
      [404, Anthropic.NotFoundError],
      [429, Anthropic.RateLimitError],
      [529, Anthropic.InternalServerError],
    ]) {
      answer = (upstream) => sendError(upstream, status, 'a reason');
      const error = await anthropic()
        .messages.create(request())
        .catch((thrown) => thrown);
      assert.ok(error instanceof type, `${status}: ${error}`);
      assert.match(error.message, /a reason/);
    }
  });

  test('counts tokens', async () => {
    const { max_tokens: _, ...counted } = request();
    const { input_tokens } = await anthropic().messages.countTokens(counted);
    assert.equal(input_tokens, 12);
  });

  test('gets thinking and a tool call, whole and as a stream', async () => {
    const thought = { type: 'thinking', thinking: 'hm', signature: 'abc' };
    answer = (upstream) => sendJson(upstream, message([thought, CALL], 'tool_use'));
    const { content } = await anthropic().messages.create(request());
    assert.deepEqual(content, [thought, CALL]);
    answer = (upstream) => sendCall(upstream);
    const streamed = await anthropic().messages.stream(request()).finalMessage();
    assert.deepEqual(streamed.content.at(-1), CALL);
    assert.equal(streamed.stop_reason, 'tool_use');
  });
});

test('the AI SDK calls a tool in a stream', LIMIT, async () => {
  answer = (upstream, { messages }) =>
    messages.length === 1 ? sendCall(upstream) : startMessage(upstream).end(messageEnd());
  const inputSchema = jsonSchema({ type: 'object', properties: { city: { type: 'string' } } });
  const weather = tool({ inputSchema, execute: ({ city }) => `rain in ${city}` });
  const { toolResults } = streamText({ ...call(), tools: { weather } });
  assert.equal((await toolResults)[0].output, 'rain in Oslo');
});

describe('Claude Code', { timeout: 240_000, skip: NO_CLAUDE }, () => {
  test('gets an answer, with a token and with an API key', async () => {
    for (const more of [undefined, { ANTHROPIC_API_KEY: CLIENT_KEY }]) {
      const { code, stdout } = await askClaude(baseURL, 'p/m', more);
      assert.deepEqual([code, stdout.trim()], [0, 'Hello there']);
    }
    assert.ok(bodies.every(({ model: name }) => name === 'm'));
  });

  for (const [what, end] of [
    ['a cut', (upstream) => upstream.destroy()],
    ['an event error', (upstream) => upstream.end(messageEvent('error', OVERLOADED))],
  ]) {
    test(`reports ${what}`, async () => {
      // Claude Code repeats a failed stream as a request for a complete answer.
      answer = (upstream, { stream }) =>
        stream
          ? startMessage(upstream).write(': so far\n\n', () => end(upstream))
          : sendError(upstream, 529, 'Overloaded');
      const { code, stdout } = await askClaude(baseURL, 'p/m');
      assert.notEqual(code, 0);
      assert.match(stdout, /Overloaded/);
    });
  }

  test('reports a provider that is not registered', async () => {
    const { code, stdout } = await askClaude(baseURL, 'nobody/m');
    assert.notEqual(code, 0);
    assert.match(stdout, /Unknown provider: nobody/);
  });
});

/** Streams a tool call, its input in two parts. */
function sendCall(upstream) {
  const { input, ...empty } = CALL;
  startMessage(upstream, []);
  const block = { ...empty, input: {} };
  upstream.write(messageEvent('content_block_start', { index: 0, content_block: block }));
  const json = JSON.stringify(input);
  for (const partial_json of [json.slice(0, 5), json.slice(5)]) {
    const delta = { type: 'input_json_delta', partial_json };
    upstream.write(messageEvent('content_block_delta', { index: 0, delta }));
  }
  upstream.end(messageEnd('tool_use'));
}
