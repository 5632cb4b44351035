/** What answers and events of all endpoints have in common. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { beginsJson, firstByteOf, isBlank, reportsError } from '../../src/protocol/answer-json.ts';

/** Checks that `is` accepts all of `yes` and none of `no`. */
function check(is: (json: unknown) => boolean, yes: unknown[], no: unknown[]): void {
  assert.deepEqual([...yes, ...no].filter(is), yes);
}

test('an answer is JSON if its first byte after blanks opens an object or an array', () => {
  for (const [text, isJson] of [
    ['\ufeff \t\r\n{"a":1}', true],
    ['[1]', true],
    ['data: {}', false],
    ['"x"', false],
    [' \r\n', false],
  ] as const) {
    assert.equal(beginsJson(firstByteOf(Buffer.from(text))), isJson, text);
  }
  assert.equal(firstByteOf(Buffer.from(' \n')), undefined);
});

test('an error is set, or named by the object or type', () => {
  const errors = [
    { error: 'boom' },
    { error: { message: 'boom' } },
    { error: true },
    { error: 500 },
    { errors: [{ message: 'boom' }] },
    [{ error: { code: 400 } }],
    { object: 'error' },
    { type: 'error' },
  ];
  const others = [
    { error: null },
    { error: {} },
    { error: '' },
    { error: false },
    { error: 0 },
    { errors: [] },
    { errors: [{}] },
    { object: 'chat.completion' },
    [],
    [{ choices: [] }, { error: 'boom' }],
    null,
    'error',
  ];
  check(reportsError, errors, others);
});

test('a value is blank if it is null, or empty in its kind', () => {
  check(isBlank, [null, '', [], {}], [0, false, ' ', [null], { a: null }, undefined]);
});
