/**
 * Inspects a streamed completion as it arrives: finds errors and the end of the stream, and notes
 * the model, the finish reason and the usage.
 */

import { MAX_USAGE_BYTES } from '../openai/usage.ts';
import { joinParts, lengthOf, sliceParts, withoutMark } from '../lib/chunk-buffer.ts';
import type { GatewayError } from '../lib/errors.ts';
import { MAX_PARSED_CHARACTERS, memberOf, OPEN_BRACE, parseUntrustedJson } from '../lib/json.ts';
import { EventSplitter, LINE_FEED, parseEvents, type ServerSentEvent } from '../lib/sse.ts';
import {
  hasContent,
  hasNoChoice,
  isPreamble,
  isUnfinished,
  isUsageChunk,
  reportsError,
} from '../openai/answer-json.ts';
import { isLongError, MAX_CHOICES } from '../openai/answer-scan.ts';
import { reportsFailure } from '../openai/error-body.ts';
import { DONE_MARK, isField, isWholeData, readData, scanEvents } from '../openai/event-scan.ts';
import { LongEvent } from '../openai/long-event.ts';
import type { AttemptContext } from './attempt-context.ts';
import { providerError } from './network-error.ts';
import { ERROR_WITHOUT_TEXT, errorOf } from './provider-error.ts';

export const NO_BYTES = Buffer.alloc(0);
/**
 * The bytes to pass on: all bytes, or those before an error, or those up to `[DONE]`. Chunks that
 * `stream_usage` has added are left out. `before` has the parts of a long event, which pass before
 * `toPass` and are not joined, because that would copy them.
 */
export type Inspection = {
  readonly before?: readonly Buffer[];
  readonly toPass: Buffer;
  readonly error?: GatewayError;
};

/**
 * Takes the bytes of a stream, and returns the bytes to pass on. Its methods throw `provider` if
 * the stream is not usable.
 */
export class EventInspector {
  readonly splitter = new EventSplitter();
  /** Nothing was passed on yet, so a byte order mark may come. */
  #isAtStart = true;
  /** An event has come that is neither a preamble nor `[DONE]`. */
  hasBegun = false;
  /** A preamble has come. */
  hasPreamble = false;
  /** An event with a choice has come, so the stream has an answer, even if it is empty. */
  hasChoice = false;
  /** Lines without a field have come, as in a page or in JSON. */
  hasOtherLines = false;
  /** `[DONE]` has come, so the stream is over. */
  isDone = false;
  /** The line feed that completes the line end after `[DONE]` may still come. */
  isEndOpen = false;
  /**
   * The scan of the unfinished event; undefined unless the event is long or was partly passed on.
   */
  #long: LongEvent | undefined;
  /** Number of bytes of the unfinished event that were passed on. */
  #passedBytes = 0;
  /** A line feed that comes next is dropped, because it belongs to an event that was taken out. */
  #dropsLineFeed = false;
  /** The state of each choice that has begun, by its index. */
  readonly #choices = new Map<number, 'open' | 'finished' | 'reopened'>();
  /** At least one choice has a `finish_reason`. */
  #hasFinish = false;
  readonly #context: AttemptContext;
  #isModelWanted = true;

  constructor(context: AttemptContext) {
    this.#context = context;
  }

  /** The answer is complete, because every choice that has begun has its `finish_reason`. */
  get isFinished(): boolean {
    return (
      this.#choices.size > 0 && [...this.#choices.values()].every((state) => state === 'finished')
    );
  }

  /** Takes a chunk, and returns the events that it completes. */
  push(chunk: Buffer): Inspection {
    const { size } = this.splitter.unfinished;
    if (size > 0 && size + chunk.length > MAX_PARSED_CHARACTERS) this.#long ??= this.#beginLong();
    if (this.#long) return this.#pushLong(chunk, this.#long);
    const events = this.splitter.push(chunk);
    if (!this.#dropsLineFeed || events.length === 0) return this.#inspect(events);
    this.#dropsLineFeed = false;
    return this.#inspect(events[0] === LINE_FEED ? events.subarray(1) : events);
  }

  /** Part of the unfinished event was passed on. */
  get isEventPassed(): boolean {
    return this.#passedBytes > 0;
  }

  /**
   * Takes a chunk, and returns the unfinished event too, as far as it has come. The unfinished
   * event begins the answer, and is not searched for an error.
   */
  pushUnfinished(chunk: Buffer): Inspection {
    const found = this.push(chunk);
    const { unfinished } = this.splitter;
    if (found.error || this.isDone || unfinished.size === 0) return found;
    this.#long ??= this.#beginLong();
    this.hasBegun = true;
    this.#isAtStart = false;
    this.#passedBytes += unfinished.size;
    const before = [...(found.before ?? []), found.toPass, ...unfinished.takeParts()];
    return { before, toPass: NO_BYTES };
  }

  /**
   * Scans the bytes that are held of the unfinished event. Later chunks of the event are scanned as
   * they come.
   */
  #beginLong(): LongEvent {
    const { parts, size } = this.splitter.unfinished;
    const scanned = this.#isAtStart ? withoutMark(parts) : parts;
    const long = new LongEvent(size - lengthOf(scanned));
    for (const part of scanned) long.push(part);
    return long;
  }

  /**
   * Takes a chunk that continues a long event, and inspects the events after it in the same chunk.
   */
  #pushLong(chunk: Buffer, long: LongEvent): Inspection {
    const end = this.splitter.pushToEnd(chunk);
    long.push(end === 0 ? chunk : chunk.subarray(0, end));
    if (end === 0) return { toPass: NO_BYTES };
    this.#long = undefined;
    this.#dropsLineFeed = false;
    const found = this.#inspectLong(long, this.splitter.unfinished.takeParts());
    this.#passedBytes = 0;
    if (found.error || this.isDone || end === chunk.length) return found;
    const rest = this.push(chunk.subarray(end));
    this.splitter.sawData = true;
    if (found.before) return { ...rest, before: found.before };
    return { ...rest, toPass: Buffer.concat([found.toPass, rest.toPass]) };
  }

