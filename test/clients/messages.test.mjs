/** Unchanged SDKs and Claude Code against `/v1/messages`. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { createAnthropic } from '@ai-sdk/anthropic';
import Anthropic from '@anthropic-ai/sdk';
import { ChatAnthropic } from '@langchain/anthropic';
import { jsonSchema, streamText, tool } from 'ai';

import { LIMIT, aiSdk, describeSdks, langChain, serve } from './sdks.mjs';
import {
  CLIENT_KEY,
  NO_CLAUDE,
  askClaude,
  message,
  messageEnd,
  messageEvent,
  sendError,
  sendJson,
  startMessage,
} from './support.mjs';

const OVERLOADED = { error: { type: 'overloaded_error', message: 'Overloaded' } };
const CALL = { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Oslo' } };

const served = serve(['/v1/messages', '/v1/messages/count_tokens'], sendAnswer);

function sendAnswer(upstream, { stream }, url) {
  if (url === '/v1/messages/count_tokens') sendJson(upstream, { input_tokens: 12 });
  else if (stream) startMessage(upstream).end(messageEnd());
  else sendJson(upstream, message());
}

const origin = () => new URL(served.baseURL).origin;
const anthropic = (more = { apiKey: CLIENT_KEY }) =>
  new Anthropic({ baseURL: origin(), maxRetries: 0, ...more });
const request = (model = 'p/m') => ({
  model,
  max_tokens: 64,
  messages: [{ role: 'user', content: 'hello' }],
});
const model = (id = 'p/m') => createAnthropic({ baseURL: served.baseURL, apiKey: CLIENT_KEY })(id);
const call = (id) => ({ model: model(id), prompt: 'hello', maxRetries: 0, maxOutputTokens: 64 });
const chatAnthropic = (id = 'p/m') =>
  new ChatAnthropic({
    model: id,
    apiKey: CLIENT_KEY,
    anthropicApiUrl: origin(),
    maxRetries: 0,
    maxTokens: 64,
  });

const sdks = {
  'the Anthropic SDK': {
    complete: async (id) => (await anthropic().messages.create(request(id))).content[0].text,
    async *words() {
      for await (const { delta } of anthropic().messages.stream(request())) {
        if (delta?.type === 'text_delta') yield delta.text;
      }
    },
  },
  "the AI SDK's createAnthropic()": aiSdk(call),
  LangChain: langChain(chatAnthropic),
};

const failWith = (upstream) => upstream.end(messageEvent('error', OVERLOADED));

describeSdks('/v1/messages', served, sdks, {
  begin: startMessage,
  failures: {
    'an event error': [failWith, /Overloaded/],
    'a cut': [(upstream) => upstream.destroy(), /Provider error: /],
    'an end without message_stop': [(upstream) => upstream.end(), /Provider error: /],
  },
  lastEvent: messageEvent('error', OVERLOADED),
  reason: /Overloaded/,
});

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
      served.answer = (upstream) => sendError(upstream, status, 'a reason');
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
    served.answer = (upstream) => sendJson(upstream, message([thought, CALL], 'tool_use'));
    const { content } = await anthropic().messages.create(request());
    assert.deepEqual(content, [thought, CALL]);
    served.answer = (upstream) => sendCall(upstream);
    const streamed = await anthropic().messages.stream(request()).finalMessage();
    assert.deepEqual(streamed.content.at(-1), CALL);
    assert.equal(streamed.stop_reason, 'tool_use');
  });
});

test('the AI SDK calls a tool in a stream', LIMIT, async () => {
  served.answer = (upstream, { messages }) =>
    messages.length === 1 ? sendCall(upstream) : startMessage(upstream).end(messageEnd());
  const inputSchema = jsonSchema({ type: 'object', properties: { city: { type: 'string' } } });
  const weather = tool({ inputSchema, execute: ({ city }) => `rain in ${city}` });
  const { toolResults } = streamText({ ...call(), tools: { weather } });
  assert.equal((await toolResults)[0].output, 'rain in Oslo');
});

describe('Claude Code', { timeout: 240_000, skip: NO_CLAUDE }, () => {
  test('gets an answer, with a token and with an API key', async () => {
    for (const more of [undefined, { ANTHROPIC_API_KEY: CLIENT_KEY }]) {
      const { code, stdout } = await askClaude(served.baseURL, 'p/m', more);
      assert.deepEqual([code, stdout.trim()], [0, 'Hello there']);
    }
    assert.ok(served.bodies.every(({ model: name }) => name === 'm'));
  });

  for (const [what, end] of [
    ['a cut', (upstream) => upstream.destroy()],
    ['an event error', failWith],
  ]) {
    test(`reports ${what}`, async () => {
      // Claude Code repeats a failed stream as a request for a complete answer.
      served.answer = (upstream, { stream }) =>
        stream
          ? startMessage(upstream).write(': so far\n\n', () => end(upstream))
          : sendError(upstream, 529, 'Overloaded');
      const { code, stdout } = await askClaude(served.baseURL, 'p/m');
      assert.notEqual(code, 0);
      assert.match(stdout, /Overloaded/);
    });
  }

  test('reports a provider that is not registered', async () => {
    const { code, stdout } = await askClaude(served.baseURL, 'nobody/m');
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
