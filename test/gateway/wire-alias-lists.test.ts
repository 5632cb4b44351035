/** Aliases for lists of models. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { assertError } from '../support/errors.ts';
import { chatBody, triesOf, withoutRefill } from '../support/gateway.ts';
import { modelOf, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { answerWell, sendJson, type Script } from '../support/upstream.ts';

function fail(status: number): Script {
  return (request, response) => {
    const model = modelOf(request);
    const error = { message: `${model} failed` };
    const headers = { 'x-request-id': `upstream-${model}` };
    sendJson(response, { error }, { status, headers });
  };
}

/** Providers `p`, `q` and `r`, which answer a model as `scripts` says by `<provider_id>/<model>`, and else well. */
async function start(
  t: TestContext,
  targets: readonly string[],
  {
    scripts = {},
    more = '',
    ...settings
  }: { scripts?: Record<string, Script> } & Omit<ScenarioSettings<'p'>, 'providers'> = {},
) {
  const asked: string[] = [];
  const provider = (id: string) => ({
    lines: `default_model = "${id}-default"`,
    script: ((request, response) => {
      if (request.method === 'GET') return sendJson(response, { data: [] });
      const name = `${id}/${modelOf(request)}`;
      asked.push(name);
      return (scripts[name] ?? answerWell)(request, response);
    }) satisfies Script,
  });
  const { gateway } = await scenario(t, {
    ...settings,
    providers: { p: provider('p'), q: provider('q'), r: provider('r') },
    more: `[aliases]\nfast = ${JSON.stringify(targets)}\n${more}`,
  });
  return {
    gateway,
    scripts,
    /** What reached the providers since the last call, in order. */
    asked: () => asked.splice(0),
    ask: async (stream = false) => gateway.chat(chatBody({ model: 'fast', stream })),
  };
}

describe('an alias for a list', { concurrency: true }, () => {
  test('is asked in order until one answers, each for its own model, for streams too', async (t) => {
    const { ask, asked, gateway } = await start(t, ['p/a', 'q/b', 'r/c'], {
      scripts: { 'p/a': fail(503), 'q/b': fail(404) },
    });
    for (const stream of [false, true]) {
      const reply = await ask(stream);
      assert.deepEqual([reply.status, reply.headers['x-gateway-provider']], [200, 'r']);
      assert.deepEqual(asked(), ['p/a', 'q/b', 'r/c']);
    }
    const [line] = gateway.accessLines();
    assert.equal(triesOf(line), 'p:503 q:404 r:200');
    assert.deepEqual([line?.['model'], line?.['upstream_model']], ['fast', 'c']);
  });

  test('ends at a failure of its first that is no reason to fall back', async (t) => {
    for (const status of [400, 401, 404]) {
      const { ask, asked } = await start(t, ['p/a', 'q/b'], { scripts: { 'p/a': fail(status) } });
      assert.equal((await ask()).status, status);
      assert.deepEqual(asked(), ['p/a']);
    }
  });

  test('comes before the fallbacks, of which those that are in it are left out', async (t) => {
    const { ask, asked } = await start(t, ['p/a', 'r/c'], {
      scripts: { 'p/a': fail(503), 'r/c': fail(503) },
      fallback: ['p', 'r', 'q'],
    });
    assert.equal((await ask()).headers['x-gateway-provider'], 'q');
    assert.deepEqual(asked(), ['p/a', 'r/c', 'q/q-default']);
  });

  test('may name a provider twice, and the circuit of each of its models is its own', async (t) => {
    const { ask, asked } = await start(t, ['p/a', 'p/b'], { scripts: { 'p/a': fail(503) } });
    for (let count = 0; count < 4; count += 1) assert.equal((await ask()).status, 200);
    const each = ['p/a', 'p/b'];
    assert.deepEqual(
      asked(),
      [...each, ...each, ...each, 'p/b'],
      'the circuit of p/a is open after three failures',
    );
  });

  test('asks its first last while the circuit of that is open', async (t) => {
    const { ask, asked, scripts, gateway } = await start(t, ['p/a', 'q/b'], {
      scripts: { 'p/a': fail(503) },
    });
    for (let count = 0; count < 3; count += 1) await ask();
    asked();
    scripts['q/b'] = fail(500);
    const reply = await ask();
    assert.deepEqual([reply.status, reply.headers['x-gateway-provider']], [503, 'p']);
    assert.deepEqual(asked(), ['q/b', 'p/a']);
    assert.equal(triesOf(gateway.accessLines().at(-1)), 'p:circuit_open q:500 p:503');
  });

  test('gives the failure of its first if all fail, and the access line is about that one', async (t) => {
    const { ask, asked, gateway } = await start(t, ['p/a', 'p/b', 'q/c'], {
      scripts: { 'p/a': fail(503), 'p/b': fail(500), 'q/c': fail(429) },
    });
    const reply = await ask();
    assertError(reply, {
      httpStatus: 503,
      type: 'provider_error',
      code: 'API_ERROR',
      message: 'API error: 503 - a failed',
      provider: 'p',
      status: 503,
      headers: { 'x-gateway-provider': 'p', 'x-should-retry': 'false' },
    });
    assert.deepEqual(asked(), ['p/a', 'p/b', 'q/c']);
    const { provider, upstream_model, upstream_request_id } = gateway.accessLines()[0]!;
    assert.deepEqual([provider, upstream_model, upstream_request_id], ['p', 'a', 'upstream-a']);
    assert.equal(reply.headers['x-upstream-request-id'], 'upstream-a');
  });

  test('leaves out providers that are not registered', async (t) => {
    const { ask, asked, gateway } = await start(t, ['groq/x', 'q/b', 'nobody/y', 'r/c'], {
      scripts: { 'q/b': fail(503) },
    });
    assert.equal((await ask()).status, 200);
    assert.deepEqual(asked(), ['q/b', 'r/c']);
    assert.equal(triesOf(gateway.accessLines()[0]), 'q:503 r:200');
  });

  test('with no registered provider is an unknown provider: its first', async (t) => {
    const { ask, asked } = await start(t, ['groq/x', 'nobody/y']);
    const reply = await ask();
    assert.deepEqual([reply.status, reply.json().error.message], [400, 'Unknown provider: groq']);
    assert.deepEqual(asked(), []);
  });

  test('is refused if the limit of its first is reached, and passes over a later one at its limit', async (t) => {
    const limitOf = (id: string) =>
      `[rate_limit]\nenabled = true\n[rate_limit.providers.${id}]\nrequests_per_second = 1\nburst_capacity = 1\n`;
    for (const [id, statuses, tries] of [
      ['p', [200, 429], 'p:503 q:200'],
      ['q', [200, 200], 'p:503 q:limit r:200'],
    ] as const) {
      const { ask, gateway } = await start(t, ['p/a', 'q/b', 'r/c'], {
        scripts: { 'p/a': fail(503) },
        more: limitOf(id),
        adjust: withoutRefill,
      });
      const replies = await Promise.all([ask(), ask()]);
      assert.deepEqual(new Set(replies.map(({ status }) => status)), new Set(statuses));
      const lines = gateway.accessLines().map(triesOf);
      assert.ok(lines.includes(tries), lines.join());
    }
  });

  test('is listed among the models as its first registered provider’s', async (t) => {
    const { gateway } = await start(t, ['groq/x', 'q/b', 'p/a']);
    const { data } = (await gateway.send('/v1/models')).json();
    const fast = data.filter(({ id }: { id: string }) => id === 'fast');
    assert.deepEqual(fast, [{ id: 'fast', object: 'model', created: 0, owned_by: 'q' }]);
  });
});
