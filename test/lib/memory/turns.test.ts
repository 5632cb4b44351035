/** How bodies share the turns of the event loop. */

import assert from 'node:assert/strict';
import { PerformanceObserver } from 'node:perf_hooks';
import { test } from 'node:test';
import { setImmediate as immediate } from 'node:timers/promises';

import { nextTurn, onNextTurn, TurnLimit } from '../../../src/lib/memory/turns.ts';
import { idle } from '../../support/clock.ts';

const KIB = 1024;

test('a body waits after each 64 KiB, its chunks included', () => {
  const limit = new TurnLimit();
  const waits = Array.from({ length: 12 }, () => limit.spend(16 * KIB));
  const places = waits.flatMap((isOver, place) => (isOver ? [place] : []));
  assert.deepEqual(places, [3, 7, 11]);
  const tiny = new TurnLimit();
  const chunks = Array.from({ length: 3000 }, () => tiny.spend(1));
  assert.equal(chunks.filter(Boolean).length, 2);
});

test('each turn has four bodies, in order, whenever they come', async () => {
  const turns: string[][] = [];
  for (const round of ['a', 'b']) {
    for (let body = 0; body < 10; body += 1) {
      onNextTurn(() => turns.at(-1)!.push(`${round}${body}`));
    }
    for (let turn = 0; turn < 4; turn += 1) {
      turns.push([]);
      await immediate();
    }
  }
  const sizes = turns.map(({ length }) => length);
  assert.deepEqual(sizes, [4, 4, 2, 0, 4, 4, 2, 0]);
  const order = ['a', 'b'].flatMap((round) => '0123456789'.split('').map((body) => round + body));
  assert.deepEqual(turns.flat(), order);
});

test('a body that waits again comes behind the others', async () => {
  const order: string[] = [];
  const run = async (name: string) => {
    for (let part = 1; part <= 2; part += 1) {
      await nextTurn();
      order.push(`${name}${part}`);
    }
  };
  await Promise.all(['a', 'b', 'c', 'd', 'e'].map(run));
  assert.deepEqual(order, ['a1', 'b1', 'c1', 'd1', 'e1', 'a2', 'b2', 'c2', 'd2', 'e2']);
});

test('young garbage is collected after each 8 MiB of all bodies, not after each chunk', async (t) => {
  let collections = 0;
  const observer = new PerformanceObserver((list) => (collections += list.getEntries().length));
  observer.observe({ entryTypes: ['gc'] });
  t.after(() => observer.disconnect());
  const limits = Array.from({ length: 4 }, () => new TurnLimit());
  for (let chunk = 0; chunk < 1024; chunk += 1) limits[chunk % 4]!.spend(64 * KIB);
  await idle(60);
  // Eight of these 64 MiB, and those of the runner.
  assert.ok(collections >= 8 && collections < 100, `${collections} collections`);
});
