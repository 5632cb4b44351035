/** Model lists in each provider's shape. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { readModelList } from '../../src/protocol/model-list.ts';

const namesOf = (json: unknown) => readModelList(json).map(({ name }) => name);

function detailsOf(entry: object): object {
  const [model] = readModelList([{ id: 'a', ...entry }]);
  return model!.details;
}

test('a list is {data}, an array or {models}, with entries by id, by name or as texts', () => {
  const rows: readonly (readonly [json: unknown, names: string[]])[] = [
    [{ object: 'list', data: [{ id: 'a' }, { id: 'b' }] }, ['a', 'b']],
    [[{ id: 'a' }], ['a']],
    [{ models: [{ name: 'models/a' }, { name: 'b/models/c' }] }, ['a', 'b/models/c']],
    [{ data: [{ id: 'a', name: 'A' }], models: [{ name: 'b' }] }, ['a']],
    [['a', '', 7, null, { id: 8 }, { id: '' }, {}], ['a']],
    [{ data: null }, []],
    [{ models: null }, []],
    [{ data: null, models: ['a'] }, ['a']],
  ];
  for (const [json, names] of rows) assert.deepEqual(namesOf(json), names, JSON.stringify(json));
});

test('any other JSON is no list, not even an empty list beside a failure', () => {
  for (const json of [{}, null, 'a', { data: {} }, { data: null, message: 'boom' }]) {
    assert.throws(() => readModelList(json), /^Error: not a model list$/, JSON.stringify(json));
  }
});

test('ten thousand models are read', () => {
  const list = Array.from({ length: 10_001 }, (_, index) => `${index}`);
  assert.equal(namesOf(list).at(-1), '9999');
});

test('created is a whole number, else 0', () => {
  const created = [1_700_000_000, 1.5, '1700000000', null, 2 ** 53];
  const list = created.map((value) => ({ id: 'a', created: value }));
  assert.deepEqual(
    readModelList(list).map((model) => model.created),
    [1_700_000_000, 0, 0, 0, 0],
  );
});

test('allowed details pass, and of llama.cpp only the context', () => {
  const allowed = { context_length: 8192, pricing: { prompt: '0.1' }, input_modalities: ['text'] };
  assert.deepEqual(detailsOf({ ...allowed, owned_by: 'x', max_model_len: null }), allowed);
  const meta = { n_ctx: 4096, n_params: 7 };
  assert.deepEqual(detailsOf({ meta }), { meta: { n_ctx: 4096 } });
  assert.deepEqual(detailsOf({ meta: { n_params: 7 } }), {});
});

test('a detail has three levels and 2,048 characters of JSON at most', () => {
  const kept = { a: { b: [1] } };
  const nested = { a: { b: [[]] } };
  assert.deepEqual(detailsOf({ architecture: kept, pricing: nested }), { architecture: kept });
  const [longest, tooLong] = ['x'.repeat(2046), 'x'.repeat(2047)];
  assert.deepEqual(detailsOf({ pricing: longest, architecture: tooLong }), { pricing: longest });
  let deep: unknown = 1;
  for (let level = 0; level < 100_000; level += 1) deep = [deep];
  assert.deepEqual(detailsOf({ pricing: deep }), {});
});
