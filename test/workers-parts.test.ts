/** The parts of the worker threads that need no thread. */

import assert from 'node:assert/strict';
import { Writable } from 'node:stream';
import { test } from 'node:test';

import { createLineWriter } from '../src/cli/line-writer.ts';
import { holdAddress } from '../src/workers/address.ts';
import { Backlog } from '../src/workers/backlog.ts';
import { Calls } from '../src/workers/calls.ts';
import { freePort } from './support/process.ts';
import { newMemory } from './support/shared.ts';

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
  const last = [ask(60_000), ask(60_000)];
  calls.end();
  assert.deepEqual(await Promise.all(last), [undefined, undefined]);
  assert.equal(new Set(sent).size, 4);
  t.diagnostic('no timer is left: the test would not end');
});

test(
  'an address is held by one gateway',
  { skip: process.platform !== 'linux' && 'Linux alone has abstract sockets' },
  async () => {
    const port = await freePort();
    await holdAddress({ port, host: '127.0.0.1' });
    await holdAddress({ port, host: '127.0.0.2' });
    await assert.rejects(holdAddress({ port, host: '127.0.0.1' }), { code: 'EADDRINUSE', port });
  },
);
