/** The rules of streams and answers of `/v1/responses`. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { RESPONSES } from '../../src/protocol/responses.ts';

const NOTES = { noteModel() {}, noteFinishReason() {}, noteUsage() {}, usageAdded: false };
const kindOf = (json: unknown, hasBegun = true, failsEmpty = false) =>
  new RESPONSES.Stream(NOTES, failsEmpty).read(json, hasBegun);

test("an event of another kind than the endpoint's own is a heartbeat", () => {
  const heartbeats = [
    { type: 'keepalive', sequence_number: 3 },
    { type: 'ping' },
    { type: 'response.keep_alive' },
    { type: 7 },
    { choices: [{ delta: { content: 'a' } }] },
    {},
    undefined,
    'x',
  ];
  for (const json of heartbeats) assert.equal(kindOf(json), 'heartbeat', JSON.stringify(json));
  for (const type of ['response.output_text.delta', 'response.unknown']) {
    assert.equal(kindOf({ type }), 'part');
  }
});

const item = (content: unknown) => ({ type: 'message', role: 'assistant', status: 'x', content });
const text = (written: string) => ({ type: 'output_text', text: written, annotations: [] });

test('an item or a part is a preamble until it has content', () => {
  const added = 'response.output_item.added';
  const empty = [item([]), item([text('')]), { type: 'reasoning', summary: [] }];
  const full = [item([text('a')]), item([text(''), text('a')]), { type: 'f', arguments: '{}' }];
  for (const one of empty) assert.equal(kindOf({ type: added, item: one }), 'preamble');
  for (const one of full) assert.equal(kindOf({ type: added, item: one }), 'part');
  assert.equal(kindOf({ type: 'response.content_part.added', part: text('') }), 'preamble');
  assert.equal(kindOf({ type: 'response.content_part.added', part: text('a') }), 'part');
});

test('an answer is empty if it is complete and none of its items has content', () => {
  const answer = (output: unknown, status?: string) => ({ output, status });
  const empty = [{}, answer([]), answer([], 'completed'), answer([item([text('')])])];
  const others = [
    answer([item([text('a')])]),
    answer([], 'incomplete'),
    answer([], 'in_progress'),
    answer({}),
  ];
  assert.deepEqual(
    [...empty, ...others].filter((json) => RESPONSES.isEmpty!(json)),
    empty,
  );
  const end = (response: object) => ({ type: 'response.completed', response });
  assert.deepEqual(kindOf(end(empty[0]!), false, true), { emptyReason: undefined });
  assert.equal(kindOf(end(empty[0]!), true, true), 'end');
  assert.equal(kindOf(end(empty[0]!), false), 'end');
  assert.equal(kindOf(end(others[0]!), false, true), 'end');
});

test('the first model counts', () => {
  const models: unknown[] = [];
  const notes = { ...NOTES, noteModel: (model: unknown) => models.push(model) };
  const stream = new RESPONSES.Stream(notes, false);
  for (const model of [undefined, '', 'm', 'n']) {
    stream.read({ type: 'response.created', response: { model } }, false);
  }
  assert.deepEqual(models, ['m']);
});

test('a failed response passes once the answer has begun', () => {
  const response = { error: { code: 'server_error', message: 'boom' } };
  const event = { type: 'response.failed', response };
  assert.deepEqual(kindOf(event, false), { fault: response });
  assert.deepEqual(kindOf(event), { fault: response, passes: true });
});
