/** Looks into a streamed completion as it arrives: for errors, its end, and what it says about itself. */

import { GatewayError } from '../lib/errors.ts';
import { EventSplitter, parseEvents, type ServerSentEvent } from '../lib/sse.ts';
import { MAX_PARSED_CHARACTERS, parseUntrustedJson } from '../lib/untrusted-json.ts';
import { ERROR_WITHOUT_TEXT, isLongError, type AnswerOptions } from './completion.ts';
import { isWholeData, scanEvents, type EventScan } from './event-scan.ts';

/** Limit for an incomplete event. Images in deltas take megabytes. */
const MAX_EVENT_BYTES = 16_777_216;
const NOTHING = Buffer.alloc(0);

/** The result of inspecting a run of whole events. */
export interface Inspection {
  /** The bytes to pass on: all of them, those before an error, or those up to `[DONE]`. */
  readonly passed: Buffer;
  readonly error?: GatewayError;
  readonly hasData: boolean;
}

/** Takes the upstream's bytes, and tells what to pass on. Its methods throw `provider` if a stream is not usable. */
export class EventInspector {
  /** Knows what is held, and how many events there were. */
  readonly splitter = new EventSplitter();
  /** Nothing was passed on yet: a byte order mark may come. */
  #isAtStart = true;
  /** A `finish_reason` was seen: the answer is complete. */
  isFinished = false;
  /** `[DONE]` was seen: the stream is over. */
  isDone = false;
  /** The upstream omitted the blank line after its last event. */
  isMidLine = false;
  readonly #options: AnswerOptions;
  #isModelWanted = true;

  constructor(options: AnswerOptions) {
    this.#options = options;
  }

  /** Takes a chunk, and returns the events that are now whole. */
  push(chunk: Buffer, isBeginning: boolean): Inspection {
    return this.#inspect(this.splitter.push(chunk), isBeginning);
  }

  /** Looks for errors, facts and the end. Parses only the beginning, and runs of events that look suspicious. */
  #inspect(events: Buffer, isBeginning: boolean): Inspection {
    if (this.splitter.heldBytes > MAX_EVENT_BYTES)
      throw streamError(this.#options.provider, 'an event is too large');
    const scan = scanEvents(events, this.#isModelWanted);
    const mustParse = isBeginning || scan.isSuspicious;
    const found = mustParse ? this.#parse(events) : { passed: events, hasData: true };
    const isWhole = found.passed.length === events.length;
    if (found.passed.length > 0) this.#isAtStart = false;
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
      this.isFinished = true;
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
        this.isDone = true;
        return { passed: events.subarray(0, event.end), hasData };
      }
    }
    return { passed: events, hasData };
  }

  /**
   * The bytes after the last blank line. Some upstreams omit the one after their last event: if the event is
   * whole, it is passed on. Otherwise it is dropped, and the stream was cut off.
   */
  end(): Inspection {
    const tail = this.splitter.release();
    const closed = Buffer.concat([tail, Buffer.from('\n\n')]);
    const event = [...parseEvents(closed, this.#isAtStart)].find(({ data }) => data !== '');
    if (event === undefined) return { passed: NOTHING, hasData: false };
    if (!isWholeData(event.data)) {
      return {
        passed: NOTHING,
        hasData: false,
        error: streamError(this.#options.provider, 'the stream was cut off'),
      };
    }
    const found = this.#inspect(closed, true);
    this.isMidLine = true;
    return found.error ? found : { ...found, passed: tail };
  }

  #errorIn({ name, data }: ServerSentEvent): GatewayError | undefined {
    if (data === '' || data === '[DONE]') return undefined;
    const { errorIn } = this.#options;
    if (data.length > MAX_PARSED_CHARACTERS) {
      return isLongError(data) ? errorIn(ERROR_WITHOUT_TEXT) : undefined;
    }
    const json = parseUntrustedJson(data);
    return errorIn(json) ?? (name === 'error' ? errorIn({ error: json ?? data }) : undefined);
  }
}

/** The error of a stream that is not usable. */
export function streamError(provider: string, text: string, cause?: string): GatewayError {
  return new GatewayError('provider', text, { provider, cause });
}
