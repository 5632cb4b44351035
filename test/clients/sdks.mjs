/** The tests that the SDKs of several endpoints have in common. */

import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';

import { generateText, streamText } from 'ai';

import { startGateway, startUpstream, stopAll } from './support.mjs';

export const LIMIT = { timeout: 60_000 };

/**
 * Starts a gateway with these endpoints for all tests of a file. Returns its `baseURL`, the
 * `bodies` that the provider has received, and the provider's next `answer`, which is `sendAnswer`
 * again for each test.
 */
export function serve(endpoints, sendAnswer) {
  const served = { answer: sendAnswer, bodies: [], baseURL: '' };
  before(async () => {
    const upstream = await startUpstream((response, body, url) => {
      served.bodies.push(body);
      served.answer(response, body, url);
    });
    const server = `endpoints = ${JSON.stringify(endpoints)}`;
    served.baseURL = (await startGateway(upstream, { server })).baseURL;
  });
  beforeEach(() => {
    served.bodies = [];
    served.answer = sendAnswer;
  });
  after(stopAll);
  return served;
}

/** The AI SDK. `callOf` returns the arguments for a model. */
export const aiSdk = (callOf) => ({
  complete: async (id) => (await generateText(callOf(id))).text,
  async *words() {
    const errors = [];
    const onError = ({ error }) => errors.push(error);
    try {
      yield* streamText({ ...callOf(), onError }).textStream;
    } catch (broken) {
      errors.push(broken);
    }
    for (const error of errors) throw error;
  },
});

/** LangChain. `modelOf` returns its object for a model. */
export const langChain = (modelOf) => ({
  complete: async (id) => (await modelOf(id).invoke('hello')).text,
  async *words() {
    for await (const { text } of await modelOf().stream('hello')) yield text;
  },
});

/**
 * Describes each SDK at an endpoint. An SDK is `complete(model)`, which returns an answer's text,
 * and `words()`, which iterates over a stream's text and throws the stream's error.
 *
 * @param begin - begins a stream with its text, or with the given words
 * @param failures - by name, how a stream ends in its middle, and a pattern for the error
 * @param lastEvent - the event of an answer that fails before its first token, with this reason
 */
export function describeSdks(path, served, sdks, { begin, failures, lastEvent, reason }) {
  for (const [name, { complete, words }] of Object.entries(sdks)) {
    describe(`${name} at ${path}`, LIMIT, () => {
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
        assert.equal(served.bodies[0].model, 'm');
      });

      test('gets a stream', async () => assert.deepEqual(await readAll(), { text: 'Hello there' }));

      test('reports a provider that is not registered', async () => {
        const error = await complete('nobody/m').catch((thrown) => thrown);
        assert.equal(error.statusCode ?? error.status, 400);
        assert.match(error.message, /Unknown provider: nobody/);
      });

      for (const [failure, [end, message]] of Object.entries(failures)) {
        test(`reports ${failure} in mid-stream`, async () => {
          served.answer = (upstream) => begin(upstream).write(': so far\n\n', () => end(upstream));
          const { text, error } = await readAll();
          assert.equal(text, 'Hello there');
          assert.match(error ?? 'no error', message);
        });
      }

      test('reports an answer that fails before its first token', async () => {
        served.answer = (upstream) => begin(upstream, []).end(lastEvent);
        const { text, error } = await readAll();
        assert.equal(text, '');
        assert.match(error ?? 'no error', reason);
      });
    });
  }
}
