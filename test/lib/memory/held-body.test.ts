import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Reservation } from '../../../src/lib/memory/byte-budget.ts';
import { ClientGone } from '../../../src/lib/errors.ts';
import { HeldBody, copyIfResizable } from '../../../src/lib/memory/held-body.ts';
import { cutUp } from '../../support/mutate.ts';
import { withRandom } from '../../support/random.ts';
import { newBudget } from '../../support/shared.ts';

test('a body has the pushed bytes, and a long body is freed at its end', async () =>
  withRandom((random) => {
    const budget = newBudget();
    for (const bytes of [0, 1, 65_535, 65_536, 65_537, 1_048_577, 3_000_000]) {
      const whole = Buffer.alloc(bytes, 'a text of which every part differs from the others');
      const body = new HeldBody(new Reservation(budget));
      body.begin(0, bytes, () => new Error('too large'));
      for (const chunk of cutUp(random, whole)) body.push(chunk);
      const { parts } = body;
      assert.deepEqual([body.size, budget.bodyBytes], [bytes, bytes]);
      assert.ok(Buffer.concat(parts).equals(whole));
      const sent = parts.map(copyIfResizable);
      body.close();
      assert.equal(budget.bodyBytes, 0);
      const lengths = parts.map(({ length }) => length);
      if (bytes > 65_536) assert.deepEqual(lengths, [0]);
      assert.ok(Buffer.concat(sent).equals(whole), 'the bytes of a socket stay');
    }
  }));

test('a dropped body is freed with its last reader, and takes nothing more', () => {
  const budget = newBudget();
  const body = new HeldBody(new Reservation(budget));
  body.begin(3, 3, () => new Error('too large'));
  body.push(Buffer.from('abc'));
  body.retain();
  body.release();
  body.retain();
  body.drop();
  assert.equal(Buffer.concat(body.parts).toString(), 'abc');
  assert.equal(budget.reservedBytes, 3);
  body.release();
  assert.deepEqual([body.parts, body.size, budget.reservedBytes], [[], 0, 0]);
  assert.throws(() => body.push(Buffer.from('d')), ClientGone);
});
