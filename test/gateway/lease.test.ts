/** An answer's slot and memory are given back once, and its outcome is recorded once. */

import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { ServerResponse } from 'node:http';
import { test, type TestContext } from 'node:test';

import type { Transport } from '../../src/upstream/connections/transport.ts';
import type { ByteSource } from '../../src/lib/memory/byte-source.ts';
import { chatBody, startGateway, STREAM, triesOf } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { eventually } from '../support/streams.ts';
import { answerWell, CHUNK, failWith, startUpstream, type Script } from '../support/upstream.ts';

/** Returns a function for the latest response begun by a server in this process. */
function watchResponses(t: TestContext): () => ServerResponse | undefined {
  let latest: ServerResponse | undefined;
  const onStart = (message: unknown) => {
    latest = (message as { response: ServerResponse }).response;
  };
  subscribe('http.server.request.start', onStart);
  t.after(() => unsubscribe('http.server.request.start', onStart));
  return () => latest;
}

/** Calls `onFirst` as soon as the body's reader has taken the first chunk. */
function afterFirstChunk(body: ByteSource, onFirst: () => void): ByteSource {
  return {
    start: (sink) =>
      body.start({
        write(chunk) {
          const isRoomLeft = sink.write(chunk);
          onFirst();
          return isRoomLeft;
        },
        end: (error) => sink.end(error),
      }),
    resume: () => body.resume(),
  };
}

test('a client that leaves before the delivery frees the slot, and is no failure', async (t) => {
  const latestResponse = watchResponses(t);
  let leaves = true;
  const replaceSend =
    (sendReal: Transport['send']): Transport['send'] =>
    async (...request) => {
      const client = latestResponse()!;
      const reply = await sendReal(...request);
      const leave = () => {
        if (!leaves) return;
        leaves = false;
        client.destroy();
        // Node emits `close` later, when the answer would already be delivered.
        client.emit('close');
      };
      const { status, headers } = reply;
      return { status, headers, body: afterFirstChunk(reply.body, leave) };
    };
  const { gateway } = await scenario(t, {
    replaceSend,
    providers: { p: { lines: 'max_concurrent_requests = 1' } },
  });
  await assert.rejects(gateway.chat(STREAM));
  await eventually(() => gateway.accessLines().length === 1, 'the access line');
  const [line = assert.fail()] = gateway.accessLines();
  assert.equal(line['outcome'], 'client_closed');
  assert.equal(triesOf(line), 'p:200');
  const [attempt] = line['tries'] as { outcome: string }[];
  assert.equal(attempt?.outcome, 'client_closed');
  const { status } = await gateway.chat(STREAM);
  assert.equal(status, 200);
});

for (const body of [chatBody(), STREAM]) {
  const kind = body['stream'] ? 'a stream' : 'a complete answer';
  test(`${kind} whose head node:http refuses does not end a row of failures`, async (t) => {
    let mode: 'good' | 'refused' | 'bad';
    const replaceSend =
      (sendReal: Transport['send']): Transport['send'] =>
      async (...request) => {
        const { status, headers, body: bytes } = await sendReal(...request);
        const refused = new Map([...headers, ['x-ratelimit-limit', '\u0001']]);
        return { status, headers: mode === 'refused' ? refused : headers, body: bytes };
      };
    const script: Script = (...exchange) =>
      (mode === 'bad' ? failWith(503) : answerWell)(...exchange);
    const { gateway } = await scenario(t, {
      replaceSend,
      server: 'retries = 0',
      providers: { p: script },
    });
    const ask = async (next: typeof mode, times: number) => {
      mode = next;
      const statuses = [];
      for (let at = 0; at < times; at += 1) statuses.push((await gateway.chat(body)).status);
      return statuses;
    };
    assert.deepEqual(await ask('good', 8), Array(8).fill(200));
    assert.deepEqual(await ask('bad', 4), Array(4).fill(503));
    assert.deepEqual(await ask('refused', 1), [500]);
    assert.deepEqual(gateway.lines('incident'), []);
    // Fewer than half the tries have failed, so only the fifth failure in a row is the reason.
    assert.deepEqual(await ask('bad', 1), [503]);
    await eventually(() => gateway.lines('incident').length > 0, 'the incident');
  });
}

test('a key whose stream breaks off behind its first token has worked', async (t) => {
  let refuses = true;
  const upstream = await startUpstream(t, (request, response) => {
    if (refuses) return failWith(401)(request, response);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    return response.write(CHUNK, () => response.destroy());
  });
  const keys = '["sk-key-a-canary-01", "sk-key-b-canary-02"]';
  const section = `[providers.p]\nmodels = ["m"]\nbase_url = "${upstream.baseUrl}"`;
  const toml = `[admin]\nport = 0\n${section}\napi_keys = ${keys}`;
  const gateway = await startGateway(t, { toml });
  const accepted = async () =>
    /^gateway_keys_accepted.*/m.exec((await gateway.admin('/metrics')).text)?.[0];
  assert.equal((await gateway.chat(STREAM)).status, 401);
  assert.equal(await accepted(), 'gateway_keys_accepted{provider="p"} 0');
  refuses = false;
  assert.match((await gateway.chat(STREAM)).text, /cut off/);
  assert.equal(await accepted(), 'gateway_keys_accepted{provider="p"} 1');
});
