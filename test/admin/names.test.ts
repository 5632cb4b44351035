/** The names that may be labels: from where they come, and when they go. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { AllNames, Names } from '../../src/admin/names.ts';
import { loadConfig, type Config } from '../../src/config/config.ts';
import { stopClock } from '../support/clock.ts';

const KEPT_MS = 300_000;

test('a name goes five minutes after its last source has left it', (t) => {
  const clock = stopClock(t);
  const names = new Names();
  names.use('one', ['a', 'b']);
  names.use('two', ['b', 'c']);
  names.use('one', ['d']);
  clock.nowMs += KEPT_MS - 1;
  assert.equal(names.expire(), false);
  assert.deepEqual(
    ['a', 'b', 'c', 'd'].map((name) => names.has(name)),
    [true, true, true, true],
  );
  clock.nowMs += 1;
  assert.equal(names.expire(), true);
  assert.deepEqual(
    ['a', 'b', 'c', 'd'].map((name) => names.has(name)),
    [false, true, true, true],
  );
  names.use('two', []);
  clock.nowMs += KEPT_MS;
  assert.equal(names.expire(), true);
  assert.deepEqual(
    ['b', 'c', 'd'].map((name) => names.has(name)),
    [false, false, true],
  );
  assert.equal(names.expire(), false);
});

test('a name that comes back within five minutes stays', (t) => {
  const clock = stopClock(t);
  const names = new Names();
  names.use('one', ['a']);
  names.use('one', []);
  clock.nowMs += KEPT_MS - 1;
  names.use('one', ['a']);
  clock.nowMs += 10 * KEPT_MS;
  assert.equal(names.expire(), false);
  assert.equal(names.has('a'), true);
});

test('a name of an old request is known for five minutes', (t) => {
  const clock = stopClock(t);
  const names = new Names();
  names.use('one', ['used']);
  names.note('late');
  names.note('used');
  clock.nowMs += KEPT_MS - 1;
  names.expire();
  assert.equal(names.has('late'), true);
  clock.nowMs += 1;
  names.expire();
  assert.deepEqual([names.has('late'), names.has('used')], [false, true]);
});

test('long names and names beyond the bound are left out, until there is room', (t) => {
  const clock = stopClock(t);
  const names = new Names(2);
  names.use('one', ['x'.repeat(201), 'a', 'b', 'c']);
  assert.deepEqual(
    ['a', 'b', 'c'].map((name) => names.get(name)),
    ['a', 'b', undefined],
  );
  assert.equal(names.has('x'.repeat(201)), false);
  names.use('one', ['b', 'c']);
  clock.nowMs += KEPT_MS;
  names.expire();
  names.use('one', ['b', 'c']);
  assert.equal(names.has('c'), true);
});

const config = (more: string, id = 'p'): Config =>
  loadConfig({
    toml: `[providers.${id}]\nbase_url = "http://127.0.0.1:1/v1"\napi_key = "none"\n${more}`,
    env: {},
  });

test('a list of models goes with its provider, and with its wildcard alias', (t) => {
  const clock = stopClock(t);
  const names = new AllNames((name) => !name.includes('secret'));
  const has = (...all: string[]) => all.filter((name) => names.models.has(name)).join(' ');
  const alias = config('[aliases]\n"any-*" = "p/list*"\n');
  names.useSettings(alias);
  names.useList('p', ['listed', 'secret'], alias);
  assert.equal(has('listed', 'p/listed', 'any-ed', 'secret'), 'listed p/listed any-ed');
  const settle = (next: Config) => {
    names.useSettings(next);
    clock.nowMs += KEPT_MS;
    names.expire(next);
  };
  settle(config('[aliases]\n"all-*" = "p/list*"\n'));
  assert.equal(has('listed', 'p/listed', 'any-ed', 'all-ed'), 'listed p/listed all-ed');
  const other = config('default_model = "d"\n', 'q');
  settle(other);
  assert.equal(has('listed', 'p/listed', 'all-ed', 'd', 'q', 'q/', 'q/d'), 'd q q/ q/d');
  assert.deepEqual([names.providers.has('p'), names.providers.has('q')], [false, true]);
  settle(alias);
  assert.equal(has('listed', 'p/listed'), '', 'until its list is read again');
});

test('a model that a provider lists no longer goes too', (t) => {
  const clock = stopClock(t);
  const names = new AllNames();
  const settings = config('');
  names.useSettings(settings);
  names.useList('p', ['a', 'b'], settings);
  names.useList('p', ['b'], settings);
  clock.nowMs += KEPT_MS;
  assert.equal(names.expire(settings), true);
  assert.deepEqual([names.models.has('a'), names.models.has('b')], [false, true]);
});

test('names that were too many are known when others have gone', (t) => {
  const clock = stopClock(t);
  const names = new AllNames();
  const settings = config('');
  const list = (start: string) => Array.from({ length: 4000 }, (_, at) => `${start}-${at}`);
  names.useSettings(settings);
  names.useList('p', list('old'), settings);
  names.useList('p', list('new'), settings);
  assert.equal(names.models.has('new-0'), false);
  clock.nowMs += KEPT_MS;
  names.expire(settings);
  assert.equal(names.models.has('p/new-3999'), true);
});
