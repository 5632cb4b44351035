/**
 * Reads a stream's events as they arrive: finds the answer's beginning, its end and errors by the
 * rules of the endpoint. It knows the form of events, and none of the members of their JSON.
 */

import { joinParts, withoutMark } from '../../lib/chunk-buffer.ts';
import { GatewayError } from '../../lib/errors.ts';
import { MAX_PARSED_CHARACTERS, parseUntrustedJson } from '../../lib/json.ts';
import { LEFT_OUT, readJson } from '../../lib/json-outline.ts';
import { EventSplitter, LINE_FEED, parseEvents, type ServerSentEvent } from '../../lib/sse.ts';
import { firstByteOf, reportsError } from '../../protocol/answer-json.ts';
import type { EventFailure, EventKind, StreamRules } from '../../protocol/endpoint.ts';
import { reportsFailure } from '../../protocol/error-body.ts';
import { LongEvent } from '../../protocol/long-event.ts';
import { DONE_MARK, isField } from '../../protocol/plain-events.ts';
import { emptyAnswerError } from './answer-errors.ts';
import type { AttemptContext } from './attempt-context.ts';
import { errorOf } from './provider-error.ts';

export const NO_BYTES = Buffer.alloc(0);

/**
 * All bytes, or only the bytes up to an error or to the stream's end. Events that the gateway has
 * asked for are left out.
 */
export interface PassedEvents {
  /** The parts of a long event, to be passed on before `toPass`. Joining would copy them. */
  readonly before?: readonly Buffer[];
  readonly toPass: Buffer;
  readonly error?: GatewayError;
}

/** Whether the last event passes, and the error if the event fails the answer. */
interface StreamEnd {
  readonly passes: boolean;
  readonly error?: GatewayError;
}

export class EventReader {
  readonly splitter = new EventSplitter();
  readonly rules: StreamRules;
  /**
   * `[DONE]` does not begin an answer. `StreamOpening` sets this for preambles that are too long to
   * hold.
   */
  hasBegun = false;
  /** True once a preamble or a heartbeat has arrived. */
  hasPreamble = false;
  /** True after a line without a field, as in a page or in JSON. */
  hasOtherLines = false;
  /** True once the last event has been read. The response may go on. */
  isDone = false;
  /** True while the line feed that completes the line end of the last event may still arrive. */
  isEndOpen = false;
  /** True if part of the unfinished event was passed on. */
  isEventPassed = false;
  /** True if the last chunk had more than comments and heartbeats. */
  isAlive = false;
  firstByte: number | undefined;
  readonly #context: AttemptContext;
  /** True until bytes are passed on, because a byte order mark may come first. */
  #isAtStart = true;
  /** The outline of the unfinished event, if the event is long or was partly passed on. */
  #long: LongEvent | undefined;
  /** True if the next line feed is dropped, because it belongs to a removed event. */
  #dropsLineFeed = false;

  constructor(context: AttemptContext) {
    const { call, services, attempt } = context;
    this.#context = context;
    const failsEmpty = services.config.server.emptyAnswers === 'fail';
    this.rules = new call.history.endpoint.Stream(attempt, failsEmpty);
  }

