/** A provider over real loopback HTTP, which runs the test's script and records its requests. */

import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http';
import { createSecureServer } from 'node:http2';
import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';

import type { Certificate } from './certificate.ts';
import { watchUpstream } from './leftovers.ts';
import { listen } from './listen.ts';

/** An origin without a listener. A port closed just now might belong to another test. */
export const NOBODY_LISTENS = 'http://127.0.0.2:2';

export interface ReceivedRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
  /** Resolves when the response is complete or the request's connection is closed. */
  readonly closed: Promise<void>;
}

/** An event in mid-stream. */
export const CHUNK =
  'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n';

/** A completion's final event. */
export const LAST = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n';
export const DONE = 'data: [DONE]\n\n';

export type Script = (request: ReceivedRequest, response: ServerResponse) => unknown;

export interface FakeUpstream {
  /** The value for a provider's `base_url`. */
  readonly baseUrl: string;
  readonly requests: ReceivedRequest[];
  /** The open connections. */
  readonly sockets: ReadonlySet<Socket>;
  /** Answers the next requests. */
  script: Script;
}

/**
 * Starts an upstream until the test ends, over https if it has a certificate. The default script
 * answers every request with `completion()`.
 */
export async function startUpstream(
  t: TestContext,
  script?: Script,
  certificate?: Certificate,
): Promise<FakeUpstream> {
  const requests: ReceivedRequest[] = [];
  let open = 0;
  watchUpstream(t, () => open);
  const upstream = {
    baseUrl: '',
    requests,
    sockets: new Set<Socket>() as ReadonlySet<Socket>,
    script: script ?? ((_, response) => sendJson(response, completion())),
  } satisfies FakeUpstream;

  const listener = (incoming: IncomingMessage, response: ServerResponse) => {
    open += 1;
    const closed = new Promise<void>((resolve) => response.once('close', resolve));
    response.once('close', () => (open -= 1));
    const chunks: Buffer[] = [];
    incoming.on('error', () => {});
    incoming.on('data', (chunk: Buffer) => chunks.push(chunk));
    incoming.on('end', () => {
      const request = {
        method: incoming.method ?? '',
        url: incoming.url ?? '',
        headers: incoming.headers,
        body: Buffer.concat(chunks),
        closed,
      };
      requests.push(request);
      void upstream.script(request, response);
    });
  };
  const server = certificate
    ? // Most providers offer HTTP/2, and fetch uses it from Node 26 on.
      createSecureServer(
        { ...certificate, allowHTTP1: true },
        listener as unknown as Parameters<typeof createSecureServer>[1],
      )
    : createServer(listener);
  // Longer than any test, so the provider never closes a connection by itself.
  if ('keepAliveTimeout' in server) server.keepAliveTimeout = 600_000;
  const { baseUrl, sockets } = await listen(t, server);
  upstream.sockets = sockets;
  upstream.baseUrl = certificate ? baseUrl.replace('http:', 'https:') : baseUrl;
  return upstream;
}

/** A complete chat completion in OpenAI's protocol. */
export function completion(content = 'hi'): object {
  return {
    id: 'chatcmpl-1',
    object: 'chat.completion',
    created: 1,
    model: 'm',
    choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
    usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
  };
}

export function sendJson(
  response: ServerResponse,
  body: unknown,
  { status = 200, headers = {} }: { status?: number; headers?: Record<string, string> } = {},
): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

/** The events of a streamed completion, with `[DONE]`. */
export function completionEvents(words: readonly string[] = ['Hel', 'lo']): string {
  const chunk = (delta: object, finish_reason: string | null) =>
    `data: ${JSON.stringify({
      id: 'chatcmpl-1',
      object: 'chat.completion.chunk',
      created: 1,
      model: 'm',
      choices: [{ index: 0, delta, finish_reason }],
    })}\n\n`;
  return [
    chunk({ role: 'assistant', content: '' }, null),
    ...words.map((content) => chunk({ content }, null)),
    chunk({}, 'stop'),
    'data: [DONE]\n\n',
  ].join('');
}

/** Answers as a working provider: with a stream if the request asks for it. */
export const answerWell: Script = ({ body }, response) =>
  body.includes('"stream":true')
    ? sendEvents(response, completionEvents())
    : sendJson(response, completion());

interface Failing {
  readonly code?: string;
  readonly message?: string;
  readonly headers?: Record<string, string>;
}

/** Answers with this status and an error object. */
export function failWith(
  status: number,
  { code = 'x', message = 'p failed', headers = {} }: Failing = {},
): Script {
  const error = { message, code };
  return (_, response) => sendJson(response, { error }, { status, headers });
}

/** Sends the head of a stream and these events, and leaves the stream open. */
export function beginStream(events: string | Buffer): Script {
  return (_, response) =>
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(events);
}

/**
 * Begins a stream, sends `part` as fast as the client takes it up to `size` bytes, and ends the
 * stream. Only the beginning does not wait for `opened`.
 */
export function flood(part: string | Buffer, size: number, opened?: Promise<void>) {
  /** The bytes sent to all requests. */
  const counts = { sent: 0 };
  const script: Script = (request, response) => {
    let written = 0;
    beginStream(CHUNK)(request, response);
    const push = () => {
      while (written < size && !response.destroyed) {
        written += part.length;
        counts.sent += part.length;
        if (!response.write(part)) return;
      }
      if (!response.writableEnded) response.end(LAST + DONE);
    };
    response.on('drain', push);
    if (opened) void opened.then(push);
    else push();
  };
  return { counts, script };
}

export function sendEvents(response: ServerResponse, events: string | Buffer): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.end(events);
}
