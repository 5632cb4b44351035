import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ChunkBuffer } from '../src/lib/chunk-buffer.ts';
import { createMemoryProbe } from './support/memory.ts';
import { cutUp } from './support/mutate.ts';
import { withRandom } from './support/random.ts';

test('what was pushed is taken as one, again and again, whatever the pieces are', async () =>
  withRandom((random) => {
    const pieces = new ChunkBuffer();
    for (let round = 0; round < 200; round += 1) {
      const bytes = Buffer.from(
        Array.from({ length: random.integer(0, 3000) }, () => random.integer(0, 256)),
      );
      for (const piece of cutUp(random, bytes)) pieces.push(piece);
      assert.equal(pieces.size, bytes.length);
      assert.deepEqual(pieces.take(), bytes);
      assert.equal(pieces.size, 0);
    }
  }));

test('a piece of one byte takes less than 20 bytes', () => {
  const held = createMemoryProbe();
  const count = 300_000;
  const bytes = Buffer.alloc(count, 'x');
  const pieces = new ChunkBuffer();
  const before = held();
  for (let at = 0; at < count; at += 1) pieces.push(bytes.subarray(at, at + 1));
  const grown = held() - before;
  assert.ok(grown < 20 * count, `${grown} bytes`);
  assert.deepEqual(pieces.take(), bytes);
});
