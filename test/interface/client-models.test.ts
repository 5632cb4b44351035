/**
 * The models allowed to a named client: each client, model and path, with the answer and the
 * request to the provider.
 */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { assertError, NOT_FOUND, unknownProvider, type ExpectedError } from '../support/errors.ts';
import { chatBody, type TestGateway } from '../support/gateway.ts';
import { answerWell, type Script } from '../support/upstream.ts';
import { modelOf, scenario } from '../support/scenario.ts';

/** Each client's `models`; undefined allows all. A client's key is `<name>-key`. */
const CLIENTS: Readonly<Record<string, readonly string[] | undefined>> = {
  everything: undefined,
  nothing: [],
  star: ['*'],
  openai: ['openai/*'],
  exact: ['openai/gpt-5', 'fast'],
  family: ['openai/gpt-*', 'groq/llama'],
  bare: ['gpt-*', 'o4'],
  id: ['groq', 'openai'],
  stranger: ['nobody/*', 'gone'],
};
const SHARED_KEY = 'shared-key';

const ALIASES = `[aliases]
fast = "openai/gpt-5-mini"
slow = "groq/llama"
"openai/own" = "groq/llama-70b"
gone = "nobody/m"
`;

interface Started {
  readonly gateway: TestGateway;
  /** Returns the chat completions at the providers since the last call, as `<provider> <model>`. */
  readonly received: () => string[];
}

/**
 * Starts providers `openai` (the primary, with a default model) and `groq`, each with its upstream.
 */
async function start(t: TestContext): Promise<Started> {
  const seen: string[] = [];
  const provider = (id: string, lines: string) => {
    const script: Script = (request, response) => {
      assert.equal(request.url, '/v1/chat/completions');
      seen.push(`${id} ${modelOf(request)}`);
      return answerWell(request, response);
    };
    return { script, lines };
  };
  const clients = Object.entries(CLIENTS).map(([name, models]) => {
    const limit = models ? `models = ${JSON.stringify(models)}` : '';
    return [name, `key = "${name}-key"\n${limit}`];
  });
  const { gateway } = await scenario(t, {
    server: `auth.keys = ["${SHARED_KEY}"]`,
    clients: Object.fromEntries(clients) as Record<string, string>,
    providers: {
      openai: provider(
        'openai',
        'models = ["gpt-5", "gpt-5-mini", "o4"]\ndefault_model = "gpt-5-mini"',
      ),
      groq: provider('groq', 'models = ["llama", "llama-70b"]'),
    },
    more: `[providers]\nprimary = "openai"\n${ALIASES}`,
  });
  return { gateway, received: () => seen.splice(0) };
}

function keyOf(client: string): { headers: { authorization: string } } {
  return { headers: { authorization: `Bearer ${client}-key` } };
}

const NO_DEFAULT: ExpectedError = {
  httpStatus: 400,
  type: 'invalid_request_error',
  code: 'INVALID_REQUEST',
  message: 'Invalid request: provider groq has no default_model; name a model',
};

/**
 * Each row: the client, the request to a provider or the error, and the requested models with
 * JSON's escapes.
 */
const ROWS = String.raw`
everything | openai gpt-5-mini | fast openai openai/
everything | openai anything | openai/anything
everything | openai gpt-5 | gpt-5
everything | groq llama | groq/llama
everything | no default | groq
everything | unknown nobody | nobody/m gone
star | groq llama | slow
star | groq anything | groq/anything
star | openai anything | anything
star | unknown nobody | nobody/m
nothing | not found | fast openai/gpt-5 openai gpt-5 groq nobody/m *
openai | openai gpt-5 | openai/gpt-5 gpt-5
openai | openai unlisted | openai/unlisted
openai | openai a/b | openai/a/b
openai | openai /gpt-5 | openai//gpt-5
openai | openai * | openai/*
openai | openai ../groq/llama | openai/../groq/llama
openai | openai gpt-5-mini | openai openai/
openai | openai openai%2fgpt-5 | openai%2fgpt-5
openai | groq llama-70b | openai/own
openai | not found | fast slow groq/llama groq groq/ nobody/m OpenAI/gpt-5 \u0020openai/gpt-5
openai | not found | \ufeffopenai/gpt-5 ./openai/gpt-5 /openai/gpt-5 openai\u2215../groq/llama
exact | openai gpt-5 | openai/gpt-5 gpt-5
exact | openai gpt-5-mini | fast
exact | not found | openai openai/ openai/gpt-5-mini gpt-5-mini openai//gpt-5 openai/gpt-5/
exact | not found | openai/gpt-5\u0020 openai/gpt-5\u0000 openai/gpt-5\n openai/GPT-5 OPENAI/gpt-5
exact | not found | openai%2fgpt-5 openai%2Fgpt-5 openai\\/gpt-5 \u043epenai/gpt-5 openai/gpt\u20115
exact | not found | groq/../openai/gpt-5 groq/fast fast/ fast\u0020 \u0020fast Fast slow * openai/*
exact | not found | __proto__ constructor ${'m'.repeat(4000)}
family | openai gpt-5 | openai/gpt-5
family | openai gpt- | openai/gpt-
family | openai gpt-5-mini | openai
family | openai gpt-4 | gpt-4
family | groq llama | groq/llama
family | not found | openai/o4 o4 openai/gpt groq/llama-70b groq slow
bare | openai gpt-5 | gpt-5
bare | openai o4 | o4
bare | unknown gpt-5 | gpt-5/x
bare | not found | openai/gpt-5 o4-mini openai
id | openai gpt-5-mini | openai
id | no default | groq
id | not found | openai/ openai/gpt-5-mini gpt-5-mini groq/llama
stranger | unknown nobody | nobody/m gone
stranger | not found | nobody openai/gpt-5 somebody/m
`;

