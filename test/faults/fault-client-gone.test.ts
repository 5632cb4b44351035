import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { chatBody, rawChat, triesOf } from '../support/gateway.ts';
import { openRaw } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { eventually, lineOf } from '../support/streams.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  failWith,
  sendJson,
  type Script,
} from '../support/upstream.ts';

const MIB = 1_048_576;

interface Phase {
  readonly stream?: boolean;
  readonly p?: Script;
  readonly q?: Script;
  /** Bytes of the request that are sent; all when absent. */
  readonly sentBytes?: number;
  /** The phase is reached when the client has the first event, and not when the provider has the request. */
  readonly hasBegun?: boolean;
  /** What the access line says of the tries; that of `p` alone, unless it is said otherwise. */
  readonly tries?: string;
}

const silent: Script = () => {};
/** Worlds hold the same in every phase (`leaving`, `sums`, `afterwards`); these are on real sockets. */
const PHASES: Record<string, Phase> = {
  'before its request is complete': { sentBytes: -10, tries: '' },
  'while the provider thinks': { stream: false, p: silent, tries: 'p:client_closed' },
  'before the first event': { p: beginStream(': keep-alive\n\n'), tries: 'p:200' },
  'in the middle of an event': { p: beginStream(CHUNK + CHUNK.slice(0, 20)), hasBegun: true },
  'while the fallback is asked': {
    p: failWith(503),
    q: silent,
    tries: 'p:503 q:client_closed',
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
        });
        const { socket: client, text: received } = openRaw(t, gateway.port);
        const bytes = rawChat(chatBody({ stream: phase.stream ?? true }));
        client.write(bytes.slice(0, phase.sentBytes));
        const { hasBegun = false, sentBytes, tries } = phase;
        const last = tries?.includes('q:') ? q : p;
        const isReached = () => {
          if (sentBytes !== undefined) return !client.connecting;
          return hasBegun ? received().includes('"content":"a"') : last.requests.length === 1;
        };
        await eventually(isReached, when);
        // A turn of the clock, so that what the provider sent has come through.
        await sleep(20);
        leave(client);

        const line = await lineOf(gateway);
        assert.equal(line?.['outcome'], 'client_closed');
        assert.equal(line['level'], 'info');
        if (tries !== undefined) assert.equal(triesOf(line) ?? '', tries);
        await Promise.all([...p.requests, ...q.requests].map(({ closed }) => closed));
        const asked = [tries === '' ? 0 : 1, tries?.includes('q:') ? 1 : 0];
        assert.deepEqual([p.requests.length, q.requests.length], asked);
        assert.equal(gateway.reservedBytes(), 0);
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
