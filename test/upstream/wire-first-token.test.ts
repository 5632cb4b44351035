import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { chatBody, STREAM } from '../support/gateway.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
import { createGate, eventually, linesOf, openChat } from '../support/streams.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  completion,
  completionEvents,
  DONE,
  failWith,
  LAST,
  type Script,
  sendEvents,
  sendJson,
} from '../support/upstream.ts';

const event = (json: unknown) => `data: ${JSON.stringify(json)}\n\n`;
const choice = (delta: object | undefined, finish_reason: string | null = null) =>
  event({ object: 'chat.completion.chunk', choices: [{ index: 0, delta, finish_reason }] });
const ROLE = choice({ role: 'assistant', content: '' });

const PREAMBLES = {
  'the role alone': ROLE,
  'the role with empty values': choice({ role: 'assistant', content: null, tool_calls: [], a: {} }),
  'the filter results of Azure': event({ choices: [], prompt_filter_results: [{ a: 1 }] }),
  'a finish_reason of ""': event({ choices: [{ delta: { role: 'a' }, finish_reason: '' }] }),
  'a usage': event({ choices: [], usage: { prompt_tokens: 1 } }),
  'several choices': event({ choices: [{ delta: { role: 'a' } }, { delta: {} }] }),
};
const BEGINNINGS = {
  'a token': CHUNK,
  reasoning: choice({ reasoning_content: 'hm' }),
  'a tool call': choice({ tool_calls: [{ index: 0 }] }),
  'a finish_reason': choice({}, 'stop'),
  'a second choice with a token': event({
    choices: [{ delta: { role: 'a' } }, { delta: { content: 'b' } }],
  }),
  'a number': choice({ content: 0 }),
  'a choice without a delta': event({ choices: [{ text: 'a' }] }),
  'an event of no known shape': event({ type: 'response.created' }),
  'text that is no JSON': 'data: hello\n\n',
};

/** Starts provider `p` and its answering fallback `q`. */
const start = (t: TestContext, script: Script, more: Partial<ScenarioSettings<'p' | 'q'>> = {}) =>
  scenario(t, { fallback: ['q'], ...more, providers: { p: script, q: answerWell } });

/** Begins a stream with these events, and breaks off. */
const breakAfter =
  (events: string): Script =>
  async (request, response) => {
    await beginStream(events)(request, response);
    response.destroy();
  };

