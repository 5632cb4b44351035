/** The probe of a circuit that is half-open: when it has succeeded, when another may be sent, and what is kept away until then. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { test, type TestContext } from 'node:test';

import { stopClock, useManualTimers } from '../support/clock.ts';
import { startFakeRedis, status } from '../support/fake-redis.ts';
import { chatBody, STREAM, triesOf } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually, linesOf, openChat, type OpenStream } from '../support/streams.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  completion,
  DONE,
  failWith,
  LAST,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';

const REST_MS = 10_000;
/** The tries of a request that is kept away. */
const AWAY = 'p:circuit_open q:200';

interface Settings {
  readonly p?: string;
  readonly server?: string;
  readonly more?: string;
}

/**
 * Provider `p`, whose circuit is half-open on a clock that stands still, and which does as `script` says from now on, and its
 * fallback `q`, which answers.
 */
async function startHalfOpen(t: TestContext, script: Script, { p: lines, ...more }: Settings = {}) {
  const clock = stopClock(t);
  const providers = { p: { script: failWith(503), lines }, q: {} };
  const started = await scenario(t, { ...more, providers, fallback: ['q'] });
  const { gateway, p } = started;
  const fail3 = async () => {
    p.script = failWith(503);
    for (let round = 0; round < 3; round += 1) await gateway.chat(chatBody());
  };
  await fail3();
  clock.nowMs += REST_MS;
  p.script = script;
  return {
    ...started,
    clock,
    fail3,
    /** The tries of one more request. */
    next: async () => {
      await gateway.chat(chatBody());
      return triesOf(gateway.accessLines().at(-1));
    },
    /** Asks for a stream, and waits until it has begun. */
    begin: async () => {
      const chat = openChat(gateway.port);
      await eventually(() => chat.text() !== '', 'the first event');
      return chat;
    },
  };
}

test('a probe that streams keeps the others away until its stream has ended well', async (t) => {
  const { opened, open } = createGate();
  const { begin, next, p } = await startHalfOpen(t, async (request, response) => {
    beginStream(CHUNK)(request, response);
    await opened;
    response.end(LAST + DONE);
  });
  const probe = await begin();
  p.script = answerWell;
  assert.deepEqual([await next(), await next()], [AWAY, AWAY]);
  open();
  assert.equal(await probe.ended, CHUNK + LAST + DONE);
  assert.deepEqual([await next(), await next()], ['p:200', 'p:200']);
});

test('a probe that streams has succeeded when data comes ten seconds after its first, once', async (t) => {
  const streams: ServerResponse[] = [];
  const hold: Script = (request, response) => {
    streams.push(response);
    beginStream(CHUNK)(request, response);
  };
  const { begin, clock, fail3, next, p } = await startHalfOpen(t, hold);
  const probe = await begin();
  const send = async (events: string) => {
    const before = probe.text().length;
    streams[0]!.write(events);
    await eventually(() => probe.text().length > before, 'the next event');
  };
  clock.nowMs += REST_MS - 1;
  await send(CHUNK);
  assert.equal(await next(), AWAY);
  clock.nowMs += 1;
  await send(CHUNK);
  // A probe of its own would keep the next one away.
  await begin();
  p.script = answerWell;
  assert.equal(await next(), 'p:200');
  await fail3();
  await send(CHUNK);
  assert.equal(await next(), AWAY, 'what fails later counts, although the stream goes on');
});

test('a probe whose stream is silent, or has comments alone, has no result: one more may probe each ten seconds', async (t) => {
  const streams: ServerResponse[] = [];
  const { asked, begin, clock, gateway, next } = await startHalfOpen(t, (request, response) => {
    streams.push(response);
    beginStream(CHUNK)(request, response);
  });
  const first = await begin();
  for (let probes = 2; probes < 5; probes += 1) {
    clock.nowMs += REST_MS;
    streams[0]!.write(`: ${probes}\n\n`);
    await eventually(() => first.text().includes(`${probes}`), 'the comment');
    await begin();
    assert.equal(streams.length, probes);
    assert.deepEqual([await next(), await next()], [AWAY, AWAY]);
  }
  assert.deepEqual(asked(), [3 + 4, 3 + 6]);
  // The latest one still has the probe.
  first.leave();
  await linesOf(gateway, 3 + 6 + 1);
  assert.equal(await next(), AWAY);
});

test('a provider whose probe has begun its stream and is then cut rests ten seconds more', async (t) => {
  const { begin, clock, gateway, next, p } = await startHalfOpen(t, (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(CHUNK, () => response.destroy());
  });
  await (
    await begin()
  ).ended;
  await linesOf(gateway, 4);
  p.script = answerWell;
  clock.nowMs += REST_MS - 1;
  assert.equal(await next(), AWAY);
  clock.nowMs += 1;
  assert.equal(await next(), 'p:200');
});

