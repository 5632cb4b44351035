/** The rules of a stream of Anthropic's messages. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { MESSAGES } from '../../src/protocol/messages.ts';

test('a stream of messages keeps four counts, whatever members its usages have', () => {
  const noted: unknown[] = [];
  const notes = {
    usageAdded: false,
    noteModel() {},
    noteFinishReason() {},
    noteUsage: (usage: unknown) => noted.push(usage),
  };
  const names: string[] = [];
  const rules = new MESSAGES.Stream(notes, false);
  for (let index = 0; index < 1000; index += 1) {
    const usage = new Proxy(
      { output_tokens: index, [`member_${index}`]: 1 },
      {
        get(target, name) {
          names.push(String(name));
          return Reflect.get(target, name) as unknown;
        },
      },
    );
    rules.read({ type: 'message_delta', usage }, true);
  }
  assert.deepEqual(noted.at(-1), {
    prompt_tokens: 0,
    completion_tokens: 999,
    prompt_tokens_details: { cached_tokens: 0 },
  });
  assert.deepEqual(
    names.filter((name) => name.startsWith('member_')),
    [],
  );
});
