/** What threads share, used by real threads at the same time; and settings on their way to a thread. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { isMainThread, Worker, workerData } from 'node:worker_threads';

import { loadConfig, packConfig, unpackConfig } from '../../src/config/config.ts';
import { Secret } from '../../src/lib/secrets.ts';
import { SharedMemory, type SharedBlocks } from '../../src/lib/shared-memory.ts';
import { createTokenBucket } from '../../src/policy/limits.ts';

const THREADS = 4;
const ROUNDS = 50_000;
const MAX = 7;
const TOKENS = 60_000;

interface Task {
  readonly thread: number;
  readonly blocks: SharedBlocks;
}

/** Where all threads add and take. */
function createParts(memory: SharedMemory) {
  return {
    sum: memory.inFlightCounter('sum'),
    bounded: memory.inFlightCounter('bounded'),
    most: new BigInt64Array(memory.block('most', 8)),
    /** How often the bound has let a thread in. */
    admitted: memory.totalCounter('admitted'),
    left: memory.inFlightCounter('left'),
    bucket: createTokenBucket(1, TOKENS, memory.block('bucket', 8)),
    taken: memory.totalCounter('taken'),
    ready: new Int32Array(memory.block('ready', 4)),
  };
}

/** What each thread does. */
function hammer({ thread, blocks }: Task): void {
  const memory = new SharedMemory({ thread, threads: THREADS + 1 }, blocks);
  const { sum, bounded, most, admitted, left, bucket, taken, ready } = createParts(memory);
  Atomics.add(ready, 0, 1);
  while (Atomics.load(ready, 0) < THREADS);
  for (let round = 0; round < ROUNDS; round += 1) {
    sum.add(thread);
    sum.add(-1);
    if (bounded.addWithin(3, MAX)) {
      admitted.add(1);
      const now = BigInt(bounded.value);
      if (now > Atomics.load(most, 0)) Atomics.store(most, 0, now);
      bounded.add(-3);
    }
    // A token that is put back can be taken by any thread.
    if (bucket.take(1000) === 0) taken.add(1);
    if (round % 3 === 0 && bucket.take(1000) === 0) bucket.refund();
  }
  // What a thread that dies would leave behind.
  left.add(thread * 10);
}

if (!isMainThread) hammer(workerData as Task);
else {
  test('four threads at once: sums are exact, a bound is never passed, and each token is taken once', async () => {
    const memory = new SharedMemory({ thread: 0, threads: THREADS + 1 });
    const { sum, bounded, most, admitted, left, bucket, taken } = createParts(memory);
    const workers = Array.from({ length: THREADS }, (_, index) => {
      const task: Task = { thread: index + 1, blocks: memory.blocks };
      return new Worker(new URL(import.meta.url), { workerData: task });
    });
    const codes = await Promise.all(workers.map(async (worker) => (await once(worker, 'exit'))[0]));
    assert.deepEqual(codes, [0, 0, 0, 0]);
    assert.equal(sum.value, ROUNDS * (1 + 2 + 3 + 4 - THREADS));
    assert.equal(bounded.value, 0);
    assert.ok(most[0]! > 0n && most[0]! <= BigInt(MAX), `${most[0]}`);
    assert.ok(admitted.value >= ROUNDS);
    // The tokens that are left, to the last one.
    let rest = 0;
    while (bucket.take(1000) === 0) rest += 1;
    assert.equal(taken.value + rest, TOKENS);
    assert.equal(left.value, 100);
    memory.reclaim(2);
    memory.reclaim(2);
    assert.equal(left.value, 80);
    assert.deepEqual([sum.own, left.own], [0, 0]);
    assert.equal(taken.value + rest, TOKENS, 'a total keeps what a thread has added');
  });

  test('settings arrive in another thread as they were, with their secrets', () => {
    const toml = `
      [server]
      workers = 1
      [server.auth]
      keys = ["front-canary-1"]
      [clients.alice]
      key = "alice-canary-1"
      models = ["p/*"]
      requests_per_second = 3
      [admin]
      port = 9
      keys = ["admin-canary-1"]
      [rate_limit]
      enabled = true
      requests_per_second = 5
      store = "redis://user:store-canary-1@localhost:6379/2"
      [rate_limit.providers.p]
      requests_per_second = 7
      [providers.p]
      base_url = "http://127.0.0.1:9/v1"
      api_keys = ["first-canary-1", "second-canary-1"]
      headers = { x-secret = "header-canary-1", __proto__x = "b" }
      [aliases]
      fast = ["p/a", "p/b"]`;
    const config = loadConfig({ toml, env: {} });
    const received = unpackConfig(structuredClone(packConfig(config)));
    assert.deepEqual(received, config);
    assert.ok(received.aliases instanceof Map);
    const texts = (all: typeof config.secrets) =>
      [...all].map((secret) => [secret.reveal(), secret.isKey, secret instanceof Secret]);
    assert.deepEqual(texts(received.secrets), texts(config.secrets));
    assert.ok(received.secrets.length >= 6);
    assert.deepEqual(packConfig(received), packConfig(config));
    // Packed, no text is hidden; unpacked it is again.
    assert.doesNotMatch(JSON.stringify(received), /canary/);
  });
}
