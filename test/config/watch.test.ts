import assert from 'node:assert/strict';
import { rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';

import { SettingsFiles } from '../../src/config/watch.ts';
import { idle, useManualTimers } from '../support/clock.ts';
import { emptyFolder } from '../support/process.ts';
import { eventually } from '../support/streams.ts';

const POLL_MS = 1000;

/** Watches a file on the manual clock, and reads it again at each reload. */
function start(t: TestContext) {
  const timers = useManualTimers(t);
  const path = join(emptyFolder(t, { file: 'first' }), 'file');
  const files = new SettingsFiles();
  t.after(() => files.stop());
  const read = () => files.read((onFile) => onFile(path));
  read();
  const state = { reloads: 0 };
  files.watch(() => {
    state.reloads += 1;
    read();
  });
  let writes = 0;
  return {
    files,
    path,
    read,
    state,
    timers,
    change: () => writeFileSync(path, 'x'.repeat((writes += 1))),
    /** Lets a second pass, and waits for the end of the poll. Returns the reloads so far. */
    poll: async (): Promise<number> => {
      const before = timers.started(POLL_MS);
      timers.advance(POLL_MS);
      await eventually(() => timers.started(POLL_MS) > before, 'the next poll');
      return state.reloads;
    },
  };
}

test('a changed file is read once, when it has stayed the same for a second', async (t) => {
  const { change, poll } = start(t);
  assert.equal(await poll(), 0);
  for (const reloads of [1, 2, 3]) {
    change();
    assert.equal(await poll(), reloads - 1);
    assert.equal(await poll(), reloads);
    assert.equal(await poll(), reloads);
  }
});

test('a file that changes all the time is read after ten seconds, each time', async (t) => {
  const { change, poll } = start(t);
  const reloads: number[] = [];
  for (let polls = 0; polls < 33; polls += 1) {
    change();
    reloads.push(await poll());
  }
  const first = [1, 2, 3].map((count) => reloads.indexOf(count));
  assert.deepEqual(first, [10, 21, 32]);
});

test('changes that were undone count neither for the next change nor for the ten seconds', async (t) => {
  const { path, poll } = start(t);
  const link = (target: string) => {
    rmSync(path);
    symlinkSync(target, path);
  };
  for (const name of ['a', 'b']) writeFileSync(`${path}-${name}`, name);
  link(`${path}-a`);
  for (let polls = 0; polls < 2; polls += 1) await poll();
  for (let round = 0; round < 12; round += 1) {
    link(`${path}-b`);
    assert.equal(await poll(), 1);
    link(`${path}-a`);
    assert.equal(await poll(), 1);
  }
  link(`${path}-b`);
  assert.equal(await poll(), 1);
  assert.equal(await poll(), 2);
});

test('a signal that reads the file during a poll makes a reload needless', async (t) => {
  const { change, poll, read, state, timers } = start(t);
  change();
  await poll();
  const before = timers.started(POLL_MS);
  timers.advance(POLL_MS);
  read();
  await eventually(() => timers.started(POLL_MS) > before, 'the end of the poll');
  assert.equal(state.reloads, 0);
  assert.equal(await poll(), 0);
});

test('a watch that stops during a poll stays stopped', async (t) => {
  const { change, files, poll, state, timers } = start(t);
  change();
  await poll();
  timers.advance(POLL_MS);
  files.stop();
  await idle(100);
  assert.equal(state.reloads, 0);
  assert.deepEqual(timers.running().includes(POLL_MS), false);
});
