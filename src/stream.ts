/**
 * A streamed completion, relayed event by event. Its promise: nothing is sent before the first event
 * with data is in hand, every event passes byte for byte, and the end tells the truth: a stream that
 * did not finish ends in the documented error event and never in `[DONE]`.
 */

import type { Deadline } from './deadline.ts';
import { ClientGone, GatewayError } from './errors.ts';
import type { UpstreamFault } from './provider.ts';
import { encodeEvent, EventSplitter, parseEvents, type ServerSentEvent } from './sse.ts';
import { timeoutError, upstreamFailure } from './upstream.ts';

/**
 * Longer events are passed on as they come, without a look inside: no error event is so long,
 * and this is what a stream may hold in memory.
 */
const MAX_INSPECTED_BYTES = 65_536;
/** Keep-alive comments that may come before the first event; an upstream that sends more is not answering. */
const MAX_COMMENT_BYTES = 1_048_576;
/** After `[DONE]` the upstream may have bytes left, but not keep the client waiting. */
const AFTER_DONE_MS = 5000;
/** More than `"finish_reason": "` takes. */
const OVERLAP_BYTES = 32;
const NOTHING = Buffer.alloc(0);

interface StreamOptions {
  readonly provider: string;
  readonly deadline: Deadline;
  readonly idleMs: number;
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
  body: ReadableStream<Uint8Array>,
  options: StreamOptions,
): Promise<AsyncIterable<Buffer>> {
  const relay = new Relay(body, options);
  try {
    const beginning = await relay.readBeginning();
    options.deadline.disarm();
    return relay.events(beginning);
  } catch (error) {
    options.deadline.end({ abandon: true });
    throw error;
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
  readonly #reader: ReadableStreamDefaultReader<Uint8Array>;
  readonly #options: StreamOptions;
  readonly #splitter = new EventSplitter();
  /** A `finish_reason` was seen: the model had said all it wanted. */
  #isFinished = false;
  /** `[DONE]` was seen: whatever happens now, the answer is complete. */
  #isDone = false;
  /** Part of an event too long to hold has been passed on, and not yet its end. */
  #isInsideEvent = false;
  #lastPart: Buffer = NOTHING;
  /** The last byte passed on was not the end of an event. */
  #isMidLine = false;

  constructor(body: ReadableStream<Uint8Array>, options: StreamOptions) {
    this.#reader = body.getReader();
    this.#options = options;
  }

  /** Everything up to and including the first events with data. */
  async readBeginning(): Promise<Inspection> {
    const seen: Buffer[] = [];
    let seenBytes = 0;
    for (;;) {
      const chunk = await this.#read();
      const found =
        chunk === undefined ? this.#inspectTail() : this.#inspect(this.#splitter.push(chunk), true);
      const released = this.#releaseOversized();
      if (released.length > 0 && !/(?:^|[\r\n])data:/.test(released.toString('latin1'))) {
        throw this.#failed('the answer is not an event stream');
      }
      seen.push(found.passed, released);
      if (found.hasData || this.#isInsideEvent) return { ...found, passed: Buffer.concat(seen) };
      if (found.error) throw found.error;
      seenBytes += found.passed.length;
      if (chunk === undefined || seenBytes > MAX_COMMENT_BYTES) {
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
        const chunk = await this.#read();
        hasEnded = chunk === undefined;
        const found = hasEnded ? this.#inspectTail() : this.#inspect(this.#splitter.push(chunk!));
        const released = this.#releaseOversized();
        // Not while the client is being waited for, and not for comments alone.
        const isProgress = this.#splitter.sawEvent || this.#isInsideEvent;
        if (isProgress) deadline.disarm();
        if (found.passed.length > 0) yield found.passed;
        if (released.length > 0) yield released;
        failure = found.error ?? (hasEnded ? this.#endFailure() : undefined);
        if (isProgress) this.#armIdleLimit();
      }
      if (!failure && !this.#isDone) yield this.#onFreshLine('[DONE]');
    } catch (thrown) {
      // Nobody is there to be told, or everything had been said.
      if (thrown instanceof ClientGone || this.#isDone) return;
      failure = GatewayError.from(thrown);
    } finally {
      deadline.end({ abandon: !hasEnded });
    }
    if (!failure) return;
    onFailure(failure);
    yield this.#onFreshLine(failure.toBody());
  }

  #armIdleLimit(): void {
    const { deadline, idleMs, provider } = this.#options;
    deadline.arm(this.#isDone ? AFTER_DONE_MS : idleMs, timeoutError(provider));
  }

  /** An event of the gateway's own, also after a line that the upstream never ended. */
  #onFreshLine(data: string): Buffer {
    const event = encodeEvent(data);
    return this.#isMidLine ? Buffer.concat([Buffer.from('\n\n'), event]) : event;
  }

  /** Keeps what is held below its bound: the beginning of a longer event goes out as it is. */
  #releaseOversized(): Buffer {
    if (this.#splitter.heldBytes > MAX_INSPECTED_BYTES) this.#isInsideEvent = true;
    if (!this.#isInsideEvent) return NOTHING;
    this.#isMidLine = true;
    const released = this.#splitter.release();
    this.#lookForFinish(released);
    return released;
  }

  /** In the parts of a long event the words may be cut in two: a little of the part before is looked at again. */
  #lookForFinish(bytes: Buffer): void {
    const seen = this.#isInsideEvent ? Buffer.concat([this.#lastPart, bytes]) : bytes;
    if (hasFinishReason(seen)) this.#isFinished = true;
    this.#lastPart = this.#isInsideEvent ? seen.subarray(-OVERLAP_BYTES) : NOTHING;
  }

  async #read(): Promise<Buffer | undefined> {
    try {
      const { value } = await this.#reader.read();
      return value && Buffer.from(value.buffer, value.byteOffset, value.byteLength);
    } catch (thrown) {
      throw upstreamFailure(thrown, { provider: this.#options.provider, answered: true });
    }
  }

  /** Looks for what the relay acts on. Only runs with a telltale word are taken apart, and the beginning. */
  #inspect(events: Buffer, isBeginning = false): Inspection {
    this.#lookForFinish(events);
    if (events.length > 0) {
      this.#isInsideEvent = false;
      this.#isMidLine = false;
    }
    const isSuspicious =
      events.includes('"error"') || events.includes('event:') || events.includes('[DONE]');
    if (!isBeginning && !isSuspicious) return { passed: events, hasData: true };
    let passedEnd = 0;
    let hasData = false;
    for (const event of parseEvents(events)) {
      const error = this.#isDone ? undefined : this.#errorIn(event);
      if (error) return { passed: events.subarray(0, passedEnd), error, hasData };
      if (event.data === '[DONE]') this.#isDone = true;
      hasData ||= event.data !== '';
      passedEnd = event.end;
    }
    return { passed: events, hasData };
  }

  /**
   * What the upstream left without a blank line at its end. Some omit it: an event that is whole
   * otherwise counts. Half an event is dropped, and the stream is a broken one.
   */
  #inspectTail(): Inspection {
    const wasInsideEvent = this.#isInsideEvent;
    const tail = this.#splitter.release();
    const closed = Buffer.concat([tail, Buffer.from('\n\n')]);
    const event = [...parseEvents(closed)].find(({ data }) => data !== '');
    if (this.#isDone) return { passed: tail, hasData: false };
    if (!wasInsideEvent && event === undefined) return { passed: NOTHING, hasData: false };
    if (wasInsideEvent || !isWholeData(event!.data)) {
      return { passed: NOTHING, hasData: false, error: this.#failed('the stream was cut off') };
    }
    const found = this.#inspect(closed, true);
    this.#isMidLine = true;
    return found.error ? found : { ...found, passed: tail };
  }

  #errorIn({ name, data }: ServerSentEvent): GatewayError | undefined {
    if (data === '' || data === '[DONE]') return undefined;
    const { readFault, toError } = this.#options;
    const json = parseJson(data);
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

/**
 * Whether a choice names its `finish_reason`. Quotes inside strings are escaped in JSON, so these
 * bytes are the member and nothing else.
 */
function hasFinishReason(events: Buffer): boolean {
  const name = '"finish_reason"';
  for (let at = events.indexOf(name); at >= 0; at = events.indexOf(name, at + name.length)) {
    const value = events.toString('latin1', at + name.length, at + name.length + 8);
    if (/^\s*:\s*"/.test(value)) return true;
  }
  return false;
}

function isWholeData(data: string): boolean {
  return data === '[DONE]' || parseJson(data) !== undefined;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
