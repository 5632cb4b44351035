/** `GET /v1/models/{id}` with `[server] endpoints`. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { assertError, NOT_AUTHENTICATED, NOT_FOUND } from '../support/errors.ts';
import type { TestGateway } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { sendJson, type Script } from '../support/upstream.ts';

const ENDPOINTS = 'endpoints = ["/v1/models/{id}"]';
const MODELS = [
  { id: 'chat', created: 7, context_length: 4096 },
  { id: 'org/chat:free' },
  { id: '100%' },
  { id: 'embed' },
];

const sendList: Script = (_, response) => sendJson(response, { data: MODELS });

/** Starts provider `p` with `MODELS`, of which `embed` is hidden, and clients `all` and `few`. */
async function start(t: TestContext, server = ENDPOINTS): Promise<TestGateway> {
  const { gateway } = await scenario(t, {
    server,
    clients: {
      all: 'key = "all-key"',
      few: 'key = "few-key"\nmodels = ["p/org/*", "p/nothing", "fast"]\nrequests_per_minute = 60',
    },
    providers: { p: { script: sendList, lines: 'hide_models = ["embed"]' } },
    more: '[aliases]\nfast = "p/chat"\n"org/own" = "p/org/chat:free"\n',
  });
  return gateway;
}

const as = (client: string) => ({ headers: { authorization: `Bearer ${client}-key` } });

async function listFor(gateway: TestGateway, client: string): Promise<{ id: string }[]> {
  const reply = await gateway.send('/v1/models', as(client));
  return (reply.json() as { data: { id: string }[] }).data;
}

describe('GET /v1/models/{id}', { concurrency: true }, () => {
  test('is the entry of the list, whether the id is encoded or not', async (t) => {
    const gateway = await start(t);
    // This request comes first, so it has the list fetched.
    assert.equal((await gateway.send('/v1/models/p/chat', as('all'))).status, 200);
    const entries = await listFor(gateway, 'all');
    const ids = ['p/chat', 'p/org/chat:free', 'p/100%', 'fast', 'org/own'];
    assert.deepEqual(
      entries.map(({ id }) => id),
      ids,
    );
    for (const entry of entries) {
      // `p%2Forg%2Fchat:free` is how OpenAI's SDK for Node encodes the id.
      const slashesEncoded = encodeURI(entry.id).replaceAll('/', '%2F');
      const spellings = [entry.id, slashesEncoded, encodeURIComponent(entry.id)];
      for (const id of spellings) {
        const reply = await gateway.send(`/v1/models/${id}?a=b`, as('all'));
        assert.equal(reply.status, 200, id);
        assert.equal(reply.headers['content-type'], 'application/json');
        assert.deepEqual(reply.json(), entry);
      }
    }
  });

  test('is 404 for an id that the list does not have, and is never decoded twice', async (t) => {
    const gateway = await start(t);
    const ids = ['p/embed', 'p/other', 'p', 'chat', 'q/chat', 'p/chat/', '/p/chat', 'p%252Fchat'];
    for (const id of [...ids, '%', '{id}', '']) {
      const reply = await gateway.send(`/v1/models/${id}`, as('all'));
      assertError(reply, NOT_FOUND);
      assert.equal(reply.headers.allow, undefined);
    }
  });

  test('is 404 for a model that the client may not name, as for one that is missing', async (t) => {
    const gateway = await start(t);
    const answerTo = async (id: string) => {
      const { status, text, headers } = await gateway.send(`/v1/models/${id}`, as('few'));
      return [status, text, Object.keys(headers)] as const;
    };
    const missing = await answerTo('p/nothing');
    assert.equal(missing[0], 404);
    for (const id of ['p/chat', 'p%2Fchat', 'p/100%', 'org/own']) {
      assert.deepEqual(await answerTo(id), missing, id);
    }
    const entries = await listFor(gateway, 'few');
    assert.deepEqual(
      entries.map(({ id }) => id),
      ['p/org/chat:free', 'fast'],
    );
    for (const entry of entries) {
      const reply = await gateway.send(`/v1/models/${entry.id}`, as('few'));
      assert.deepEqual(reply.json(), entry);
    }
  });

  test('has the keys, methods, limits and CORS headers of the list', async (t) => {
    const gateway = await start(t, `${ENDPOINTS}\ncors = true`);
    const path = '/v1/models/p%2Forg%2Fchat:free';
    assertError(await gateway.send(path, { headers: { authorization: '' } }), NOT_AUTHENTICATED);
    for (const method of ['POST', 'DELETE']) {
      const refused = await gateway.send(path, { method, ...as('few') });
      assert.deepEqual([refused.status, refused.headers.allow], [404, 'GET']);
    }
    const withoutId = await gateway.send('/v1/models/', { method: 'POST', ...as('few') });
    assertError(withoutId, NOT_FOUND);
    const reply = await gateway.send(path, as('few'));
    assert.equal(reply.status, 200);
    assert.equal(reply.headers['access-control-allow-origin'], '*');
    assert.equal(reply.headers['x-ratelimit-limit-requests'], '60');
    assert.ok(Number(reply.headers['x-ratelimit-remaining-requests']) < 60);
  });

  test('is 404 without the setting, and with other endpoints alone', async (t) => {
    for (const server of ['', 'endpoints = ["/v1/responses"]']) {
      const gateway = await start(t, server);
      for (const id of ['p/chat', 'p%2Fchat', '']) {
        const reply = await gateway.send(`/v1/models/${id}`, as('all'));
        assertError(reply, NOT_FOUND);
        assert.equal(reply.headers.allow, undefined);
      }
    }
  });
});
