/**
 * Looks into a streamed completion as it arrives: for errors, its end, and what it says about
 * itself.
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
 * The bytes to pass on: all of them, those before an error, or those up to `[DONE]`. Chunks that
 * `stream_usage` has added are not among them. `long` are the parts of a long event, which pass
 * before `toPass`: to join them would copy them.
 */
export type Inspection = {
  readonly long?: readonly Buffer[];
  readonly toPass: Buffer;
  readonly error?: GatewayError;
};

/**
 * Takes the upstream's bytes, and tells what to pass on. Its methods throw `provider` if a stream
 * is not usable.
 */
export class EventInspector {
  readonly splitter = new EventSplitter();
  /** Nothing was passed on yet: a byte order mark may come. */
  #isAtStart = true;
  /** An event has come that is neither a preamble nor `[DONE]`. */
  hasBegun = false;
  /**
   * A preamble has come; and one that has a choice, so that there is an answer, if an empty one.
   */
  hasPreamble = false;
  hasChoice = false;
  /** Lines have come without any field: those of a page, or of JSON. */
  hasOtherLines = false;
  /** `[DONE]` was seen: the stream is over. */
  isDone = false;
  /** The line feed of the line end behind `[DONE]` may still come. */
  isEndOpen = false;
  /** The unfinished event is long, or a part of it was passed on. */
  #long: LongEvent | undefined;
  /** The bytes of the unfinished event that were passed on. */
  #passedBytes = 0;
  /** The line feed that may come next belongs to an event that was taken out. */
  #dropsLineFeed = false;
  /** By the index of each choice that has begun. */
  readonly #choices = new Map<number, 'open' | 'finished' | 'reopened'>();
  /** Some choice has a `finish_reason`. */
  #hasFinish = false;
  readonly #context: AttemptContext;
  #isModelWanted = true;

  constructor(context: AttemptContext) {
    this.#context = context;
  }

  /** Each choice that has begun has its `finish_reason`: the answer is complete. */
  get isFinished(): boolean {
    return (
      this.#choices.size > 0 && [...this.#choices.values()].every((state) => state === 'finished')
    );
  }

  /** Takes a chunk, and returns the events that are now whole. */
  push(chunk: Buffer): Inspection {
    const { size } = this.splitter.unfinished;
    if (size > 0 && size + chunk.length > MAX_PARSED_CHARACTERS) this.#long ??= this.#beginLong();
    if (this.#long) return this.#pushLong(chunk, this.#long);
    const events = this.splitter.push(chunk);
    if (!this.#dropsLineFeed || events.length === 0) return this.#inspect(events);
    this.#dropsLineFeed = false;
    return this.#inspect(events[0] === LINE_FEED ? events.subarray(1) : events);
  }

  /** A part of the unfinished event was passed on. */
  get isEventPassed(): boolean {
    return this.#passedBytes > 0;
  }

  /**
   * Takes a chunk, and returns also what has come of the unfinished event, in which no error is
   * looked for. It begins the answer.
   */
  pushUnfinished(chunk: Buffer): Inspection {
    const found = this.push(chunk);
    const { unfinished } = this.splitter;
    if (found.error || this.isDone || unfinished.size === 0) return found;
    this.#long ??= this.#beginLong();
    this.hasBegun = true;
    this.#isAtStart = false;
    this.#passedBytes += unfinished.size;
    const long = [...(found.long ?? []), found.toPass, ...unfinished.takeParts()];
    return { long, toPass: NO_BYTES };
  }

  /** Scans what is held of the unfinished event, and from now on each chunk of it as it comes. */
  #beginLong(): LongEvent {
    const { parts, size } = this.splitter.unfinished;
    const scanned = this.#isAtStart ? withoutMark(parts) : parts;
    const long = new LongEvent(size - lengthOf(scanned));
    for (const part of scanned) long.push(part);
    return long;
  }

  /** Takes a chunk of a long event, and of those that follow it. */
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
    if (found.long) return { ...rest, long: found.long };
    return { ...rest, toPass: Buffer.concat([found.toPass, rest.toPass]) };
  }