  /** Inspects a long event at its end. `parts` have not been passed on yet. */
  #inspectLong(long: LongEvent, parts: readonly Buffer[]): Inspection {
    const { scan } = long;
    const isShort = long.dataBytes <= MAX_PARSED_CHARACTERS;
    if (!this.isEventPassed && (isShort || long.isUnusual)) return this.#inspect(joinParts(parts));
    const isJson = scan.json.finish() === undefined;
    if (!this.isEventPassed && (long.isNamedError || (isJson && scan.isError))) {
      return { toPass: NO_BYTES, error: this.#toError(ERROR_WITHOUT_TEXT) };
    }
    this.hasBegun = true;
    this.#isAtStart = false;
    if (isJson) this.#noteLong(long, parts);
    return { before: parts, toPass: NO_BYTES };
  }

  #noteLong({ scan }: LongEvent, parts: readonly Buffer[]): void {
    const { attempt } = this.#context;
    this.#noteModel(scan.model);
    for (const { index, finishReason } of scan.choices) {
      const isFinished = !isUnfinished({ finish_reason: finishReason }, false);
      if (isFinished) attempt.noteFinishReason(finishReason);
      this.#noteChoice(index, isFinished, true);
    }
    const start = scan.usageStart - this.#passedBytes;
    const isHeld = scan.usageStart > 0 && start >= 0;
    const usage = joinParts(isHeld ? sliceParts(parts, start, start + MAX_USAGE_BYTES) : []);
    if (usage[0] === OPEN_BRACE) attempt.noteUsage(readData(usage, 0));
  }

  /**
   * Inspects the bytes after the last blank line at the end of the stream. Some providers omit the
   * blank line after their last event. A whole event is passed on with a blank line added, because
   * clients drop an event without it. Part of an event is dropped, because the stream was cut off.
   */
  finish(): Inspection {
    const { unfinished } = this.splitter;
    const blankLine = Buffer.from(unfinished.parts.at(-1)?.at(-1) === LINE_FEED ? '\n' : '\n\n');
    const long = this.#long;
    if (long && (this.isEventPassed || long.scan.json.finish() === undefined)) {
      return this.#pushLong(blankLine, long);
    }
    if (long && !long.isUnusual && long.dataBytes > MAX_PARSED_CHARACTERS) return this.#cut();
    const closed = Buffer.concat([...unfinished.takeParts(), blankLine]);
    const parsed = [...parseEvents(closed, this.#isAtStart)];
    const text = parsed.map((event) => event.data || event.bareJson).find((data) => data !== '');
    if (text !== undefined && isWholeData(text)) return this.#inspect(closed);
    for (const { start } of parsed) this.hasOtherLines ||= !isField(closed, start);
    return text === undefined ? { toPass: NO_BYTES } : this.#cut();
  }

  #cut(): Inspection {
    const { provider } = this.#context.attempt;
    const error = providerError(provider, 'the stream was cut off', { problem: 'cut' });
    return { toPass: NO_BYTES, error };
  }

  /**
   * Inspects whole events. Parses only the beginning of the answer, its end and suspicious events,
   * because the scan of other events is enough.
   */
  #inspect(events: Buffer): Inspection {
    const { attempt } = this.#context;
    let scan = scanEvents(events, this.#isModelWanted);
    let found: Inspection = { toPass: events };
    const mayFinish = this.#hasFinish || scan.finishReason !== '';
    if (this.hasBegun && !scan.isSuspicious && !mayFinish) {
      if (scan.index === '0') this.#noteChoice(0, false, false);
    } else {
      found = this.#parse(events);
      const isWhole = found.toPass.length === events.length;
      if (!isWhole) scan = scanEvents(found.toPass, this.#isModelWanted);
    }
    if (attempt.usageAdded && scan.usage !== '') {
      found = { ...found, toPass: this.#withoutUsage(found.toPass) };
    }
    if (found.toPass.length > 0) this.#isAtStart = false;
    if (scan.model !== '') this.#noteModel(scan.model);
    if (scan.finishReason !== '') attempt.noteFinishReason(scan.finishReason);
    if (scan.usage !== '') attempt.noteUsage(scan.usage);
    return found;
  }

  /** Notes the first model that is not empty. */
  #noteModel(model: string): void {
    if (!this.#isModelWanted || model === '') return;
    this.#isModelWanted = false;
    this.#context.attempt.noteModel(model);
  }

  /** Removes the chunks of usage, each with its line end. */
  #withoutUsage(events: Buffer): Buffer {
    const kept: Buffer[] = [];
    let keptFrom = 0;
    for (const { data, start, end } of parseEvents(events, this.#isAtStart)) {
      if (!isUsageChunk(parseUntrustedJson(data))) continue;
      kept.push(events.subarray(keptFrom, start));
      keptFrom = end;
    }
    this.#dropsLineFeed = this.splitter.isLineEndOpen && keptFrom === events.length;
    return Buffer.concat([...kept, events.subarray(keptFrom)]);
  }

  /** Parses events for errors, `[DONE]`, the beginning of the answer and the choices. */
  #parse(events: Buffer): Inspection {
    for (const event of parseEvents(events, this.#isAtStart)) {
      const { data, start, end } = event;
      const json = parseUntrustedJson(data);
      const error = this.#errorIn(event, json);
      if (error) return { toPass: events.subarray(0, start), error };
      if (DONE_MARK.test(data)) {
        this.isDone = true;
        this.isEndOpen = this.splitter.isLineEndOpen && end === events.length;
        return { toPass: events.subarray(0, end) };
      }
      if (data === '') this.hasOtherLines ||= !isField(events, start);
      else if (!this.hasBegun) {
        const { emptyAnswers } = this.#context.services.config.server;
        if (isPreamble(json, emptyAnswers === 'fail')) this.hasPreamble = true;
        else this.hasBegun = true;
        this.hasChoice ||= !hasNoChoice(json);
      }
      this.#noteChoices(events.subarray(start, end), json);
    }
    return { toPass: events };
  }

  /** Notes the choices of an event. An event that is too long to be parsed is scanned instead. */
  #noteChoices(event: Buffer, json: unknown): void {
    const choices = memberOf(json, 'choices');
    if (Array.isArray(choices)) {
      for (const choice of choices as unknown[]) {
        const index = memberOf(choice, 'index');
        const isText = typeof memberOf(choice, 'finish_reason') === 'string';
        const isFinished = isText && !isUnfinished(choice, false);
        this.#noteChoice(typeof index === 'number' ? index : 0, isFinished, hasContent(choice));
      }
      return;
    }
    this.#noteScanned(event);
  }

  /** Notes choice 0 as found by the scan of an event, or of a part of an event. */
  #noteScanned(event: Buffer): void {
    const { index, finishReason } = scanEvents(event, false);
    const isFinished = finishReason !== '';
    if (index === '0' || (index === 'none' && isFinished)) this.#noteChoice(0, isFinished, true);
  }

  /**
   * Notes the state of a choice. Content after a `finish_reason` reopens the choice, and from then
   * on only an event without content finishes it, because some providers write `stop` into every
   * chunk.
   */
  #noteChoice(index: number, isFinished: boolean, isContent: boolean): void {
    const before = this.#choices.get(index);
    if (before === undefined && this.#choices.size === MAX_CHOICES) return;
    this.#hasFinish ||= isFinished;
    const isReopened = isContent && before !== undefined && before !== 'open';
    const state = isFinished ? 'finished' : (before ?? 'open');
    this.#choices.set(index, isReopened ? 'reopened' : state);
  }

  /**
   * Returns the error that an event reports, if it reports an error.
   *
   * @param json - the event's data, parsed; undefined if it is not JSON or too long
   */
  #errorIn({ name, data, bareJson }: ServerSentEvent, json: unknown): GatewayError | undefined {
    const bareError = bareJson === '' ? undefined : this.#bareErrorIn(bareJson);
    if (bareError || data === '' || DONE_MARK.test(data)) return bareError;
    const isNamedError = name === 'error';
    if (data.length > MAX_PARSED_CHARACTERS) {
      return isNamedError || isLongError(data) ? this.#toError(ERROR_WITHOUT_TEXT) : undefined;
    }
    // Before the answer, JSON without choices may be an error that has no member `error`.
    const mayBeFailure = !this.hasBegun && !Array.isArray(memberOf(json, 'choices'));
    if (reportsError(json) || (mayBeFailure && reportsFailure(json))) return this.#toError(json);
    return isNamedError ? this.#toError({ error: json ?? data }) : undefined;
  }

  /**
   * Returns the error in bare JSON among the events. Ollama and Gemini write such errors, Gemini
   * also over several lines. Bare JSON with `choices` is a completion.
   */
  #bareErrorIn(bareJson: string): GatewayError | undefined {
    const json = parseUntrustedJson(bareJson);
    if (json === undefined) return undefined;
    const isError = this.hasBegun ? reportsError(json) : reportsFailure(json);
    return isError ? this.#toError(json) : undefined;
  }

  #toError(json: unknown): GatewayError {
    return errorOf(json, this.#context, true);
  }
}
