/** The provider: a TCP server that plays the steps of a case for each request with its token. */

import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';

import { textOf, type Step } from './case.ts';
import { CHUNK_TEXT, ENDPOINTS, endpointOf, type Endpoint, type Json } from './endpoints.ts';
import { bodyOf, headerOf, MessageReader, type Message } from './http.ts';

/** Between the slices of bytes, so that each is a packet of its own. */
const SLICE_PAUSE_MS = 2;
/** How long a step waits for the gateway to close the connection. */
const WAIT_FOR_GONE_MS = 8000;

/** A case's request at the provider. */
export interface ProviderRequest {
  readonly message: Message;
  readonly body: string;
  /** The key that the gateway sent. */
  readonly key: string;
  /** When the steps began to wait for the connection's end, by `performance.now()`. */
  waitsSinceMs?: number;
  /** When the gateway closed the connection. */
  goneAtMs?: number;
}

/** A connection of the gateway. */
interface Line {
  readonly socket: Socket;
  /** Called when the gateway closes the connection. */
  onGone: () => void;
}

/** What the provider does for the requests that hold a token, and has seen of them. */
export interface Role {
  readonly stepsOf: (place: number) => readonly Step[];
  readonly endpoint: Endpoint;
  /** What the wait for the gateway's end of a connection is multiplied by. */
  readonly slowness: number;
  readonly requests: ProviderRequest[];
  /** Requests for the address of a redirect. */
  readonly elsewhere: Message[];
  /** Told of each change of `requests`. */
  readonly onChange: () => void;
}

const MODEL_LIST = `{"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"truth"}]}`;

const TOKEN = /truth-token-[a-z0-9]+/;

export class Provider {
  readonly #roles = new Map<string, Role>();
  readonly #sockets = new Set<Socket>();
  #server?: Server;

  /** Listens on loopback at a port (0 for any), and returns the port. */
  async listen(port: number): Promise<number> {
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) =>
      this.#serve(socket),
    );
    this.#server = server;
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return (server.address() as { port: number }).port;
  }

  /** Closes all connections, and the port. */
  async close(): Promise<void> {
    const closed = once(this.#server!, 'close');
    this.#server!.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  /** Plays a role until the returned function is called. */
  play(token: string, role: Role): () => void {
    this.#roles.set(token, role);
    return () => this.#roles.delete(token);
  }

  #serve(socket: Socket): void {
    this.#sockets.add(socket);
    const line: Line = { socket, onGone: () => {} };
    socket.once('close', () => {
      this.#sockets.delete(socket);
      line.onGone();
    });
    socket.on('error', () => {});
    // Requests of one connection are answered one after the other.
    let turn = Promise.resolve();
    const reader = new MessageReader((message) => {
      turn = turn.then(() => this.#answer(line, message)).catch(() => {});
    });
    let isContinued = false;
    socket.on('data', (bytes: Buffer) => {
      reader.feed(bytes);
      const last = reader.messages.at(-1);
      if (isContinued || !last || headerOf(last, 'expect') === undefined) return;
      isContinued = true;
      socket.write('HTTP/1.1 100 Continue\r\n\r\n');
    });
    socket.once('end', () => {
      line.onGone();
      // A gateway that half-closes has nothing more to ask.
      void turn.then(() => socket.end());
    });
  }

  async #answer(line: Line, message: Message): Promise<void> {
    const { socket } = line;
    const body = bodyOf(message).toString();
    const [token = ''] = TOKEN.exec(`${message.start} ${body}`) ?? [];
    const role = this.#roles.get(token);
    if (message.start.includes('/elsewhere/')) role?.elsewhere.push(message);
    else if (role) return this.#perform(line, { role, token, message, body });
    const endpoint = endpointOf(message.start);
    const stage = { endpoint: ENDPOINTS.chat, key: '', word: 'good', elsewhere: '', body };
    if (endpoint) {
      const isStream = endpoint === ENDPOINTS.chat && /"stream":\s*true/.test(body);
      const good = isStream ? GOOD_STREAM : [{ completion: 'good' }];
      return perform(socket, good, { ...stage, endpoint });
    }
    const list = {
      answer: '200 OK',
      headers: ['content-type: application/json'],
      body: MODEL_LIST,
    };
    return perform(socket, [list], stage);
  }

  async #perform(line: Line, { role, token, message, body }: Performance): Promise<void> {
    const { socket } = line;
    const given = headerOf(message, 'authorization') ?? headerOf(message, 'api-key');
    const key = (given ?? headerOf(message, 'x-api-key') ?? '').replace(/^Bearer +/i, '');
    const request: ProviderRequest = { message, body, key };
    const gone = new Promise<void>((resolve) => {
      line.onGone = () => {
        request.goneAtMs ??= performance.now();
        role.onChange();
        resolve();
      };
    });
    role.requests.push(request);
    role.onChange();
    const [, word = 'hello'] = new RegExp(`${token} (\\w+)`).exec(body) ?? [];
    const host = headerOf(message, 'host') ?? '';
    const other = host.startsWith('localhost') ? '127.0.0.1' : 'localhost';
    const port = socket.localPort;
    await perform(socket, role.stepsOf(role.requests.length - 1), {
      endpoint: role.endpoint,
      key,
      word,
      elsewhere: `http://${other}:${port}/elsewhere/${token}`,
      body,
      onWait: async () => {
        request.waitsSinceMs = performance.now();
        role.onChange();
        const limitMs = WAIT_FOR_GONE_MS * role.slowness;
        await Promise.race([gone, sleep(limitMs, undefined, { ref: false })]);
      },
    });
  }
}

