/** The rules of answers with `choices`. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  ChoiceStream,
  failedReasonOf,
  hasNoChoice,
  isEmptyCompletion,
  isPreamble,
  isSilent,
  isUnfinished,
  isUsageChunk,
} from '../../src/protocol/choices.ts';
import { COMPLETIONS } from '../../src/protocol/completions.ts';
import { CHAT } from '../../src/protocol/chat.ts';
import type { AnswerNotes } from '../../src/protocol/endpoint.ts';

/** Checks that `is` accepts all of `yes` and none of `no`. */
function check(is: (json: unknown) => boolean, yes: unknown[], no: unknown[]): void {
  assert.deepEqual([...yes, ...no].filter(is), yes);
}

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

test('a choice has content in its delta, or also in its message and text', () => {
  const silent = [{}, { delta: { role: 'x' } }, { delta: null, text: '' }, { message: {} }];
  const contents = [{ delta: { content: 'a' } }, { delta: { tool_calls: [1] } }, { text: 'a' }];
  check(isSilent, silent, [...contents, { message: { content: 'a' } }]);
  const stream = new ChoiceStream(new Noted(false), false);
  const hasContent = (choice: unknown) => stream.hasContent(choice);
  check(hasContent, contents.slice(0, 2), [{ text: 'a' }, { delta: 'a' }, ...silent]);
});

test('a choice is unfinished without a reason', () => {
  const unfinished = [{}, { finish_reason: null }, { finish_reason: '' }];
  const stopped = { finish_reason: 'stop' };
  const ended = [{ finish_reason: 'length' }, { finish_reason: 1 }];
  check((one) => isUnfinished(one, false), unfinished, [stopped, ...ended]);
  check((one) => isUnfinished(one, true), [...unfinished, stopped], ended);
});

/** Notes the facts of an answer, in their order. */
class Noted implements AnswerNotes {
  readonly facts: unknown[] = [];
  readonly usageAdded: boolean;

  constructor(usageAdded: boolean) {
    this.usageAdded = usageAdded;
  }

  noteModel = (model: unknown) => this.facts.push(model);
  noteFinishReason = (reason: unknown) => this.facts.push(reason);
  noteUsage = (usage: unknown) => this.facts.push(usage);
}

function start({ failsEmpty = false, usageAdded = false, endpoint = CHAT } = {}) {
  const noted = new Noted(usageAdded);
  return { noted, stream: new endpoint.Stream(noted, failsEmpty) };
}

const chunk = (choice: object | undefined, more: object = {}) => ({
  model: 'm',
  choices: choice ? [{ index: 0, ...choice }] : [],
  ...more,
});
const content = chunk({ delta: { content: 'a' } });
const end = chunk({ delta: {}, finish_reason: 'stop' });
const usage = { prompt_tokens: 1 };

test('an event is a preamble, a part, or the usage that the gateway has asked for', () => {
  const { noted, stream } = start({ usageAdded: true });
  assert.equal(stream.read(chunk({ delta: { role: 'assistant' } }), false), 'preamble');
  assert.equal(stream.read(content, false), 'part');
  assert.equal(stream.read(undefined, true), 'part');
  assert.equal(stream.read(end, true), 'part');
  assert.equal(stream.read(chunk({ delta: {} }, { usage }), true), 'preamble');
  assert.equal(stream.read(chunk(undefined, { usage }), true), 'removed');
  assert.deepEqual(noted.facts, ['m', 'stop', usage, usage]);
  const { stream: other } = start();
  assert.equal(other.read(chunk(undefined, { usage }), true), 'preamble');
});

test('a progress of llama.cpp is a comment, unless it has content', () => {
  const prompt_progress = { total: 9, processed: 3 };
  const progress = (delta: object) => chunk({ delta }, { prompt_progress });
  const { stream } = start();
  assert.equal(stream.read(progress({ role: 'assistant', content: null }), false), 'comment');
  assert.equal(stream.read(progress({ content: 'a' }), false), 'part');
});

test('an end without content fails before the beginning, if the provider or a setting says so', () => {
  const failed = chunk({ delta: {}, finish_reason: 'network_error' });
  const { noted, stream } = start();
  assert.deepEqual(stream.read(failed, false), { emptyReason: 'network_error' });
  assert.deepEqual(noted.facts, []);
  assert.equal(stream.read(failed, true), 'part');
  assert.equal(stream.read(end, false), 'part');
  assert.equal(start({ failsEmpty: true }).stream.read(end, false), 'preamble');
});

test('text behind a finish_reason opens a choice of /v1/completions, as content does in chat', () => {
  for (const [endpoint, part] of [
    [COMPLETIONS, { text: 'a' }],
    [CHAT, { delta: { content: 'a' } }],
  ] as const) {
    const { stream } = start({ endpoint });
    stream.read(chunk({ text: '', finish_reason: 'stop' }), true);
    assert.equal(stream.isFinished, true);
    stream.read(chunk({ ...part, finish_reason: 'stop' }), true);
    assert.equal(stream.isFinished, false);
    stream.read(chunk({ text: '', finish_reason: 'stop' }), true);
    assert.equal(stream.isFinished, true);
  }
});

test('plain events are skimmed once model and choice are known, until a finish_reason', () => {
  const eventOf = (json: object) => Buffer.from(`data: ${JSON.stringify(json)}\n\n`);
  const skims = (...before: readonly object[]) => {
    const { stream } = start();
    for (const json of before) stream.read(json, true);
    return stream.skim!(eventOf(content));
  };
  const nameless = { choices: content.choices };
  const second = chunk({ index: 1, delta: { content: 'a' } });
  assert.equal(skims(content), true);
  assert.equal(skims(), false);
  assert.equal(skims(nameless), false);
  assert.equal(skims(...Array.from({ length: 8 }, () => nameless)), true);
  assert.equal(skims(chunk(undefined)), false);
  assert.equal(skims(content, second), false);
  assert.equal(skims(second), false);
  assert.equal(skims(content, end), false);
  const withUsage = chunk({ delta: { content: 'a' } }, { usage });
  for (const usageAdded of [false, true]) {
    const { noted, stream } = start({ usageAdded });
    stream.read(content, true);
    assert.equal(stream.skim!(eventOf(withUsage)), !usageAdded);
    assert.deepEqual(noted.facts, usageAdded ? ['m'] : ['m', usage]);
    const elsewhere = eventOf(chunk({ delta: { content: 'a', usage } }));
    assert.equal(stream.skim!(elsewhere), false);
    const broken = elsewhere.subarray(0, -4);
    assert.equal(stream.skim!(Buffer.concat([broken, Buffer.from('\n\n')])), false);
  }
});
