/** Looks into a streamed completion as it arrives: for errors, its end, and what it says about itself. */

import type { GatewayError } from '../lib/errors.ts';
import { EventSplitter, parseEvents, type ServerSentEvent } from '../lib/sse.ts';
import { MAX_PARSED_CHARACTERS, memberOf, parseUntrustedJson } from '../lib/json.ts';
import { ERROR_WITHOUT_TEXT, isLongError } from './completion.ts';
import { isWholeData, scanEvents, type EventScan } from './event-scan.ts';
import type { AttemptContext } from './attempt-context.ts';
import { streamError } from './network-error.ts';
import { errorIn } from './provider-error.ts';

/** Limit for an incomplete event. Images in deltas take megabytes. */
const MAX_EVENT_BYTES = 16_777_216;
/** OpenAI gives 128 at most. */
const MAX_CHOICES = 1000;
const NOTHING = Buffer.alloc(0);

/** The result of inspecting a run of whole events. */
export interface Inspection {
  /** The bytes to pass on: all of them, those before an error, or those up to `[DONE]`. */
  readonly passed: Buffer;
  readonly error?: GatewayError;
  /** There is data besides `[DONE]`. */
  readonly hasData: boolean;
}

/** Takes the upstream's bytes, and tells what to pass on. Its methods throw `provider` if a stream is not usable. */
export class EventInspector {
  /** Knows what is held, and how many events there were. */
  readonly splitter = new EventSplitter();
  /** Nothing was passed on yet: a byte order mark may come. */
  #isAtStart = true;
  /** `[DONE]` was seen: the stream is over. */
  isDone = false;
  /** By the index of each choice that has begun: whether it has its `finish_reason`. */
  readonly #choices = new Map<number, boolean>();
  readonly #context: AttemptContext;
  #isModelWanted = true;

  constructor(context: AttemptContext) {
    this.#context = context;
  }

  /** Each choice that has begun has its `finish_reason`: the answer is complete. */
  get isFinished(): boolean {
    return this.#choices.size > 0 && [...this.#choices.values()].every(Boolean);
  }

  /** Takes a chunk, and returns the events that are now whole. */
  push(chunk: Buffer, isBeginning: boolean): Inspection {
    return this.#inspect(this.splitter.push(chunk), isBeginning);
  }

  /** Looks for errors, the end and what the answer says of itself. Parses only the beginning, and runs of events that look suspicious. */
  #inspect(events: Buffer, isBeginning: boolean): Inspection {
    if (this.splitter.heldBytes > MAX_EVENT_BYTES)
      throw streamError(this.#context.attempt.provider, 'an event is too large');
    const scan = scanEvents(events, this.#isModelWanted);
    const mustParse = isBeginning || scan.isSuspicious;
    const found = mustParse ? this.#parse(events) : { passed: events, hasData: true };
    if (!mustParse) this.#noteChoices(scan);
    const isWhole = found.passed.length === events.length;
    if (found.passed.length > 0) this.#isAtStart = false;
    this.#note(isWhole ? scan : scanEvents(found.passed, this.#isModelWanted));
    return found;
  }

  #note({ model, finishReason, usage }: EventScan): void {
    const { attempt } = this.#context;
    if (model !== '') {
      this.#isModelWanted = false;
      attempt.noteModel(model);
    }
    if (finishReason !== '') attempt.noteFinishReason(finishReason);
    if (usage !== '') attempt.noteUsage(usage);
  }

  #parse(events: Buffer): Inspection {
    let hasData = false;
    let before = 0;
    for (const event of parseEvents(events, this.#isAtStart)) {
      const { data, start, end } = event;
      const json = parseUntrustedJson(data);
      const error = this.#errorIn(event, json);
      if (error) return { passed: events.subarray(0, start), error, hasData };
      if (data === '[DONE]') {
        this.isDone = true;
        return { passed: events.subarray(0, end), hasData };
      }
      hasData ||= data !== '';
      // Comments too, as in a run that is not parsed: how a stream is cut up makes no difference.
      this.#noteChoices(scanEvents(events.subarray(before, start), false));
      this.#noteChoices(scanEvents(events.subarray(start, end), false), json);
      before = end;
    }
    this.#noteChoices(scanEvents(events.subarray(before), false));
    return { passed: events, hasData };
  }

  /** Notes the choices that were scanned. An event with an `index` other than 0 is parsed to find its choice. */
  #noteChoices({ index, finishReason }: EventScan, json?: unknown): void {
    if (index !== 'other') {
      const isFinished = finishReason !== '';
      if (index === '0' || isFinished) this.#noteChoice(0, isFinished);
      return;
    }
    const choices = memberOf(json, 'choices');
    for (const choice of Array.isArray(choices) ? (choices as unknown[]) : []) {
      const number = memberOf(choice, 'index');
      const reason = memberOf(choice, 'finish_reason');
      const isFinished = typeof reason === 'string' && reason !== '' && reason !== 'null';
      this.#noteChoice(typeof number === 'number' ? number : 0, isFinished);
    }
  }

  #noteChoice(index: number, isFinished: boolean): void {
    const before = this.#choices.get(index);
    if (before === undefined && this.#choices.size === MAX_CHOICES) return;
    this.#choices.set(index, before || isFinished);
  }

  /**
   * The bytes after the last blank line. Some upstreams omit the one after their last event: if the event is
   * whole, it is passed on with one, without which clients drop it. Otherwise it is dropped, and the stream was cut off.
   */
  end(): Inspection {
    const closed = Buffer.concat([this.splitter.release(), Buffer.from('\n\n')]);
    const event = [...parseEvents(closed, this.#isAtStart)].find(
      ({ data, bareJson }) => data !== '' || bareJson !== '',
    );
    if (event === undefined) return { passed: NOTHING, hasData: false };
    if (!isWholeData(event.data || event.bareJson)) {
      return {
        passed: NOTHING,
        hasData: false,
        error: streamError(this.#context.attempt.provider, 'the stream was cut off'),
      };
    }
    return this.#inspect(closed, true);
  }

  /** `json` is the event's data, parsed; undefined if it is not JSON, or too long. */
  #errorIn({ name, data, bareJson }: ServerSentEvent, json: unknown): GatewayError | undefined {
    const errorOf = (reported: unknown) => errorIn(reported, this.#context, true);
    // Ollama and Gemini write one among the events, Gemini also over several lines.
    const lineError = bareJson === '' ? undefined : errorOf(parseUntrustedJson(bareJson));
    if (lineError || data === '' || data === '[DONE]') return lineError;
    if (data.length > MAX_PARSED_CHARACTERS) {
      return name === 'error' || isLongError(data) ? errorOf(ERROR_WITHOUT_TEXT) : undefined;
    }
    return errorOf(json) ?? (name === 'error' ? errorOf({ error: json ?? data }) : undefined);
  }
}
