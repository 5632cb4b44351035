/** The classification of JSON in answers and events. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  beginsJson,
  failedReasonOf,
  firstByteOf,
  hasContent,
  hasNoChoice,
  isEmptyCompletion,
  isPreamble,
  isUnfinished,
  isUsageChunk,
  reportsError,
} from '../../src/openai/answer-json.ts';

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

test('an answer without content has failed if the provider gives a reason for it', () => {
  const ends = (finish_reason: unknown, more: object = {}) => ({ finish_reason, ...more });
  const failed: readonly (readonly [choices: unknown[], reason: string])[] = [
    [[ends('network_error', { delta: { role: 'assistant', content: '' } })], 'network_error'],
    [[ends('network_error', { message: { content: null } })], 'network_error'],
    [[ends('error')], 'error'],
    [[ends('insufficient_system_resource', { text: '' })], 'insufficient_system_resource'],
    [[{ delta: {} }, ends('error', { delta: {} })], 'error'],
  ];
  for (const [choices, reason] of failed) assert.equal(failedReasonOf({ choices }), reason);
  const others: unknown[] = [
    [ends('network_error', { delta: { content: 'a' } })],
    [ends('error', { message: { tool_calls: [{}] } })],
    [ends('error', { text: 'a' })],
    [{ delta: { content: 'a' } }, ends('error', { delta: {} })],
    [ends('stop')],
    [ends('network_error_2')],
    [ends(['error'])],
    [],
    'error',
  ];
  for (const choices of others) assert.equal(failedReasonOf({ choices }), undefined);
});

test('a preamble has deltas with a role and empty values only, and no end', () => {
  const delta = (...deltas: unknown[]) => ({ choices: deltas.map((one) => ({ delta: one })) });
  const preambles = [
    { choices: [] },
    { choices: [], prompt_filter_results: [{}] },
    delta({ role: 'assistant' }),
    delta({ role: 'assistant', content: '', refusal: null, tool_calls: [] }),
    delta({}, { role: 'assistant' }),
    { choices: [{ delta: {}, finish_reason: null }] },
    { choices: [{ delta: {}, finish_reason: '' }] },
    { choices: [{ delta: {}, finish_reason: 'null' }] },
  ];
  const others = [
    {},
    { choices: null },
    { choices: {} },
    delta({ content: 'a' }),
    delta({}, { content: 'a' }),
    delta({ tool_calls: [{}] }),
    delta(null),
    delta([]),
    { choices: [{}] },
    { choices: [{ delta: {}, finish_reason: 'length' }] },
  ];
  const stopped = { choices: [{ delta: {}, finish_reason: 'stop' }] };
  check((json) => isPreamble(json, false), preambles, [...others, stopped]);
  check((json) => isPreamble(json, true), [...preambles, stopped], others);
});

test('a usage chunk has a usage and no choice', () => {
  const usage = { total_tokens: 1 };
  const chunks = [{ usage, choices: [] }, { usage }, { usage, choices: null, x_groq: {} }];
  check(isUsageChunk, chunks, [{ usage, choices: [{}] }, { usage: null, choices: [] }, {}]);
  check(
    hasNoChoice,
    [{}, { choices: [] }, { choices: null }],
    [{ choices: [{}] }, { choices: {} }],
  );
});

test('a completion is empty without content and with the end stop, or none', () => {
  const choice = (message: unknown, reason?: string) => ({
    choices: [{ message, finish_reason: reason }],
  });
  const empty = [
    {},
    { choices: [] },
    choice({ role: 'assistant', content: '' }, 'stop'),
    choice({ role: 'assistant', content: null, tool_calls: [], audio: {} }),
  ];
  const others = [
    choice({ content: 'a' }, 'stop'),
    choice({ content: '', reasoning_content: 'a' }, 'stop'),
    choice({ content: null, tool_calls: [{ id: '1' }] }),
    choice({ content: '' }, 'length'),
    choice({ content: '' }, 'content_filter'),
    choice(undefined, 'stop'),
    { choices: {} },
    { choices: [...choice({ content: '' }).choices, ...choice({ content: 'a' }).choices] },
  ];
  check(isEmptyCompletion, empty, others);
});

test('a choice has content in its delta, and is unfinished without a reason', () => {
  const contents = [{ delta: { content: 'a' } }, { delta: { role: 'x', tool_calls: [1] } }];
  check(hasContent, contents, [{ delta: { role: 'x' } }, { delta: 'a' }, {}]);
  const unfinished = [{}, { finish_reason: null }, { finish_reason: '' }];
  const stopped = { finish_reason: 'stop' };
  const ended = [{ finish_reason: 'length' }, { finish_reason: 1 }];
  check((choice) => isUnfinished(choice, false), unfinished, [stopped, ...ended]);
  check((choice) => isUnfinished(choice, true), [...unfinished, stopped], ended);
});
