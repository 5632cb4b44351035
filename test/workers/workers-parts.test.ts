/** The parts of the worker threads that need no gateway. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { test, type TestContext } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import { createLineWriter } from '../../src/cli/line-writer.ts';
import { loadConfig } from '../../src/config/config.ts';
import { CLIENT_LIMITS } from '../../src/downstream/call.ts';
import type { LogFacts } from '../../src/lib/log.ts';
import { placeOfMain, SharedMemory } from '../../src/lib/shared-memory.ts';
import { WorkerPool } from '../../src/workers/pool.ts';
import { useManualTimers } from '../support/clock.ts';
import { emptyFolder } from '../support/process.ts';
import { eventually } from '../support/streams.ts';

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

/** Two workers that never reply to a drain, and do `onUse` when they get settings. */
async function startPool(t: TestContext, onUse: string) {
  const program = `
    import { parentPort, workerData } from 'node:worker_threads';
    parentPort.on('message', ([name]) => {
      if (name !== 'use') return;
      ${onUse}
      parentPort.postMessage(['using']);
    });
    parentPort.postMessage(['listening', { port: 1 }]);`;
  const folder = emptyFolder(t, { 'worker.mjs': program });
  const lines: (LogFacts & { message: string })[] = [];
  const memory = new SharedMemory(placeOfMain(2));
  const config = loadConfig({ toml: '', env: {} });
  const app = {
    snapshot: { config: { ...config, server: { ...config.server, workers: 2 } } },
    known: [],
    memory,
    logger: {
      log: (_: string, message: string, facts?: LogFacts) => void lines.push({ ...facts, message }),
      isEnabled: () => true,
    },
    transport: { setting: 'auto' as const },
    apply() {},
  };
  const pool = new WorkerPool(app, {
    workerFile: join(folder, 'worker.mjs'),
    writeLog() {},
    isTerminal: false,
    colour: false,
    clientLimits: CLIENT_LIMITS,
  });
  await pool.listen(0, '127.0.0.1');
  const logged = (message: string) => lines.filter((line) => line.message === message);
  return { pool, logged };
}

const FIRST_EXITS = 'if (workerData.place.thread === 1) process.exit(1);';

test('the pause before a dead worker is replaced is short again after one that has lived for ten seconds', async (t) => {
  let nowMs = 1000;
  t.mock.method(performance, 'now', () => nowMs);
  const timers = useManualTimers(t);
  const { pool, logged } = await startPool(t, FIRST_EXITS);
  for (const [deaths, livedMs] of [9000, 10_000, 10_001, 1].entries()) {
    nowMs += livedMs;
    await pool.use();
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
  const { pool } = await startPool(t, '');
  let isDrained = false;
  const reason = new Error('test is over');
  const drained = pool.drain({ delayMs: 3000, timeoutMs: 2000, reason });
  void drained.then(() => (isDrained = true));
  timers.advance(9999);
  await sleep(50);
  assert.equal(isDrained, false);
  timers.advance(1);
  await drained;
});

test('workers may take the longest times that can be set', async (t) => {
  const timers = useManualTimers(t);
  const { pool } = await startPool(t, '');
  const reason = new Error('test is over');
  const drained = pool.drain({ delayMs: 2_147_483_000, timeoutMs: 2_147_483_000, reason });
  // A longer timer would end at once.
  const longestMs = 2 ** 31 - 1;
  assert.deepEqual(timers.running(Infinity), [longestMs, longestMs]);
  timers.advance(longestMs);
  await drained;
});

test('while failed workers that finish their requests have all eight numbers, the next start waits', async (t) => {
  const timers = useManualTimers(t);
  const { pool, logged } = await startPool(t, "parentPort.postMessage(['failed']);");
  for (const started of [2, 4, 6]) {
    await pool.use();
    timers.advance(30_000);
    await eventually(() => logged('worker started').length === started, 'both are replaced');
  }
  await pool.use();
  assert.equal(logged('worker missing').length, 8);
  timers.advance(30_000);
  assert.equal(pool.serving, 0);
  await eventually(() => logged('worker missing').length === 10, 'both are tried again later');
  const drained = pool.drain({ delayMs: 0, timeoutMs: 0, reason: new Error('test is over') });
  timers.advance(5000);
  await drained;
});
