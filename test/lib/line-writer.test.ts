/** Unwritable log lines. */

import assert from 'node:assert/strict';
import { Writable } from 'node:stream';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { LineWriter } from '../../src/lib/line-writer.ts';

test('lines dropped while nobody reads are counted, and reported later', async () => {
  let read = () => {};
  let text = '';
  const stalled = new Writable({
    write(chunk, _, done) {
      text += String(chunk);
      read = done;
    },
  });
  const told: number[] = [];
  const causes: string[] = [];
  const writer = new LineWriter(stalled, {
    onDropped: (lines) => told.push(lines),
    onLost: (cause) => causes.push(cause),
  });
  writer.write(`${'x'.repeat(5_000_000)}\n`);
  await nextTurn();
  writer.write('one\ntwo\nthree\n');
  writer.write('four\n');
  assert.deepEqual([writer.droppedLines, told], [4, []]);
  assert.deepEqual(causes, Array(2).fill('standard output is not read'));
  read();
  await nextTurn();
  assert.deepEqual(told, [4]);
  assert.doesNotMatch(text, /one|four/);
});

test('lines that the stream refuses are counted until their report is written', async () => {
  let refusals = 2;
  let text = '';
  // Like standard output, the stream takes further lines after an error.
  const stream = Object.assign(new Writable(), {
    write(chunk: string, done: (error?: Error) => void) {
      refusals -= 1;
      if (refusals < 0) text += chunk;
      done(refusals < 0 ? undefined : new Error('no room'));
      return true;
    },
  }) as Writable;
  const told: number[] = [];
  const causes: string[] = [];
  const onDropped = (lines: number) => {
    told.push(lines);
    // The first report is lost too.
    refusals = told.length === 1 ? 1 : 0;
    writer.write(`lost ${lines}\n`);
  };
  const writer = new LineWriter(stream, { onDropped, onLost: (cause) => causes.push(cause) });
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
  assert.deepEqual(causes, Array(3).fill('no room'));
  assert.equal(text, 'four\nfive\nlost 4\n');
  assert.equal(await writer.end(), 0);
});
