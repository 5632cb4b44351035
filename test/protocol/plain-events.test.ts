/** The look at events without a parse. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { DONE_MARK, isField, skimEvents } from '../../src/protocol/plain-events.ts';

const event = (members: string) => `data: {${members}}\n\n`;

test('events need a parse if they may hold an error, an end, a second choice or no chunk', () => {
  const others = [
    event('"error":null'),
    event('"a":{"errors":[]}'),
    event('"object":"\\u0065rror"'),
    event('"finish\\u005Freason":"stop"'),
    event('"inde\\u0078":1'),
    event('"prompt_progress":{}'),
    event('"choices":[{"index":1}]'),
    event('"choices":[{"index":0},{"index" :\t2}]'),
    event('"index":"0"'),
    event('"index":0.5'),
    event('"finish_reason":"stop"'),
    event('"finish_reason" : "nul"'),
    'data: [DONE]\n\n',
    'data:  [DONE] \n\n',
    'data:\n\n',
    'id: 1\n\n',
    '{"a":1}\n\n',
    `${event('')}data: 7\n\n`,
    'event: error\ndata: {}\n\n',
    'event: ping\ndata: {}\n\n',
    'error: {}\n\n',
    'data: {\ndata: {}\n\n',
    'data: {\r\ndata: {}\r\n\r\n',
    'data: {\rdata: {}\r\r',
    'data: {}\n: c\n\n',
    `${event('"error":1')}: comment\n\n`,
  ];
  const plain = [
    event('"choices":[{"index":0}]'),
    event('"choices":[{"index" : 0,"finish_reason":null}]'),
    event('"finish_reason":"","usage" : null') + event('"finish_reason":"null"'),
    event('"content":"\\"error\\": a"'),
    event('"content":"\\u0060\\u00e9\\u003c\\u4e65"'),
    event('"no_error":1'),
    'data:{}\r\n\r\ndata:{}\r\n\r\n',
    ': c\n',
    ': "x"\r\rdata: {}\r\r',
    'data: {}\n\n',
    '\n',
    '',
  ];
  const skims = (text: string, found: string | undefined) =>
    skimEvents(Buffer.from(text)) === found;
  assert.deepEqual(
    [...plain, ...others].filter((text) => skims(text, '')),
    plain,
  );
  assert.deepEqual(
    others.filter((text) => skims(text, undefined)),
    others,
  );
});

test('the data of the last event with a usage is returned', () => {
  const usage = (total: number) => `"a":"é","x":{"usage"\t: {"total_tokens":${total}}}`;
  const json = (total: number) => Buffer.from(` {${usage(total)}}`).toString('latin1');
  const skim = (text: string) => skimEvents(Buffer.from(text));
  for (const lineEnd of ['\n', '\r\n', '\r']) {
    const plain = event('"usage":null').replaceAll('\n', lineEnd);
    const [one, two] = [1, 2].map((total) => event(usage(total)).replaceAll('\n', lineEnd));
    assert.equal(skim(one!), json(1));
    assert.equal(skim(one! + two! + plain), json(2), JSON.stringify(lineEnd));
    assert.equal(skim(plain + one!), json(1), JSON.stringify(lineEnd));
  }
  for (const value of ['[]', '0', '""', '{']) assert.ok(skim(event(`"usage": ${value}`)), value);
});

test('a line is a field if it is blank or begins with a field name, also a cut name', () => {
  const isLineField = (line: string) => isField(Buffer.from(`x${line}`), 1);
  const fields = ['data: x', 'data:', 'event:x', 'id:1', 'retry:1', 'error:{}', '', '  '];
  const cut = ['d', 'dat', 'eve', 'error', '\ndata'];
  const others = ['<html>', 'date: x', 'Data: x', '{"a":1}', 'eventful: x', 'x', ': c'];
  assert.deepEqual([...fields, ...cut, ...others].filter(isLineField), [...fields, ...cut]);
});

test('the end mark may have blanks around it', () => {
  const marks = ['[DONE]', ' \t[DONE] '];
  assert.deepEqual(
    [...marks, '[DONE', 'x[DONE]', '[DONE]]'].filter((text) => DONE_MARK.test(text)),
    marks,
  );
});
