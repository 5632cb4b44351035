/** When a provider is slow. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Slowness } from '../../src/admin/slowness.ts';

type Times = { newestMs?: number | undefined; formerMs?: number | undefined };

const start = () => {
  const slowness = new Slowness();
  return (times: { first_token?: Times; connect?: Times }, provider = 'p') =>
    slowness.causeOf(provider, (time) => ({
      newestMs: undefined,
      formerMs: undefined,
      ...times[time],
    }));
};

test('a provider is slow from four times its usual first token down to twice', () => {
  const causeOf = start();
  const judge = (newestMs?: number, formerMs?: number, provider = 'p') =>
    causeOf({ first_token: { newestMs, formerMs } }, provider);
  assert.equal(judge(), undefined);
  assert.equal(judge(1000), undefined, 'nothing to compare with');
  assert.equal(judge(799, 200), undefined);
  assert.equal(judge(800, 200), 'first token after 800 ms, 200 ms is usual');
  assert.equal(judge(800, 800, 'q'), undefined);
  // A quarter of an hour of slow streams does not become usual.
  assert.equal(judge(800, 800), 'first token after 800 ms, 200 ms is usual');
  assert.equal(judge(400, 800), 'first token after 400 ms, 200 ms is usual');
  assert.equal(judge(399, 800), undefined);
  assert.equal(judge(400, 200), undefined, 'it is slow no more');
  assert.equal(judge(0, 0), undefined, 'no time is not slow');
});

test('a provider is slow if its new connections take four times as long as usual', () => {
  const causeOf = start();
  const connect = (newestMs: number, formerMs?: number) =>
    causeOf({ connect: { newestMs, formerMs } });
  assert.equal(connect(99, 10), undefined, 'a few milliseconds more');
  assert.equal(connect(100, 10), 'every fourth connect takes at least 100 ms, 25 ms is usual');
  assert.equal(connect(49, 100), undefined);
  // A slow name server at the start.
  assert.equal(connect(999), undefined);
  assert.equal(connect(4000), 'every fourth connect takes at least 4000 ms, 250 ms is usual');
  const both = { newestMs: 8000, formerMs: 100 };
  assert.equal(
    causeOf({ first_token: both, connect: both }, 'q'),
    'first token after 8000 ms, 100 ms is usual, every fourth connect takes at least 8000 ms, 100 ms is usual',
  );
});
