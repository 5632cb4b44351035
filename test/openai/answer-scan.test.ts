/** The scan of long answers, compared with a parse. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { reportsError } from '../../src/openai/answer-json.ts';
import { AnswerScan, isLongError, MAX_CHOICES } from '../../src/openai/answer-scan.ts';
import { reportsFailure } from '../../src/openai/error-body.ts';
import { cutUp } from '../support/mutate.ts';
import { withRandom } from '../support/random.ts';

function scanned(...pieces: readonly Buffer[]) {
  const scan = new AnswerScan();
  for (const piece of pieces) scan.json.push(piece);
  return { kind: scan.finish(), scan };
}

const scanText = (text: string) => scanned(Buffer.from(text));

const KINDS: readonly (readonly [kind: ReturnType<AnswerScan['finish']>, texts: string[]])[] = [
  ['completion', ['{"choices":[]}', '{"error":{"a":1},"choices":[{}]}', '{"msg":"a","choices":0}']],
  [
    'error',
    [
      '{"error":"boom"}',
      '{"error":{"message":""}}',
      '{"error":true,"choices":null}',
      '{"errors":[{"a":1}]}',
      '{"code":500,"msg":"boom"}',
      '{"detail":"boom"}',
      '{"error":500}',
    ],
  ],
  [
    'other',
    [
      '{}',
      '[]',
      '{"error":{}}',
      '{"error":null}',
      '{"error":""}',
      '{"error":false}',
      '{"errors":[]}',
      '{"message":""}',
      '{"a":{"error":"boom"}}',
      '{"a":[{"choices":[]}]}',
      '{"a":[1],"error":{}}',
      '{"a":{"b":1},"errors":[],"c":[2],"error":[]}',
    ],
  ],
  ['not JSON', ['', '{"choices":[]', '{"choices":[]}}', 'data: {}', '{"error":"\n"}']],
];

test('an answer is a completion, an error, another JSON or none', () => {
  for (const [kind, texts] of KINDS) {
    for (const text of texts) assert.equal(scanText(text).kind, kind, text);
  }
});

test('a scan finds the failures that a parse finds', () => {
  const texts = KINDS.filter(([kind]) => kind !== 'not JSON').flatMap(([, all]) => all);
  for (const text of texts) {
    const json: unknown = JSON.parse(text);
    assert.equal(scanText(text).kind === 'error', reportsFailure(json), text);
    const hasChoices = /"choices":(?!null)/.test(text) && text.startsWith('{"');
    const isError = reportsError(json) && !hasChoices;
    assert.equal(isLongError(text), isError, text);
  }
  assert.equal(isLongError('{"error":"boom"'), false);
});

test('model, reason, choices and usage are found however the answer is cut up', () =>
  withRandom((random) => {
    const choices =
      '[{"index":1,"a":{"finish_reason":"deep"},"finish_reason":"length"},' +
      '{"finish_reason":"stop","index":0},{"index":2}]';
    const text =
      `{"logs":[{"finish_reason":"no","index":9}],"usage":{"total_tokens":1},"model":"m-1",` +
      `"choices":${choices},"model":"m-2","usage":null,"response":"x"}`;
    for (let round = 0; round < 100; round += 1) {
      const { scan, kind } = scanned(...cutUp(random, Buffer.from(text)));
      assert.equal(kind, 'completion');
      assert.deepEqual([scan.model, scan.finishReason], ['m-1', 'length']);
      assert.deepEqual(scan.choices, [
        { index: 1, finishReason: 'length' },
        { index: 0, finishReason: 'stop' },
        { index: 2, finishReason: '' },
      ]);
      assert.equal(scan.usageStart, text.indexOf('{"total_tokens"'));
    }
  }));

test('an answer without these members has none, and only objects are choices', () => {
  const { scan } = scanText('{"choices":[1,"a",null,[{"index":3}],{}],"usage":null,"model":7}');
  assert.deepEqual([scan.model, scan.finishReason, scan.usageStart], ['', '', 0]);
  assert.deepEqual(scan.choices, [{ index: 0, finishReason: '' }]);
});

test('the usage in a response is its own, and not that of the member before it', () => {
  const usage = '{"usage":{"total_tokens":1}}';
  const own = '{"usage":{"total_tokens":2}}';
  for (const text of [
    `{"response":${own}}`,
    `{"a":${usage},"response":${own}}`,
    `{"a":${usage},"response":{"id":1}}`,
    `{"response":${own},"a":${usage}}`,
  ]) {
    const start = Math.max(0, text.indexOf('{"total_tokens":2}'));
    assert.equal(scanText(text).scan.usageStart, start, text);
  }
});

test('a thousand choices are noted', () => {
  const { scan } = scanText(
    `{"choices":[${Array<string>(MAX_CHOICES + 5)
      .fill('{}')
      .join()}]}`,
  );
  assert.equal(scan.choices.length, MAX_CHOICES);
});
