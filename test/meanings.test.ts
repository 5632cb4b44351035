/**
 * Sentences from the documents, checked against the gateway. Each test quotes its sentence, so a
 * change of the words must change the test.
 */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';

import { parseMetrics } from './support/exposition.ts';
import { chatBody, type LogLine } from './support/gateway.ts';
import { ROOT } from './support/process.ts';
import { scenario } from './support/scenario.ts';
import { createGate, eventually, lineOf, openChat } from './support/streams.ts';
import {
  answerWell,
  CHUNK,
  completionEvents,
  sendEvents,
  sendJson,
  type Script,
} from './support/upstream.ts';

const ADMIN = '[admin]\nport = 0\n';
const ROLE = 'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n';
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

/** Looks for these words in the document, whatever its line breaks. */
function assertSays(path: string, words: string): void {
  const text = read(path).replaceAll(/\s+(?:# )?/g, ' ');
  assert.ok(text.includes(words), `${path} does not say: ${words}`);
}

/** Begins a stream, and then calls `end`. */
const streamThen =
  (end: (response: Parameters<Script>[1]) => void): Script =>
  (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(CHUNK);
    end(response);
  };

/**
 * Sends a request and returns its log lines. With `leaves`, the client leaves after the first
 * token.
 */
async function logOf(t: TestContext, script: Script, { leaves = false, stream = true } = {}) {
  const { gateway } = await scenario(t, {
    providers: { p: { script, lines: 'models = ["m"]' } },
    more: '[logging]\nlevel = "debug"\n',
  });
  const chat = openChat(gateway.port, chatBody({ stream }));
  if (leaves) {
    await eventually(() => chat.text() !== '', 'the first token');
    assert.deepEqual(gateway.lines('try'), [], 'no line during the stream');
    chat.leave();
  } else await chat.ended.catch(() => {});
  const { tries } = (await lineOf(gateway)) as { tries: LogLine[] };
  return { tries, lines: gateway.lines('try') };
}

test('docs/log.md: the line of a try is written once, at the end of a stream', async (t) => {
  assertSays('docs/log.md', '`ok` is a complete answer or a stream that has ended well');
  assertSays('docs/log.md', '`client_closed` a try whose client left before that');
  const once =
    'once for each attempt, when it has ended, or for a stream when the stream has ended';
  assertSays('docs/log.md', once);
  const cases: [Script, outcome: string, more?: { leaves?: boolean; stream?: boolean }][] = [
    [answerWell, 'ok', { stream: false }],
    [(_, response) => sendEvents(response, completionEvents()), 'ok'],
    [streamThen(() => {}), 'client_closed', { leaves: true }],
    [streamThen((response) => setImmediate(() => response.destroy())), 'upstream_error'],
  ];
  for (const [script, outcome, more] of cases) {
    const { tries, lines } = await logOf(t, script, more);
    assert.deepEqual(
      [tries, lines].map((all) => all.map((one) => one['outcome'])),
      [[outcome], [outcome]],
    );
  }
});

test('gateway.toml.example: the limits of a stream last until its first token', async (t) => {
  assertSays('gateway.toml.example', "to a stream's first token");
  assertSays('gateway.toml.example', "A shorter limit for a stream's first token");
  assertSays('docs/configuration.md', "a stream's first token, so that a fallback is asked sooner");
  const role: Script = (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(ROLE);
  };
  for (const setting of ['first_token_timeout = 1', 'timeout = 1']) {
    const { gateway } = await scenario(t, { providers: { p: role }, server: setting });
    const { status } = await gateway.chat(chatBody({ stream: true }));
    assert.equal(status, 504, setting);
    const [{ cause }] = (await lineOf(gateway))['tries'] as [LogLine];
    assert.equal(cause, 'no first token in 1000 ms', setting);
  }
});

test('the time to the first token ends at the token, and not at the role', async (t) => {
  const name = 'gen_ai_server_time_to_first_token_seconds';
  assertSays(
    'docs/metrics.md',
    'of streamed answers: from the head of the request to the first token',
  );
  const sent = createGate();
  const goesOn = createGate();
  const { gateway } = await scenario(t, {
    providers: {
      p: async (_, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' }).write(ROLE);
        sent.open();
        await goesOn.opened;
        response.end(completionEvents());
      },
    },
    more: ADMIN,
  });
  const reply = gateway.chat(chatBody({ stream: true }));
  await sent.opened;
  const roleAtMs = performance.now();
  while (performance.now() - roleAtMs < 50) await new Promise((resolve) => setImmediate(resolve));
  goesOn.open();
  assert.equal((await reply).status, 200);
  const { first_byte_ms: firstByteMs } = await lineOf(gateway);
  assert.ok(Number(firstByteMs) >= 50, `first_byte_ms ${String(firstByteMs)}`);
  const { text } = await gateway.admin('/metrics');
  assert.match(
    text,
    new RegExp(`^# HELP ${name} .* to the first token of a streamed answer\\.$`, 'm'),
  );
  assert.ok(parseMetrics(text).sum(`${name}_sum`) >= 0.05);
});

test('a stream that ends with its role alone has ended before its first token', async (t) => {
  const { gateway } = await scenario(t, {
    providers: { p: (_, response) => sendEvents(response, ROLE) },
  });
  const reply = await gateway.chat(chatBody({ stream: true }));
  assert.equal(reply.status, 502);
  const message = 'Provider error: the stream ended before its first token';
  assert.equal(reply.json().error.message, message);
});

test('docs/page.md: without keys the admin listener serves only its own Host', async (t) => {
  assertSays('docs/page.md', 'With `keys` the gateway serves every `Host`');
  assertSays('docs/page.md', 'Without `keys` requests for other hosts are refused');
  const keyed = await scenario(t, { more: `${ADMIN}keys = ["admin-key-canary"]\n` });
  const { gateway } = await scenario(t, { more: ADMIN });
  const headers = { host: 'gateway.example', authorization: 'Bearer admin-key-canary' };
  assert.equal((await keyed.gateway.admin('/', { headers })).status, 200);
  assert.equal((await gateway.admin('/', { headers })).status, 400);
});

test('docs/from-litellm.md: the digest that LiteLLM keeps of a key lets the key in', async (t) => {
  const [, toml = ''] = /^(\[clients\.alice\][^`]*)```$/m.exec(read('docs/from-litellm.md')) ?? [];
  assertSays('docs/from-litellm.md', 'The digest of this example is that of `sk-1234`.');
  const { gateway } = await scenario(t, { more: toml });
  const ask = (key: string) =>
    gateway.chat(chatBody(), { headers: { authorization: `Bearer ${key}` } });
  assert.equal((await ask('sk-1234')).status, 200);
  assert.equal((await ask('sk-12345')).status, 401);
});

test('docs/log.md: a 429 of the gateway has `limit`, and a want of memory for an answer none', async (t) => {
  assertSays('docs/log.md', "of a 429 of the gateway's own: the limit by its name");
  const { gateway } = await scenario(t, {
    server: 'max_buffered_bytes = 1048576',
    providers: {
      p: (_, response) => sendJson(response, { choices: [], x: 'y'.repeat(600_000) }),
    },
    more: '[clients.a]\nkey = "client-key-canary"\nrequests_per_minute = 1\n',
  });
  const body = chatBody({ x: 'y'.repeat(600_000) });
  const ask = async () =>
    gateway.chat(body, { headers: { authorization: 'Bearer client-key-canary' } });
  await ask();
  await ask();
  await eventually(() => gateway.accessLines().length === 2, 'both lines');
  const told = gateway.accessLines().map(({ reason, limit }) => [reason, limit]);
  assert.deepEqual(told, [
    ['memory', undefined],
    [
      'client_requests_per_minute',
      'clients.a.requests_per_minute: 1 of 1 requests used, refilled at 1 per minute',
    ],
  ]);
});

test('each metric is named where its subject is documented', () => {
  const documented = [...read('docs/metrics.md').matchAll(/^\| `(\w+)` \|/gm)].map(
    ([, name]) => name!,
  );
  assert.ok(documented.length > 30);
  const files = ['docs', 'deploy'].flatMap((folder) =>
    readdirSync(join(ROOT, folder))
      .filter((name) => name !== 'metrics.md' && /\.(?:md|json|yml)$/.test(name))
      .map((name) => read(join(folder, name))),
  );
  const text = files.join('\n');
  assert.deepEqual(
    documented.filter((name) => !text.includes(name)),
    [],
  );
});
