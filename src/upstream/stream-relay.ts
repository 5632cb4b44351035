/**
 * Relays a streamed completion. Nothing is sent before the first event with data was read; every event passes byte
 * for byte; a stream that did not finish ends in the documented error event and never in `[DONE]`.
 */

import type { Deadline } from '../lib/cancellation.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import type { Reservation } from '../lib/byte-budget.ts';
import { MAX_PARSED_CHARACTERS, parseUntrustedJson } from '../lib/untrusted-json.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import { encodeEvent, EventSplitter, parseEvents, type ServerSentEvent } from '../lib/sse.ts';
import type { AnswerFacts } from './answer-facts.ts';
import { isLongError } from './completion.ts';
import { isWholeData, scanEvents, type EventScan } from './event-scan.ts';
import { timeoutError, upstreamFailure } from './network-error.ts';
import type { UpstreamFault } from './provider.ts';

/** Limit for an incomplete event. Images in deltas take megabytes. */
const MAX_EVENT_BYTES = 16_777_216;
/** Always held: one read of a socket. More is taken from the budget. */
const MAX_CHUNK_BYTES = 65_536;
/** Limit for keep-alive comments before the first event. */
const MAX_COMMENT_BYTES = 1_048_576;
/** Time for the upstream to end its reply after `[DONE]`, so that its connection can be reused. */
const AFTER_DONE_MS = 5000;
const NOTHING = Buffer.alloc(0);

interface StreamOptions {
  readonly provider: string;
  readonly deadline: Deadline;
  readonly idleMs: number;
  /** The cause of a reply without events, for the log: its content type. */
  readonly causeIfEmpty: string;
  /** The memory that events take while they are incomplete or being written. */
  readonly reservation: Reservation;
  /** The fault that the JSON of an event reports, if any. */
  readonly readFault: (json: unknown) => UpstreamFault | undefined;
  /** Maps such a fault to the client's error. */
  readonly toError: (fault: UpstreamFault) => GatewayError;
  /** Is filled in from the events that are passed on. */
  readonly facts: AnswerFacts;
  /** Called when the stream has ended, with its failure if there is one; not if the client leaves. */
  readonly onEnd: (failure?: GatewayError) => void;
}

/**
 * Waits for the first event with data and returns the stream from its first byte on. Until then nothing is committed:
 * throws an error event, a timeout or an early end, and another provider may still answer.
 */
export async function openStream(
  body: AsyncIterator<Buffer>,
  options: StreamOptions,
): Promise<AsyncIterable<Buffer>> {
  const relay = new Relay(body, options);
  const beginning = await relay.readBeginning();
  options.deadline.disarm();
  return relay.events(beginning);
}

/** The result of inspecting a run of whole events. */
interface Inspection {
  /** The bytes to pass on: all of them, those before an error, or those up to `[DONE]`. */
  readonly passed: Buffer;
  readonly error?: GatewayError;
  readonly hasData: boolean;
}

class Relay {
  readonly #body: AsyncIterator<Buffer>;
  readonly #options: StreamOptions;
  readonly #splitter = new EventSplitter();
  /** A `finish_reason` was seen: the answer is complete. */
  #isFinished = false;
  /** No model was seen. */
  #isModelWanted = true;
  /** Nothing was passed on yet: a byte order mark may come. */
  #isAtStart = true;
  /** `[DONE]` was seen: the stream is over. */
  #isDone = false;
  /** The upstream omitted the blank line after its last event. */
  #isMidLine = false;

