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
  /** The status, who answered, and the models that were asked since the last call, in order. */
  const ask = async (stream = false) => {
    const { status, headers } = await gateway.chat(chatBody({ model: 'fast', stream }));
    return `${status} ${String(headers['x-gateway-provider'])}: ${asked.splice(0).join(' ')}`;
  };
  return { gateway, scripts, ask };
}

describe('an alias for a list', { concurrency: true }, () => {
  test('is asked in order until one answers, each for its own model, for streams too', async (t) => {
    const { ask, gateway } = await start(t, ['p/a', 'q/b', 'r/c'], {
      scripts: { 'p/a': fail(503), 'q/b': fail(404) },
    });
    for (const stream of [false, true]) assert.equal(await ask(stream), '200 r: p/a q/b r/c');
    const [line] = gateway.accessLines();
    assert.equal(triesOf(line), 'p:503 q:404 r:200');
    assert.deepEqual([line?.['model'], line?.['upstream_model']], ['fast', 'c']);
  });

  test('gives the failure of its first if all fail, and the access line is about that one', async (t) => {
    const { gateway } = await start(t, ['p/a', 'p/b', 'q/c'], {
      scripts: { 'p/a': fail(503), 'p/b': fail(500), 'q/c': fail(429) },
    });
    const reply = await gateway.chat(chatBody({ model: 'fast' }));
    assertError(reply, {
      httpStatus: 503,
      type: 'provider_error',
      code: 'API_ERROR',
      message: 'API error: 503 - a failed',
      provider: 'p',
      status: 503,
      headers: { 'x-gateway-provider': 'p', 'x-should-retry': 'false' },
    });
    assert.equal(triesOf(gateway.accessLines()[0]), 'p:503 p:500 q:429');
    const { provider, upstream_model, upstream_request_id } = gateway.accessLines()[0]!;
    assert.deepEqual([provider, upstream_model, upstream_request_id], ['p', 'a', 'upstream-a']);
    assert.equal(reply.headers['x-upstream-request-id'], 'upstream-a');
  });

  test('is refused if the limit of its first is reached, and passes over a later one at its limit', async (t) => {
    const limitOf = (id: string) =>
      `[rate_limit]\nenabled = true\n[rate_limit.providers.${id}]\nrequests_per_second = 1\nburst_capacity = 1\n`;
    for (const [id, statuses, tries] of [
      ['p', ['200', '429'], 'p:503 q:200'],
      ['q', ['200', '200'], 'p:503 q:limit r:200'],
    ] as const) {
      const { ask, gateway } = await start(t, ['p/a', 'q/b', 'r/c'], {
        scripts: { 'p/a': fail(503) },
        more: limitOf(id),
        adjust: withoutRefill,
      });
      const replies = await Promise.all([ask(), ask()]);
      assert.deepEqual(replies.map((told) => told.slice(0, 3)).toSorted(), statuses);
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