const LONG = `data: {"x":"${'y'.repeat(1_100_000)}"}\n\n`;
interface NoResult {
  readonly script: Script;
  readonly body: object;
  /** When the client leaves. */
  readonly leavesIf?: (chat: OpenStream) => boolean;
}
const noResult: Readonly<Record<string, NoResult>> = {
  'whose client leaves before the answer': {
    script: () => {},
    body: chatBody(),
    leavesIf: () => true,
  },
  'whose client leaves before the first event': {
    script: beginStream(': comment\n\n'),
    body: STREAM,
    leavesIf: () => true,
  },
  'whose client leaves the stream': {
    script: beginStream(CHUNK),
    body: STREAM,
    leavesIf: (chat) => chat.text() !== '',
  },
  'for whose answer the gateway has no room': {
    script: (_, response) => sendJson(response, completion('x'.repeat(1_100_000))),
    body: chatBody(),
  },
  'for whose first event the gateway has no room': {
    script: (_, response) => sendEvents(response, LONG),
    body: STREAM,
  },
  'for whose later event the gateway has no room': {
    script: (_, response) => sendEvents(response, CHUNK + LONG),
    body: STREAM,
  },
  'that is answered with a plain 500': { script: failWith(500), body: chatBody() },
};
for (const [which, { script, body, leavesIf }] of Object.entries(noResult)) {
  test(`a probe ${which} has no result: the next request probes at once`, async (t) => {
    const server = 'max_buffered_bytes = 1048576';
    const { gateway, next, p } = await startHalfOpen(t, script, { server });
    const probe = openChat(gateway.port, body);
    await eventually(() => p.requests.length === 4, 'the probe');
    if (leavesIf) {
      await eventually(() => leavesIf(probe), 'the moment to leave');
      probe.leave();
    }
    await linesOf(gateway, 4);
    p.script = answerWell;
    assert.equal(await next(), 'p:200');
  });
}

test('a rest that began during a probe stays when the client of the probe leaves', async (t) => {
  const streams: ServerResponse[] = [];
  const hold: Script = (request, response) => {
    streams.push(response);
    beginStream(CHUNK)(request, response);
  };
  const clock = stopClock(t);
  const { gateway, p } = await scenario(t, { providers: { p: hold, q: {} }, fallback: ['q'] });
  const begin = async () => {
    const chat = openChat(gateway.port);
    await eventually(() => chat.text() === CHUNK, 'the first event');
    return chat;
  };
  const former = await begin();
  p.script = failWith(503);
  for (let round = 0; round < 3; round += 1) await gateway.chat(chatBody());
  clock.nowMs += REST_MS;
  p.script = hold;
  const probe = await begin();
  streams[0]!.destroy();
  await former.ended;
  probe.leave();
  await linesOf(gateway, 5);
  p.script = answerWell;
  await gateway.chat(chatBody());
  assert.equal(triesOf(gateway.accessLines().at(-1)), AWAY);
});

test('of two requests for which a store is asked at the same time one is the probe, and the other takes no token and no slot', async (t) => {
  // The store is waited for, however long the machine takes.
  useManualTimers(t);
  const held: Socket[] = [];
  let holds = false;
  const isOfP = (word: string) => word.includes('rate_limit.providers.p');
  const redis = await startFakeRedis(t, (command, socket) => {
    if (!holds || !command.some(isOfP)) return false;
    return held.push(socket);
  });
  const { gateway, next, p } = await startHalfOpen(t, () => {}, {
    p: 'max_concurrent_requests = 2',
    more: `[rate_limit]
enabled = true
store = "redis://127.0.0.1:${redis.port}"
[rate_limit.providers.p]
requests_per_second = 100`,
  });
  const tokens = () =>
    redis.commands
      .filter((command) => command.some(isOfP))
      .reduce((sum, command) => sum + Number(command.at(-1)!.split(' ').at(-1)), 0);
  const before = tokens();
  holds = true;
  const chats = [openChat(gateway.port, chatBody()), openChat(gateway.port, chatBody())];
  await eventually(() => held.length === 2, 'both ask the store');
  holds = false;
  held[0]!.write(status('OK').repeat(2));
  await linesOf(gateway, 4);
  assert.equal(triesOf(gateway.accessLines()[3]), AWAY);
  assert.equal(p.requests.length, 4);
  assert.equal(tokens() - before, 1);
  chats.forEach((chat) => chat.leave());
  await linesOf(gateway, 5);
  // Both slots are free.
  p.script = beginStream(CHUNK);
  const probe = openChat(gateway.port);
  await eventually(() => probe.text() === CHUNK, 'the first event');
  p.script = answerWell;
  assert.equal(await next(), AWAY);
});

for (const idleSeconds of [2, 20]) {
  test(`60 s of streams through an alias whose first target begins each stream and then stalls for ${idleSeconds} s: no more than one in ten seconds breaks`, async (t) => {
    const timers = useManualTimers(t);
    const { clock, gateway, p, q } = await startHalfOpen(t, beginStream(CHUNK.repeat(6)), {
      server: `stream_idle_timeout = ${idleSeconds}`,
      more: '[aliases]\npool = ["p/m", "q/m"]',
    });
    const beganAtMs = clock.nowMs;
    // 391 requests in 136 s.
    const STEP_MS = 348;
    const stalled: { readonly chat: OpenStream; readonly endsAtMs: number }[] = [];
    let count = 0;
    for (; clock.nowMs < beganAtMs + 60_000; count += 1) {
      const chat = openChat(gateway.port, { ...STREAM, model: 'pool' });
      const isBegun = () => chat.text().split(CHUNK).length > 6;
      await eventually(() => isBegun() || chat.text().endsWith(DONE), 'six events, or all');
      if (isBegun()) stalled.push({ chat, endsAtMs: clock.nowMs + idleSeconds * 1000 });
      clock.nowMs += STEP_MS;
      timers.advance(STEP_MS);
      while (stalled[0] && stalled[0].endsAtMs <= clock.nowMs)
        assert.match(await stalled.shift()!.chat.ended, /"TIMEOUT"/);
    }
    const broken = p.requests.length - 3;
    t.diagnostic(`${broken} of ${count} broke`);
    assert.ok(broken >= 3 && broken <= 6, `${broken} of ${count} broke`);
    assert.equal(q.requests.length - 3, count - broken);
    assert.deepEqual(gateway.lines('breaker closed'), []);
    stalled.forEach(({ chat }) => chat.leave());
  });
}
