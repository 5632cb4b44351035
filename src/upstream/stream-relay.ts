/**
 * Relays a streamed completion. Nothing is sent before the first event with data was read, but comments to a client whose
 * stream has begun early; every event passes byte for byte, but a chunk of usage that the gateway itself has asked for. A
 * blank line and a `[DONE]` that are missing are added; a stream that did not finish ends in the documented error event and
 * never in `[DONE]`.
 */

import { noRoom } from '../lib/byte-budget.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import type { ByteSink, ByteStream } from '../lib/byte-source.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import { BYTE_ORDER_MARK, encodeEvent } from '../lib/sse.ts';
import { EventInspector, type Inspection } from './event-inspector.ts';
import { endAtLineFeed } from './line-feed.ts';
import { providerError, timeoutError, upstreamFailure } from './network-error.ts';
import type { UpstreamReply } from './provider.ts';
import type { AttemptContext } from './attempt-context.ts';

/** Always held: one read of a socket. More is taken from the budget. */
const MAX_CHUNK_BYTES = 65_536;
/** Limit for keep-alive comments before the first event. */
const MAX_COMMENT_BYTES = 1_048_576;
/** Interval at which a stream that waits for memory tries again. */
const WAIT_MS = 10;
/** As much of the idle limit as one wait for the client counts at most: a client that takes longer does not read. */
const COUNTED_PART = 0.1;
/** Time for the upstream to end its reply after `[DONE]`, so that its connection can be reused. */
const AFTER_DONE_MS = 5000;

/** Resolves to the stream when its first event with data was read; rejects with an error event, a timeout or an early end. */
export function openStream(reply: UpstreamReply, context: AttemptContext): Promise<ByteStream> {
  return new Promise((resolve, reject) => {
    const opening = { seen: new ChunkBuffer(), resolve, reject };
    reply.body.start(new Relay(reply, context, opening));
  });
}

interface Opening {
  /** Everything up to and including the first events with data. */
  readonly seen: ChunkBuffer;
  readonly resolve: (stream: ByteStream) => void;
  readonly reject: (failure: unknown) => void;
}

/** Takes the upstream's bytes, and is the client's stream once it has a first event. */
class Relay implements ByteSink, ByteStream {
  readonly #reply: UpstreamReply;
  readonly #context: AttemptContext;
  readonly #inspector: EventInspector;
  readonly #idleMs: number;
  /** Settles `openStream`; `undefined` once there are events with data. */
  #opening: Opening | undefined;
  /** The first events, until the client takes them. */
  #beginning: Inspection | undefined;
  #client: ByteSink | undefined;
  /** Nothing is passed on any more. */
  #isOver = false;
  #hasUpstreamEnded = false;
  /** A chunk waits for room in the budget, and the upstream for it. */
  #isWaiting = false;
  /** Set after a `[DONE]` whose last line feed may still come: ends the client's stream. */
  #endClient: ((next?: Buffer) => void) | undefined;

