/**
 * A streamed completion, relayed event by event. Its promise: nothing is sent before the first event
 * with data is in hand, every event passes byte for byte, and the end tells the truth: a stream that
 * did not finish ends in the documented error event and never in `[DONE]`.
 */

import type { Deadline } from '../lib/cancellation.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import { OPEN_BRACKET, QUOTE } from '../lib/ascii.ts';
import type { Reservation } from '../lib/byte-budget.ts';
import { isJson } from '../lib/json-scanner.ts';
import { parseUntrustedJson } from '../lib/untrusted-json.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import type { UpstreamFault } from './provider.ts';
import {
  CARRIAGE_RETURN,
  encodeEvent,
  EventSplitter,
  LINE_FEED,
  parseEvents,
  type ServerSentEvent,
} from '../lib/sse.ts';
import { timeoutError, upstreamFailure } from './network-error.ts';

/** What a stream may hold while an event is incomplete; images in deltas take megabytes. */
const MAX_EVENT_BYTES = 16_777_216;
/** So much of a stream is always held: one read of a socket. More is taken from the budget. */
const MAX_CHUNK_BYTES = 65_536;
/** Keep-alive comments that may come before the first event; an upstream that sends more is not answering. */
const MAX_COMMENT_BYTES = 1_048_576;
/** After `[DONE]` the upstream may have bytes left, but not keep the client waiting. */
const AFTER_DONE_MS = 5000;
const NOTHING = Buffer.alloc(0);

interface StreamOptions {
  readonly provider: string;
  readonly deadline: Deadline;
  readonly idleMs: number;
  /** The memory that the events take while they are incomplete, or being written. */
  readonly reservation: Reservation;
  /** The fault that an event's JSON tells of, if any. */
  readonly readFault: (json: unknown) => UpstreamFault | undefined;
  /** The error that such a fault becomes. */
  readonly toError: (fault: UpstreamFault) => GatewayError;
  /** Called when a stream that has begun does not end well. */
  readonly onFailure: (failure: GatewayError) => void;
}

/**
 * Waits for the first event with data and returns the stream from its first byte on.
 * Until it resolves nothing is committed: it throws the upstream's error event, timeout or early end
 * as a `GatewayError`, and another provider may still answer.
 */
export async function openStream(
  body: AsyncIterator<Buffer>,
  options: StreamOptions,
): Promise<AsyncIterable<Buffer>> {
  const relay = new Relay(body, options);
  try {
    const beginning = await relay.readBeginning();
    options.deadline.disarm();
    return relay.events(beginning);
  } catch (error) {
    throw upstreamFailure(error, { provider: options.provider, answered: true });
  }
}

/** What was found in a run of whole events. */
interface Inspection {
  /** What to pass on: everything, or what came before the error. */
  readonly passed: Buffer;
  readonly error?: GatewayError;
  readonly hasData: boolean;
}

class Relay {
  readonly #body: AsyncIterator<Buffer>;
  readonly #options: StreamOptions;
  readonly #splitter = new EventSplitter();
  /** A `finish_reason` was seen: the model had said all it wanted. */
  #isFinished = false;
  /** Nothing has been passed on. */
  #isAtStart = true;
  /** `[DONE]` was seen: whatever happens now, the answer is complete. */
  #isDone = false;
  /** The upstream left out the blank line after its last event. */
  #isMidLine = false;

  readonly #createTimeout = () => timeoutError(this.#options.provider);

  constructor(body: AsyncIterator<Buffer>, options: StreamOptions) {
    this.#body = body;
    this.#options = options;
  }

  /** Everything up to and including the first events with data. */
  async readBeginning(): Promise<Inspection> {
    const seen = new ChunkBuffer();
    for (;;) {
      const { done: hasEnded, value: chunk } = await this.#body.next();
      const found = hasEnded
        ? this.#inspectTail()
        : this.#inspect(this.#splitter.push(chunk), true);
      if (found.passed.length > 0) {
        seen.push(found.passed);
        this.#isAtStart = false;
      }
      this.#hold(seen.size);
      if (found.hasData) return { ...found, passed: seen.take() };
      if (found.error) throw found.error;
      if (hasEnded || seen.size > MAX_COMMENT_BYTES) {
        throw this.#failed('the stream ended before its first event');
      }
    }
  }

