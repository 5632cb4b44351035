/**
 * A world's providers, which replace `src/upstream/connections/transport.ts`. Each request gets its
 * planned reply as the gateway's own connections would hand it over. No other file here knows a
 * transport's interface.
 */

import type { ByteSink, ByteSource } from '../../src/lib/memory/byte-source.ts';
import type { Cancellation } from '../../src/lib/cancellation.ts';
import {
  type ConnectionFailure,
  TransportError,
  unconnectedFailure,
} from '../../src/upstream/connections/network-error.ts';
import {
  type ConnectionUse,
  SlicedBody,
  toBody,
  type UpstreamResponse,
  type UpstreamRequest,
} from '../../src/upstream/connections/upstream-request.ts';
import type { OnReached } from '../../src/upstream/connections/http1-transport.ts';
import type { Transport } from '../../src/upstream/connections/transport.ts';
import type { Clock } from './clock.ts';
import type { History, Try } from './history.ts';
import type { Plan, Reply } from './plan.ts';
import { answerWell, listModels } from './replies.ts';

/** The errors as net, the gateway's own connections and fetch report them. */
const FAULTS: Readonly<
  Record<NonNullable<Reply['fault']>, readonly [code: string, failure?: ConnectionFailure]>
> = {
  refused: ['ECONNREFUSED', 'unconnected'],
  unresolved: ['ENOTFOUND', 'unconnected'],
  descriptors: ['EMFILE', 'unconnected'],
  stale: ['CLOSED', 'stale'],
  reset: ['ECONNRESET'],
  'cut in head': ['CLOSED', 'inHead'],
  'not http': ['HPE_INVALID_CONSTANT'],
};

function networkError(code: string, failure?: ConnectionFailure): TransportError {
  const syscall = code === 'ENOTFOUND' ? 'getaddrinfo' : undefined;
  const error = Object.assign(new Error(`network fault ${code}`), { code, syscall });
  return new TransportError(error, failure);
}

export function createProviders(
  clock: Clock,
  plan: Plan,
  history: History,
  onReached: OnReached | undefined,
): Transport {
  return {
    description: 'a world',
    limitations: [],
    connectionFigures: undefined,
    takesCertificates: false,
    keepOnly() {},
    send(request: UpstreamRequest, cancellation: Cancellation, use: ConnectionUse = {}) {
      const [, provider = ''] = /^https:\/\/([^.]+)/.exec(request.origin) ?? [];
      const headers = toMap([...request.fixed.pairs, ...request.headers]);
      const id = headers.get('x-request-id');
      const exchange = history.exchanges.find(({ ask }) => ask.id === id);
      const { method, path } = request;
      const outage = plan.outages.find(
        (one) =>
          (one.provider ?? provider) === provider &&
          one.fromMs <= clock.nowMs &&
          clock.nowMs < one.toMs,
      );
      const before = exchange?.tries.filter((one) => one.provider === provider).length ?? 0;
      const planned = exchange
        ? (exchange.ask.replies[provider]?.[before] ?? answerWell(exchange.ask))
        : (plan.lists[provider]?.[
            history.lists.filter((one) => one.provider === provider).length
          ] ?? listModels());
      const reply = outage?.reply ?? planned;
      const made: Try = {
        provider,
        method,
        path,
        headers,
        reply,
        atMs: clock.nowMs,
        pieces: [],
        order: history.events.length,
        end: 'open',
        endAtMs: Infinity,
        endOrder: Infinity,
      };
      (exchange?.tries ?? history.lists).push(made);
      history.events.push({ atMs: clock.nowMs, kind: 'asked', exchange, try: made });
      const onOver = () => {
        made.endOrder = history.events.length;
        history.events.push({ atMs: clock.nowMs, kind: 'tried', exchange, try: made });
      };
      return new Promise((resolve, reject) => {
        cancellation.throwIfCancelled();
        const onHead = () => {
          if (reply.connection === 'new')
            onReached?.({ origin: request.origin, digest: undefined });
        };
        const settle = { resolve, reject, onHead, onOver, use };
        const sent = new ProviderReply(clock, made, cancellation, settle);
        void readBody(request, made).finally(() => sent.begin());
      });
    },
    close() {},
  };
}

/** Reads the request's body. Whoever ends the exchange releases unread bytes. */
async function readBody(request: UpstreamRequest, made: Try): Promise<void> {
  const body = toBody(request);
  if (!body) return;
  if (!(body instanceof SlicedBody)) {
    made.body = body.toString();
    return;
  }
  const slices: Buffer[] = [];
  for (let slice = body.next(); slice; slice = body.next()) slices.push(slice);
  // An abandoned try does not read its body to the end.
  if (made.end === 'open') made.body = Buffer.concat(slices).toString();
}

interface Settle {
  readonly resolve: (reply: UpstreamResponse) => void;
  readonly reject: (error: unknown) => void;
  readonly onHead: () => void;
  readonly onOver: () => void;
  readonly use: ConnectionUse;
}

/**
 * A request at a provider and its reply, with the real transport's back-pressure: untaken bytes are
 * held.
 */
