import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Reservation } from '../../../src/lib/memory/byte-budget.ts';
import { ClientGone, type GatewayError } from '../../../src/lib/errors.ts';
import { EventRoom } from '../../../src/lib/memory/event-room.ts';
import { newBudget } from '../../support/shared.ts';

const MIB = 1_048_576;

test('a reservation frees its bytes once, and takes none after its end', () => {
  const whole = newBudget(100);
  const [a, b] = [new Reservation(whole), new Reservation(whole)];
  a.resize(60);
  a.resize(50);
  b.resize(50);
  assert.equal(whole.reservedBytes, 100);
  assert.throws(
    () => a.resize(51),
    (error: GatewayError) => error.status === 429 && error.scope === 'gateway',
  );
  assert.equal(whole.reservedBytes, 100);
  b.close();
  b.close();
  assert.equal(whole.reservedBytes, 50);
  assert.throws(() => b.resize(1), ClientGone);
  a.close();
  assert.equal(whole.reservedBytes, 0);
});

test('a reservation of a negative number or of NaN is a bug and changes no count', () => {
  const whole = newBudget(100);
  const [a, b] = [new Reservation(whole), new Reservation(whole)];
  a.resize(60);
  for (const bytes of [-1, NaN]) {
    assert.throws(() => b.resize(bytes), { kind: 'internal', status: 500 });
    assert.deepEqual([b.bytes, whole.reservedBytes], [0, 60]);
  }
});

test('while a stream waits for memory, new requests get none', () => {
  const whole = newBudget(MIB);
  const [request, begun] = [new Reservation(whole), new Reservation(whole)];
  const stream = new EventRoom(whole);
  begun.resize(65_537);
  whole.waitingBytes += 1;
  begun.resize(131_072);
  begun.close();
  assert.throws(() => request.resize(65_537), { status: 429 });
  request.resize(65_536);
  assert.ok(stream.tryGrow(100_000));
  whole.waitingBytes -= 1;
  request.resize(65_537);
  request.close();
});