interface Performance {
  readonly role: Role;
  readonly token: string;
  readonly message: Message;
  readonly body: string;
}

const GOOD_STREAM: readonly Step[] = [
  { head: 'events' },
  { delta: 'good' },
  { finish: 'stop' },
  { data: '[DONE]' },
  { last_chunk: true },
];

/** What the texts of the steps may refer to. */
interface Stage {
  readonly endpoint: Endpoint;
  readonly key: string;
  readonly word: string;
  readonly elsewhere: string;
  readonly body: string;
  readonly onWait?: () => Promise<void>;
}

const JSON_TYPE = 'application/json';
const EVENT_HEADERS = ['content-type: text/event-stream', 'transfer-encoding: chunked'];

/** Plays steps. The bytes between two pauses are written at once. */
async function perform(socket: Socket, steps: readonly Step[], stage: Stage): Promise<void> {
  socket.cork();
  let before = '';
  for (const [place, step] of steps.entries()) {
    if (step.if_asked !== undefined && !minify(stage.body).includes(step.if_asked)) continue;
    const { pause_ms: pauseMs, wait, then, slice_bytes: sliceBytes } = step;
    if (pauseMs !== undefined || wait || sliceBytes !== undefined) socket.uncork();
    if (pauseMs !== undefined) await sleep(pauseMs);
    if (wait) await stage.onWait?.();
    if (then !== undefined) {
      socket.uncork();
      endBy(then, socket);
      return;
    }
    const bytes = bytesOf(step, { ...stage, place, before });
    if (typeof step.delta === 'string') before += step.delta;
    if (sliceBytes === undefined) socket.write(bytes);
    else await writeSlices(socket, bytes, sliceBytes);
    if (pauseMs !== undefined || wait || sliceBytes !== undefined) socket.cork();
  }
  socket.uncork();
}

/** Ends the connection when its bytes are sent. */
function endBy(then: NonNullable<Step['then']>, socket: Socket): void {
  if (then === 'close') socket.end(() => socket.destroy());
  // Without bytes of its own, the callback comes after all bytes are with the system.
  else socket.write('', () => socket.resetAndDestroy());
}

async function writeSlices(socket: Socket, bytes: Buffer, size: number): Promise<void> {
  for (let at = 0; at < bytes.length && !socket.destroyed; at += size) {
    socket.write(bytes.subarray(at, at + size));
    await sleep(SLICE_PAUSE_MS);
  }
}

