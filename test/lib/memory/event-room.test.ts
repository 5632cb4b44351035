import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Reservation } from '../../../src/lib/memory/byte-budget.ts';
import { EventRoom } from '../../../src/lib/memory/event-room.ts';
import { stopClock } from '../../support/clock.ts';
import { newBudget } from '../../support/shared.ts';

const MIB = 1_048_576;

test('a slow stream that has its room does not keep a waiting stream from being stuck', (t) => {
  const clock = stopClock(t);
  const whole = newBudget(2 * MIB);
  const [slow, waiting] = [new EventRoom(whole), new EventRoom(whole)];
  const other = new Reservation(whole);
  assert.ok(other.tryResize(1.5 * MIB));
  assert.ok(!slow.tryGrow(0.6 * MIB));
  other.close();
  assert.ok(slow.tryGrow(0.6 * MIB));
  assert.ok(!waiting.tryGrow(1.5 * MIB));
  assert.ok(!waiting.isStuck);
  clock.nowMs += 2000;
  // The wait goes on, and does not begin again.
  assert.ok(!waiting.tryGrow(1.5 * MIB));
  assert.ok(waiting.isStuck);
});

test('the longest waiting stream is stuck if waiting streams hold all memory', () => {
  const whole = newBudget(2 * MIB);
  const [first, second] = [new EventRoom(whole), new EventRoom(whole)];
  const request = new Reservation(whole);
  /** Whether the stream is stuck when it tries again. */
  const isStuck = (stream: EventRoom) => {
    stream.endWait();
    const { isStuck: is } = stream;
    stream.wait();
    return is;
  };
  assert.ok(first.tryGrow(0.875 * MIB));
  assert.ok(!first.tryGrow(3 * MIB));
  assert.ok(isStuck(first));
  assert.ok(second.tryGrow(0.5 * MIB));
  assert.ok(!isStuck(first));
  assert.ok(!second.tryGrow(MIB));
  second.wait();
  assert.deepEqual([isStuck(first), isStuck(second)], [true, false]);
  request.resize(1000);
  assert.ok(!isStuck(first));
  request.close();
  first.close();
  // A room closed during its wait no longer waits.
  second.close();
  assert.deepEqual([whole.waitingBytes, whole.waitingStreams.size], [0, 0]);
  second.endWait();
  assert.equal(whole.waitingBytes, 0);
});
