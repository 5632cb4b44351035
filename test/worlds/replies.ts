/** What providers answer: completions, streams of recorded shapes, and every kind of failure. */

import type { Ask, Item, Reply } from './plan.ts';

const JSON_TYPE = ['content-type', 'application/json'] as const;
const STREAM_TYPE = ['content-type', 'text/event-stream; charset=utf-8'] as const;
const PLAIN: Omit<Reply, 'items' | 'headers'> = {
  connectMs: 0.11,
  headMs: 2.3,
  connection: 'new',
  status: 200,
  end: 'end',
  endMs: 0.2,
  rest: '',
};
const DONE: Item = { kind: 'done', text: 'data: [DONE]\n\n', waitMs: 0.4 };

function completion(id: string, content: string): Item {
  const choice = { index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' };
  const usage = { prompt_tokens: 3, completion_tokens: 5, total_tokens: 8 };
  const text = JSON.stringify({
    id,
    object: 'chat.completion',
    model: 'm',
    choices: [choice],
    usage,
  });
  return { kind: 'json', text, waitMs: 0.3 };
}

function chunk(delta: object, finish_reason: string | null = null, index = 0): string {
  return `data: ${JSON.stringify({ object: 'chat.completion.chunk', choices: [{ index, delta, finish_reason }] })}`;
}

/** The reply to a request for which the plan has none. */
export function answerWell({ id, chat }: Ask): Reply {
  if (!chat?.isStream) return { ...PLAIN, headers: [JSON_TYPE], items: [completion(id, 'well')] };
  const items: Item[] = [
    { kind: 'content', text: `${chunk({ role: 'assistant', content: id })}\n\n`, waitMs: 0.3 },
    { kind: 'finish', text: `${chunk({}, 'stop')}\n\n`, waitMs: 0.5 },
    DONE,
  ];
  return { ...PLAIN, headers: [STREAM_TYPE], items };
}

/** The reply to the gateway's own question for models. */
export function listModels(): Reply {
  const text = JSON.stringify({ data: [{ id: 'm0' }, { id: 'listed' }] });
  return { ...PLAIN, headers: [JSON_TYPE], items: [{ kind: 'json', text, waitMs: 0.3 }] };
}