describe('an answer begins with its first token', { concurrency: true }, () => {
  test('and not with a preamble, after which a failed provider is replaced', async (t) => {
    for (const [what, preamble] of Object.entries(PREAMBLES)) {
      const { gateway, asked } = await start(t, breakAfter(preamble));
      const { status, text } = await gateway.chat(STREAM);
      assert.deepEqual([status, text, asked()], [200, completionEvents(), [1, 1]], what);
    }
  });

  test('or any other event, after which no other provider is asked', async (t) => {
    for (const [what, beginning] of Object.entries(BEGINNINGS)) {
      const { gateway, asked } = await start(t, breakAfter(ROLE + beginning));
      const { text } = await gateway.chat(STREAM);
      assert.ok(text.startsWith(`${ROLE}${beginning}data: {"error"`), text);
      assert.deepEqual(asked(), [1, 0], what);
    }
  });

  test('which passes in one chunk with everything before it, byte for byte', async (t) => {
    const before = `: queued\n\n${ROLE}`;
    const gate = createGate();
    let isSent = false;
    const { gateway } = await start(t, async (request, response) => {
      await beginStream(before)(request, response);
      isSent = true;
      await gate.opened;
      response.end(CHUNK + LAST + DONE);
    });
    const chat = openChat(gateway.port);
    await eventually(() => isSent, 'the role has been sent');
    gate.open();
    assert.equal(await chat.ended, before + CHUNK + LAST + DONE);
  });

  test('so an error event after the role is an HTTP error', async (t) => {
    const { gateway, p } = await scenario(t);
    const error = event({ error: { message: 'no', code: 'overloaded' } });
    p.script = (_, response) => sendEvents(response, ROLE + error);
    const { status, text } = await gateway.chat(STREAM);
    assert.equal(status, 503);
    assert.match(text, /^\{"error"/);
    const comment = `: ${'c'.repeat(1000)}\n\n`;
    for (const [events, expected] of [
      // So many preambles are not held: the answer begins with them.
      [ROLE.repeat(12_000) + LAST + DONE, 200],
      [comment.repeat(1300) + LAST + DONE, 502],
      [comment.repeat(900) + LAST + DONE, 200],
    ] as const) {
      p.script = (_, response) => sendEvents(response, events);
      const reply = await gateway.chat(STREAM);
      assert.equal(reply.status, expected);
      if (expected === 200) assert.equal(reply.text, events);
      else assert.equal(reply.json().error.code, 'PROVIDER_ERROR');
    }
  });
});

const EMPTY_STREAMS = {
  'the role and [DONE]': ROLE + DONE,
  'the role and stop': ROLE + choice({}, 'stop') + DONE,
  'stop without [DONE]': ROLE + choice({}, 'stop'),
  'stop and a usage': choice({}, 'stop') + event({ choices: [], usage: {} }) + DONE,
};
const message = (more: object, finish_reason: string | null = 'stop') => ({
  choices: [{ index: 0, message: { role: 'assistant', content: '', ...more }, finish_reason }],
});

const ANSWERS: Record<string, [answer: object, status: number]> = {
  'no content': [message({}), 502],
  'no choices': [{ choices: [] }, 502],
  'no list of choices': [{ id: '1' }, 502],
  'a null as content': [message({ content: null }, null), 502],
  content: [completion(), 200],
  'a refusal': [message({ refusal: 'no' }), 200],
  'a tool call': [message({ tool_calls: [{ id: '1' }] }), 200],
  reasoning: [message({ reasoning_content: 'hm' }), 200],
  'a cut for its length': [message({}, 'length'), 200],
};
const FAIL = 'empty_answers = "fail"\nretries = 1';

describe('an answer without any content', { concurrency: true }, () => {
  test('as a stream passes, or with empty_answers = "fail" falls back', async (t) => {
    for (const [what, events] of Object.entries(EMPTY_STREAMS)) {
      const { gateway, asked, toml } = await start(t, (_, response) =>
        sendEvents(response, events),
      );
      const passed = await gateway.chat(STREAM);
      assert.deepEqual([passed.status, asked()], [200, [1, 0]], what);
      assert.ok(passed.text.startsWith(events), passed.text);
      await gateway.reload(toml.replace('[server]', `[server]\n${FAIL}`));
      const { status, text } = await gateway.chat(STREAM);
      assert.deepEqual([status, text, asked()], [200, completionEvents(), [3, 1]], what);
    }
  });

  test('as a complete answer passes, or with empty_answers = "fail" is a 502', async (t) => {
    const { gateway, p, toml } = await scenario(t, { server: 'empty_answers = "fail"' });
    for (const [what, [answer, expected]] of Object.entries(ANSWERS)) {
      p.script = (_, response) => sendJson(response, answer);
      const { status, text } = await gateway.chat(chatBody());
      assert.equal(status, expected, what);
      if (status === 502) assert.match(text, /"Provider error: the answer is empty"/);
    }
    await gateway.reload(toml.replace('"fail"', '"pass"'));
    p.script = (_, response) => sendJson(response, message({}));
    assert.equal((await gateway.chat(chatBody())).status, 200);
  });
});

const FAILED = 'network_error';

describe('an answer that the provider itself calls failed', { concurrency: true }, () => {
  const answers: Record<string, readonly [body: object, Script]> = {
    'a complete answer': [
      chatBody(),
      (_, response) => sendJson(response, message({ content: '' }, FAILED)),
    ],
    'a stream': [STREAM, (_, response) => sendEvents(response, choice({}, FAILED) + DONE)],
    'a stream with a role': [
      STREAM,
      (_, response) => sendEvents(response, ROLE + choice({ role: 'assistant' }, FAILED) + DONE),
    ],
  };
  for (const [what, [body, script]] of Object.entries(answers)) {
    test(`as ${what} without content is a 502, retried and a reason to fall back`, async (t) => {
      const { gateway, asked } = await start(t, script);
      const alone = await gateway.chat(body, { headers: { 'x-gateway-fallback': 'off' } });
      assert.equal(alone.status, 502);
      assert.match(alone.text, /"Provider error: the answer is empty"/);
      const [line] = await linesOf(gateway, 1);
      const [{ cause } = assert.fail()] = line!['tries'] as { cause: string }[];
      assert.deepEqual(
        [line!['outcome'], cause],
        ['upstream_error', 'finish_reason: network_error'],
      );
      const { status, headers } = await gateway.chat(body);
      assert.deepEqual([status, headers['x-gateway-provider'], asked()], [200, 'q', [2, 1]]);
    });
  }

  test('passes with content', async (t) => {
    const { gateway, asked } = await start(t, (_, response) =>
      sendEvents(response, CHUNK + choice({}, FAILED) + DONE),
    );
    assert.equal((await gateway.chat(STREAM)).text, CHUNK + choice({}, FAILED) + DONE);
    assert.deepEqual(asked(), [1, 0]);
    assert.equal((await linesOf(gateway, 1))[0]!['finish_reason'], FAILED);
  });
});

describe('x-gateway-fallback: off', { concurrency: true }, () => {
  test('asks only the named provider, in any case of the value', async (t) => {
    const { gateway, asked } = await start(t, failWith(503));
    for (const value of ['off', 'OFF', 'off, off']) {
      const off = { 'x-gateway-fallback': value };
      assert.equal((await gateway.chat(chatBody(), { headers: off })).status, 503);
    }
    assert.deepEqual(asked(), [3, 0]);
  });
});
