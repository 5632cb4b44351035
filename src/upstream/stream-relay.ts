/**
 * Relays a streamed completion.
 *
 * The answer begins with the first event that is not a preamble. Until then the client gets
 * nothing, except that comments pass if the gateway's own comment has already begun the stream.
 * From the answer's beginning to its delivery the provider is paused.
 *
 * Every event passes byte for byte, except usage chunks requested by the gateway itself. A finished
 * stream gets its last blank line and `[DONE]` added if they are missing.
 */

import { noRoom } from '../lib/byte-budget.ts';
import type { ByteSink, ByteSource } from '../lib/byte-source.ts';
import { ChunkBuffer, lengthOf, withoutMark } from '../lib/chunk-buffer.ts';
import { type ErrorDetails, GatewayError } from '../lib/errors.ts';
import { EventRoom } from '../lib/event-room.ts';
import { encodeEvent } from '../lib/sse.ts';
import { beginsJson, firstByteOf } from '../openai/answer-json.ts';
import type { Answer, AnswerSink, AttemptContext } from './attempt-context.ts';
import { failureOfCompletion, noStreaming } from './completion.ts';
import { EventReader, NO_BYTES, type PassedEvents } from './event-reader.ts';
import { endAtLineFeed } from './line-feed.ts';
import {
  emptyAnswerError,
  MAX_BYTES,
  providerError,
  timeoutError,
  tooLargeError,
  upstreamFailure,
} from './network-error.ts';

/** A stream may hold this many bytes without reserving memory: the size of a socket's read. */
const MAX_CHUNK_BYTES = 65_536;
/** The most bytes of preambles and comments before the first token. */
const MAX_PREAMBLE_BYTES = 1_048_576;
const EVENT_END = Buffer.from('\n\n');
/** How often a stream waiting for memory tries again. */
const WAIT_MS = 10;
/**
 * How much of the idle limit a single wait for the client may use up. A wait counts at all because
 * a provider that sends only comments must reach the limit, even if its client often pauses.
 */
const COUNTED_PART = 0.1;
/**
 * How long the provider has after `[DONE]` to end its response, so that its connection can be
 * reused.
 */
const AFTER_DONE_MS = 5000;

/**
 * Reads a stream up to its first token, and resolves with the answer. Rejects after an error event,
 * a cut, a time limit or the client's disconnect.
 *
 * @param headers - sent to the client with the answer
 */
export function openStream(
  body: ByteSource,
  headers: Record<string, string>,
  context: AttemptContext,
): Promise<Answer> {
  return new StreamRelay(body, headers, context).open();
}

/**
 * A provider may give up a stream that was not read for this long. A cut within this time after the
 * pause does not count against the provider.
 */
const LONG_PAUSE_MS = 10_000;

/** Settles the promise of `open`. From the delivery on it settles the promise of `deliver`. */
interface Settle {
  readonly resolve: () => void;
  readonly reject: (failure: unknown) => void;
}

/** Takes the provider's bytes, and writes them to the client from the delivery on. */
class StreamRelay implements ByteSink, Answer {
  readonly #body: ByteSource;
  /** Headers for the client; undefined from the delivery on. */
  #headers: Record<string, string> | undefined;
  readonly #context: AttemptContext;
  #settle!: Settle;
  readonly #room: EventRoom;
  readonly #reader: EventReader;
  readonly #idleMs: number;
  /** Bytes received before the delivery; undefined from then on. */
  #seen: ChunkBuffer | undefined = new ChunkBuffer();
  /**
   * The events at the first token; undefined before the token and from the delivery on. Their bytes
   * are in `#seen` too.
   */
  #first: PassedEvents | undefined;
  /**
   * The client's response, set by the delivery. It is the same object as `context.call.reply`,
   * which takes only comments before the delivery.
   */
  #reply!: AnswerSink;
  #onData: (() => void) | undefined;
  /** When the client's latest long pause ended, on the clock of `performance.now()`. */
  #longPauseEndedAtMs = -Infinity;
  /** The answer's first byte after white space. */
  #firstByte: number | undefined;
  /** True once nothing more is passed on. */
  #isOver = false;
  #hasUpstreamEnded = false;
  /** True while a chunk waits for room in the memory budget. The provider is paused then. */
  #isWaiting = false;
  /** True if a chunk has waited for room since the time limit was armed. */
  #hasWaited = false;
  /** Ends the client's stream. Set after `[DONE]` while its last line feed may still arrive. */
  #endClient: ((next?: Buffer) => void) | undefined;

