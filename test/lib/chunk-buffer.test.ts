import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { ChunkBuffer, sliceParts } from '../../src/lib/chunk-buffer.ts';
import { TurnLimit } from '../../src/lib/memory/turns.ts';
import { createMemoryProbe } from '../support/memory.ts';
import { cutUp } from '../support/mutate.ts';
import { withRandom, type Random } from '../support/random.ts';

const someBytes = (random: Random, length: number) =>
  Buffer.from(Array.from({ length }, () => random.integer(0, 255)));

test('pushed chunks are taken as a whole, and sliced without a copy', async () =>
  withRandom((random) => {
    const chunks = new ChunkBuffer();
    for (let round = 0; round < 200; round += 1) {
      const bytes = someBytes(random, random.integer(0, 20_000));
      for (const chunk of cutUp(random, bytes)) chunks.push(chunk);
      assert.equal(chunks.size, bytes.length);
      assert.deepEqual(chunks.take(), bytes);
      assert.equal(chunks.size, 0);
    }
    const bytes = someBytes(random, 300);
    const parts = cutUp(random, bytes);
    for (let count = 0; count < 500; count += 1) {
      const start = random.integer(0, 310);
      const end = random.oneIn(3) ? undefined : random.integer(0, 310);
      const found = sliceParts(parts, start, end);
      assert.deepEqual(Buffer.concat(found), bytes.subarray(start, Math.max(start, end ?? 300)));
      assert.ok(found.every(({ buffer, length }) => buffer === bytes.buffer && length > 0));
    }
  }));

test('a chunk of one byte takes less than 20 bytes, and long chunks are not copied', () => {
  const held = createMemoryProbe();
  const count = 300_000;
  const bytes = Buffer.alloc(count, 'x');
  const long = Buffer.alloc(4096, 'y');
  for (const shortInARow of [count, 500]) {
    const chunks = new ChunkBuffer();
    const before = held();
    for (let at = 0; at < count; at += 1) {
      chunks.push(bytes.subarray(at, at + 1));
      if (at % shortInARow === 0) chunks.push(long);
    }
    const grown = held() - before;
    assert.ok(grown < 20 * count, `${grown} bytes`);
    assert.equal(chunks.parts.filter((part) => part === long).length, count / shortInARow);
  }
});

test('freed chunks are collected after 8 MiB', async () => {
  const before = createMemoryProbe('buffers')();
  const turn = new TurnLimit();
  for (let chunks = 0; chunks < 100; chunks += 1) Buffer.allocUnsafeSlow(65_536);
  for (let chunks = 0; chunks < 128; chunks += 1) turn.spend(65_536);
  // Another thread frees them. More turns would make enough garbage for V8 to collect by itself.
  const isFreed = () => process.memoryUsage().arrayBuffers < before + 1_000_000;
  for (let turns = 0; turns < 30 && !isFreed(); turns += 1) await sleep(30);
  assert.ok(isFreed());
});
