/**
 * A client that sends the planned requests on one connection after another, and reads the answers.
 */

import type { Server } from 'node:http';

import type { Clock } from './clock.ts';
import type { Answer, Exchange, History } from './history.ts';
import type { Ask } from './plan.ts';
import { isListening, MemorySocket } from './socket.ts';

/** The pause between two connections. */
const RECONNECT_MS = 1.7;
const CLOSE_MS = 0.4;
/**
 * With more pipelined requests, the gateway stops reading, and notices the connection's end at its
 * next write (docs/limits.md).
 */
const MAX_NOTICED = 8;
/** The gateway also stops reading behind a longer body when the body waits for its turn. */
const MAX_UNREAD = 16_384;

export interface ClientWorld {
  readonly clock: Clock;
  readonly server: Server;
  readonly history: History;
}

export class Client {
  readonly #clock: Clock;
  readonly #server: Server;
  readonly #history: History;
  readonly #waiting: Exchange[];
  readonly #onDone: () => void;
  /** Open requests, in the order of their answers. */
  #open: Exchange[] = [];
  #socket: MemorySocket | undefined;
  #reader: AnswerReader | undefined;
  #idleSinceMs = 0;
  /** The last answered request on this connection. */
  #latest: Exchange | undefined;

  constructor({ clock, server, history }: ClientWorld, asks: readonly Ask[], onDone: () => void) {
    this.#clock = clock;
    this.#server = server;
    this.#history = history;
    this.#onDone = onDone;
    this.#waiting = asks.map((ask) => ({
      ask,
      isContinued: false,
      isDelayed: false,
      headOrder: Infinity,
      pieceMs: [],
      tries: [],
      lines: [],
    }));
    history.exchanges.push(...this.#waiting);
  }

  begin(): void {
    if (this.#waiting.length === 0) return this.#onDone();
    if (!isListening(this.#server)) return this.#onDone();
    const reader = new AnswerReader(() => this.#open[0]?.ask.method === 'HEAD', this.#clock);
    this.#reader = reader;
    const begun = this.#open;
    // The client's kernel answers with a reset, because it has closed the connection.
    const onWasted = () =>
      this.#clock.after(CLOSE_MS, () => {
        socket.reset();
        for (const exchange of begun) exchange.wastedAtMs ??= this.#clock.nowMs;
      });
    const socket = new MemorySocket(
      this.#server,
      {
        onBytes: (bytes) => (this.#socket === socket ? this.#read(bytes) : onWasted()),
        onEnd: (how) => this.#socket === socket && this.#onEnd(how, socket),
      },
      '::ffff:192.0.2.7',
    );
    this.#socket = socket;
    this.#idleSinceMs = this.#clock.nowMs;
    this.#latest = undefined;
    return this.#sendNext();
  }

  #sendNext(): void {
    const exchange = this.#waiting[0];
    const socket = this.#socket!;
    if (!exchange) {
      // Later, because a close in the same turn could precede the written answer.
      this.#clock.after(CLOSE_MS, () => {
        if (this.#socket === socket && this.#open.length === 0) this.#leave('end');
      });
      return;
    }
    const { ask } = exchange;
    this.#clock.after(ask.afterMs, () => {
      if (this.#socket !== socket || this.#waiting[0] !== exchange) return;
      this.#waiting.shift();
      this.#open.push(exchange);
      this.#send(exchange, socket);
    });
  }

  #send(exchange: Exchange, socket: MemorySocket): void {
    const { ask } = exchange;
    const [head, body] = render(ask);
    const awaitsContinue = ask.headers.some(([name]) => name === 'expect');
    const bytes = awaitsContinue ? head : Buffer.concat([head, body]);
    if (ask.leaves?.when === 'sent') this.#leaveAfter(exchange, ask.leaves.afterMs);
    const sendFrom = (start: number, cuts: Ask['cuts']): void => {
      if (this.#socket !== socket) return;
      const [cut, ...later] = cuts;
      const end = cut ? Math.min(cut.at, bytes.length) : bytes.length;
      if (end >= head.length && exchange.headSentAtMs === undefined) this.#onHead(exchange);
      if (end > start) exchange.pieceMs.push(this.#clock.nowMs);
      if (end > start) socket.receive(bytes.subarray(start, end));
      if (end < bytes.length) this.#clock.after(cut!.waitMs, () => sendFrom(end, later));
      else if (!awaitsContinue) this.#onSent(exchange);
    };
    // Before the head is sent, because the answer may come in the same turn.
    if (awaitsContinue) this.#onContinue = () => this.#sendBody(exchange, body, socket);
    sendFrom(0, ask.cuts);
  }

  #onHead(exchange: Exchange): void {
    const { events } = this.#history;
    exchange.headSentAtMs = this.#clock.nowMs;
    exchange.headOrder = events.length;
    exchange.isDelayed = this.#isPaused;
    const before = this.#open[this.#open.indexOf(exchange) - 1];
    exchange.behind = before?.lines.length === 0 ? before : undefined;
    exchange.behindAnswer = before;
    events.push({ atMs: this.#clock.nowMs, kind: 'begun', exchange });
  }

  #onContinue: (() => void) | undefined;

  #sendBody(exchange: Exchange, body: Buffer, socket: MemorySocket): void {
    exchange.isContinued = true;
    this.#clock.after(0.6, () => {
      if (this.#socket !== socket) return;
      socket.receive(body);
      this.#onSent(exchange);
    });
  }

  #onSent(exchange: Exchange): void {
    exchange.sentAtMs = this.#clock.nowMs;
    this.#history.events.push({ atMs: this.#clock.nowMs, kind: 'sent', exchange });
    // The gateway closes the connection at once after bytes other than HTTP.
    if (this.#socket && this.#waiting[0]?.ask.isPipelined) this.#sendNext();
  }

  #read(bytes: Buffer): void {
    const reader = this.#reader!;
    reader.push(bytes);
    for (;;) {
      const exchange = this.#open[0];
      const answer = reader.next();
      if (!exchange || !answer) return;
      if (answer === 'continue') {
        this.#onContinue?.();
        this.#onContinue = undefined;
        continue;
      }
      const { leaves, pause } = exchange.ask;
      if (!exchange.answer && leaves?.when === 'begun') this.#leaveAfter(exchange, leaves.afterMs);
      exchange.answer = answer;
      if (pause && reader.answerBytes >= pause.afterBytes) this.#pause(pause.forMs);
      if (answer.end === 'open') return;
      this.#onAnswered(exchange, answer);
    }
  }

  #isPaused = false;
  #pausedFor = new Set<Exchange>();

  #pause(ms: number): void {
    const exchange = this.#open[0]!;
    if (this.#pausedFor.has(exchange)) return;
    this.#pausedFor.add(exchange);
    const socket = this.#socket!;
    socket.clientReads(false);
    this.#isPaused = true;
    for (const one of this.#open) one.isDelayed = true;
    this.#clock.after(ms, () => {
      if (this.#socket === socket) this.#isPaused = false;
      socket.clientReads(true);
    });
  }

  #onAnswered(exchange: Exchange, answer: Answer): void {
    this.#history.events.push({ atMs: this.#clock.nowMs, kind: 'answered', exchange });
    this.#open.shift();
    this.#idleSinceMs = this.#clock.nowMs;
    this.#latest = exchange;
    this.#reader!.answered();
    const isLast = answer.headers.get('connection') === 'close';
    // The gateway closes the connection, and drops requests sent behind this one.
    if (isLast) return;
    if (this.#open.length === 0) this.#sendNext();
  }

  #leaveAfter(exchange: Exchange, ms: number): void {
    const socket = this.#socket;
    this.#clock.after(ms, () => {
      if (this.#socket === socket && this.#open.includes(exchange)) {
        this.#leave(exchange.ask.leaves!.how);
      }
    });
  }

  /** Closes the connection. The next request opens another. */
  #leave(how: 'end' | 'reset'): void {
    const socket = this.#socket!;
    const isFull = this.#open.slice(1).some(({ ask }) => (ask.body?.length ?? 0) > MAX_UNREAD);
    for (const exchange of this.#open) {
      exchange.leftAtMs = this.#clock.nowMs;
      exchange.isUnnoticed = how === 'end' && (this.#open.length > MAX_NOTICED || isFull);
      this.#history.events.push({ atMs: this.#clock.nowMs, kind: 'left', exchange });
    }
    this.#reconnect();
    if (how === 'reset') socket.reset();
    else socket.receive(null);
  }

  #onEnd(how: 'end' | 'reset', socket: MemorySocket): void {
    const answer = this.#open[0]?.answer;
    if (answer?.end === 'open') {
      const isWhole = how === 'end' && this.#reader!.isEndedByClose;
      answer.end = isWhole ? 'whole' : 'cut';
      answer.endAtMs = this.#clock.nowMs;
    }
    for (const exchange of this.#open) {
      this.#history.events.push({ atMs: this.#clock.nowMs, kind: 'closed', exchange });
    }
    if (this.#open.length === 0) {
      const [exchange, sinceMs] = [this.#latest, this.#idleSinceMs];
      this.#history.events.push({ atMs: this.#clock.nowMs, kind: 'ended', exchange, sinceMs });
    }
    if (how === 'end') this.#clock.after(CLOSE_MS, () => socket.receive(null));
    this.#reconnect();
  }

  #reconnect(): void {
    this.#open = [];
    this.#socket = undefined;
    this.#onContinue = undefined;
    this.#isPaused = false;
    this.#clock.after(RECONNECT_MS, () => this.begin());
  }
}

