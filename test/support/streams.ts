/** Helpers for stream tests: a client that reads while the stream runs, and an event parser. */

import assert from 'node:assert/strict';
import { request as httpRequest, type ClientRequest, type IncomingMessage } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { readAnswer } from './answer.ts';
import { setHangLimit } from './clock.ts';
import { CLIENT_TOKEN, STREAM, type LogLine, type TestGateway } from './gateway.ts';

export interface OpenStream {
  readonly request: ClientRequest;
  /** Resolves with the response head. */
  readonly response: Promise<IncomingMessage>;
  /** The text received so far. */
  readonly text: () => string;
  /** Resolves with the whole text at the stream's end. Rejects as `readAnswer` does. */
  readonly ended: Promise<string>;
  /** Closes the connection. */
  readonly leave: () => void;
}

/** Asks for a stream, and does not wait for it. */
export function openChat(port: number, body: object = STREAM): OpenStream {
  const request = httpRequest({
    host: '127.0.0.1',
    port,
    path: '/v1/chat/completions',
    method: 'POST',
    headers: { authorization: `Bearer ${CLIENT_TOKEN}`, 'content-type': 'application/json' },
    agent: false,
  });
  const chunks: Buffer[] = [];
  const text = () => Buffer.concat(chunks).toString();
  const response = new Promise<IncomingMessage>((resolve, reject) => {
    request.once('response', resolve);
    request.on('error', reject);
  });
  const ended = response
    .then((incoming) => readAnswer(incoming, (chunk) => chunks.push(chunk)))
    .then(text);
  // A test may leave on purpose; then nobody waits for these promises.
  response.catch(() => {});
  ended.catch(() => {});
  request.end(JSON.stringify(body));
  return { request, response, text, ended, leave: () => request.destroy() };
}

/**
 * Far beyond any wait in the gateway, but below a test's own limit, so the failure names the
 * condition.
 */
const EVENTUALLY_MS = 110_000;

/** Waits until `condition` holds, or fails. */
export async function eventually(condition: () => unknown, what: string): Promise<void> {
  let isOver = false;
  const stop = setHangLimit(() => (isOver = true), EVENTUALLY_MS);
  for (let waitMs = 1; !(await condition()); waitMs = Math.min(2 * waitMs, 16)) {
    assert.ok(!isOver, `never happened: ${what}`);
    await sleep(waitMs);
  }
  stop();
}

/** Returns the access lines when there are `count`. A line is written after its answer. */
export async function linesOf(gateway: TestGateway, count = 1): Promise<LogLine[]> {
  await eventually(() => gateway.accessLines().length >= count, `${count} access lines`);
  assert.equal(gateway.accessLines().length, count);
  return gateway.accessLines();
}

/** Returns the only access line when it is there. */
export async function lineOf(gateway: TestGateway): Promise<LogLine> {
  return (await linesOf(gateway))[0]!;
}

/** Checks the gateway's log for errors. */
export function assertNoErrors(gateway: TestGateway): void {
  const errors = gateway.lines().filter(({ level }) => level === 'error');
  assert.deepEqual(errors, []);
}

/** Returns the `data` of each event. A last event without its blank line counts. */
export function dataOf(stream: string): string[] {
  const events: string[][] = [[]];
  for (const line of stream.split(/\r\n|\n|\r/)) {
    if (line === '') events.push([]);
    else if (line.startsWith('data:')) events.at(-1)!.push(line.slice(5).replace(/^ /, ''));
  }
  return events.filter((lines) => lines.length > 0).map((lines) => lines.join('\n'));
}

export interface DocumentedError {
  readonly type: string;
  readonly message: string;
  readonly code: string;
  readonly provider?: string;
  readonly status?: number;
}

/** Checks for a stream of `before` and then exactly one error event. Returns the error. */
export function errorAfter(stream: string, before: string): DocumentedError {
  assert.equal(stream.slice(0, before.length), before);
  const rest = stream.slice(before.length).replace(/^\n+/, '');
  const [, json = ''] = /^data: (\{.*\})\n\n$/.exec(rest) ?? assert.fail(`no error event: ${rest}`);
  const { error, ...others } = JSON.parse(json) as { error: DocumentedError };
  assert.deepEqual(others, {});
  assert.equal(typeof error.message, 'string');
  assert.match(`${error.type} ${error.code}`, /^[a-z]+(_[a-z]+)* [A-Z]+(_[A-Z]+)*$/);
  return error;
}

/** Creates a promise, and the function to resolve it. */
export function createGate(): { readonly opened: Promise<void>; readonly open: () => void } {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open: () => open() };
}
