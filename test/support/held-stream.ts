/** Answers in flight until the test finishes them. */

import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';

import { chatBody } from './gateway.ts';
import { createGate, eventually, openChat } from './streams.ts';
import {
  CHUNK,
  completion,
  completionEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
} from './upstream.ts';

/**
 * Opens a stream and waits for its first token. `finish` lets the provider send the rest, and
 * checks that every byte arrives.
 */
export async function openHeldStream(port: number, upstream: FakeUpstream, model = 'p/m') {
  const gate = createGate();
  const events = completionEvents();
  // The role's event, and the first token's.
  const first = `${events.split('\n\n', 2).join('\n\n')}\n\n`;
  const { script } = upstream;
  upstream.script = async (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(first);
    await gate.opened;
    response.end(events.slice(first.length));
  };
  const chat = openChat(port, chatBody({ model, stream: true }));
  await eventually(() => chat.text() === first, 'the first token arrives');
  upstream.script = script;
  const finish = async () => {
    gate.open();
    assert.equal(await chat.ended, events);
  };
  return { finish };
}

/** Starts an upstream that begins streams at once, and sends everything else after `finish`. */
export async function startHeldUpstream(t: TestContext) {
  const { opened, open: finish } = createGate();
  const upstream = await startUpstream(t, async ({ body }, response) => {
    const isStream = body.includes('"stream":true');
    if (isStream) response.writeHead(200, { 'content-type': 'text/event-stream' }).write(CHUNK);
    await opened;
    if (isStream) response.end(completionEvents());
    else sendJson(response, completion());
  });
  return { upstream, finish };
}
