/** The queue for a provider's slots: turns, order, ends of waits, reloads. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Cancellation } from '../../src/lib/cancellation.ts';
import { SlotQueue, type Slots, waitForSlot } from '../../src/policy/waiting.ts';
import { useManualTimers } from '../support/clock.ts';

/** Returns a queue for `max` slots that are all taken. */
function fullQueue(max: number, maxWaiting: number) {
  const slots: Slots = { inFlight: max, queue: undefined };
  const queue = new SlotQueue(slots);
  queue.configure(max, maxWaiting);
  const release = async () => {
    slots.inFlight -= 1;
    queue.grant();
    await Promise.resolve();
  };
  return { queue, release, slots };
}

type Queues = SlotQueue | readonly SlotQueue[];

/** Returns a function that waits, and the names of the requests whose wait in a queue has ended. */
function startWaiters(maxMs = 1000) {
  const granted: string[] = [];
  const ended: string[] = [];
  const wait = (
    name: string,
    queues: Queues,
    cancellation = new Cancellation(),
    takesSlot: (queue: SlotQueue, isLast: boolean) => boolean = () => true,
  ) => {
    const all = queues instanceof SlotQueue ? [queues] : queues;
    const request = { client: name[0], takesSlot };
    const waiting = waitForSlot(all, request, maxMs, cancellation);
    void waiting.then((result) => {
      if (typeof result !== 'string') granted.push(name);
      else if (result !== 'full') ended.push(name);
    });
    return waiting;
  };
  return { ended, granted, wait };
}

test('clients take turns, and each client’s requests are served in order of arrival', async (t) => {
  useManualTimers(t);
  const { queue, release, slots } = fullQueue(1, 20);
  const { granted, wait } = startWaiters();
  for (const name of ['a1', 'a2', 'a3', 'b1', 'c1', 'b2']) void wait(name, queue);
  for (let count = 0; count < 3; count += 1) await release();
  // c has no request left, and comes behind b with its next.
  void wait('c2', queue);
  for (let count = 0; count < 4; count += 1) await release();
  assert.deepEqual(granted, ['a1', 'b1', 'c1', 'a2', 'b2', 'c2', 'a3']);
  assert.deepEqual([slots.inFlight, queue.size], [1, 0]);
  await release();
  assert.equal(slots.inFlight, 0);
});

test('a client that arrives after another’s turn comes before its next turn', async (t) => {
  useManualTimers(t);
  const { queue, release } = fullQueue(1, 20);
  const { granted, wait } = startWaiters();
  for (const name of ['a1', 'a2', 'a3']) void wait(name, queue);
  await release();
  void wait('b1', queue);
  await release();
  // The turn of a is longer ago than the turn of b.
  void wait('b2', queue);
  for (let count = 0; count < 3; count += 1) await release();
  assert.deepEqual(granted, ['a1', 'b1', 'a2', 'b2', 'a3']);
});

test('a full queue refuses, but not a client with fewer places than another', async (t) => {
  useManualTimers(t);
  const { queue, release } = fullQueue(1, 4);
  const { ended, granted, wait } = startWaiters();
  for (const name of ['a1', 'a2', 'a3', 'a4']) void wait(name, queue);
  assert.equal(await wait('a5', queue), 'full');
  for (const name of ['b1', 'b2']) void wait(name, queue);
  // Each client has two places now.
  for (const name of ['a6', 'b3']) assert.equal(await wait(name, queue), 'full');
  void wait('c1', queue);
  await Promise.resolve();
  assert.deepEqual(ended, ['a4', 'a3', 'a2']);
  assert.equal(queue.size, 4);
  for (let count = 0; count < 4; count += 1) await release();
  assert.deepEqual(granted, ['a1', 'b1', 'c1', 'b2']);
});

test('a wait ends after its time, and when its client leaves, and gives its place up', async (t) => {
  const timers = useManualTimers(t);
  const { queue, release } = fullQueue(1, 2);
  const { ended, granted, wait } = startWaiters(1000);
  const client = new Cancellation();
  void wait('a1', queue);
  void wait('b1', queue, client);
  timers.advance(500);
  client.cancel(new Error('left'));
  assert.equal(queue.size, 1);
  void wait('b2', queue);
  timers.advance(500);
  assert.equal(queue.size, 1);
  await release();
  assert.deepEqual([ended, granted], [['b1', 'a1'], ['b2']]);
  timers.advance(1000);
  assert.equal(timers.running().includes(1000), false);
  // A client that has left before waits no time.
  void wait('b3', queue, client);
  assert.equal(queue.size, 0);
});

test('a request waits in several queues, and takes a single slot', async (t) => {
  useManualTimers(t);
  const [one, other] = [fullQueue(1, 1), fullQueue(1, 2)];
  const { ended, granted, wait } = startWaiters();
  const both = [one.queue, other.queue];
  const waiting = wait('a1', both);
  void wait('b1', both);
  assert.deepEqual([one.queue.size, other.queue.size], [1, 2]);
  await other.release();
  assert.equal(await waiting, other.queue);
  assert.deepEqual([one.queue.size, other.queue.size], [0, 1]);
  await one.release();
  assert.equal(one.slots.inFlight, 0);
  await other.release();
  assert.deepEqual([granted, ended], [['a1', 'b1'], []]);
});

test('a request leaves a queue whose slot it does not take, and the next one gets it', async (t) => {
  useManualTimers(t);
  const [one, other] = [fullQueue(1, 5), fullQueue(1, 5)];
  const { ended, granted, wait } = startWaiters();
  const both = [one.queue, other.queue];
  const asked: [SlotQueue, boolean][] = [];
  const waiting = wait('a1', both, undefined, (queue, isLast) => {
    asked.push([queue, isLast]);
    return false;
  });
  void wait('b1', one.queue);
  await one.release();
  assert.deepEqual([granted, ended, other.queue.size], [['b1'], [], 1]);
  await other.release();
  assert.equal(await waiting, 'over');
  assert.equal(other.slots.inFlight, 0);
  assert.deepEqual(asked, [
    [one.queue, false],
    [other.queue, true],
  ]);
});

test('a slot that has become free before the wait is taken at once', async (t) => {
  useManualTimers(t);
  const [one, other] = [fullQueue(1, 1), fullQueue(1, 1)];
  const { wait } = startWaiters();
  one.slots.inFlight = 0;
  assert.equal(await wait('a1', [one.queue, other.queue]), one.queue);
  assert.deepEqual([one.queue.size, other.queue.size, one.slots.inFlight], [0, 0, 1]);
});

test('a reload with more slots ends waits, and one with fewer places ends none', async (t) => {
  useManualTimers(t);
  const { queue, release, slots } = fullQueue(1, 5);
  const { ended, granted, wait } = startWaiters();
  for (const name of ['a1', 'a2', 'a3', 'a4']) void wait(name, queue);
  queue.configure(2, 2);
  assert.equal(await wait('b1', queue), 'full');
  await release();
  assert.deepEqual([granted, ended, queue.size, slots.inFlight], [['a1', 'a2'], [], 2, 2]);
  queue.configure(Infinity, 0);
  await Promise.resolve();
  assert.deepEqual([granted.length, queue.size, slots.inFlight], [4, 0, 4]);
  assert.equal(await wait('b2', queue), 'full');
});
