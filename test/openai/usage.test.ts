/** Token counts in each provider's spelling. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { MAX_USAGE_BYTES, readUsage } from '../../src/openai/usage.ts';

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

test('a usage is read as an object, and as its JSON with text behind it', () => {
  assert.deepEqual(countsIn(OPENAI), READ);
  const text = JSON.stringify(OPENAI);
  for (const rest of ['', ',"a":1}\n\n', '}}}', ' "']) {
    assert.deepEqual(countsIn(text + rest), READ, rest);
  }
  assert.deepEqual(countsIn(text.slice(0, -1)), {}, 'cut off');
  const long = JSON.stringify({ a: 'x'.repeat(MAX_USAGE_BYTES), ...OPENAI });
  assert.deepEqual(countsIn(long.slice(0, MAX_USAGE_BYTES)), {}, 'cut off at the limit');
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
