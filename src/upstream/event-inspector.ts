/**
 * Inspects a streamed completion as it arrives: finds errors and the stream's end, and notes the
 * model, the finish reason and the usage.
 */

import { MAX_USAGE_BYTES } from '../openai/usage.ts';
import { joinParts, lengthOf, sliceParts, withoutMark } from '../lib/chunk-buffer.ts';
import type { GatewayError } from '../lib/errors.ts';
import { MAX_PARSED_CHARACTERS, memberOf, OPEN_BRACE, parseUntrustedJson } from '../lib/json.ts';
import { EventSplitter, LINE_FEED, parseEvents, type ServerSentEvent } from '../lib/sse.ts';
import {
  failedReasonOf,
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
import { emptyAnswerError, providerError } from './network-error.ts';
import { ERROR_WITHOUT_TEXT, errorOf } from './provider-error.ts';

export const NO_BYTES = Buffer.alloc(0);
/**
 * The bytes to pass on: all bytes, or only the bytes before an error or up to `[DONE]`. Chunks
 * added by `stream_usage` are left out.
 */
export type Inspection = {
  /**
   * The parts of a long event, which `StreamRelay` passes on before `toPass`, one after the other,
   * because joining would copy them.
   */
  readonly before?: readonly Buffer[];
  readonly toPass: Buffer;
  readonly error?: GatewayError;
};

/**
 * Takes a stream's bytes, and returns the bytes to pass on. Its methods throw `provider` if the
 * stream is not usable.
 */
export class EventInspector {
  readonly splitter = new EventSplitter();
  /** True until bytes are passed on, because a byte order mark may come first. */
  protected isAtStart = true;
  /** True after an event that is neither a preamble nor `[DONE]`. */
  hasBegun = false;
  /** True after a preamble. */
  hasPreamble = false;
  /** True after an event with a choice: the stream has an answer, even if it is empty. */
  hasChoice = false;
  /** True after a line without a field, as in a page or in JSON. */
  hasOtherLines = false;
  /** True after `[DONE]`, which ends the stream. */
  isDone = false;
  /** True while the line feed that completes the line end after `[DONE]` may still arrive. */
  isEndOpen = false;
  /**
   * The scan of the unfinished event; undefined unless the event is long or was partly passed on.
   */
  #long: LongEvent | undefined;
  /** How many bytes of the unfinished event were passed on. */
  #passedBytes = 0;
  /** True if the next line feed is dropped, because it belongs to a removed event. */
  #dropsLineFeed = false;
  /** The state of each choice so far, by its index. */
  readonly #choices = new Map<number, 'open' | 'finished' | 'reopened'>();
  /** True after any `finish_reason`. */
  #hasFinish = false;
  protected readonly context: AttemptContext;
  #isModelWanted = true;

  constructor(context: AttemptContext) {
    this.context = context;
  }

  /** True if the answer is complete: every choice so far has its `finish_reason`. */
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
    if (!this.#dropsLineFeed || events.length === 0) return this.inspect(events);
    this.#dropsLineFeed = false;
    return this.inspect(events[0] === LINE_FEED ? events.subarray(1) : events);
  }

  /** True if part of the unfinished event was passed on. */
  get isEventPassed(): boolean {
    return this.#passedBytes > 0;
  }

  /**
   * Takes a chunk, and returns the unfinished event too, as far as it has arrived. The unfinished
   * event begins the answer, and is not searched for an error.
   */
  pushUnfinished(chunk: Buffer): Inspection {
    const found = this.push(chunk);
    const { unfinished } = this.splitter;
    if (found.error || this.isDone || unfinished.size === 0) return found;
    this.#long ??= this.#beginLong();
    this.hasBegun = true;
    this.isAtStart = false;
    this.#passedBytes += unfinished.size;
    const before = [...(found.before ?? []), found.toPass, ...unfinished.takeParts()];
    return { before, toPass: NO_BYTES };
  }

  /** Scans the unfinished event's bytes so far. Its later chunks are scanned as they arrive. */
  #beginLong(): LongEvent {
    const { parts, size } = this.splitter.unfinished;
    const scanned = this.isAtStart ? withoutMark(parts) : parts;
    const long = new LongEvent(size - lengthOf(scanned));
    for (const part of scanned) long.push(part);
    return long;
  }

  /** Takes a long event's next chunk, and inspects the events behind it in the same chunk. */
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
    if (!this.isEventPassed && (isShort || long.needsParse)) return this.inspect(joinParts(parts));
    const isJson = scan.json.finish() === undefined;
    if (!this.isEventPassed && (long.isNamedError || (isJson && scan.isError))) {
      return { toPass: NO_BYTES, error: this.toError(ERROR_WITHOUT_TEXT) };
    }
    this.hasBegun = true;
    this.isAtStart = false;
    const error = isJson ? this.noteLong(long, parts) : undefined;
    return { before: parts, toPass: NO_BYTES, ...(error && { error }) };
  }

  /** Notes the facts in a long event. Returns the error if the event ends a failed answer. */
  protected noteLong({ scan }: LongEvent, parts: readonly Buffer[]): GatewayError | undefined {
    const { attempt } = this.context;
    this.noteModel(scan.model);
    for (const { index, finishReason } of scan.choices) {
      const isFinished = !isUnfinished({ finish_reason: finishReason }, false);
      if (isFinished) attempt.noteFinishReason(finishReason);
      this.#noteChoice(index, isFinished, true);
    }
    const start = scan.usageStart - this.#passedBytes;
    const isHeld = scan.usageStart > 0 && start >= 0;
    const usage = joinParts(isHeld ? sliceParts(parts, start, start + MAX_USAGE_BYTES) : []);
    if (usage[0] === OPEN_BRACE) attempt.noteUsage(readData(usage, 0));
    return undefined;
  }

  /**
   * Inspects the bytes after the last blank line at the stream's end. Some providers omit the blank
   * line after their last event. A whole event is passed on with a blank line added, because
   * clients drop an event without it. Part of an event is dropped, because the stream was cut off.
   */
  finish(): Inspection {
    const { unfinished } = this.splitter;
    const blankLine = Buffer.from(unfinished.parts.at(-1)?.at(-1) === LINE_FEED ? '\n' : '\n\n');
    const long = this.#long;
    if (long && (this.isEventPassed || long.scan.json.finish() === undefined)) {
      return this.#pushLong(blankLine, long);
    }
    if (long && !long.needsParse && long.dataBytes > MAX_PARSED_CHARACTERS) return this.cut();
    const closed = Buffer.concat([...unfinished.takeParts(), blankLine]);
    const parsed = [...parseEvents(closed, this.isAtStart)];
    const text = parsed.map((event) => event.data || event.bareJson).find((data) => data !== '');
    if (text !== undefined && isWholeData(text)) return this.inspect(closed);
    for (const { start } of parsed) this.hasOtherLines ||= !isField(closed, start);
    return text === undefined ? { toPass: NO_BYTES } : this.cut();
  }

  protected cut(): Inspection {
    const { provider } = this.context.attempt;
    const error = providerError(provider, 'the stream was cut off', { problem: 'cut' });
    return { toPass: NO_BYTES, error };
  }

  /**
   * Inspects whole events. Parses only the answer's beginning, its end and suspicious events,
   * because a scan is enough for the rest.
   */
  protected inspect(events: Buffer): Inspection {
    const { attempt } = this.context;
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
    if (found.toPass.length > 0) this.isAtStart = false;
    if (scan.model !== '') this.noteModel(scan.model);
    if (scan.finishReason !== '') attempt.noteFinishReason(scan.finishReason);
    if (scan.usage !== '') attempt.noteUsage(scan.usage);
    return found;
  }

  /** Notes the first non-empty model. */
  protected noteModel(model: string): void {
    if (!this.#isModelWanted || model === '') return;
    this.#isModelWanted = false;
    this.context.attempt.noteModel(model);
  }

  /** Removes usage chunks, each with its line end. */
  #withoutUsage(events: Buffer): Buffer {
    const kept: Buffer[] = [];
    let keptFrom = 0;
    for (const { data, start, end } of parseEvents(events, this.isAtStart)) {
      if (!isUsageChunk(parseUntrustedJson(data))) continue;
      kept.push(events.subarray(keptFrom, start));
      keptFrom = end;
    }
    this.#dropsLineFeed = this.splitter.isLineEndOpen && keptFrom === events.length;
    return Buffer.concat([...kept, events.subarray(keptFrom)]);
  }

  /** Parses events for errors, `[DONE]`, the answer's beginning and the choices. */
  #parse(events: Buffer): Inspection {
    for (const event of parseEvents(events, this.isAtStart)) {
      const { data, start, end } = event;
      const json = parseUntrustedJson(data);
      const error = this.errorIn(event, json);
      if (error) return { toPass: events.subarray(0, start), error };
      if (DONE_MARK.test(data)) {
        this.isDone = true;
        this.isEndOpen = this.splitter.isLineEndOpen && end === events.length;
        return { toPass: events.subarray(0, end) };
      }
      if (data === '') this.hasOtherLines ||= !isField(events, start);
      else if (!this.hasBegun) {
        const { emptyAnswers } = this.context.services.config.server;
        if (isPreamble(json, emptyAnswers === 'fail')) this.hasPreamble = true;
        else this.hasBegun = true;
        this.hasChoice ||= !hasNoChoice(json);
      }
      this.#noteChoices(events.subarray(start, end), json);
    }
    return { toPass: events };
  }

  /** Notes an event's choices. If the event is too long to parse, it is scanned instead. */
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

  /** Notes choice 0 as a scan finds it, in an event that was not parsed or has no choices. */
  #noteScanned(event: Buffer): void {
    const { index, finishReason } = scanEvents(event, false);
    const isFinished = finishReason !== '';
    if (index === '0' || (index === 'none' && isFinished)) this.#noteChoice(0, isFinished, true);
  }

  /**
   * Notes a choice's state. Content after a `finish_reason` reopens the choice. From then on only
   * an event without content finishes it, because some providers write `stop` into every chunk.
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
   * Returns the error in an event, if any.
   *
   * @param json - the event's data, parsed; undefined if it is not JSON or too long
   */
  protected errorIn(
    { name, data, bareJson }: ServerSentEvent,
    json: unknown,
  ): GatewayError | undefined {
    const bareError = bareJson === '' ? undefined : this.#bareErrorIn(bareJson);
    if (bareError || data === '' || DONE_MARK.test(data)) return bareError;
    const isNamedError = name === 'error';
    if (data.length > MAX_PARSED_CHARACTERS) {
      return isNamedError || isLongError(data) ? this.toError(ERROR_WITHOUT_TEXT) : undefined;
    }
    // Before the answer, JSON without choices may be an error without a member `error`.
    const mayBeFailure = !this.hasBegun && !Array.isArray(memberOf(json, 'choices'));
    if (reportsError(json) || (mayBeFailure && reportsFailure(json))) return this.toError(json);
    if (isNamedError) return this.toError({ error: json ?? data });
    const reason = this.hasBegun ? undefined : failedReasonOf(json);
    return reason === undefined
      ? undefined
      : emptyAnswerError(this.context.attempt.provider, reason);
  }

  /**
   * Returns the error in bare JSON among the events. Ollama and Gemini write such errors, Gemini
   * even over several lines. Bare JSON with `choices` is a completion.
   */
  #bareErrorIn(bareJson: string): GatewayError | undefined {
    const json = parseUntrustedJson(bareJson);
    if (json === undefined) return undefined;
    const isError = this.hasBegun ? reportsError(json) : reportsFailure(json);
    return isError ? this.toError(json) : undefined;
  }

  protected toError(json: unknown): GatewayError {
    return errorOf(json, this.context, true);
  }
}
