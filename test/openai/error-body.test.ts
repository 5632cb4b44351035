/** Providers' errors in their various shapes. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { readFault, reportsFailure, toWord } from '../../src/openai/error-body.ts';

type Row = readonly [json: unknown, expected: Partial<ReturnType<typeof readFault>>];

function check(rows: readonly Row[]): void {
  for (const [json, expected] of rows) {
    const fault = readFault(json) as Record<string, unknown>;
    for (const [name, value] of Object.entries(expected)) {
      assert.equal(fault[name], value, `${name} of ${JSON.stringify(json)}`);
    }
  }
}

test('the message is found under the names that providers use, also in lists', () => {
  const message = 'boom';
  check([
    ['boom', { message }],
    [{ error: 'boom' }, { message }],
    [{ error: { message: 'boom' } }, { message }],
    [[{ error: { message: 'boom' } }], { message }],
    [{ errors: [{ message: 'boom' }] }, { message }],
    [{ detail: [{ msg: 'boom', loc: ['body'] }] }, { message }],
    [{ detail: 'boom' }, { message }],
    [{ Message: 'boom' }, { message }],
    [{ error: { error: { error_description: 'boom' } } }, { message }],
    [{ error_code: 1, error_msg: 'boom' }, { message }],
    [{ base_resp: { status_code: 1004, status_msg: 'boom' } }, { message }],
    [{ message: ' ', error: { message: 'boom' } }, { message }],
    [{ error: { text: 'boom' } }, { message: undefined }],
    [{}, { message: undefined }],
    [null, { message: undefined }],
  ]);
});

test("OpenRouter's generic message is followed by its provider's name and message", () => {
  const generic = 'Provider returned error';
  const error = (metadata: unknown) => ({ error: { message: generic, metadata } });
  check([
    [
      error({ provider_name: 'Acme', raw: '{"error":{"message":"boom"}}' }),
      { message: `${generic}: Acme: boom` },
    ],
    [error({ provider_name: 'Acme', raw: 'plain' }), { message: `${generic}: Acme: plain` }],
    [error({ raw: { detail: 'boom' } }), { message: `${generic}: boom` }],
    [error({ provider_name: 'Acme' }), { message: `${generic}: Acme` }],
    [{ error: { message: 'other', metadata: { raw: 'x' } } }, { message: 'other' }],
  ]);
});

test('the search for a message ends after a hundred arrays and objects', () => {
  const nested = (levels: number) => {
    let value: unknown = 'boom';
    for (let level = 0; level < levels; level += 1) value = { error: value };
    return value;
  };
  assert.equal(readFault(nested(100)).message, 'boom');
  assert.equal(readFault(nested(101)).message, undefined);
  assert.equal(readFault(nested(3000)).message, undefined);
});

test('the status is a member, else the meaning of the code or type, else 502', () => {
  check([
    [{ error: { status_code: 418 } }, { status: 418 }],
    [{ error: { code: '429' } }, { status: 429 }],
    [{ error: { code: 401, status: 'UNAUTHENTICATED' } }, { status: 401 }],
    [{ status: 503, error: { code: 'invalid_api_key' } }, { status: 503 }],
    [{ error: { code: 200, type: 'overloaded_error' } }, { status: 503 }],
    [{ error: { code: 'context_length_exceeded' } }, { status: 400 }],
    [{ error: { type: 'Invalid-Request.Error' } }, { status: 400 }],
    [{ error: { code: 'odd', type: 'authentication_error' } }, { status: 401 }],
    [{ error: { code: 'PERMISSION_DENIED' } }, { status: 403 }],
    [{ error: { code: 'InvalidParameter' } }, { status: 400 }],
    [{ error: { type: 'model_overloaded' } }, { status: 503 }],
    [{ error: { code: 'invalid_api_key', type: 'overloaded_error' } }, { status: 401 }],
    [{ error: { code: 'model_not_found' } }, { status: 404 }],
    [{ error: { code: 'insufficient_quota' } }, { status: 429 }],
    [{ error: { code: 'odd', type: 'odd' } }, { status: 502 }],
    [{ error: { code: [404] } }, { status: 502 }],
    [{ error: { code: 4040, status: 600 } }, { status: 502 }],
    ['404', { status: 502 }],
  ]);
});

test('an error is about the model if a text of its JSON names it', () => {
  check([
    [{ error: { message: 'The Model x does not exist' } }, { isAboutModel: true }],
    [{ error: { message: 'gone', code: 'model_not_found' } }, { isAboutModel: true }],
    [{ error: { message: 'gone', type: 'bad_model' } }, { isAboutModel: true }],
    [{ error: { message: 'no such page' } }, { isAboutModel: false }],
    ['no such model', { isAboutModel: false }],
    [{ error: { message: 'Model Not Exist' } }, { lacksModel: true }],
    [{ error: { code: 'Model-Not-Found' } }, { lacksModel: true }],
    [{ error: { message: "bad role 'Model Not Exist'" } }, { lacksModel: false }],
    [{ error: { message: 'Model Not Existing' } }, { lacksModel: false }],
    ['Model Not Exist', { lacksModel: false }],
    [{ error: { metadata: { flagged_input: 'x' } } }, { isFlagged: true }],
    [{ error: {}, metadata: { flagged_input: 'x' } }, { isFlagged: false }],
  ]);
});

test('JSON without choices is a failure if it has an error, a message or a bad state', () => {
  const failures: unknown[] = [
    { error: 'boom' },
    { error: { message: 'boom' }, choices: null },
    { object: 'error', message: 'boom' },
    { code: 500, msg: 'boom' },
    { detail: [{ msg: 'boom' }] },
    { error_msg: 'boom' },
    { base_resp: { status_code: 1004, status_msg: 'boom' } },
    { base_resp: { status_msg: 'boom' } },
  ];
  const answers: unknown[] = [
    { error: { message: 'boom' }, choices: [] },
    { msg: 'boom', choices: [{}] },
    { base_resp: { status_code: 0, status_msg: 'success' } },
    { base_resp: { status_code: 1004, status_msg: '' } },
    { message: ' ' },
    { usage: {} },
    { error: {} },
    {},
    null,
    'boom',
  ];
  assert.deepEqual([...failures, ...answers].filter(reportsFailure), failures);
});

test('a word is a code in lower case without separators, up to 200 characters', () => {
  assert.equal(toWord('Invalid-Parameter.2'), 'invalidparameter2');
  assert.equal(toWord(), '');
  assert.equal(toWord('x'.repeat(200)).length, 200);
  assert.equal(toWord('x'.repeat(201)), '');
});
