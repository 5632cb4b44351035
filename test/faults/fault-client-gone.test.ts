import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { chatBody, rawChat, triesOf, type TestGateway } from '../support/gateway.ts';
import { openRaw } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { eventually, lineOf } from '../support/streams.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  failWith,
  sendJson,
  type FakeUpstream,
  type Script,
} from '../support/upstream.ts';

const MIB = 1_048_576;

interface Scene {
  readonly p: FakeUpstream;
  readonly q: FakeUpstream;
  readonly gateway: TestGateway;
  readonly client: Socket;
  /** What the client received. */
  readonly received: () => string;
}

interface Phase {
  /** Lines of `[server]`. */
  readonly server?: string;
  readonly stream?: boolean;
  readonly p?: Script;
  readonly q?: Script;
  /** Bytes of the request that are sent; all when absent. */
  readonly sentBytes?: number;
  /** True once the phase is reached: if `p` has the request, unless it is said otherwise. */
  readonly reached?: (scene: Scene) => boolean;
  /** How many requests each provider gets in all; `p` one, unless it is said otherwise. */
  readonly asked?: readonly [p: number, q: number];
  /** What the access line says of them, where there are several. */
  readonly tries?: string;
}

const silent: Script = () => {};
const unavailable = failWith(503);
/** Begins an answer of 100 bytes with this status, and leaves it open. */
const half =
  (status: number): Script =>
  (_, response) => {
    const headers = { 'content-type': 'application/json', 'content-length': 100 };
    response.writeHead(status, headers).write(status === 200 ? '{"choices":' : '{"error":');
  };
/** Whether the client has the first event. */
const hasBegun = ({ received }: Scene) => received().includes('"content":"a"');

const PHASES: Record<string, Phase> = {
  'before its request is complete': {
    sentBytes: -10,
    reached: ({ client }) => !client.connecting,
    asked: [0, 0],
  },
  'while the provider thinks about a complete answer': {
    stream: false,
    p: silent,
  },
  'while the provider thinks about a stream': {
    p: silent,
  },
  'in the middle of a complete answer': {
    stream: false,
    p: half(200),
  },
  'in the middle of an error': {
    stream: false,
    p: half(503),
  },
  'before the first event': {
    p: beginStream(': keep-alive\n\n'),
  },
  'in the middle of a stream': {
    p: beginStream(CHUNK),
    reached: hasBegun,
  },
  'in the middle of an event': {
    p: beginStream(CHUNK + CHUNK.slice(0, 20)),
    reached: hasBegun,
  },
  'before a second try': {
    server: 'retries = 2',
    p: failWith(503, { headers: { 'retry-after': '20' } }),
  },
  'while the fallback is asked': {
    p: unavailable,
    q: silent,
    reached: ({ q }) => q.requests.length === 1,
    asked: [1, 1],
    tries: 'p:503 q:client_closed',
  },
  'in the middle of the fallback\u2019s stream': {
    p: unavailable,
    q: beginStream(CHUNK),
    reached: hasBegun,
    asked: [1, 1],
    tries: 'p:503 q:200',
  },
};

const WAYS: Record<string, (client: Socket) => unknown> = {
  closing: (client) => client.end(),
  'a reset': (client) => client.resetAndDestroy(),
  'closing behind half of a next request': (client) => client.end('GET /health HT'),
};

describe('a client that leaves', { concurrency: 4 }, () => {
  for (const [when, phase] of Object.entries(PHASES)) {
    for (const [how, leave] of Object.entries(WAYS)) {
      // Else it would be the rest of this one.
      if (phase.sentBytes !== undefined && how.includes('next')) continue;
      test(`${when}, by ${how}, cancels everything quietly`, async (t) => {
        const { p, q, gateway } = await scenario(t, {
          providers: { p: phase.p ?? answerWell, q: phase.q ?? answerWell },
          fallback: ['q'],
          server: phase.server ?? '',
        });
        const { socket: client, text: received } = openRaw(t, gateway.port);
        const bytes = rawChat(chatBody({ stream: phase.stream ?? true }));
        client.write(bytes.slice(0, phase.sentBytes ?? bytes.length));
        const { reached = () => p.requests.length === 1, asked = [1, 0] } = phase;
        await eventually(() => reached({ p, q, gateway, client, received }), when);
        // A turn of the clock, so that what the provider sent has come through.
        await sleep(20);
        leave(client);

        const line = await lineOf(gateway);
        assert.equal(line?.['outcome'], 'client_closed');
        assert.equal(line['level'], 'info');
        if (phase.tries) assert.equal(triesOf(line), phase.tries);
        await Promise.all([...p.requests, ...q.requests].map(({ closed }) => closed));
        assert.deepEqual([p.requests.length, q.requests.length], asked);
        assert.deepEqual(
          gateway.log.filter((text) => /"level":"(?:error|warn)"/.test(text)),
          [],
        );

        p.script = (_, response) => sendJson(response, { choices: [] });
        assert.equal((await gateway.chat(chatBody())).status, 200);
      });
    }
  }

  test('in the middle of a long upload is not asked of any provider', async (t) => {
    const { p, gateway } = await scenario(t);
    const { socket: client } = openRaw(t, gateway.port);
    const request = rawChat(chatBody({ padding: 'x'.repeat(4 * MIB) }));
    client.write(request.slice(0, 3 * MIB), () => client.resetAndDestroy());
    assert.equal((await lineOf(gateway))['outcome'], 'client_closed');
    assert.equal(p.requests.length, 0);
  });
});
