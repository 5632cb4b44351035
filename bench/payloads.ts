/** Requests, complete answers and streams, the same in every process. */

const ANSWER_TEXT =
  'Back-pressure is what keeps a fast producer from drowning a slow consumer: the consumer says ' +
  'how much it can take, and the producer waits. In a relay it has to cross from one connection ' +
  'to the other.';

export const JSON_ANSWER = Buffer.from(
  JSON.stringify({
    id: 'chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG',
    object: 'chat.completion',
    created: 1_767_225_600,
    model: 'gpt-5-mini-2025-08-07',
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: ANSWER_TEXT, refusal: null, annotations: [] },
        logprobs: null,
        finish_reason: 'stop',
      },
    ],
    usage: {
      prompt_tokens: 228,
      completion_tokens: 41,
      total_tokens: 269,
      prompt_tokens_details: { cached_tokens: 0 },
    },
    service_tier: 'default',
  }),
);

function eventText(delta: object, finishReason: string | null): string {
  return `data: ${JSON.stringify({
    id: 'chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG',
    object: 'chat.completion.chunk',
    created: 1_767_225_600,
    model: 'gpt-5-mini-2025-08-07',
    service_tier: 'default',
    system_fingerprint: null,
    choices: [{ index: 0, delta, logprobs: null, finish_reason: finishReason }],
  })}\n\n`;
}

/**
 * Returns a stream's events, all different and equally long. The last includes the stream's end.
 */
export function streamOf(events: number): Buffer[] {
  return Array.from({ length: events }, (_, index) => {
    const text = eventText({ content: ` w${String(index).padStart(6, '0')}` }, null);
    const end = index === events - 1 ? `${eventText({}, 'stop')}data: [DONE]\n\n` : '';
    return Buffer.from(text + end);
  });
}

export const EVENT_BYTES = streamOf(2)[0]!.length;

const SENTENCES = [
  'Could you look at the handler below and tell me why the second request hangs? ',
  'It works on my machine — but in the container the log only says "socket hang up".\n',
  'Sure. The response body is never read, so the connection does not go back to the pool.\n\n',
  '```js\nconst answer = await fetch(url, { method: "POST", body });\n' +
    'if (!answer.ok) throw new Error(`status ${answer.status}`);\n```\n',
  'That makes sense; what would you do about the time-out, though? ',
];

export const MODEL = 'p/gpt-5-mini';

/** Returns a chat of about this size, in messages of 200 to 1,000 characters. */
export function requestBody(bytes: number, stream: boolean): Buffer {
  const messages = [{ role: 'system', content: 'You are a helpful assistant.' }];
  let size = 120;
  for (let turn = 0; size < bytes; turn += 1) {
    let content = '';
    const wanted = Math.min(200 + ((turn * 331) % 800), bytes - size);
    for (let index = turn; content.length < wanted; index += 1) {
      content += SENTENCES[index % SENTENCES.length]!;
    }
    const message = { role: turn % 2 === 0 ? 'user' : 'assistant', content };
    size += Buffer.byteLength(JSON.stringify(message)) + 1;
    messages.push(message);
  }
  return Buffer.from(JSON.stringify({ model: MODEL, stream, messages }));
}