  /** `parts` are those of the event that were not passed on yet. */
  #inspectLong(long: LongEvent, parts: readonly Buffer[]): Inspection {
    const { scan } = long;
    const isShort = long.dataBytes <= MAX_PARSED_CHARACTERS;
    if (!this.isEventPassed && (isShort || long.isUnusual)) return this.#inspect(joinParts(parts));
    const isJson = scan.json.finish() === undefined;
    if (!this.isEventPassed && (long.isNamedError || (isJson && scan.isError))) {
      return { toPass: NO_BYTES, error: errorOf(ERROR_WITHOUT_TEXT, this.#context, true) };
    }
    this.hasBegun = true;
    this.#isAtStart = false;
    if (isJson) this.#noteLong(long, parts);
    return { long: parts, toPass: NO_BYTES };
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
   * The bytes after the last blank line. Some upstreams omit the one after their last event: if the
   * event is whole, it is passed on with one, without which clients drop it. Otherwise it is
   * dropped, and the stream was cut off.
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
    const text = parsed.map((one) => one.data || one.bareJson).find((one) => one !== '');
    if (text !== undefined && isWholeData(text)) return this.#inspect(closed);
    for (const { start } of parsed) this.hasOtherLines ||= !isField(closed, start);
    return text === undefined ? { toPass: NO_BYTES } : this.#cut();
  }

  #cut(): Inspection {
    const { provider } = this.#context.attempt;
    const error = providerError(provider, 'the stream was cut off', { problem: 'cut' });
    return { toPass: NO_BYTES, error };
  }

  /** Parses only the beginning, and runs of events that look suspicious. */
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

  /** Notes the first model that is no empty text. */
  #noteModel(model: string): void {
    if (!this.#isModelWanted || model === '') return;
    this.#isModelWanted = false;
    this.#context.attempt.noteModel(model);
  }

  /** Takes out the chunks of usage, each with its line end. */
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

  /** Notes the choices of an event, also of one that is too long to be parsed. */
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

  /** Notes what the scan of an event, or of a part of one, says of choice 0. */
  #noteScanned(event: Buffer): void {
    const { index, finishReason } = scanEvents(event, false);
    const isFinished = finishReason !== '';
    if (index === '0' || (index === 'none' && isFinished)) this.#noteChoice(0, isFinished, true);
  }

  /**
   * Content behind a `finish_reason` opens the choice again, and then only an event without content
   * finishes it: some providers write `stop` into every chunk, which says nothing of the end.
   */
  #noteChoice(index: number, isFinished: boolean, isContent: boolean): void {
    const before = this.#choices.get(index);
    if (before === undefined && this.#choices.size === MAX_CHOICES) return;
    this.#hasFinish ||= isFinished;
    const isReopened = isContent && before !== undefined && before !== 'open';
    const state = isFinished ? 'finished' : (before ?? 'open');
    this.#choices.set(index, isReopened ? 'reopened' : state);
  }

  /** `json` is the event's data, parsed; undefined if it is not JSON, or too long. */
  #errorIn({ name, data, bareJson }: ServerSentEvent, json: unknown): GatewayError | undefined {
    const { hasBegun } = this;
    const mayBeFailure = !hasBegun && !Array.isArray(memberOf(json, 'choices'));
    const errorIn = (reported: unknown) =>
      reportsError(reported) || (mayBeFailure && reportsFailure(reported))
        ? errorOf(reported, this.#context, true)
        : undefined;
    // Ollama and Gemini write one among the events, Gemini also over several lines. With `choices`
    // it is a completion.
    const bare = bareJson === '' ? undefined : parseUntrustedJson(bareJson);
    const isBareError =
      bare !== undefined && (hasBegun ? reportsError(bare) : reportsFailure(bare));
    const bareError = isBareError ? errorOf(bare, this.#context, true) : undefined;
    if (bareError || data === '' || DONE_MARK.test(data)) return bareError;
    if (data.length > MAX_PARSED_CHARACTERS) {
      return name === 'error' || isLongError(data) ? errorIn(ERROR_WITHOUT_TEXT) : undefined;
    }
    const isNamedError = name === 'error';
    return (
      errorIn(json) ??
      (isNamedError ? errorOf({ error: json ?? data }, this.#context, true) : undefined)
    );
  }
}
