/**
 * Relays a stream whose answer has begun, from its delivery on. Every event passes byte for byte,
 * except those that the gateway itself has asked for. A finished stream gets its last blank line
 * and `[DONE]` added if they are missing.
 */

import { type ChunkBuffer, lengthOf, withoutMark } from '../../lib/chunk-buffer.ts';
import { GatewayError } from '../../lib/errors.ts';
import { encodeEvent } from '../../lib/sse.ts';
import type { Answer, AnswerSink, AttemptContext } from './attempt-context.ts';
import type { EventInflow, StreamPhase } from './event-inflow.ts';
import { NO_BYTES, type PassedEvents } from './event-reader.ts';
import { endAtLineFeed } from './line-feed.ts';
import { timeoutError } from '../connections/network-error.ts';

/**
 * How much of the idle limit a single wait for the client may use up. A wait counts at all because
 * a provider that sends only comments must reach the limit, even if its client often pauses.
 */
const COUNTED_PART = 0.1;
/** The time for the provider to end its response, so that its connection can be reused. */
const AFTER_DONE_MS = 5000;
/** A provider may give up a stream that was not read for this long. */
const LONG_PAUSE_MS = 10_000;

export interface StreamBeginning {
  readonly headers: Record<string, string>;
  readonly bytes: ChunkBuffer;
  /** True if `bytes` has a long event, whose parts are not joined because joining copies them. */
  hasLongEvent: boolean;
  error: GatewayError | undefined;
}

export class StreamRelay implements StreamPhase, Answer {
  readonly heldBytes = 0;
  readonly #inflow: EventInflow;
  /** Undefined from the delivery on. */
  #beginning: StreamBeginning | undefined;
  readonly #context: AttemptContext;
  readonly #idleMs: number;
  /** The same object as `context.call.reply`, which takes only comments before the delivery. */
  #reply!: AnswerSink;
  #onData: (() => void) | undefined;
  #resolve!: () => void;
  #reject!: (failure: unknown) => void;
  #longPauseEndedAtMs = -Infinity;

  /** A field, because a closure of `deliver` would keep the first bytes until the stream's end. */
  readonly #onRoom = () => this.#resume();
  readonly #createTimeout = () =>
    timeoutError({
      cause: `no event in ${this.#idleMs} ms`,
      silentMs: this.#idleMs,
    });

  constructor(inflow: EventInflow, beginning: StreamBeginning, context: AttemptContext) {
    this.#inflow = inflow;
    this.#beginning = beginning;
    this.#context = context;
    this.#idleMs = context.services.config.server.streamIdleTimeoutMs;
  }

  /** Sends the head and the bytes so far, and reads on. Resolves at the stream's end. */
  deliver(reply: AnswerSink, onData?: () => void): Promise<void> {
    const { bytes, error, hasLongEvent, headers } = this.#beginning!;
    this.#beginning = undefined;
    this.#reply = reply;
    this.#onData = onData;
    const parts = hasLongEvent ? bytes.takeParts() : [bytes.take()];
    const before = reply.headersSent ? withoutMark(parts) : parts;
    reply.beginStream(this.#context.attempt.status!, headers);
    reply.onRoom = this.#onRoom;
    return new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
      this.#inflow.enter(this);
      try {
        if (this.take({ before, toPass: NO_BYTES, ...(error && { error }) })) this.#inflow.resume();
      } catch (thrown) {
        this.#inflow.fail(thrown);
      }
    });
  }

  /** Returns false if the client has no room for more. */
  take({ before, toPass, error }: PassedEvents): boolean {
    const { deadline } = this.#context;
    const { isAlive, isDone, rules } = this.#inflow.reader;
    const bytesBefore = before ? this.#writeParts(before) : 0;
    const hasRoom = this.#reply.write(toPass);
    this.#inflow.notePassed(bytesBefore + toPass.length);
    if (error && !isDone) throw error;
    if (isDone || this.#inflow.hasEnded) {
      if (!isDone && !rules.isFinished) {
        const text = 'the stream ended before the answer was finished';
        throw new GatewayError('provider', text, { problem: 'cut' });
      }
      this.#end(error);
      return true;
    }
    if (isAlive) {
      this.#onData?.();
      // Comments and heartbeats do not restart the idle limit.
      deadline.arm(this.#idleMs, this.#createTimeout);
      this.#inflow.hasWaited = false;
    }
    // While the client does not read, the provider's silence counts only in part: `#resume` passes
    // the part that counts to `Deadline.resume`.
    if (!hasRoom) deadline.suspend();
    return hasRoom;
  }

  #writeParts(parts: readonly Buffer[]): number {
    for (const part of parts) this.#reply.write(part);
    return lengthOf(parts);
  }

  #resume(): void {
    if (!this.#inflow.isReadable) return;
    this.#inflow.updateRoom(0);
    const { deadline } = this.#context;
    if (deadline.suspendedMs >= LONG_PAUSE_MS) this.#longPauseEndedAtMs = performance.now();
    deadline.resume(this.#idleMs * COUNTED_PART);
    this.#inflow.resume();
  }

  /**
   * Leaves the provider some time to end its response. With `failure` the stream's own last event
   * has told the client of it.
   */
  #end(failure: GatewayError | undefined): void {
    const reply = this.#reply;
    const { deadline } = this.#context;
    const { isDone, isEndOpen } = this.#inflow.reader;
    this.#inflow.dropRest();
    if (!isDone) reply.write(encodeEvent('[DONE]'));
    if (this.#inflow.hasEnded) deadline.stop();
    else deadline.arm(AFTER_DONE_MS, this.#createTimeout);
    if (isEndOpen && !failure) {
      reply.mayClientLeave = true;
      this.#inflow.onLate = endAtLineFeed(reply);
    } else reply.end();
    if (failure) this.#reject(failure);
    else this.#resolve();
  }

  /** A cut after a long pause is the gateway's own failure, because the client did not read. */
  fail(failure: unknown): void {
    const { deadline } = this.#context;
    const isCut = failure instanceof GatewayError && failure.details.problem === 'cut';
    const isAfterPause = performance.now() - this.#longPauseEndedAtMs < LONG_PAUSE_MS;
    if (!isCut || (deadline.suspendedMs < LONG_PAUSE_MS && !isAfterPause)) {
      return this.#reject(failure);
    }
    const text = 'The answer was cut off, because the client did not read it';
    this.#reject(new GatewayError('internal', text, { cause: 'the provider gave up' }));
  }
}
