/** The parts of the worker threads that need no thread. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { Writable } from 'node:stream';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { createLineWriter } from '../src/cli/line-writer.ts';
import { startAt } from '../src/workers/address.ts';
import { Backlog } from '../src/workers/backlog.ts';
import { Calls } from '../src/workers/calls.ts';
import { freePort } from './support/process.ts';
import { newMemory } from './support/shared.ts';
import { eventually } from './support/streams.ts';

test('each line of a batch that is dropped is counted', () => {
  const unread = new Writable({ write() {} }) as NodeJS.WriteStream;
  const writer = createLineWriter(unread, () => {});
  writer.write(`${'x'.repeat(5_000_000)}\n`);
  writer.write('one\ntwo\nthree\n');
  writer.write('four\n');
  assert.equal(writer.droppedLines, 4);
});

test('a backlog is full with 4 MiB that the main thread has not taken', () => {
  const backlog = new Backlog(newMemory());
  const batch = { lines: 'x'.repeat(3_000_000), requests: [{}, {}] };
  backlog.add(batch);
  assert.equal(backlog.isFull, false);
  backlog.add(batch);
  assert.equal(backlog.isFull, true);
  backlog.dropLine();
  assert.equal(backlog.droppedLines, 1);
  backlog.dropRequest();
  backlog.dropRequest();
  assert.equal(backlog.droppedRequests, 2);
  backlog.take(batch);
  assert.equal(backlog.isFull, false);
  backlog.take(batch);
  backlog.add({ lines: '', requests: Array.from({ length: 5000 }, () => ({})) });
  assert.equal(backlog.isFull, true);
});

test('a call ends with its reply, at its limit, or with the other thread', async (t) => {
  const calls = new Calls<string>();
  const sent: number[] = [];
  const ask = async (limitMs: number) => calls.ask((call) => void sent.push(call), limitMs);
  const answered = ask(60_000);
  calls.settle(sent[0]!, 'reply');
  assert.equal(await answered, 'reply');
  assert.equal(await ask(1), undefined);
  // Beyond what setTimeout takes: the longest drain of all.
  const long = ask(2 * 2_147_483_000 + 5000);
  assert.equal(await ask(20), undefined);
  calls.settle(sent[2]!, 'reply');
  assert.equal(await long, 'reply');
  const last = [ask(60_000), ask(60_000)];
  calls.end();
  assert.deepEqual(await Promise.all(last), [undefined, undefined]);
  assert.equal(new Set(sent).size, 6);
  t.diagnostic('no timer is left: the test would not end');
});

describe(
  'an address',
  { skip: process.platform !== 'linux' && 'Linux alone has abstract sockets' },
  () => {
    const done = async () => 'started';

    test('is held by one gateway as long as it lives', async () => {
      const port = await freePort();
      assert.equal(await startAt({ port, host: '127.0.0.1' }, done), 'started');
      assert.equal(await startAt({ port, host: '127.0.0.2' }, done), 'started');
      const again = startAt({ port, host: '127.0.0.1' }, done);
      await assert.rejects(again, { code: 'EADDRINUSE', port });
    });

    for (const [first, second] of [
      ['0.0.0.0', '127.0.0.1'],
      ['127.0.0.1', '0.0.0.0'],
      ['localhost', '127.0.0.1'],
      ['127.0.0.1', '127.0.0.2'],
    ] as const) {
      test(`${second} is tried only when a gateway at ${first} has started`, async (t) => {
        const port = await freePort();
        const events: string[] = [];
        const startFirst = async () => {
          events.push('first starts');
          await sleep(300);
          const server = createServer().listen({ port, host: first });
          t.after(() => server.close());
          await once(server, 'listening');
          events.push('first listens');
        };
        const starting = startAt({ port, host: first }, startFirst);
        await eventually(() => events.length > 0, 'the first starts');
        const startSecond = async () => void events.push('second starts');
        const other = startAt({ port, host: second }, startSecond);
        const isFree = second === '127.0.0.2';
        await Promise.allSettled([starting, other]);
        if (isFree) await other;
        else await assert.rejects(other, { code: 'EADDRINUSE', port });
        const expected = ['first starts', 'first listens', ...(isFree ? ['second starts'] : [])];
        assert.deepEqual(events, expected);
      });
    }

    test('is free for another gateway if the first could not start', async () => {
      const port = await freePort();
      const fails = async () => Promise.reject(new Error('no worker starts'));
      await assert.rejects(startAt({ port, host: '0.0.0.0' }, fails), /no worker starts/);
      await assert.doesNotReject(startAt({ port, host: '127.0.0.1' }, done));
    });

    test('may have a long host name', async () => {
      const host = `${'long.'.repeat(40)}invalid`;
      const start = startAt({ port: await freePort(), host }, done);
      await assert.rejects(start, { syscall: 'getaddrinfo' });
    });
  },
);
