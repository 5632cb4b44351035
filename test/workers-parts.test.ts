/** The parts of the worker threads that need no gateway. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { describe, test, type TestContext } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import { createLineWriter } from '../src/cli/line-writer.ts';
import type { Config } from '../src/config/config.ts';
import type { LogFacts } from '../src/lib/log.ts';
import { startAt } from '../src/workers/address.ts';
import { Backlog } from '../src/workers/backlog.ts';
import { Calls } from '../src/workers/calls.ts';
import type { WorkerData } from '../src/workers/messages.ts';
import { WorkerPool } from '../src/workers/pool.ts';
import { replaceNow, useManualTimers } from './support/clock.ts';
import { emptyFolder, freePort } from './support/process.ts';
import { newCounter, newMemory } from './support/shared.ts';
import { eventually } from './support/streams.ts';

test('each line of a batch that is dropped is counted', () => {
  const unread = new Writable({ write() {} });
  const writer = createLineWriter(unread, () => {});
  writer.write(`${'x'.repeat(5_000_000)}\n`);
  writer.write('one\ntwo\nthree\n');
  writer.write('four\n');
  assert.equal(writer.droppedLines, 4);
});

test('lines that the stream refuses are counted, and told of until a line that says so is written', async () => {
  let refusals = 2;
  let text = '';
  // As standard output does, it takes further lines after an error.
  const stream = Object.assign(new Writable(), {
    write(chunk: string, done: (error?: Error) => void) {
      refusals -= 1;
      if (refusals < 0) text += chunk;
      done(refusals < 0 ? undefined : new Error('no room'));
      return true;
    },
  }) as Writable;
  const told: number[] = [];
  const writer = createLineWriter(stream, (lines) => {
    told.push(lines);
    // The first such line is lost too.
    refusals = told.length === 1 ? 1 : 0;
    writer.write(`lost ${lines}\n`);
  });
  writer.write('one\ntwo\n');
  await nextTurn();
  writer.write('three\n');
  await nextTurn();
  assert.equal(writer.droppedLines, 3);
  for (const line of ['four\n', 'five\n']) {
    writer.write(line);
    await nextTurn();
    await nextTurn();
  }
  assert.equal(writer.droppedLines, 4);
  assert.deepEqual(told, [3, 4]);
  assert.equal(text, 'four\nfive\nlost 4\n');
  assert.equal(await writer.end(), 0);
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

/** Two workers that never reply to a drain. The first one ends when it is told to use settings. */
async function startPool(t: TestContext) {
  const program = `
    import { parentPort, workerData } from 'node:worker_threads';
    parentPort.on('message', ({ call, command: { type } }) => {
      if (type === 'use' && workerData.place.thread === 1) process.exit(1);
      if (type !== 'drain') parentPort.postMessage({ type: 'reply', call, reply: { port: 1 } });
    });`;
  const folder = emptyFolder(t, { 'worker.mjs': program });
  const lines: (LogFacts & { message: string })[] = [];
  const pool = new WorkerPool({
    workers: 2,
    file: join(folder, 'worker.mjs'),
    logger: {
      log: (_, message, facts) => void lines.push({ ...facts, message }),
      isEnabled: () => true,
    },
    backlog: new Backlog(newMemory()),
    writeLog() {},
    observe: undefined,
    listModels: async () => new SharedArrayBuffer(0),
    inFlight: newCounter(),
    describeStart: (place) => ({ place }) as WorkerData,
    reclaim() {},
  });
  await pool.listen(0, '127.0.0.1');
  const logged = (message: string) => lines.filter((line) => line.message === message);
  return { pool, logged };
}

test('the pause before a dead worker is replaced is short again after one that has lived for a minute', async (t) => {
  let nowMs = 1000;
  replaceNow(t, () => nowMs);
  const timers = useManualTimers(t);
  const { pool, logged } = await startPool(t);
  for (const [deaths, livedMs] of [59_000, 60_000, 60_001, 1].entries()) {
    nowMs += livedMs;
    await pool.use({} as Config, new Map());
    await eventually(() => logged('worker missing').length > deaths, 'it is missed');
    timers.advance(30_000);
    await eventually(() => logged('worker started').length > deaths, 'it is replaced');
  }
  const pauses = logged('worker missing').map(({ pause_ms }) => pause_ms);
  assert.deepEqual(pauses, [100, 200, 100, 200]);
  const drained = pool.drain({ delayMs: 0, timeoutMs: 0, reason: new Error('test is over') });
  timers.advance(5000);
  await drained;
});

test('workers may take the delay of a drain, its limit and 5 s', async (t) => {
  const timers = useManualTimers(t);
  const { pool } = await startPool(t);
  let isDrained = false;
  const reason = new Error('test is over');
  const drained = pool.drain({ delayMs: 3000, timeoutMs: 2000, reason });
  void drained.then(() => (isDrained = true));
  timers.advance(9999);
  await sleep(50);
  assert.equal(isDrained, false);
  timers.advance(1);
  assert.deepEqual(await drained, { finished: 0, cut: 0 });
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
