/** The scan of events, without a parse. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  DONE_MARK,
  isField,
  isWholeData,
  readData,
  scanEvents,
} from '../../src/openai/event-scan.ts';
import { MAX_USAGE_BYTES } from '../../src/openai/usage.ts';

const scan = (text: string, isModelWanted = true) => scanEvents(Buffer.from(text), isModelWanted);
const event = (members: string) => `data: {${members}}\n\n`;

test('events need a parse if they may hold an error, [DONE] or a second choice', () => {
  const suspicious = [
    event('"error":null'),
    event('"a":{"errors":[]}'),
    event('"choices":[{"index":1}]'),
    event('"choices":[{"index":0},{"index":2}]'),
    event('"index":"0"'),
    'data: [DONE]\n\n',
    'data:  [DONE] \n\n',
    'event: error\ndata: {}\n\n',
    'event: ping\ndata: {}\n\n',
    'error: {}\n\n',
    `${event('"error":1')}: comment\n\n`,
  ];
  const others = [
    event('"choices":[{"index":0}]'),
    event('"content":"\\"error\\": a"'),
    event('"no_error":1'),
    ': "error": [DONE]\n\n',
    '\ufeff: event: "error"\n\n',
    'id: 1\nretry: 5\ndata: {}\n\n',
    'data: event: error:\n\n',
    '',
  ];
  assert.deepEqual(
    [...suspicious, ...others].filter((text) => scan(text).isSuspicious),
    suspicious,
  );
});

test('the index is none, 0 if it is 0 everywhere, else other', () => {
  assert.equal(scan(event('"choices":[]')).index, 'none');
  assert.equal(scan(event('"index" : 0') + event('"index":0')).index, '0');
  assert.equal(scan(event('"index":0') + event('"index":\t3')).index, 'other');
  assert.equal(scan(event('"index":3') + event('"index":0')).index, 'other');
});

test('the first model counts, but the last finish_reason that is set', () => {
  const events = [
    event('"model":null,"finish_reason":null'),
    event('"model" : "m-1","finish_reason" :"length"'),
    event('"model":"m-2","finish_reason":"stop"'),
    event('"finish_reason":"null"') + event('"finish_reason":""'),
  ].join('');
  const { model, finishReason } = scan(events);
  assert.deepEqual([model, finishReason], ['m-1', 'stop']);
  assert.equal(scan(events, false).model, '');
  // A string is cut after 65 characters, so that a longer one is recognised.
  for (const [length, shown] of [
    [64, 64],
    [65, 65],
    [66, 65],
  ] as const) {
    assert.equal(scan(event(`"model":"${'x'.repeat(length)}"`)).model, 'x'.repeat(shown));
  }
  assert.equal(scan(event('"model"."m"')).model, '');
});

test('the last usage object is returned with the data behind it, over several lines', () => {
  const usage = (text: string) => scan(text).usage;
  assert.equal(usage(event('"usage":{"a":1},"b":2')), '{"a":1},"b":2}');
  assert.equal(usage(event('"usage":{"a":1}') + event('"usage":null')), '{"a":1}}');
  assert.equal(usage(event('"usage":{"a":1}') + event('"usage":{"a":2}')), '{"a":2}}');
  assert.equal(usage(event('"usage":"a"')), '');
  for (const lineEnd of ['\n', '\r', '\r\n']) {
    const lines = ['data: {"usage":{', 'data:"a":1', 'data:}}', '', ''].join(lineEnd);
    assert.equal(usage(lines).replaceAll(' ', ''), '{"a":1}}', JSON.stringify(lineEnd));
  }
  const long = event(`"usage":{"a":"${'x'.repeat(MAX_USAGE_BYTES)}"}`);
  assert.equal(usage(long).length, MAX_USAGE_BYTES);
  assert.equal(readData(Buffer.from('ab\rcd'), 1), 'b');
});

test('a run of events that ends within a member is scanned once to its end', () => {
  for (const name of ['"usage"', '"finish_reason"', '"model"', '"error"', 'event:']) {
    for (let end = 1; end <= name.length; end += 1) {
      scanEvents(Buffer.from(`\n${name.slice(0, end)}`), true);
    }
    for (const rest of [' ', ':', ': ', ':"', ': {']) {
      const found = scanEvents(Buffer.from(name + rest), true);
      assert.ok(found.usage.length <= 1 && found.model === '' && found.finishReason === '');
    }
  }
  for (const piece of ['"usage":{', '"usage"  ', '"finish_reason":"', '"model":"']) {
    const bytes = Buffer.from(`data: ${piece.repeat(100_000)}\n\n`);
    assert.equal(scanEvents(bytes, true).usage.length, piece === '"usage":{' ? 1 : 0);
  }
});

test('a line is a field if it is blank or begins with a field name, also a cut name', () => {
  const isLineField = (line: string) => isField(Buffer.from(`x${line}`), 1);
  const fields = ['data: x', 'data:', 'event:x', 'id:1', 'retry:1', 'error:{}', ': c', '', '  '];
  const cut = ['d', 'dat', 'eve', 'error', '\ndata'];
  const others = ['<html>', 'date: x', 'Data: x', '{"a":1}', 'eventful: x', 'x'];
  const all = [...fields, ...cut, ...others];
  assert.deepEqual(all.filter(isLineField), [...fields.filter((line) => line !== ': c'), ...cut]);
});

test('data is whole if it is JSON or the end mark', () => {
  const whole = ['{}', ' [1] ', '"a"', '[DONE]', ' \t[DONE] ', '7'];
  const parts = ['', '{', '[DONE', 'x[DONE]', '[DONE]]', '{}}', '"a', 'nul'];
  assert.deepEqual([...whole, ...parts].filter(isWholeData), whole);
  assert.ok(DONE_MARK.test('[DONE]'));
});
