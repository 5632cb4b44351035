/**
 * A small upstream of our own for `--demo`: it answers over real loopback HTTP, so that the whole
 * forwarding path runs without a key or a network. It repeats what it was told.
 */

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const MODEL = 'echo';
const WORD_INTERVAL_MS = 20;
const CREATED = 1_767_225_600;

interface DemoRequest {
  readonly stream?: boolean;
  readonly messages: readonly { readonly content?: unknown }[];
}

/** Starts the demo upstream on a free loopback port; returns the configuration that makes it the only provider. */
export async function startDemo(): Promise<string> {
  const server = createServer((request, response) => {
    // Without a listener, the error of a connection that breaks would end the process.
    response.on('error', () => {});
    onRequest(request, response).catch(() => {
      if (!request.complete || response.headersSent) response.destroy();
      else sendJson(response, { error: { message: 'not a chat request' } }, 400);
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  // The gateway decides when the process ends.
  server.unref();
  const { port } = server.address() as AddressInfo;
  return [
    '[providers.demo]',
    `base_url = "http://127.0.0.1:${port}/v1"`,
    'api_key = "demo-needs-no-key"',
    `default_model = "${MODEL}"`,
  ].join('\n');
}

async function onRequest(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === 'GET') {
    sendJson(response, { object: 'list', data: [{ id: MODEL, object: 'model' }] });
    return;
  }
  const chunks: Buffer[] = [];
  for await (const part of request) chunks.push(part as Buffer);
  const { stream, messages } = JSON.parse(Buffer.concat(chunks).toString()) as DemoRequest;
  const content = messages.at(-1)?.content;
  const echo = `You said: ${typeof content === 'string' ? content : JSON.stringify(content)}`;
  if (stream) await sendEvents(response, echo);
  else sendJson(response, completion(echo));
}

function completion(content: string) {
  const usage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 };
  return {
    id: 'chatcmpl-demo',
    object: 'chat.completion',
    created: CREATED,
    model: MODEL,
    choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
    usage,
  };
}

function chunk(delta: object, finishReason: string | null) {
  return {
    id: 'chatcmpl-demo',
    object: 'chat.completion.chunk',
    created: CREATED,
    model: MODEL,
    choices: [{ index: 0, delta, finish_reason: finishReason }],
  };
}

function sendJson(response: ServerResponse, body: object, status = 200): void {
  response.statusCode = status;
  response.setHeader('content-type', 'application/json').end(JSON.stringify(body));
}

async function sendEvents(response: ServerResponse, answer: string): Promise<void> {
  response.setHeader('content-type', 'text/event-stream');
  const send = (data: string) => response.write(`data: ${data}\n\n`);
  send(JSON.stringify(chunk({ role: 'assistant', content: '' }, null)));
  for (const word of answer.split(/(?<= )/)) {
    if (response.destroyed) return;
    send(JSON.stringify(chunk({ content: word }, null)));
    await sleep(WORD_INTERVAL_MS);
  }
  send(JSON.stringify(chunk({}, 'stop')));
  send('[DONE]');
  response.end();
}
