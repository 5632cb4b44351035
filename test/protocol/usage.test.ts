/** Token counts in each provider's spelling. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { readUsage, usageIn } from '../../src/protocol/usage.ts';

/** Returns the counts without those that are undefined. */
function countsIn(value: unknown): object {
  return Object.fromEntries(Object.entries(readUsage(value)).filter(([, count]) => count != null));
}

const OPENAI = {
  prompt_tokens: 12,
  completion_tokens: 34,
  total_tokens: 46,
  prompt_tokens_details: { cached_tokens: 8 },
  completion_tokens_details: { reasoning_tokens: 30 },
};
const READ = {
  prompt_tokens: 12,
  completion_tokens: 34,
  total_tokens: 46,
  cached_tokens: 8,
  reasoning_tokens: 30,
};

test('a usage is found where providers write it, the first of these places first', () => {
  const rows: readonly (readonly [json: unknown, found?: object])[] = [
    [{ usage: OPENAI }, OPENAI],
    [{ usage: null, x_groq: { usage: OPENAI } }, OPENAI],
    [{ choices: [{ index: 0, usage: OPENAI }] }, OPENAI],
    [{ type: 'response.completed', response: { usage: OPENAI } }, OPENAI],
    [{ usage: { a: 1 }, x_groq: { usage: OPENAI } }, { a: 1 }],
    [{ usage: 'x', choices: [{}, { usage: OPENAI }], a: { usage: OPENAI } }],
    [undefined],
    [[{ usage: OPENAI }]],
  ];
  for (const [json, found] of rows) assert.deepEqual(usageIn(json), found, JSON.stringify(json));
  assert.deepEqual(countsIn(OPENAI), READ);
});

test('cached tokens have a name at each provider, and the details count first', () => {
  const rows: readonly (readonly [usage: object, cached: number])[] = [
    [{ prompt_cache_hit_tokens: 3 }, 3],
    [{ cached_tokens: 4 }, 4],
    [{ cached_tokens: 4, prompt_cache_hit_tokens: 3 }, 3],
    [{ prompt_tokens_details: { cached_tokens: 0 }, cached_tokens: 4 }, 0],
    [{ prompt_tokens_details: null, cached_tokens: 4 }, 4],
  ];
  for (const [usage, cached] of rows) assert.equal(readUsage(usage).cached_tokens, cached);
});

test('a count is a whole number from 0 up', () => {
  assert.deepEqual(countsIn({ prompt_tokens: 0 }), { prompt_tokens: 0 });
  for (const count of [-1, 1.5, '7', null, true, [7], 2 ** 53]) {
    assert.deepEqual(countsIn({ prompt_tokens: count }), {}, String(count));
  }
  for (const usage of [null, 7, [], 'x', '', undefined]) assert.deepEqual(countsIn(usage), {});
});