  push(chunk: Buffer): PassedEvents {
    this.firstByte ??= firstByteOf(chunk);
    const { unfinished } = this.splitter;
    const { size } = unfinished;
    if (size > 0 && size + chunk.length > MAX_PARSED_CHARACTERS) this.#long ??= this.#beginLong();
    if (this.#long) return this.#pushLong(chunk, this.#long);
    let events = this.splitter.push(chunk);
    const { sawData } = this.splitter;
    // A longer part of an event is no heartbeat.
    this.isAlive = sawData && unfinished.size > this.rules.maxHeartbeatBytes;
    if (events.length === 0) return { toPass: events };
    if (this.#dropsLineFeed && events[0] === LINE_FEED) events = events.subarray(1);
    this.#dropsLineFeed = false;
    return this.#read(events);
  }

  /**
   * Takes a chunk, and returns the unfinished event too, as far as it has arrived. The unfinished
   * event begins the answer, and is not searched for an error.
   */
  pushUnfinished(chunk: Buffer): PassedEvents {
    const found = this.push(chunk);
    const { unfinished } = this.splitter;
    if (found.error || this.isDone || unfinished.size === 0) return found;
    this.#long ??= this.#beginLong();
    this.hasBegun = true;
    this.#isAtStart = false;
    this.isEventPassed = true;
    const before = [...(found.before ?? []), found.toPass, ...unfinished.takeParts()];
    return { before, toPass: NO_BYTES };
  }

  /**
   * Reads the bytes after the last blank line at the stream's end. Some providers omit the blank
   * line, and clients drop an event without it, so the line is added behind a whole event. Part of
   * an event is dropped, because the stream was cut off.
   */
  finish(): PassedEvents {
    const { unfinished } = this.splitter;
    const blankLine = Buffer.from(unfinished.parts.at(-1)?.at(-1) === LINE_FEED ? '\n' : '\n\n');
    const long = this.#long;
    if (long && (this.isEventPassed || long.outline.finish() !== undefined)) {
      return this.#pushLong(blankLine, long);
    }
    if (long && !long.needsParse && long.dataBytes > MAX_PARSED_CHARACTERS) return this.#cut();
    const closed = Buffer.concat([...unfinished.takeParts(), blankLine]);
    const parsed = [...parseEvents(closed, this.#isAtStart)];
    const text = parsed.map((event) => event.data || event.bareJson).find((data) => data !== '');
    const isWhole = text !== undefined && (DONE_MARK.test(text) || readJson(text) !== undefined);
    if (isWhole) return this.#read(closed);
    for (const { start } of parsed) this.hasOtherLines ||= !isField(closed, start);
    return text === undefined ? { toPass: NO_BYTES } : this.#cut();
  }

  #read(events: Buffer): PassedEvents {
    if (this.hasBegun && this.rules.skim?.(events)) {
      this.isAlive ||= this.splitter.sawData;
      return { toPass: events };
    }
    const found = this.#readEach(events);
    if (found.toPass.length > 0) this.#isAtStart = false;
    return found;
  }

  #readEach(events: Buffer): PassedEvents {
    /** The bytes before each removed event. */
    const kept: Buffer[] = [];
    let keptFrom = 0;
    const keptUpTo = (end: number) => joinParts([...kept, events.subarray(keptFrom, end)]);
    for (const event of parseEvents(events, this.#isAtStart)) {
      const { start, end } = event;
      const kind = this.#kindOf(event, event.data === '' ? undefined : readJson(event.data));
      if (kind === 'no data') {
        this.hasOtherLines ||= !isField(events, start);
        continue;
      }
      this.isAlive ||= kind !== 'heartbeat' && kind !== 'comment';
      if (kind === 'removed') {
        kept.push(events.subarray(keptFrom, start));
        keptFrom = end;
        continue;
      }
      const last = this.#take(kind, end === events.length);
      if (last) return { ...last, toPass: keptUpTo(last.passes ? end : start) };
    }
    if (kept.length === 0) return { toPass: events };
    this.#dropsLineFeed = this.splitter.isLineEndOpen && keptFrom === events.length;
    return { toPass: keptUpTo(events.length) };
  }

  /** Returns the kind of an event; `done` is the end mark. */
  #kindOf(event: ServerSentEvent, json: unknown): EventKind | 'done' | 'no data' {
    const { name, data, bareJson } = event;
    // Ollama and Gemini write errors as bare JSON, Gemini even over several lines.
    const bare = bareJson === '' ? undefined : parseUntrustedJson(bareJson);
    const isBareError = this.hasBegun ? reportsError(bare) : reportsFailure(bare);
    if (isBareError) return { fault: bare };
    if (data === '') return 'no data';
    if (DONE_MARK.test(data)) return 'done';
    if (reportsError(json) || (!this.hasBegun && reportsFailure(json))) return { fault: json };
    if (name === 'error') return { fault: { error: json ?? data } };
    return this.rules.read(json, this.hasBegun);
  }

  /** Takes an event. Returns the stream's end if it is the last. */
  #take(
    kind: Exclude<EventKind, 'removed'> | 'done',
    isAtChunkEnd: boolean,
  ): StreamEnd | undefined {
    if (typeof kind === 'object') {
      const passes = 'passes' in kind;
      if (passes) this.#end(isAtChunkEnd);
      return { passes, error: this.#errorOf(kind) };
    }
    // Clients take `[DONE]` for the end of a whole answer.
    if (kind === 'done' && !this.rules.hasDone) return { passes: false, error: this.#cutError() };
    if (kind === 'preamble' || kind === 'heartbeat') this.hasPreamble = true;
    else if (kind !== 'done' && kind !== 'comment') this.hasBegun = true;
    if (kind !== 'done' && kind !== 'end') return undefined;
    this.#end(isAtChunkEnd);
    return { passes: true };
  }

  #end(isAtChunkEnd: boolean): void {
    this.isDone = true;
    this.isEndOpen = this.splitter.isLineEndOpen && isAtChunkEnd;
  }

  #beginLong(): LongEvent {
    const { parts } = this.splitter.unfinished;
    const long = new LongEvent();
    for (const part of this.#isAtStart ? withoutMark(parts) : parts) long.push(part);
    return long;
  }

  #pushLong(chunk: Buffer, long: LongEvent): PassedEvents {
    const end = this.splitter.pushToEnd(chunk);
    this.isAlive = true;
    long.push(end === 0 ? chunk : chunk.subarray(0, end));
    if (end === 0) return { toPass: NO_BYTES };
    this.#long = undefined;
    this.#dropsLineFeed = false;
    const found = this.#readLong(long, end === chunk.length);
    this.isEventPassed = false;
    if (found.error || this.isDone || end === chunk.length) return found;
    const rest = this.push(chunk.subarray(end));
    this.isAlive = true;
    if (found.before) return { ...rest, before: found.before };
    return { ...rest, toPass: Buffer.concat([found.toPass, rest.toPass]) };
  }

  #readLong(long: LongEvent, isAtChunkEnd: boolean): PassedEvents {
    // The parts that have not been passed on yet.
    const parts = this.splitter.unfinished.takeParts();
    const json = long.outline.finish();
    const isText = long.isNamedError && json === undefined;
    const isShort = long.dataBytes <= MAX_PARSED_CHARACTERS;
    if (!this.isEventPassed && (isShort || isText || long.needsParse)) {
      return this.#read(joinParts(parts));
    }
    const event = { name: long.isNamedError ? 'error' : '', data: LEFT_OUT, bareJson: '' };
    const kind = this.isEventPassed ? this.rules.read(json, true) : this.#kindOf(event, json);
    if (kind === 'removed' && !this.isEventPassed) {
      this.#dropsLineFeed = this.splitter.isLineEndOpen;
      return { toPass: NO_BYTES };
    }
    // The beginning of a removed event has passed, so its rest passes too. LEFT_OUT is data, so
    // `no data` does not occur.
    const last = this.#take(kind === 'removed' || kind === 'no data' ? 'part' : kind, isAtChunkEnd);
    const error = last?.error && { error: last.error };
    if (last && !last.passes) return { toPass: NO_BYTES, ...error };
    this.#isAtStart = false;
    return { before: parts, toPass: NO_BYTES, ...error };
  }

  #cut(): PassedEvents {
    return { toPass: NO_BYTES, error: this.#cutError() };
  }

  #cutError(): GatewayError {
    return new GatewayError('provider', 'the stream was cut off', { problem: 'cut' });
  }

  #errorOf(kind: EventFailure): GatewayError {
    if ('fault' in kind) return errorOf(kind.fault, this.#context, true);
    return emptyAnswerError(kind.emptyReason);
  }
}