/** Returns the head and the body as bytes. */
export function render(ask: Ask): readonly [head: Buffer, body: Buffer] {
  const { broken, method, path, version, headers, body, isChunked } = ask;
  if (broken) return [Buffer.from(broken.text, 'latin1'), Buffer.alloc(0)];
  const bytes = Buffer.from(body ?? '');
  const framing = isChunked
    ? ['transfer-encoding: chunked']
    : body === undefined
      ? []
      : [`content-length: ${bytes.length}`];
  const lines = [
    `${method} ${path} HTTP/${version}`,
    ...headers.map(([name, value]) => `${name}: ${value}`),
    ...framing,
  ];
  const head = Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1');
  if (!isChunked) return [head, bytes];
  const middle = Math.ceil(bytes.length / 2);
  const chunks = [bytes.subarray(0, middle), bytes.subarray(middle)].filter(
    ({ length }) => length > 0,
  );
  const frames = chunks.flatMap((one) => [`${one.length.toString(16)}\r\n`, one, '\r\n']);
  return [head, Buffer.concat([...frames, '0\r\n\r\n'].map((one) => Buffer.from(one)))];
}

/** Parses answers from a connection's bytes (RFC 9112). Throws if they are not HTTP. */
class AnswerReader {
  readonly #isHead: () => boolean;
  readonly #clock: Clock;
  #unread: Buffer = Buffer.alloc(0);
  #answer: Answer | undefined;
  /** The bytes left in the body or its current chunk; `undefined` before a chunk's size. */
  #leftBytes: number | undefined;
  #framing: 'length' | 'chunked' | 'close' = 'length';
  answerBytes = 0;