  /** The stream as the client gets it. Never throws. */
  async *events(beginning: Inspection): AsyncGenerator<Buffer> {
    const { deadline, onFailure } = this.#options;
    let failure = beginning.error;
    let hasEnded = false;
    try {
      yield beginning.passed;
      this.#armIdleLimit();
      while (!failure && !hasEnded) {
        const { done, value: chunk } = await this.#body.next();
        hasEnded = done === true;
        const found = done ? this.#inspectTail() : this.#inspect(this.#splitter.push(chunk));
        // Not while the client is being waited for, and not for comments alone.
        const isProgress = this.#splitter.sawData;
        if (isProgress) deadline.disarm();
        this.#hold(found.passed.length);
        if (found.passed.length > 0) yield found.passed;
        failure = found.error ?? (hasEnded ? this.#endFailure() : undefined);
        if (isProgress) this.#armIdleLimit();
      }
      if (!failure && !this.#isDone) yield this.#onFreshLine('[DONE]');
    } catch (thrown) {
      // Nobody is there to be told, or everything had been said.
      if (thrown instanceof ClientGone || this.#isDone) return;
      const { provider } = this.#options;
      failure = GatewayError.from(upstreamFailure(thrown, { provider, answered: true }));
    } finally {
      deadline.end({ abandon: !hasEnded });
    }
    if (!failure) return;
    onFailure(failure);
    yield this.#onFreshLine(failure.toBody());
  }

  /** Reserves what is held: these bytes, and the unfinished event. */
  #hold(bytes: number): void {
    const heldBytes = bytes + this.#splitter.heldBytes;
    this.#options.reservation.resize(heldBytes > MAX_CHUNK_BYTES ? heldBytes : 0);
  }

  #armIdleLimit(): void {
    const { deadline, idleMs } = this.#options;
    deadline.arm(this.#isDone ? AFTER_DONE_MS : idleMs, this.#createTimeout);
  }

  /** An event of the gateway's own, also after a line that the upstream never ended. */
  #onFreshLine(data: string): Buffer {
    const event = encodeEvent(data);
    return this.#isMidLine ? Buffer.concat([Buffer.from('\n\n'), event]) : event;
  }

  /** Looks for what the relay acts on. Only runs with a telltale word are taken apart, and the beginning. */
  #inspect(events: Buffer, isBeginning = false): Inspection {
    if (this.#splitter.heldBytes > MAX_EVENT_BYTES) throw this.#failed('an event is too large');
    // Nothing counts that comes after it.
    if (this.#isDone) return { passed: events, hasData: true };
    const { isFinished, isSuspicious } = findTelltales(events);
    if (isFinished) this.#isFinished = true;
    if (!isBeginning && !isSuspicious) return { passed: events, hasData: true };
    let hasData = false;
    for (const event of parseEvents(events, this.#isAtStart)) {
      const error = this.#errorIn(event);
      if (error) return { passed: events.subarray(0, event.start), error, hasData };
      hasData ||= event.data !== '';
      if (event.data === '[DONE]') {
        this.#isDone = true;
        break;
      }
    }
    return { passed: events, hasData };
  }

  /**
   * What the upstream left without a blank line at its end. Some omit it: an event that is whole
   * otherwise counts. Half an event is dropped, and the stream is a broken one.
   */
  #inspectTail(): Inspection {
    const tail = this.#splitter.release();
    const closed = Buffer.concat([tail, Buffer.from('\n\n')]);
    const event = [...parseEvents(closed, this.#isAtStart)].find(({ data }) => data !== '');
    if (this.#isDone) return { passed: tail, hasData: false };
    if (event === undefined) return { passed: NOTHING, hasData: false };
    if (!isWholeData(event.data)) {
      return { passed: NOTHING, hasData: false, error: this.#failed('the stream was cut off') };
    }
    const found = this.#inspect(closed, true);
    this.#isMidLine = true;
    return found.error ? found : { ...found, passed: tail };
  }

  #errorIn({ name, data }: ServerSentEvent): GatewayError | undefined {
    if (data === '' || data === '[DONE]') return undefined;
    const { readFault, toError } = this.#options;
    const json = parseUntrustedJson(data);
    const fault =
      readFault(json) ?? (name === 'error' ? readFault({ error: json ?? data }) : undefined);
    return fault && toError(fault);
  }

  /** What is wrong with a stream that the upstream has ended, if anything. */
  #endFailure(): GatewayError | undefined {
    if (this.#isDone || this.#isFinished) return undefined;
    return this.#failed('the stream ended before the answer was finished');
  }

  #failed(text: string): GatewayError {
    return new GatewayError('provider', text, { provider: this.#options.provider });
  }
}

const LETTER_D = 0x44;
const LETTER_E = 0x65;
const LETTER_F = 0x66;

/**
 * One pass over a run of events, without decoding it. `isFinished`: a choice names its `finish_reason`; quotes
 * inside strings are escaped in JSON, so those bytes are the member and nothing else.
 * `isSuspicious`: there may be an error, or `[DONE]`.
 */
function findTelltales(events: Buffer): { isFinished: boolean; isSuspicious: boolean } {
  let isFinished = false;
  let isSuspicious = false;
  let before = LINE_FEED;
  for (let at = 0; at < events.length; at += 1) {
    const byte = events[at]!;
    if (byte === QUOTE) {
      const next = events[at + 1];
      if (next === LETTER_E && textAt(events, at, 7) === '"error"') isSuspicious = true;
      if (next === LETTER_F && FINISH_REASON.test(textAt(events, at, 40))) isFinished = true;
    } else if (byte === OPEN_BRACKET) {
      if (events[at + 1] === LETTER_D) isSuspicious = true;
    } else if (byte === LETTER_E && (before === LINE_FEED || before === CARRIAGE_RETURN)) {
      if (textAt(events, at, 6) === 'event:') isSuspicious = true;
    }
    before = byte;
  }
  return { isFinished, isSuspicious };
}

/** Some write `""` or `"null"` until the answer is finished. */
const FINISH_REASON = /^"finish_reason"[ \t]*:[ \t]*"(?!"|null")/;

function textAt(bytes: Buffer, start: number, length: number): string {
  return bytes.toString('latin1', start, start + length);
}

function isWholeData(data: string): boolean {
  return data === '[DONE]' || isJson(Buffer.from(data));
}
