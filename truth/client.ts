/** The client: sends a case's requests to the gateway as bytes, and reads what comes back. */

import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { hasErrorEvent, readAnswer } from './answer.ts';
import { textOf, type Client } from './case.ts';
import { ENDPOINTS } from './endpoints.ts';
import { bodyOf, MessageReader, type Message } from './http.ts';

/** Where the gateway is, and what it wants of each request. */
export interface Gateway {
  /** The base URL that clients use, with `/v1`. */
  readonly url: URL;
  readonly model: string;
  /** The client's key for the gateway. */
  readonly key: string;
  /** Whether this key is the provider's, because the gateway holds none. */
  readonly isKeyless?: boolean;
  /** Header lines of each request. */
  readonly headers: readonly string[];
}

/** What came back on a connection. */
export interface Exchange {
  readonly messages: readonly Message[];
  /** Everything that came, for searches. */
  readonly bytes: Buffer;
  /** Whether the gateway closed the connection. */
  readonly isClosed: boolean;
  readonly isLate: boolean;
  readonly sentAtMs: number;
  readonly firstTextAtMs?: number;
  readonly leftAtMs?: number;
}

/** What an exchange waits for on the provider's side, and when it has to end. */
export interface Stage {
  readonly token: string;
  readonly deadlineAtMs: number;
  /** What the waits of the client are multiplied by. */
  readonly slowness: number;
  readonly providerWaits: () => Promise<void>;
}

/** A large body is read when it has ended, and not again with each of its pieces. */
const MAX_READ_WHILE_RUNNING = 1024 * 1024;
/** Without a first text, a client that waits for it leaves so long after the provider's turn. */
const PATIENCE_MS = 3000;
/** So long the gateway has the provider's bytes before the client leaves. */
const LEAVES_AFTER_MS = 150;
const CONTINUE_WAIT_MS = 1000;

/** Sends all requests of a case. Returns an exchange for each connection. */
export async function sendRequests(
  gateway: Gateway,
  client: Client,
  stage: Stage,
): Promise<Exchange[]> {
  const requests = (client.requests ?? ['hello']).map((word) =>
    requestBytes(gateway, client, `${stage.token} ${word}`),
  );
  const run = (parts: readonly Request[]) => new Connection(gateway, client, stage).run(parts);
  if (client.pipelined) return [await run(requests)];
  const exchanges: Exchange[] = [];
  for (const request of requests) {
    if (exchanges.length > 0) await sleep(client.pause_between_ms ?? 0);
    exchanges.push(await run([request]));
  }
  return exchanges;
}

interface Request {
  readonly head: Buffer;
  readonly body: Buffer;
}

/** Returns a request's bytes. */
function requestBytes(gateway: Gateway, client: Client, prompt: string): Request {
  const { model, key, url } = gateway;
  const fill = (text: string) =>
    text
      .replaceAll('${model}', model)
      .replaceAll('${prompt}', prompt)
      .replaceAll('${token}', prompt.split(' ')[0]!)
      .replaceAll('${key}', key);
  const inner = () => Buffer.concat(Object.values(requestBytes(gateway, {}, prompt))).toString();
  const text = client.body === undefined ? bodyFor(client) : textOf(client.body);
  const plain = Buffer.from(fill(text).replace('${request}', inner));
  const { framing = 'length' } = client;
  const length = `content-length: ${plain.length}`;
  const own = (client.headers ?? []).map(fill);
  const { path, headers } = ENDPOINTS[client.endpoint ?? 'chat'];
  // Anthropic's SDKs send a key in one of two headers.
  const hasKey = own.some((line) => line.startsWith('x-api-key: '));
  const lines = [
    `POST ${url.pathname.replace(/\/$/, '')}${path} HTTP/${client.http ?? '1.1'}`,
    `host: ${url.host}`,
    ...(hasKey ? [] : [`authorization: Bearer ${key}`]),
    ...headers,
    'content-type: application/json',
    'accept: application/json',
    framing === 'length' ? length : 'transfer-encoding: chunked',
    ...(client.expect_continue ? ['expect: 100-continue'] : []),
    ...(client.long_header_bytes ? [`x-long: ${'a'.repeat(client.long_header_bytes)}`] : []),
    ...gateway.headers,
    ...own,
  ];
  const head = Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1');
  if (framing === 'length') return { head, body: plain };
  const extension = framing === 'chunked' ? '' : ';name=value;other="quoted; text"';
  const half = plain.length >> 1;
  const chunks = [plain.subarray(0, half), plain.subarray(half)].flatMap((part) => [
    Buffer.from(`${part.length.toString(16)}${extension}\r\n`),
    part,
    Buffer.from('\r\n'),
  ]);
  return { head, body: Buffer.concat([...chunks, Buffer.from('0\r\n\r\n')]) };
}

function bodyFor({ endpoint = 'chat', stream, members }: Client): string {
  const more = typeof members === 'string' ? members : JSON.stringify(members ?? {}).slice(1, -1);
  const { request } = ENDPOINTS[endpoint];
  const list = ['"model":"${model}"', request, ...(stream ? ['"stream":true'] : [])];
  return `{${[...list, ...(more === '' ? [] : [more])].join(',')}}`;
}

