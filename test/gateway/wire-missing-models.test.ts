/** How providers say that they lack a model, each in the words of its own. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { chatBody, triesOf } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { linesOf } from '../support/streams.ts';
import { sendJson, type Script } from '../support/upstream.ts';

type Answers = Readonly<Record<string, readonly [status: number, body: object]>>;

const answer =
  (status: number, body: object): Script =>
  (_, response) =>
    sendJson(response, body, { status });

const missing: Answers = {
  'OpenAI, for a model that the project may not use': [
    403,
    {
      error: { message: 'Project `p` does not have access to model `m`', code: 'model_not_found' },
    },
  ],
  OpenAI: [404, { error: { message: 'The model `m` does not exist', code: 'model_not_found' } }],
  Anthropic: [404, { type: 'error', error: { type: 'not_found_error', message: 'model: m' } }],
  Azure: [
    404,
    {
      error: {
        code: 'DeploymentNotFound',
        message:
          'The API deployment for this resource does not exist. If you created the deployment ' +
          'within the last 5 minutes, please wait a moment and try again.',
      },
    },
  ],
  'Amazon Bedrock': [
    404,
    { message: 'Could not resolve the foundation model', __type: 'ResourceNotFoundException' },
  ],
  Databricks: [
    404,
    { error_code: 'RESOURCE_DOES_NOT_EXIST', message: "Endpoint with name 'm' does not exist." },
  ],
  DeepSeek: [400, { error: { message: 'Model Not Exist', type: 'invalid_request_error' } }],
  Fireworks: [
    404,
    {
      error: { message: 'Model not found, inaccessible, and/or not deployed', code: 'NOT_FOUND' },
    },
  ],
  Gemini: [
    404,
    [{ error: { code: 404, message: 'models/m is not found for v1', status: 'NOT_FOUND' } }],
  ],
  Groq: [
    403,
    {
      error: {
        message: 'The model `m` is blocked at the organization level.',
        type: 'permissions_error',
        code: 'model_permission_blocked_org',
      },
    },
  ],
  'Hugging Face': [400, { error: { message: "'m' does not exist", code: 'model_not_found' } }],
  'llama.cpp': [404, { error: { code: 404, message: 'model not found' } }],
  Mistral: [400, { object: 'error', message: 'Invalid model: m', type: 'invalid_model' }],
  NVIDIA: [
    404,
    { status: 404, title: 'Not Found', detail: "Function '23d4': Not found for account 'Q1'" },
  ],
  Ollama: [404, { error: { message: 'model "m" not found, try pulling it first' } }],
  OpenRouter: [404, { error: { message: 'No endpoints found for a/m:free.', code: 404 } }],
  'OpenRouter, for an id of no model': [
    400,
    { error: { message: 'a/m is not a valid model ID', code: 400 } },
  ],
  SiliconFlow: [
    400,
    { code: 20012, message: 'Model does not exist. Please check it carefully.', data: null },
  ],
  Together: [
    400,
    { error: { message: 'Unable to access non-serverless m', code: 'model_not_available' } },
  ],
  'Vertex AI': [
    404,
    [{ error: { code: 404, message: 'Publisher Model `m` was not found', status: 'NOT_FOUND' } }],
  ],
  vLLM: [404, { object: 'error', message: 'The model `m` does not exist.', code: 404 }],
  xAI: [404, { code: 'Some requested entity was not found', error: 'The model m does not exist' }],
  'z.ai': [400, { error: { code: '1211', message: '模型不存在' } }],
};

const other: Answers = {
  'a wrong path at Azure': [404, { error: { code: '404', message: 'Resource not found' } }],
  'a request that no endpoint of OpenRouter takes': [
    404,
    { error: { message: 'No endpoints found that support tool use.', code: 404 } },
  ],
  'a 403 of a key without the scope of requests': [
    403,
    { error: { message: 'Missing scopes: model.request. You have no access to model.request' } },
  ],
  'a 400 that quotes the words': [400, { error: { message: "bad role 'Model Not Exist'" } }],
  'a 422 with the words': [422, { error: { message: 'Model Not Exist' } }],
};

/** A gateway whose provider `p` has this answer for each request. */
async function gatewayOf(t: Parameters<typeof scenario>[0], script: Script, targets: string) {
  const { gateway } = await scenario(t, {
    providers: { p: script, q: {} },
    more: `[admin]\nport = 0\n[aliases]\nfast = ${targets}`,
  });
  /** Asks several times, and returns the outcome and the tries of the last request. */
  const ask = async (model: string, count: number) => {
    const before = gateway.accessLines().length;
    for (let round = 0; round < count; round += 1) await gateway.chat(chatBody({ model }));
    const last = (await linesOf(gateway, before + count)).at(-1);
    return [last!['outcome'], triesOf(last)];
  };
  /** Returns whether an incident lasts. */
  const hasIncident = async () => {
    gateway.judge();
    return (await gateway.admin('/metrics')).text.includes('\ngateway_incident{');
  };
  return { ask, hasIncident };
}

const LIST = '["p/gone", "q/here"]';

describe('an answer that says that the model is missing', () => {
  for (const [provider, [status, body]] of Object.entries(missing)) {
    test(`is recognised in the words of ${provider}`, async (t) => {
      const { ask, hasIncident } = await gatewayOf(t, answer(status, body), LIST);
      assert.deepEqual(await ask('p/typo', 4), ['rejected', `p:${status}`]);
      assert.equal(await hasIncident(), false);
      assert.deepEqual(await ask('fast', 3), ['upstream_error', `p:${status}`]);
      assert.equal(await hasIncident(), true);
      assert.deepEqual(await ask('fast', 1), ['ok', 'p:circuit_open q:200']);
    });
  }

  for (const [what, [status, body]] of Object.entries(other)) {
    test(`is not ${what}`, async (t) => {
      const { ask } = await gatewayOf(t, answer(status, body), LIST);
      const outcome = status === 403 || status === 404 ? 'upstream_error' : 'rejected';
      assert.deepEqual(await ask('p/typo', 1), [outcome, `p:${status}`]);
      assert.deepEqual(await ask('fast', 4), [outcome, `p:${status}`]);
    });
  }

  test('lets a balanced alias ask its next target, with a 400 or 403 too', async (t) => {
    const list = `{ targets = ${LIST}, balance = "weighted", weights = [1, 0] }`;
    const ofClient = `${list}\n"other-*" = ${list.replaceAll(/\/\w+/g, '/*')}`;
    for (const row of [missing['DeepSeek'], missing['Azure'], missing['Groq']]) {
      const [status, body] = row!;
      const { ask } = await gatewayOf(t, answer(status, body), ofClient);
      for (const model of ['fast', 'other-name'])
        assert.deepEqual(await ask(model, 1), ['ok', `p:${status} q:200`]);
      assert.deepEqual(await ask('other-name', 4), ['ok', `p:${status} q:200`]);
      assert.deepEqual(await ask('fast', 3), ['ok', 'p:circuit_open q:200']);
    }
  });
});