  constructor(isHead: () => boolean, clock: Clock) {
    this.#isHead = isHead;
    this.#clock = clock;
  }

  get isEndedByClose(): boolean {
    return this.#framing === 'close';
  }

  push(bytes: Buffer): void {
    this.#unread = this.#unread.length > 0 ? Buffer.concat([this.#unread, bytes]) : bytes;
    this.answerBytes += bytes.length;
  }

  answered(): void {
    this.#answer = undefined;
    this.answerBytes = this.#unread.length;
  }

  /** Returns the answer as far as it has come; undefined before a whole head. */
  next(): Answer | 'continue' | undefined {
    if (!this.#answer) {
      const end = this.#unread.indexOf('\r\n\r\n');
      if (end < 0) return undefined;
      const head = this.#take(end + 4).toString('latin1');
      if (head.startsWith('HTTP/1.1 100 ')) return 'continue';
      this.#answer = this.#begin(head);
    }
    const answer = this.#answer;
    while (answer.end === 'open' && this.#readBody(answer));
    return answer;
  }

  #begin(head: string): Answer {
    const [statusLine = '', ...lines] = head.trimEnd().split('\r\n');
    const [, status] = /^HTTP\/1\.1 (\d{3}) /.exec(statusLine) ?? [];
    if (!status) throw new Error(`no status line: ${statusLine}`);
    const headers = new Map<string, string>();
    for (const line of lines) {
      const [, name = '', value = ''] = /^([^\s:]+): ?(.*)$/.exec(line) ?? [];
      const key = name.toLowerCase();
      if (key === '' || headers.has(key)) throw new Error(`wrong header: ${line}`);
      headers.set(key, value);
    }
    const length = headers.get('content-length');
    const hasNone = this.#isHead() || status === '204';
    const isChunked = headers.get('transfer-encoding') === 'chunked';
    this.#framing = hasNone || length ? 'length' : isChunked ? 'chunked' : 'close';
    this.#leftBytes = hasNone ? 0 : length ? Number(length) : undefined;
    const nowMs = this.#clock.nowMs;
    return {
      status: Number(status),
      headers,
      headAtMs: nowMs,
      pieces: [],
      end: 'open',
      endAtMs: Infinity,
    };
  }

  /** Reads one part of the body. Returns whether there may be another. */
  #readBody(answer: Answer): boolean {
    if (this.#framing === 'close') {
      this.#piece(answer, this.#unread.length);
      return false;
    }
    if (this.#framing === 'length') {
      this.#leftBytes! -= this.#piece(answer, Math.min(this.#leftBytes!, this.#unread.length));
      if (this.#leftBytes === 0) this.#finish(answer);
      return false;
    }
    if (this.#leftBytes === undefined) {
      const end = this.#unread.indexOf('\r\n');
      if (end < 0) return false;
      const size = this.#take(end + 2)
        .toString('latin1')
        .trim();
      if (!/^[\da-f]+$/i.test(size)) throw new Error(`no size of a chunk: ${JSON.stringify(size)}`);
      this.#leftBytes = Number.parseInt(size, 16) || -1;
    }
    const isLast = this.#leftBytes < 0;
    if (!isLast) {
      const taken = Math.min(this.#leftBytes, this.#unread.length);
      this.#leftBytes -= this.#piece(answer, taken);
      if (this.#leftBytes > 0) return false;
    }
    if (this.#unread.length < 2) return false;
    if (this.#take(2).toString('latin1') !== '\r\n') throw new Error('no line end behind a chunk');
    this.#leftBytes = undefined;
    if (isLast) this.#finish(answer);
    return true;
  }

  #finish(answer: Answer): void {
    answer.end = 'whole';
    answer.endAtMs = this.#clock.nowMs;
  }

  #piece(answer: Answer, length: number): number {
    if (length > 0) answer.pieces.push({ atMs: this.#clock.nowMs, bytes: this.#take(length) });
    return length;
  }

  #take(length: number): Buffer {
    const taken = this.#unread.subarray(0, length);
    this.#unread = this.#unread.subarray(length);
    return taken;
  }
}