  readonly #createTimeout = () =>
    timeoutError(this.#options.provider, { cause: `no event in ${this.#options.idleMs} ms` });

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
        throw this.#failed('the stream ended before its first event', this.#options.causeIfEmpty);
      }
    }
  }

  /** The stream as the client gets it. Never throws. */
  async *events(beginning: Inspection): AsyncGenerator<Buffer> {
    const { provider, deadline, idleMs, onEnd } = this.#options;
    let failure = beginning.error;
    let hasEnded = false;
    try {
      yield beginning.passed;
      deadline.arm(idleMs, this.#createTimeout);
      while (!failure && !hasEnded && !this.#isDone) {
        const { done, value: chunk } = await this.#body.next();
        hasEnded = done === true;
        const found = done ? this.#inspectTail() : this.#inspect(this.#splitter.push(chunk));
        // The idle limit neither runs while the client is slow to read, nor restarts for comments.
        const isProgress = this.#splitter.sawData;
        if (isProgress) deadline.disarm();
        this.#hold(found.passed.length);
        if (found.passed.length > 0) yield found.passed;
        failure = found.error ?? (hasEnded ? this.#endFailure() : undefined);
        if (isProgress) deadline.arm(idleMs, this.#createTimeout);
      }
      if (!failure && !this.#isDone) yield this.#onFreshLine('[DONE]');
    } catch (thrown) {
      if (thrown instanceof ClientGone) return;
      failure = GatewayError.from(upstreamFailure(thrown, { provider, answered: true }));
    } finally {
      this.#options.facts.events = this.#splitter.events;
      // Not awaited: the client gets the end at once.
      if (this.#isDone && !hasEnded) void this.#drain();
      else deadline.end({ abandon: !hasEnded });
    }
    onEnd(failure);
    if (failure) yield this.#onFreshLine(failure.toBody());
  }

  /** Reserves what is held: these bytes, and the unfinished event. */
  #hold(bytes: number): void {
    const heldBytes = bytes + this.#splitter.heldBytes;
    this.#options.reservation.resize(heldBytes > MAX_CHUNK_BYTES ? heldBytes : 0);
  }

  /** Reads what the upstream sends after `[DONE]`, and drops it. */
  async #drain(): Promise<void> {
    const { deadline } = this.#options;
    deadline.arm(AFTER_DONE_MS, this.#createTimeout);
    try {
      while (!(await this.#body.next()).done);
    } catch {
      // The answer was complete before.
    } finally {
      deadline.end({ abandon: true });
    }
  }

  /** An event of the gateway's own. Ends the upstream's line first if it is unfinished. */
  #onFreshLine(data: string): Buffer {
    const event = encodeEvent(data);
    return this.#isMidLine ? Buffer.concat([Buffer.from('\n\n'), event]) : event;
  }

  /** Looks for errors, facts and the end. Parses only the beginning, and runs of events that look suspicious. */
  #inspect(events: Buffer, isBeginning = false): Inspection {
    if (this.#splitter.heldBytes > MAX_EVENT_BYTES) throw this.#failed('an event is too large');
    const scan = scanEvents(events, this.#isModelWanted);
    const mustParse = isBeginning || scan.isSuspicious;
    const found = mustParse ? this.#parse(events) : { passed: events, hasData: true };
    const isWhole = found.passed.length === events.length;
    this.#note(isWhole ? scan : scanEvents(found.passed, this.#isModelWanted));
    return found;
  }

  #note({ model, finishReason, usage }: EventScan): void {
    const { facts } = this.#options;
    if (model !== '') {
      this.#isModelWanted = false;
      facts.noteModel(model);
    }
    if (finishReason !== '') {
      this.#isFinished = true;
      facts.noteFinishReason(finishReason);
    }
    if (usage !== '') facts.noteUsage(usage);
  }

  #parse(events: Buffer): Inspection {
    let hasData = false;
    for (const event of parseEvents(events, this.#isAtStart)) {
      const error = this.#errorIn(event);
      if (error) return { passed: events.subarray(0, event.start), error, hasData };
      hasData ||= event.data !== '';
      if (event.data === '[DONE]') {
        this.#isDone = true;
        return { passed: events.subarray(0, event.end), hasData };
      }
    }
    return { passed: events, hasData };
  }

  /**
   * The bytes after the last blank line. Some upstreams omit the one after their last event: if the event is
   * whole, it is passed on. Otherwise it is dropped, and the stream was cut off.
   */
  #inspectTail(): Inspection {
    const tail = this.#splitter.release();
    const closed = Buffer.concat([tail, Buffer.from('\n\n')]);
    const event = [...parseEvents(closed, this.#isAtStart)].find(({ data }) => data !== '');
    if (event === undefined) return { passed: NOTHING, hasData: false };
    if (!isWholeData(event.data)) {
      return {
        passed: NOTHING,
        hasData: false,
        error: this.#failed('the stream was cut off'),
      };
    }
    const found = this.#inspect(closed, true);
    this.#isMidLine = true;
    return found.error ? found : { ...found, passed: tail };
  }

  #errorIn({ name, data }: ServerSentEvent): GatewayError | undefined {
    if (data === '' || data === '[DONE]') return undefined;
    const { readFault, toError } = this.#options;
    if (data.length > MAX_PARSED_CHARACTERS) return isLongError(data) ? toError({}) : undefined;
    const json = parseUntrustedJson(data);
    const fault =
      readFault(json) ?? (name === 'error' ? readFault({ error: json ?? data }) : undefined);
    return fault && toError(fault);
  }

  /** The failure of a stream that the upstream ended too early; undefined if it is complete. */
  #endFailure(): GatewayError | undefined {
    if (this.#isDone || this.#isFinished) return undefined;
    return this.#failed('the stream ended before the answer was finished');
  }

  #failed(text: string, cause?: string): GatewayError {
    return new GatewayError('provider', text, { provider: this.#options.provider, cause });
  }
}
