/**
 * The upstream of `--demo`: a chat-completions server on loopback that repeats the last message. The
 * gateway forwards to it as to any provider.
 */

import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const MODEL = 'echo';
const WORD_INTERVAL_MS = 20;
const CREATED = 1_767_225_600;

interface DemoRequest {
  readonly stream?: boolean;
  readonly messages: readonly { readonly content?: Content }[];
}

type Content = string | readonly { readonly text?: string }[] | null;

/** Starts the demo upstream on a free loopback port. Returns the text of a settings file that names it. */
export async function startDemo(): Promise<string> {
  const server = createServer((request, response) => {
    // Without a listener, a connection error would end the process.
    response.on('error', () => {});
    onRequest(request, response).catch(() => {
      if (!request.complete || response.headersSent) response.destroy();
      else sendJson(response, { error: { message: 'not a chat request' } }, 400);
    });
  });
  // It does not keep the process alive after the gateway has stopped.
  await once(server.listen(0, '127.0.0.1').unref(), 'listening');
  const { port } = server.address() as AddressInfo;
  return [
    '[server]',
    'host = "127.0.0.1"',
    '[providers.demo]',
    `base_url = "http://127.0.0.1:${port}/v1"`,
    'api_key = "demo-needs-no-key"',
    `default_model = "${MODEL}"`,
  ].join('\n');
}

async function onRequest(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === 'GET') {
    return sendJson(response, { object: 'list', data: [{ id: MODEL, object: 'model' }] });
  }
  const chunks: Buffer[] = [];
  for await (const part of request) chunks.push(part as Buffer);
  const body = JSON.parse(Buffer.concat(chunks).toString()) as DemoRequest;
  const content = `You said: ${textOf(body.messages.at(-1)?.content)}`;
  if (body.stream) return sendEvents(response, content);
  const message = { role: 'assistant', content };
  const choices = [{ index: 0, message, finish_reason: 'stop' }];
  sendJson(response, completion('chat.completion', choices));
}

/** The text of a message; its other parts, such as images, are left out. */
function textOf(content: Content | undefined): string {
  return typeof content === 'string'
    ? content
    : (content ?? []).map(({ text = '' }) => text).join(' ');
}

/** A completion, or a chunk of one. */
function completion(object: string, choices: readonly object[]) {
  return { id: 'chatcmpl-demo', object, created: CREATED, model: MODEL, choices };
}

function sendJson(response: ServerResponse, body: object, status = 200): void {
  response.statusCode = status;
  response.setHeader('content-type', 'application/json').end(JSON.stringify(body));
}

async function sendEvents(response: ServerResponse, answer: string): Promise<void> {
  response.setHeader('content-type', 'text/event-stream');
  const send = (delta: object, finish_reason: string | null = null) => {
    const chunk = completion('chat.completion.chunk', [{ index: 0, delta, finish_reason }]);
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  send({ role: 'assistant', content: '' });
  for (const word of answer.split(/(?<= )/)) {
    if (response.destroyed) return;
    send({ content: word });
    await sleep(WORD_INTERVAL_MS);
  }
  send({}, 'stop');
  response.end('data: [DONE]\n\n');
}
