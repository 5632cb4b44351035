/**
 * Takes a stream's chunks from the provider: reserves memory for them, reads their events, and
 * hands the events to the current phase. This is `StreamOpening` at first, and `StreamRelay` from
 * the delivery on.
 */

import { noRoom } from '../../lib/memory/byte-budget.ts';
import type { ByteSink, ByteSource } from '../../lib/memory/byte-source.ts';
import { GatewayError } from '../../lib/errors.ts';
import { EventRoom } from '../../lib/memory/event-room.ts';
import { MAX_BYTES, tooLargeError } from './answer-errors.ts';
import type { AttemptContext } from './attempt-context.ts';
import { EventReader, type PassedEvents } from './event-reader.ts';
import { upstreamFailure } from '../connections/network-error.ts';

/** A stream may hold this much without reserving memory: the size of a socket's read. */
const MAX_CHUNK_BYTES = 65_536;
const EVENT_END = Buffer.from('\n\n');
/** How often a chunk that waits for room is tried again. */
const ROOM_CHECK_EVERY_MS = 10;

/** Takes a stream's events during one phase. Every method but `fail` may throw a failure. */
export interface StreamPhase {
  /** Without the bytes of the unfinished event. */
  readonly heldBytes: number;
  /** Returns false if the provider should pause. */
  take(events: PassedEvents): boolean;
  /**
   * Throws if the response is not a stream. Called before its last events, with `hasEnded`, and
   * before part of an event is passed on.
   */
  checkKind?(hasEnded: boolean): void;
  fail(failure: unknown): void;
}

export class EventInflow implements ByteSink {
  readonly reader: EventReader;
  /** True once the response has ended, also if the last event is missing. */
  hasEnded = false;
  /** True if a chunk has waited for room since the phase has set it to false. */
  hasWaited = false;
  /** Called behind the stream's end: with each chunk, and without one at the response's end. */
  onLate: ((chunk?: Buffer) => void) | undefined;
  /** Undefined once the stream has ended. Further bytes are dropped. */
  #phase: StreamPhase | undefined;
  /** True while a chunk waits for room in the memory budget. */
  #isWaiting = false;
  readonly #body: ByteSource;
  readonly #context: AttemptContext;
  readonly #room: EventRoom;

  constructor(body: ByteSource, context: AttemptContext) {
    this.#body = body;
    this.#context = context;
    this.#room = new EventRoom(context.call.budget);
    context.call.answerMemory = this.#room;
    this.reader = new EventReader(context);
  }

  start(phase: StreamPhase): void {
    this.#phase = phase;
    this.#body.start(this);
  }

  enter(phase: StreamPhase): void {
    this.#phase = phase;
  }

  /** Ends the stream. The rest of the response is read for `onLate` alone. */
  dropRest(): void {
    this.#phase = undefined;
  }

  fail(thrown: unknown): void {
    const phase = this.#phase;
    this.#phase = undefined;
    // The blank line ends a partly passed event, so that the error event stands alone.
    if (this.reader.isEventPassed) this.#context.call.reply.write(EVENT_END);
    this.#room.leaveQueue();
    // The provider was not read, because the gateway waited for memory.
    const isOfWait =
      this.hasWaited &&
      thrown instanceof GatewayError &&
      (thrown.details.problem === 'cut' || thrown.kind === 'timeout');
    phase?.fail(isOfWait ? noRoom() : thrown);
  }

  /** Reads on after a pause, also behind the stream's end. */
  resume(): void {
    this.#body.resume();
  }

  /** True if the stream goes on and its next chunk does not wait for room. */
  get isReadable(): boolean {
    return this.#phase !== undefined && !this.#isWaiting;
  }

  write(chunk: Buffer): boolean {
    if (!this.#phase) {
      this.onLate?.(chunk);
      return true;
    }
    try {
      if (!this.#reserveFor(chunk, this.#phase)) return this.#waitForRoom(chunk, this.#phase);
      return this.#phase.take(this.reader.push(chunk));
    } catch (thrown) {
      this.fail(thrown);
      return true;
    }
  }

  end(error?: unknown): void {
    this.hasEnded = true;
    if (!this.#phase) {
      this.onLate?.();
      return this.#context.deadline.abandon();
    }
    try {
      if (error) throw upstreamFailure(error);
      this.#phase.checkKind?.(true);
      this.#phase.take(this.reader.finish());
    } catch (thrown) {
      this.fail(thrown);
    }
  }

  /**
   * Lets other streams have the turn for memory, if this stream's bytes have passed. The bytes
   * still count until the client has room for more.
   */
  notePassed(bytes: number): void {
    if (bytes > 0) this.#room.leaveQueue();
    this.updateRoom(bytes);
  }

  /**
   * Sets the reserved memory to the bytes still held: `bytes` and the unfinished event. Up to two
   * socket reads are held without a reservation. Otherwise the beginnings of many streams' next
   * events would fill the memory that `EventRoom` keeps for one whole event.
   */
  updateRoom(bytes: number): void {
    const heldBytes = bytes + this.reader.splitter.unfinished.size;
    const isCounted = heldBytes > 2 * MAX_CHUNK_BYTES;
    this.#room.tryResize(isCounted ? heldBytes : 0);
  }

  /** Returns false if there is no room now. Throws `internal` for an event that can never fit. */
  #reserveFor(chunk: Buffer, phase: StreamPhase): boolean {
    const heldBytes = phase.heldBytes + this.reader.splitter.unfinished.size + chunk.length;
    if (heldBytes <= MAX_CHUNK_BYTES) return true;
    const { maxBufferedBytes } = this.#context.call.budget.limits;
    // The chunk may also contain the next event's beginning.
    if (heldBytes > Math.min(MAX_BYTES.event + MAX_CHUNK_BYTES, maxBufferedBytes)) {
      throw tooLargeError('event', maxBufferedBytes);
    }
    return this.#room.tryGrow(heldBytes);
  }

  /**
   * Tries again until the idle limit passes or the client leaves. If no other request will free
   * memory, passes the held part of the event on, because the stream would fail otherwise.
   */
  #waitForRoom(chunk: Buffer, phase: StreamPhase): boolean {
    if (this.#room.isStuck) {
      phase.checkKind?.(false);
      return phase.take(this.reader.pushUnfinished(chunk));
    }
    this.#room.wait();
    this.#isWaiting = this.hasWaited = true;
    setTimeout(() => {
      this.#isWaiting = false;
      this.#room.endWait();
      if (this.write(chunk)) this.#body.resume();
    }, ROOM_CHECK_EVERY_MS);
    return false;
  }
}
