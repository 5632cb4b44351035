/** Invariants for every response, whatever its caller does. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import type { Call } from '../../src/downstream/call.ts';
import { responseClosed, startHttpServer } from '../support/http-server.ts';
import { sendRaw } from '../support/raw.ts';

/** Returns the error thrown by `answer` for a call, and the client's answer. */
async function tryToAnswer(t: TestContext, answer: (call: Call) => void) {
  let thrown: unknown;
  const port = await startHttpServer(t, async (call) => {
    try {
      answer(call);
    } catch (error) {
      thrown = error;
    }
    await responseClosed(call);
  });
  const { text } = await sendRaw(port, 'GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n');
  return { thrown, text };
}

test('a second head is refused, and the first answer is whole', async (t) => {
  const { thrown, text } = await tryToAnswer(t, ({ reply }) => {
    void reply.send(200, {}, 'one');
    void reply.send(200, {}, 'two');
  });
  assert.match(String(thrown), /a second head of one response/);
  assert.match(text, /^HTTP\/1.1 200 OK\r\n[^]*\r\n\r\none$/);
});

test('nothing is written after the end of a stream', async (t) => {
  const { thrown, text } = await tryToAnswer(t, ({ reply }) => {
    reply.beginStream(200, {});
    reply.write(Buffer.from('data: [DONE]\n\n'));
    reply.end();
    reply.write(Buffer.from('data: more\n\n'));
  });
  assert.match(String(thrown), /bytes behind the end of a response/);
  assert.ok(text.endsWith('data: [DONE]\n\n\r\n0\r\n\r\n'), text);
});