class ProviderReply implements UpstreamResponse, ByteSource {
  readonly status: number;
  readonly headers: Map<string, string>;
  readonly body = this;
  readonly #clock: Clock;
  readonly #try: Try;
  readonly #cancellation: Cancellation;
  readonly #settle: Settle;
  #isConnected = false;
  #isOver = false;
  #error: unknown;
  #sink: ByteSink | undefined;
  #isPaused = true;
  #unread: Buffer[] = [];
  readonly #onCancel = () => this.#giveUp();

  constructor(clock: Clock, made: Try, cancellation: Cancellation, settle: Settle) {
    this.#clock = clock;
    this.#try = made;
    this.#cancellation = cancellation;
    this.#settle = settle;
    this.status = made.reply.status;
    this.headers = new Map(made.reply.headers);
    cancellation.onCancel(this.#onCancel);
  }

  begin(): void {
    const { connectMs, fault, headMs } = this.#try.reply;
    this.#after(connectMs, () => {
      const [code, failure] = fault ? FAULTS[fault] : [];
      if (failure === 'unconnected') return this.#end(networkError(code!, failure));
      this.#isConnected = true;
      const { connection } = this.#try.reply;
      Object.assign(this.#settle.use, { connection, sentAtMs: performance.now() });
      if (headMs === undefined) return undefined;
      return this.#after(headMs, () => {
        if (code) return this.#end(networkError(code, failure));
        this.#try.headAtMs = this.#clock.nowMs;
        this.#settle.onHead();
        this.#settle.resolve(this);
        return this.#send(piecesOf(this.#try.reply));
      });
    });
  }

  start(sink: ByteSink): void {
    this.#sink = sink;
    this.resume();
  }

  resume(): void {
    this.#isPaused = false;
    const unread = this.#unread;
    this.#unread = [];
    if (unread.length > 0) this.#isPaused = !this.#sink?.write(Buffer.concat(unread));
    if (!this.#isPaused && this.#isOver) this.#endSink();
  }

  #send([piece, ...others]: readonly Piece[]): void {
    if (piece) {
      const send = () => {
        this.#push(piece.bytes);
        this.#send(others);
      };
      if (piece.waitMs > 0) this.#after(piece.waitMs, send);
      else send();
      return;
    }
    const { end, endMs, rest } = this.#try.reply;
    this.#after(endMs, () => {
      if (rest !== '') this.#push(Buffer.from(rest));
      if (end === 'end') this.#end(undefined);
      if (end === 'cut') this.#end(networkError('CLOSED', 'inBody'));
    });
  }

  #push(bytes: Buffer): void {
    if (this.#isOver || bytes.length === 0) return;
    this.#try.pieces.push({ atMs: this.#clock.nowMs, bytes });
    if (this.#isPaused) this.#unread.push(bytes);
    else this.#isPaused = !this.#sink?.write(bytes);
  }

  #after(ms: number, run: () => void): void {
    this.#clock.after(ms, () => {
      if (!this.#isOver) run();
    });
  }

  #giveUp(): void {
    const { reason } = this.#cancellation;
    this.#unread = [];
    this.#isPaused = false;
    if (this.#isOver) {
      this.#error ??= reason;
      return this.#endSink();
    }
    this.#end(
      this.#isConnected ? reason : unconnectedFailure(reason, `https://${this.#try.provider}.test`),
      'given up',
    );
  }

  #end(error: unknown, end: Try['end'] = 'over'): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#error = error;
    this.#try.end = end;
    this.#try.endAtMs = this.#clock.nowMs;
    this.#settle.onOver();
    if (error) this.#settle.reject(error);
    if (!this.#isPaused) this.#endSink();
  }

  #endSink(): void {
    const sink = this.#sink;
    if (!sink) return;
    this.#sink = undefined;
    this.#cancellation.offCancel(this.#onCancel);
    sink.end(this.#error);
  }
}

interface Piece {
  readonly waitMs: number;
  readonly bytes: Buffer;
}

function piecesOf({ isJoined, items }: Reply): Piece[] {
  const pieces: Piece[] = [];
  const add = (waitMs: number, bytes: Buffer) => {
    const last = pieces.at(-1);
    if (!isJoined || waitMs > 0 || !last) pieces.push({ waitMs, bytes });
    else pieces.splice(-1, 1, { ...last, bytes: Buffer.concat([last.bytes, bytes]) });
  };
  for (const { cut, text, waitMs } of items) {
    const bytes = Buffer.from(text);
    add(waitMs, bytes.subarray(0, cut?.at));
    if (cut) add(cut.waitMs, bytes.subarray(cut.at));
  }
  return pieces;
}

/** Converts alternating names and values to a map. A repeated name's values are joined. */
function toMap(pairs: readonly string[]): Map<string, string> {
  const map = new Map<string, string>();
  for (let at = 0; at < pairs.length; at += 2) {
    const before = map.get(pairs[at]!);
    map.set(pairs[at]!, before === undefined ? pairs[at + 1]! : `${before}, ${pairs[at + 1]!}`);
  }
  return map;
}
