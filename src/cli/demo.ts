/**
 * The upstream for `--demo`: a chat-completions server on loopback that repeats the last message.
 */

import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { http } from '../lib/http.ts';

const WORD_INTERVAL_MS = 20;
/** The first members in a completion and in each of its chunks. */
const COMPLETION = { id: 'chatcmpl-demo', created: 1_767_225_600, model: 'echo' };

interface DemoRequest {
  readonly stream?: boolean;
  readonly messages: readonly { readonly content?: Content }[];
}

type Content = string | readonly { readonly text?: string }[] | null;

/** Returns settings with the demo upstream as the only provider. */
export async function startDemo(): Promise<string> {
  const server = http.createServer((request, response) => {
    // Without a listener, a connection error would end the process.
    response.on('error', () => {});
    answer(request, response).catch(() => response.destroy());
  });
  // `unref`: the demo upstream must not keep the process alive after the gateway has stopped.
  await once(server.listen(0, '127.0.0.1').unref(), 'listening');
  const { port } = server.address() as AddressInfo;
  return `[server]
host = "127.0.0.1"
[providers.demo]
base_url = "http://127.0.0.1:${port}/v1"
api_key = "demo-needs-no-key"
default_model = "echo"
`;
}

/** The gateway has already validated the request's shape. */
async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  response.setHeader('content-type', 'application/json');
  if (request.method === 'GET') {
    response.end('{"object":"list","data":[{"id":"echo","object":"model"}]}');
    return;
  }
  const { messages, stream } = (await json(request)) as DemoRequest;
  const content = `You said: ${textOf(messages.at(-1)?.content)}`;
  if (!stream) {
    const message = { role: 'assistant', content };
    const choices = [{ index: 0, message, finish_reason: 'stop' }];
    response.end(JSON.stringify({ ...COMPLETION, object: 'chat.completion', choices }));
    return;
  }
  response.setHeader('content-type', 'text/event-stream');
  const send = (delta: object, finish_reason: string | null = null) => {
    const choices = [{ index: 0, delta, finish_reason }];
    const chunk = { ...COMPLETION, object: 'chat.completion.chunk', choices };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  send({ role: 'assistant', content: '' });
  for (const word of content.split(/(?<= )/)) {
    if (response.destroyed) return;
    send({ content: word });
    await sleep(WORD_INTERVAL_MS);
  }
  send({}, 'stop');
  response.end('data: [DONE]\n\n');
}

/** Other parts, such as images, are left out. */
function textOf(content: Content = ''): string {
  if (typeof content === 'string') return content;
  return (content ?? []).map(({ text = '' }) => text).join(' ');
}