/** Returns a row's error, if it has one. */
function errorOf(expected: string): ExpectedError | undefined {
  const [, id] = /^unknown (.*)/.exec(expected) ?? [];
  if (id !== undefined) return unknownProvider(id);
  return { 'not found': NOT_FOUND, 'no default': NO_DEFAULT }[expected];
}

test('a client may name the models of its list, and gets 404 for others', async (t) => {
  const { gateway, received } = await start(t);
  for (const row of ROWS.trim().split('\n')) {
    const [client = '', expected = '', models = ''] = row.split(' | ');
    const error = errorOf(expected);
    for (const name of models.split(' ')) {
      const model = JSON.parse(`"${name}"`) as string;
      for (const stream of [false, true]) {
        const reply = await gateway.chat(chatBody({ model, stream }), keyOf(client));
        const what = `${client} ${name.slice(0, 100)} ${reply.text}`;
        assert.equal(reply.status, error?.httpStatus ?? 200, what);
        assert.deepEqual(received(), error ? [] : [expected], what);
        if (error) assertError(reply, error);
        else assert.equal(reply.headers['x-gateway-provider'], expected.split(' ')[0]);
      }
    }
  }
});

test('the 404 is the same for existing and missing models, headers included', async (t) => {
  const { gateway } = await start(t);
  const answerFor = async (model: string) => {
    const { status, text, headers } = await gateway.chat(chatBody({ model }), keyOf('exact'));
    const own = ['x-request-id', 'date', 'server-timing'];
    return [status, text, Object.entries(headers).filter(([name]) => !own.includes(name))];
  };
  const expected = await answerFor('nobody/m');
  assert.equal(expected[0], 404);
  for (const model of ['groq/llama', 'slow', 'gone', 'groq', 'no-such-model', 'openai/']) {
    assert.deepEqual(await answerFor(model), expected, model);
  }
});

test('no other member may name a model', async (t) => {
  const { gateway, received } = await start(t);
  const post = async (member: string, key: string) => {
    const messages = '"messages": [{"role": "user", "content": "x"}]';
    const reply = await gateway.chat(`{"model": "openai/gpt-5", ${member}, ${messages}}`, {
      headers: { authorization: `Bearer ${key}` },
    });
    return [reply.status, received().length, reply.json().error?.type];
  };
  const refused = [400, 0, 'invalid_request_error'];
  for (const key of ['exact-key', 'star-key', 'everything-key', SHARED_KEY]) {
    for (const name of ['MODEL', 'Model', '\\u004dodel', 'STREAM', '\u017ftream']) {
      assert.deepEqual(await post(`"${name}": "groq/llama"`, key), refused, `${name} ${key}`);
    }
  }
  for (const name of ['models', 'MODELS', 'model\u017f', 'model\\u017f', '\\u006dodels']) {
    const member = `"${name}": ["groq/llama"]`;
    for (const key of ['exact-key', 'star-key']) {
      assert.deepEqual(await post(member, key), refused, `${name} ${key}`);
    }
    for (const key of ['everything-key', SHARED_KEY]) {
      assert.deepEqual(await post(member, key), [200, 1, undefined], `${name} ${key}`);
    }
  }
  assert.equal((await post('"metadata": {"models": 1, "MODEL": 1}', 'exact-key'))[0], 200);
});

describe('GET /v1/models', () => {
  const OPENAI = ['openai/gpt-5', 'openai/gpt-5-mini', 'openai/o4'];
  const ALL = [...OPENAI, 'groq/llama', 'groq/llama-70b', 'fast', 'slow', 'openai/own'];
  const LISTS: Readonly<Record<string, readonly string[]>> = {
    everything: ALL,
    star: ALL,
    shared: ALL,
    nothing: [],
    openai: [...OPENAI, 'openai/own'],
    exact: ['openai/gpt-5', 'fast'],
    family: ['openai/gpt-5', 'openai/gpt-5-mini', 'groq/llama'],
    bare: [],
    id: [],
    stranger: [],
  };

  test('lists exactly the models that the client may ask for', async (t) => {
    const { gateway, received } = await start(t);
    for (const round of [1, 2]) {
      for (const [client, expected] of Object.entries(LISTS)) {
        const { object, data } = (await gateway.send('/v1/models', keyOf(client))).json() as {
          object: string;
          data: { id: string }[];
        };
        const ids = data.map(({ id }) => id);
        assert.deepEqual([object, ids], ['list', expected], `${client}, ${round}`);
        for (const model of round === 1 ? ALL : []) {
          const { status } = await gateway.chat(chatBody({ model }), keyOf(client));
          const isServed = expected.includes(model);
          assert.equal(status, isServed ? 200 : 404, `${client} ${model}`);
          assert.equal(received().length, isServed ? 1 : 0);
        }
      }
    }
  });
});