  /** While the stream waits for memory the gateway does not read: the provider is not to blame. */
  readonly #createTimeout = () =>
    this.#isWaiting
      ? noRoom()
      : timeoutError(this.#context.attempt.provider, { cause: `no event in ${this.#idleMs} ms` });

  constructor(reply: UpstreamReply, context: AttemptContext, opening: Opening) {
    this.#reply = reply;
    this.#context = context;
    this.#inspector = new EventInspector(context);
    this.#idleMs = context.services.config.server.streamIdleTimeoutMs;
    this.#opening = opening;
  }

  /** Takes a chunk from the upstream, or nothing if it has ended. What comes after the line of `[DONE]` is dropped. */
  write(chunk?: Buffer): boolean {
    this.#endClient?.(chunk);
    if (this.#isOver) return true;
    try {
      if (chunk && !this.#hasRoom(chunk)) return this.#waitForRoom(chunk);
      const found = chunk ? this.#inspector.push(chunk) : this.#inspector.finish();
      return this.#opening ? this.#open(found, this.#opening) : this.#pass(found);
    } catch (thrown) {
      this.#fail(thrown);
      return true;
    }
  }

  /** The upstream has ended. */
  end(error?: unknown): void {
    this.#hasUpstreamEnded = true;
    this.#endClient?.();
    if (this.#isOver) this.#context.deadline.abandon();
    else if (error) this.#fail(error);
    else this.write();
  }

  start(client: ByteSink): void {
    this.#client = client;
    try {
      if (this.#pass(this.#beginning!)) this.#reply.body.resume();
    } catch (thrown) {
      this.#fail(thrown);
    }
    this.#beginning = undefined;
  }

  resume(): void {
    if (this.#isOver || this.#isWaiting) return;
    this.#hold(0);
    this.#context.deadline.resume(this.#idleMs * COUNTED_PART);
    this.#reply.body.resume();
  }

  cancel(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#context.deadline.abandon();
  }

  /** Keeps what comes before and with the first data: the client's stream begins with it. */
  #open(found: Inspection, opening: Opening): boolean {
    const { passComments } = this.#context.call;
    if (found.passed.length > 0) opening.seen.push(found.passed);
    this.#hold(opening.seen.size);
    if (this.#inspector.hasData) {
      this.#opening = undefined;
      const seen = opening.seen.take();
      // Behind a comment, a byte order mark would be part of the name of a field.
      const start = passComments && seen.toString('latin1', 0, 3) === BYTE_ORDER_MARK ? 3 : 0;
      this.#beginning = { ...found, passed: seen.subarray(start) };
      this.#context.deadline.suspend();
      opening.resolve(this);
      return false;
    }
    if (found.error) throw found.error;
    const { isDone } = this.#inspector;
    if (opening.seen.size > MAX_COMMENT_BYTES) {
      throw this.#error('too many comments before the first event');
    }
    if (isDone || this.#hasUpstreamEnded) {
      const cause = `content-type: ${this.#reply.headers.get('content-type') ?? 'none'}`;
      throw this.#error('the stream ended before its first event', cause);
    }
    if (opening.seen.size > 0 && !this.#inspector.hasUsage) passComments?.(opening.seen);
    this.#hold(opening.seen.size);
    return true;
  }

  /** Passes events on to the client. Returns false if the upstream is to wait for it. */
  #pass({ passed, error }: Inspection): boolean {
    const { deadline } = this.#context;
    const { isDone, splitter } = this.#inspector;
    const hasRoom = passed.length === 0 || this.#client!.write(passed);
    if (passed.length > 0) this.#context.call.answerReservation.leaveQueue();
    this.#hold(passed.length);
    if (error || this.#hasUpstreamEnded || isDone) {
      const isComplete = isDone || this.#inspector.isFinished;
      const text = 'the stream ended before the answer was finished';
      this.#finish(error ?? (isComplete ? undefined : this.#error(text)));
      return true;
    }
    if (splitter.sawData) {
      this.#context.onData?.();
      // Only data restarts the idle limit.
      deadline.arm(this.#idleMs, this.#createTimeout);
    }
    if (!hasRoom) deadline.suspend();
    return hasRoom;
  }

  #fail(thrown: unknown): void {
    if (this.#opening) {
      this.#isOver = true;
      this.#opening.reject(thrown);
    } else if (thrown instanceof ClientGone) {
      this.cancel();
    } else {
      const { provider } = this.#context.attempt;
      const failure = upstreamFailure(thrown, provider);
      this.#finish(GatewayError.from(failure));
    }
  }

  /** Ends the client's stream, and the upstream's. */
  #finish(failure: GatewayError | undefined): void {
    const { call, deadline, onStreamEnd } = this.#context;
    const client = this.#client!;
    this.#isOver = true;
    call.answerReservation.leaveQueue();
    if (!failure && !this.#inspector.isDone) client.write(encodeEvent('[DONE]'));
    const awaitsEnd = !failure && !this.#hasUpstreamEnded;
    if (awaitsEnd) deadline.arm(AFTER_DONE_MS, this.#createTimeout);
    else if (this.#hasUpstreamEnded) deadline.stop();
    else deadline.abandon();
    onStreamEnd(failure);
    if (failure) client.write(encodeEvent(failure.toBody()));
    if (this.#inspector.isEndOpen) {
      call.isDelivered = true;
      this.#endClient = endAtLineFeed(client);
    } else client.end();
  }

  /** Reserves what is held once the chunk has been taken. Throws `rateLimit` for an event that can never fit. */
  #hasRoom(chunk: Buffer): boolean {
    const reservation = this.#context.call.answerReservation;
    const seenBytes = this.#opening?.seen.size ?? 0;
    const heldBytes = seenBytes + this.#inspector.splitter.unfinished.size + chunk.length;
    if (heldBytes <= MAX_CHUNK_BYTES || reservation.tryGrow(heldBytes)) return true;
    if (heldBytes > reservation.budget.limits.maxBufferedBytes) throw noRoom();
    return false;
  }

  /** Pauses the upstream, and tries again every 10 ms: the idle limit or the client's leaving ends the wait. */
  #waitForRoom(chunk: Buffer): false {
    const { call, deadline } = this.#context;
    const endWait = call.answerReservation.wait();
    this.#isWaiting = true;
    setTimeout(() => {
      this.#isWaiting = false;
      endWait();
      // The reason of the deadline comes with the end of the body.
      if (deadline.reason || this.write(chunk)) this.#reply.body.resume();
    }, WAIT_MS);
    return false;
  }

  /**
   * Frees what is no longer held. What came of the next event with the end of the last one is not counted yet: streams
   * that wait would take with it the room that is kept for one event. A blank line that was added may find no room, and
   * needs none.
   */
  #hold(bytes: number): void {
    const heldBytes = bytes + this.#inspector.splitter.unfinished.size;
    const isCounted = heldBytes > 2 * MAX_CHUNK_BYTES;
    this.#context.call.answerReservation.tryResize(isCounted ? heldBytes : 0);
  }

  #error(text: string, cause?: string): GatewayError {
    return providerError(this.#context.attempt.provider, text, cause);
  }
}