class Connection {
  readonly #client: Client;
  readonly #stage: Stage;
  readonly #socket: Socket;
  readonly #reader = new MessageReader();
  readonly #bytes: Buffer[] = [];
  #isClosed = false;
  #sentAtMs = 0;
  #firstTextAtMs?: number;
  #leftAtMs?: number;
  #hasFailed = false;
  /** Told of each change of the fields above. */
  #notify = () => {};

  constructor({ url }: Gateway, client: Client, stage: Stage) {
    this.#client = client;
    this.#stage = stage;
    const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
    this.#socket = connect({ host, port: Number(url.port || 80), noDelay: true });
    this.#socket.on('error', () => {});
    this.#socket.once('close', () => {
      this.#isClosed = true;
      this.#reader.end();
      this.#notify();
    });
    this.#socket.on('data', (bytes: Buffer) => this.#read(bytes));
  }

  async run(requests: readonly Request[]): Promise<Exchange> {
    const wanted = requests.length;
    await this.#send(requests);
    const leaving = this.#client.leaves && this.#leave(this.#client.leaves);
    const isOver = () =>
      this.#isClosed ||
      this.#hasFailed ||
      this.#leftAtMs !== undefined ||
      this.#reader.messages.filter(({ isWhole }) => isWhole).length >= wanted;
    const isInTime = await this.#until(isOver);
    await leaving;
    this.#socket.destroy();
    return {
      messages: this.#reader.messages,
      bytes: Buffer.concat(this.#bytes),
      isClosed: this.#isClosed,
      isLate: !isInTime,
      sentAtMs: this.#sentAtMs,
      ...(this.#firstTextAtMs === undefined ? {} : { firstTextAtMs: this.#firstTextAtMs }),
      ...(this.#leftAtMs === undefined ? {} : { leftAtMs: this.#leftAtMs }),
    };
  }

  /** Waits for a state. Returns false at the deadline. */
  async #until(condition: () => boolean, untilMs = this.#stage.deadlineAtMs): Promise<boolean> {
    if (condition()) return true;
    return new Promise((resolve) => {
      const finish = (result: boolean) => {
        clearTimeout(timer);
        this.#notify = before;
        resolve(result);
      };
      const before = this.#notify;
      const timer = setTimeout(() => finish(false), Math.max(untilMs - performance.now(), 0));
      this.#notify = () => {
        before();
        if (condition()) finish(true);
      };
    });
  }

  #after(ms: number): number {
    return performance.now() + ms * this.#stage.slowness;
  }

  async #send(requests: readonly Request[]): Promise<void> {
    this.#sentAtMs = performance.now();
    const [{ head, body } = { head: Buffer.alloc(0), body: Buffer.alloc(0) }] = requests;
    if (this.#client.expect_continue) {
      this.#socket.write(head);
      const hasAnswer = () => this.#bytes.length > 0 || this.#isClosed;
      await this.#until(hasAnswer, this.#after(CONTINUE_WAIT_MS));
      this.#socket.write(body);
    } else if (this.#client.leaves?.when === 'half the request is sent') {
      this.#socket.write(Buffer.concat([head, body.subarray(0, body.length >> 1)]));
    } else {
      this.#socket.write(Buffer.concat(requests.flatMap((one) => [one.head, one.body])));
    }
    if (this.#client.half_closes) this.#socket.end();
  }

  async #leave({ when, by }: NonNullable<Client['leaves']>): Promise<void> {
    if (when !== 'half the request is sent') await this.#stage.providerWaits();
    if (when === 'the first text has come') {
      const hasText = () => this.#firstTextAtMs !== undefined || this.#isClosed;
      await this.#until(hasText, this.#after(PATIENCE_MS));
    } else await sleep(LEAVES_AFTER_MS * this.#stage.slowness);
    this.#leftAtMs = performance.now();
    if (by === 'reset') this.#socket.resetAndDestroy();
    else this.#socket.destroy();
    this.#notify();
  }

  #read(bytes: Buffer): void {
    this.#bytes.push(bytes);
    this.#reader.feed(bytes);
    const message = this.#reader.messages.at(-1);
    if (message?.broken !== undefined) this.#hasFailed = true;
    const length = message?.pieces.reduce((sum, piece) => sum + piece.length, 0) ?? 0;
    if (message && this.#client.stream && length < MAX_READ_WHILE_RUNNING) {
      const hasText = () => (readAnswer(message, this.#client).choices.get(0)?.text ?? '') !== '';
      if (this.#firstTextAtMs === undefined && hasText()) this.#firstTextAtMs = performance.now();
      const hasError = () =>
        message.status === 200 && hasErrorEvent(bodyOf(message).toString(), this.#client);
      // An SDK raises here, and closes the connection.
      if (!this.#client.reads_on && hasError()) this.#hasFailed = true;
    }
    this.#notify();
  }
}
