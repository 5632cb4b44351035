/** The parts of the worker threads that need no gateway. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { test, type TestContext } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import { createLineWriter } from '../src/cli/line-writer.ts';
import type { Config } from '../src/config/config.ts';
import type { LogFacts } from '../src/lib/log.ts';
import { WorkerPool } from '../src/workers/pool.ts';
import type { WorkerData } from '../src/workers/thread.ts';
import { useManualTimers } from './support/clock.ts';
import { emptyFolder } from './support/process.ts';
import { newCounter } from './support/shared.ts';
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
    writeLog() {},
    observe: undefined,
    onModels: undefined,
    apply: () => true,
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
  t.mock.method(performance, 'now', () => nowMs);
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
