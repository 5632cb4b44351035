/**
 * Inspects a stream whose events have a `type`, as it arrives: finds errors, the answer's beginning
 * and its last event.
 */

import type { GatewayError } from '../lib/errors.ts';
import { memberOf, parseUntrustedJson } from '../lib/json.ts';
import { parseEvents } from '../lib/sse.ts';
import { AnswerScan } from '../openai/answer-scan.ts';
import type { EventKind, TypedEvents } from '../openai/endpoint.ts';
import { DONE_MARK, isField } from '../openai/event-scan.ts';
import type { LongEvent } from '../openai/long-event.ts';
import type { AttemptContext } from './attempt-context.ts';
import { EventInspector, type Inspection } from './event-inspector.ts';
import { ERROR_WITHOUT_TEXT } from './provider-error.ts';

/**
 * Takes the bytes of such a stream, and returns the bytes to pass on. It never adds or removes an
 * event, but passes nothing on behind the last event of the answer.
 */
export class TypedEventInspector extends EventInspector {
  readonly #typed: TypedEvents;

  constructor(context: AttemptContext, typed: TypedEvents) {
    super(context);
    this.#typed = typed;
  }

  protected override inspect(events: Buffer): Inspection {
    const found = this.#parse(events);
    if (found.toPass.length > 0) this.isAtStart = false;
    return found;
  }

  #parse(events: Buffer): Inspection {
    for (const event of parseEvents(events, this.isAtStart)) {
      const { data, start, end } = event;
      const json = parseUntrustedJson(data);
      const error = this.errorIn(event, json);
      if (error) return { toPass: events.subarray(0, start), error };
      // Clients take `[DONE]` for the end of a whole answer.
      if (DONE_MARK.test(data)) return { ...this.cut(), toPass: events.subarray(0, start) };
      if (data === '') {
        this.hasOtherLines ||= !isField(events, start);
        continue;
      }
      const kind = this.#typed.kindOf(json ?? scanned(data));
      const answer = memberOf(json, 'response');
      if (kind === 'failure' && !this.hasBegun) {
        return { toPass: events.subarray(0, start), error: this.toError(answer) };
      }
      if (kind === 'preamble') this.hasPreamble = true;
      else this.hasBegun = true;
      const model = memberOf(answer, 'model');
      if (typeof model === 'string') this.noteModel(model);
      if (isLast(kind)) {
        this.isDone = true;
        this.isEndOpen = this.splitter.isLineEndOpen && end === events.length;
        this.context.attempt.noteUsage(memberOf(answer, 'usage'));
        this.context.attempt.noteFinishReason(this.#typed.finishReasonOf(answer));
        const toPass = events.subarray(0, end);
        return kind === 'end' ? { toPass } : { toPass, error: this.toError(answer) };
      }
    }
    return { toPass: events };
  }

  protected override noteLong(long: LongEvent, parts: readonly Buffer[]): GatewayError | undefined {
    super.noteLong(long, parts);
    const kind = this.#typed.kindOf({ type: long.scan.eventType });
    this.isDone = isLast(kind);
    this.isEndOpen = this.isDone && this.splitter.isLineEndOpen;
    return kind === 'failure' ? this.toError(ERROR_WITHOUT_TEXT) : undefined;
  }
}

function isLast(kind: EventKind): boolean {
  return kind === 'end' || kind === 'failure';
}

/** Returns the `type` in data that is too long to parse. */
function scanned(data: string): { readonly type: string } {
  const scan = new AnswerScan();
  scan.json.push(Buffer.from(data));
  return { type: scan.eventType };
}