  /** A field, because a closure of `deliver` would keep the first bytes until the stream's end. */
  readonly #onRoom = () => this.#resume();
  readonly #createTimeout = () =>
    timeoutError(this.#context.attempt.provider, { cause: `no event in ${this.#idleMs} ms` });

  constructor(body: ByteSource, headers: Record<string, string>, context: AttemptContext) {
    this.#body = body;
    this.#headers = headers;
    this.#context = context;
    this.#room = new EventRoom(context.call.budget);
    context.call.answerMemory = this.#room;
    this.#reader = new EventReader(context);
    this.#idleMs = context.services.config.server.streamIdleTimeoutMs;
  }

  /** Reads the stream up to its first token. */
  open(): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.#settle = { resolve: () => resolve(this), reject };
      this.#body.start(this);
    });
  }

  /** Sends the head and the bytes so far, and reads on. Resolves at the stream's end. */
  deliver(reply: AnswerSink, onData?: () => void): Promise<void> {
    const seen = this.#seen!;
    const headers = this.#headers!;
    const { before, error } = this.#first!;
    this.#seen = this.#headers = this.#first = undefined;
    this.#reply = reply;
    this.#onData = onData;
    // `before` has the parts of a long event, which are not joined, because joining copies them.
    const parts = before ? seen.takeParts() : [seen.take()];
    const first = reply.headersSent ? withoutMark(parts) : parts;
    reply.beginStream(this.#context.attempt.status!, headers);
    reply.onRoom = this.#onRoom;
    return new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
      try {
        const isRoomLeft = this.#pass({ before: first, toPass: NO_BYTES, error });
        if (isRoomLeft) this.#body.resume();
      } catch (thrown) {
        this.#fail(thrown);
      }
    });
  }

  /**
   * Takes a chunk from the provider, and returns false if the provider should pause. Bytes after
   * the `[DONE]` line are dropped.
   */
  write(chunk: Buffer): boolean {
    this.#endClient?.(chunk);
    if (this.#isOver) return true;
    try {
      if (!this.#reserveFor(chunk)) return this.#waitForRoom(chunk);
      this.#firstByte ??= firstByteOf(chunk);
      return this.#take(this.#reader.push(chunk));
    } catch (thrown) {
      this.#fail(thrown);
      return true;
    }
  }

  /** Takes the end of the provider's response, with an error if it broke off. */
  end(error?: unknown): void {
    this.#hasUpstreamEnded = true;
    this.#endClient?.();
    if (this.#isOver) return this.#context.deadline.abandon();
    try {
      if (error) throw upstreamFailure(error, this.#context.attempt.provider);
      this.#throwIfCompletion();
      this.#take(this.#reader.finish());
    } catch (thrown) {
      this.#fail(thrown);
    }
  }

  /**
   * Throws if the provider has sent a completion, or an error as JSON, in place of a stream. The
   * content type is ignored.
   */
  #throwIfCompletion(): void {
    if (!this.#seen || !beginsJson(this.#firstByte)) return;
    const parts = [...this.#seen.parts, ...this.#reader.splitter.unfinished.parts];
    const failure = failureOfCompletion(parts, this.#context);
    if (failure) throw failure;
  }

  /**
   * Throws for a response that is too long to hold and is not a stream: `unsupported` if it begins
   * as JSON, `provider` if it is only white space.
   */
  #throwIfNoStream(): void {
    if (beginsJson(this.#firstByte)) throw noStreaming(this.#context.attempt.provider);
    if (this.#firstByte === undefined) throw this.#error('too much before the first token');
  }

  /**
   * Holds events up to the first token, or passes them on after the delivery. Returns
   * false if the provider should pause.
   */
  #take(found: PassedEvents): boolean {
    const seen = this.#seen;
    if (!seen) return this.#pass(found);
    if (found.before) for (const part of found.before) seen.push(part);
    if (found.toPass.length > 0) seen.push(found.toPass);
    this.#updateRoom(seen.size);
    if (!this.#reader.hasBegun) {
      if (found.error) throw found.error;
      this.#reader.hasBegun = this.#isPreambleOver(seen.size);
      if (!this.#mayBeginEmpty() && !this.#reader.hasBegun) {
        this.#passComments(seen);
        return true;
      }
    }
    this.#first = found;
    this.#settle.resolve();
    return false;
  }

  /**
   * Returns whether a stream without content has ended as a complete, empty answer and may begin.
   * Throws if `empty_answers` forbids it, or if the stream has ended without an answer.
   */
  #mayBeginEmpty(): boolean {
    const { attempt, services } = this.#context;
    const { hasOtherLines, isDone, rules } = this.#reader;
    if (!isDone && !this.#hasUpstreamEnded) return false;
    if (rules.hasAnswer && (isDone || rules.isFinished)) {
      if (services.config.server.emptyAnswers === 'pass') return true;
      throw emptyAnswerError(attempt.provider);
    }
    const cause = `content-type: ${attempt.headers?.get('content-type') ?? 'none'}`;
    const isStream = isDone || !hasOtherLines;
    if (!isStream) throw this.#error('the answer was no stream of events', { cause });
    throw this.#error('the stream ended before its first token', { cause, problem: 'cut' });
  }

  /**
   * Returns whether the preambles are too long to hold, so that the answer begins with them: OpenAI
   * repeats the instructions of a response in three of them. Throws for bytes that are no events.
   */
  #isPreambleOver(seenBytes: number): boolean {
    const { hasOtherLines, hasPreamble, splitter } = this.#reader;
    if (seenBytes + splitter.unfinished.size > MAX_PREAMBLE_BYTES) this.#throwIfNoStream();
    if (seenBytes <= MAX_PREAMBLE_BYTES) return false;
    if (hasOtherLines || !hasPreamble) throw this.#error('too much before the first token');
    return true;
  }

  /**
   * Passes comments on if the gateway's own comment has already begun the client's stream. A
   * preamble is held back, because another provider may still be asked.
   */
  #passComments(seen: ChunkBuffer): void {
    const { reply } = this.#context.call;
    const { hasOtherLines, hasPreamble } = this.#reader;
    if (hasOtherLines || hasPreamble || !reply.headersSent || !reply.hasRoom) return;
    for (const part of withoutMark([seen.take()])) reply.write(part);
    this.#updateRoom(0);
  }

  /** Writes events to the client. Returns false if the client has no room for more. */
  #pass({ before, toPass, error }: PassedEvents): boolean {
    const { deadline } = this.#context;
    const { isAlive, isDone, rules } = this.#reader;
    const bytesBefore = before ? this.#writeParts(before) : 0;
    const hasRoom = this.#reply.write(toPass);
    const bytes = bytesBefore + toPass.length;
    if (bytes > 0) this.#room.leaveQueue();
    this.#updateRoom(bytes);
    if (error && !isDone) throw error;
    if (isDone || this.#hasUpstreamEnded) {
      if (!isDone && !rules.isFinished) {
        throw this.#error('the stream ended before the answer was finished', { problem: 'cut' });
      }
      this.#finish(error);
      return true;
    }
    if (isAlive) {
      this.#onData?.();
      // Comments and heartbeats do not restart the idle limit.
      deadline.arm(this.#idleMs, this.#createTimeout);
      this.#hasWaited = false;
    }
    // While the client does not read, the provider's silence counts only in part: `#resume` passes
    // the part that counts to `Deadline.resume`.
    if (!hasRoom) deadline.suspend();
    return hasRoom;
  }

  /** Writes the parts, and returns their length in bytes. */
  #writeParts(parts: readonly Buffer[]): number {
    for (const part of parts) this.#reply.write(part);
    return lengthOf(parts);
  }

  /** Reads on after the client has taken the written bytes. */
  #resume(): void {
    if (this.#isOver || this.#isWaiting) return;
    this.#updateRoom(0);
    const { deadline } = this.#context;
    if (deadline.suspendedMs >= LONG_PAUSE_MS) this.#longPauseEndedAtMs = performance.now();
    deadline.resume(this.#idleMs * COUNTED_PART);
    this.#body.resume();
  }

  /**
   * Ends the client's stream, and leaves the provider some time to end its response. With `failure`
   * the stream's own last event has told the client of it.
   */
  #finish(failure: GatewayError | undefined): void {
    const reply = this.#reply;
    const { deadline } = this.#context;
    const { isDone, isEndOpen } = this.#reader;
    this.#isOver = true;
    if (!isDone) reply.write(encodeEvent('[DONE]'));
    if (this.#hasUpstreamEnded) deadline.stop();
    else deadline.arm(AFTER_DONE_MS, this.#createTimeout);
    if (isEndOpen && !failure) {
      reply.mayClientLeave = true;
      this.#endClient = endAtLineFeed(reply);
    } else reply.end();
    if (failure) this.#settle.reject(failure);
    else this.#settle.resolve();
  }

  /** Ends the relay with a failure. */
  #fail(thrown: unknown): void {
    this.#isOver = true;
    // The blank line ends a partly passed event, so that the error event stands alone.
    if (this.#reader.isEventPassed) this.#context.call.reply.write(EVENT_END);
    this.#room.leaveQueue();
    this.#settle.reject(thrown instanceof GatewayError ? this.#withCulprit(thrown) : thrown);
  }

  /**
   * Returns the stream's failure, or the gateway's own if the provider was not read, because the
   * gateway waited for memory or the client did not read.
   */
  #withCulprit(failure: GatewayError): GatewayError {
    const isCut = failure.details.problem === 'cut';
    if (this.#hasWaited && (isCut || failure.kind === 'timeout')) return noRoom();
    const { deadline } = this.#context;
    const isAfterPause = performance.now() - this.#longPauseEndedAtMs < LONG_PAUSE_MS;
    if (!isCut || (deadline.suspendedMs < LONG_PAUSE_MS && !isAfterPause)) return failure;
    const text = 'The answer was cut off, because the client did not read it';
    return new GatewayError('internal', text, { cause: 'the provider gave up' });
  }

  /**
   * Reserves memory for all held bytes with this chunk. Returns false if there is no room now.
   * Throws `internal` for an event that can never fit.
   */
  #reserveFor(chunk: Buffer): boolean {
    const seenBytes = this.#seen?.size ?? 0;
    const heldBytes = seenBytes + this.#reader.splitter.unfinished.size + chunk.length;
    if (heldBytes <= MAX_CHUNK_BYTES) return true;
    const { maxBufferedBytes } = this.#context.call.budget.limits;
    // The chunk may also contain the next event's beginning.
    if (heldBytes > Math.min(MAX_BYTES.event + MAX_CHUNK_BYTES, maxBufferedBytes)) {
      throw tooLargeError('event', maxBufferedBytes);
    }
    return this.#room.tryGrow(heldBytes);
  }

  /**
   * Pauses the provider, and tries again every 10 ms until the idle limit passes or the client
   * leaves. If no other request will free memory, passes the held part of the event on, because the
   * stream would fail otherwise.
   */
  #waitForRoom(chunk: Buffer): boolean {
    if (this.#room.isStuck) {
      this.#throwIfNoStream();
      return this.#take(this.#reader.pushUnfinished(chunk));
    }
    this.#room.wait();
    this.#isWaiting = this.#hasWaited = true;
    setTimeout(() => {
      this.#isWaiting = false;
      this.#room.endWait();
      if (this.write(chunk)) this.#body.resume();
    }, WAIT_MS);
    return false;
  }

  /**
   * Sets the reserved memory to the bytes still held: `bytes` and the unfinished event. Up to two
   * socket reads are held without a reservation. Otherwise the beginnings of many streams' next
   * events would fill the memory that `EventRoom` keeps for one whole event.
   */
  #updateRoom(bytes: number): void {
    const heldBytes = bytes + this.#reader.splitter.unfinished.size;
    const isCounted = heldBytes > 2 * MAX_CHUNK_BYTES;
    this.#room.tryResize(isCounted ? heldBytes : 0);
  }

  #error(text: string, details?: ErrorDetails): GatewayError {
    return providerError(this.#context.attempt.provider, text, details);
  }
}