/** Where a step stands. */
interface Place extends Stage {
  readonly place: number;
  /** The text of all deltas before. */
  readonly before: string;
}

function bytesOf(step: Step, stage: Place): Buffer {
  const { key, word, elsewhere } = stage;
  const fill = (text: string) =>
    text
      .replaceAll('${chunk}', CHUNK_TEXT)
      .replaceAll('${long}', 'A'.repeat(step.long_bytes ?? 0))
      .replaceAll('${provider-key}', key)
      .replaceAll('${word}', word)
      .replaceAll('${elsewhere}', elsewhere);
  const bytes = Buffer.concat(partsOf(step, stage, fill));
  return bytes.subarray(0, bytes.length - (step.without_last_bytes ?? 0));
}

function partsOf(step: Step, stage: Place, fill: (text: string) => string): Buffer[] {
  const { answer, head, completion, headers = [] } = step;
  const text = (value: Parameters<typeof textOf>[0]) => fill(textOf(value));
  if (answer !== undefined || completion !== undefined) {
    const members = step.members === undefined ? '' : `,${step.members}`;
    const json = JSON.stringify(stage.endpoint.answerOf(text(completion ?? '')));
    const whole = `${json.slice(0, -1)}${members}}`;
    const plain = Buffer.from(text(step.body ?? whole));
    const body = step.gzip ? gzipSync(plain) : plain;
    const type = completion === undefined ? [] : [`content-type: ${step.type ?? JSON_TYPE}`];
    const coding = step.gzip ? ['content-encoding: gzip'] : [];
    const long = step.long_header_bytes ? [`x-long: ${'a'.repeat(step.long_header_bytes)}`] : [];
    const lines = [...type, ...headers, ...long, ...coding, `content-length: ${body.length}`];
    return [headOf(answer ?? '200 OK', lines.map(fill)), body];
  }
  if (head === 'events') return [headOf('200 OK', [...EVENT_HEADERS, ...headers].map(fill))];
  if (head !== undefined) return [headOf(head, headers.map(fill))];
  const event = eventOf(step, stage);
  if (event) return [chunk(fill(encodeEvent(event)), step.extension)];
  if (step.data !== undefined) return [chunk(`data: ${text(step.data)}\n\n`)];
  if (step.chunk !== undefined) return [chunk(text(step.chunk))];
  if (step.last_chunk) return [Buffer.from('0\r\n\r\n')];
  return step.send === undefined ? [] : [Buffer.from(text(step.send))];
}

function eventOf({ delta, finish, event, choice }: Step, stage: Place): Json | undefined {
  const { endpoint, before, place } = stage;
  const number = endpoint.isNumbered ? { sequence_number: place } : {};
  if (typeof event === 'object') return { ...event, ...number };
  if (event !== undefined) return { type: event, ...endpoint.events[event], ...number };
  if (delta === undefined && finish === undefined) return undefined;
  const part = { delta: delta ?? {}, index: choice ?? 0, finish: finish ?? null, before };
  return { ...endpoint.eventOf(part), ...number };
}

function encodeEvent(event: Json): string {
  const name = typeof event['type'] === 'string' ? `event: ${event['type']}\n` : '';
  return `${name}data: ${JSON.stringify(event)}\n\n`;
}

function headOf(status: string, lines: readonly string[]): Buffer {
  return Buffer.from(`${[`HTTP/1.1 ${status}`, ...lines].join('\r\n')}\r\n\r\n`, 'latin1');
}

/** Returns a chunk of the chunked coding. */
function chunk(text: string, extension?: string): Buffer {
  const bytes = Buffer.from(text);
  return Buffer.concat([
    Buffer.from(`${bytes.length.toString(16)}${extension ? `;${extension}` : ''}\r\n`),
    bytes,
    Buffer.from('\r\n'),
  ]);
}

/** Removes the white space between JSON's tokens, which a gateway may change. */
export function minify(json: string): string {
  return json.replaceAll(/("(?:[^"\\]|\\.)*")|\s+/g, (_, text?: string) => text ?? '');
}
