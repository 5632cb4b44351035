/**
 * The body of a complete answer: read in full, bounded, and checked for being JSON and no error.
 */

import { MAX_USAGE_BYTES } from '../openai/usage.ts';
import { Reservation } from '../lib/byte-budget.ts';
import { readEach } from '../lib/byte-source.ts';
import { joinParts, lengthOf, sliceParts, sliceText } from '../lib/chunk-buffer.ts';
import { GatewayError } from '../lib/errors.ts';
import { HeldBody } from '../lib/held-body.ts';
import {
  JsonScanner,
  type JsonValue,
  MAX_PARSED_CHARACTERS,
  memberOf,
  parseUntrustedJson,
} from '../lib/json.ts';
import { beginsJson, firstByteOf, isEmptyCompletion } from '../openai/answer-json.ts';
import type { Answer, AttemptContext } from './attempt-context.ts';
import {
  emptyAnswerError,
  MAX_ANSWER_BYTES,
  providerError,
  tooLargeError,
} from './network-error.ts';
import { BARE_MESSAGE_NAMES, errorOf, reportsFailure } from './provider-error.ts';
import type { UpstreamResponse } from './provider.ts';

/** With parameters or without; a comma if the header is repeated. */
export const EVENT_STREAM_TYPE = /^\s*text\/event-stream\s*(?:[;,]|$)/i;

/**
 * Reads a complete answer, without a promise if all of it has come. `answerHeaders` are those of
 * its delivery. Throws `provider` if the answer is too large, `rateLimit` if it does not fit the
 * budget now, `serialization` if it is not JSON, its error if that is all it is, and
 * `provider` if it is a stream of events.
 */
export function openCompletion(
  { status, headers, body }: UpstreamResponse,
  answerHeaders: Record<string, string>,
  context: AttemptContext,
): Answer | Promise<Answer> {
  const { call, deadline } = context;
  const { provider } = context.attempt;
  let scan: AnswerScan | undefined;
  const { maxBufferedBytes } = call.budget.limits;
  const held = new HeldBody(new Reservation(call.budget));
  call.answerMemory = held;
  const announcedBytes = Number(headers.get('content-length') ?? 0) || 0;
  const maxBytes = Math.min(MAX_ANSWER_BYTES, maxBufferedBytes);
  held.begin(announcedBytes, maxBytes, () => tooLargeError('answer', provider, maxBufferedBytes));
  let firstByte: number | undefined;
  const isLabelledStream = EVENT_STREAM_TYPE.test(headers.get('content-type') ?? '');
  const reading = readEach(body, (chunk) => {
    held.push(chunk);
    if (isLabelledStream) {
      firstByte ??= firstByteOf(chunk);
      // A stream of events may never end.
      if (firstByte !== undefined && !beginsJson(firstByte)) throw streamAnswered(provider);
    }
    // Below that, `JSON.parse` takes a quarter of the scan's time.
    if (held.size <= MAX_PARSED_CHARACTERS) return true;
    const added = scan ? [chunk] : withoutMark(held.parts);
    scan ??= new AnswerScan();
    for (const part of added) scan.json.push(part);
    return !scan.json.fault;
  });
  const open = (): Answer => {
    const { parts } = held;
    const fault = scan ? scan.finish(withoutMark(parts), context) : readShort(parts, context);
    if (fault === 'not JSON') {
      if (isLabelledStream || beginsEvents(parts)) throw streamAnswered(provider);
      const text = 'the provider did not answer with usable JSON';
      const cause = `content-type: ${headers.get('content-type') ?? 'none'}`;
      throw new GatewayError('serialization', text, { provider, cause });
    }
    if (fault) throw fault;
    return {
      deliver: (reply) => {
        deadline.stop();
        return reply.send(status, answerHeaders, parts);
      },
    };
  };
  return reading ? reading.then(open) : open();
}

/**
 * Returns the failure that a completion is to a client that asked for a stream: its error, or
 * `unsupported`; undefined if the bytes are not JSON.
 */
export function failureOfCompletion(
  parts: readonly Buffer[],
  context: AttemptContext,
): GatewayError | undefined {
  const scan = lengthOf(parts) > MAX_PARSED_CHARACTERS ? new AnswerScan() : undefined;
  for (const part of scan ? withoutMark(parts) : []) scan!.json.push(part);
  const fault = scan ? scan.finish(withoutMark(parts), context) : readShort(parts, context);
  if (fault === 'not JSON') return undefined;
  return fault ?? noStreaming(context.attempt.provider);
}

/** The error of a provider that answers with a completion where a stream was asked for. */
export function noStreaming(provider: string): GatewayError {
  const text = `Provider ${provider} does not support streaming`;
  return new GatewayError('unsupported', text, { provider });
}

function streamAnswered(provider: string): GatewayError {
  return providerError(provider, 'a stream was answered to a request for a complete answer');
}

/** Returns whether an answer begins with a comment or a field of an event. */
function beginsEvents(parts: readonly Buffer[]): boolean {
  return /^\ufeff?\s*(?:data|event|id|retry|error)?:/.test(sliceText(parts, 0, 1024));
}

/**
 * Undefined if nothing is wrong with the answer: one with `choices` is a completion, whatever else
 * it has.
 */
type AnswerFault = GatewayError | 'not JSON' | undefined;

/** Stands for an error that is too long to be parsed. */
export const ERROR_WITHOUT_TEXT = { error: true };

/** Notes what a completion says about itself, or returns what is wrong with the answer. */
function readShort(parts: readonly Buffer[], context: AttemptContext): AnswerFault {
  const bytes = joinParts(parts);
  const json = parseUntrustedJson(bytes.toString('utf8'));
  if (json === undefined) return 'not JSON';
  if (reportsFailure(json)) return errorOf(json, context);
  const choices = memberOf(json, 'choices') ?? undefined;
  const { emptyAnswers } = context.services.config.server;
  if (emptyAnswers === 'fail' && isEmptyCompletion(json)) {
    return emptyAnswerError(context.attempt.provider);
  }
  if (choices === undefined) return undefined;
  const list: unknown[] = Array.isArray(choices) ? choices : [];
  const reasons = list.map((choice) => memberOf(choice, 'finish_reason'));
  context.attempt.noteModel(memberOf(json, 'model'));
  context.attempt.noteFinishReason(reasons.find((one) => typeof one === 'string' && one !== ''));
  context.attempt.noteUsage(memberOf(json, 'usage'));
  return undefined;
}

/**
 * Returns whether the JSON of an event, too long to be parsed, is an error. Its message is not
 * passed on.
 */
export function isLongError(data: string): boolean {
  const scan = new AnswerScan();
  scan.json.push(Buffer.from(data));
  return !scan.json.finish() && scan.isError;
}

/**
 * Returns bytes in parts without the byte order mark at their start: behind a comment it would be
 * part of the name of a field.
 */
export function withoutMark(parts: readonly Buffer[]): readonly Buffer[] {
  return sliceText(parts, 0, 3) === '\ufeff' ? sliceParts(parts, 3) : parts;
}

/** Of more choices nothing is noted: OpenAI gives 128 at most. */
export const MAX_CHOICES = 1000;
type ScannedChoice = { readonly index: number; readonly finishReason: string };
const NO_CHOICE: ScannedChoice = { index: 0, finishReason: '' };

/**
 * Looks for the members by which long answers, and long events, differ, while they arrive. They are
 * not parsed: the log probabilities of one may be a million elements.
 */
export class AnswerScan {
  readonly json = new JsonScanner((value) => this.#note(value), Infinity);
  #hasError = false;
  #hasMessage = false;
  #hasChoices = false;
  /** The current member has an item. */
  #hasItem = false;
  model = '';
  /** The first one in the current member, and the first one in `choices`. */
  #innerReason = '';
  finishReason = '';
  /** The current item of the current member; the items of that member; and those of `choices`. */
  #item: ScannedChoice = NO_CHOICE;
  #items: ScannedChoice[] = [];
  choices: readonly ScannedChoice[] = [];
  /** The offset of the last `usage` that is not null; 0 if there is none. */
  usageStart = 0;

  /** There are no choices beside it. */
  get isError(): boolean {
    return this.#hasError && !this.#hasChoices;
  }

  /**
   * As `readShort`; the error of a long answer has no text. `parts` are the bytes of the answer.
   */
  finish(parts: readonly Buffer[], context: AttemptContext): AnswerFault {
    if (this.json.finish()) return 'not JSON';
    const isBareMessage = this.#hasMessage && !this.#hasChoices;
    if (this.isError || isBareMessage) return errorOf(ERROR_WITHOUT_TEXT, context);
    if (!this.#hasChoices) return undefined;
    context.attempt.noteModel(this.model);
    context.attempt.noteFinishReason(this.finishReason);
    const start = this.usageStart;
    if (start > 0) context.attempt.noteUsage(sliceText(parts, start, start + MAX_USAGE_BYTES));
    return undefined;
  }

  /** A value comes after those inside it. */
  #note({ kind, depth, name, start, end, text }: JsonValue): void {
    if (depth === 3 && name === 'finish_reason') {
      this.#innerReason ||= text;
      this.#item = { ...this.#item, finishReason: text };
    }
    if (depth === 3 && name === 'index' && kind === 'number') {
      this.#item = { ...this.#item, index: Number(this.json.number) };
    }
    if (depth === 2) this.#endItem(kind);
    if (depth !== 1) return;
    if (kind !== 'null') {
      const isEmpty = kind === 'string' ? end - start === 2 : kind === 'false';
      const isSaid = kind === 'object' || kind === 'array' ? this.#hasItem : !isEmpty;
      if (isSaid && (name === 'error' || name === 'errors')) this.#hasError = true;
      if (isSaid && kind === 'string' && BARE_MESSAGE_NAMES.includes(name)) this.#hasMessage = true;
      if (name === 'model') this.model ||= text;
      if (name === 'usage') this.usageStart = start;
      if (name === 'choices') {
        this.#hasChoices = true;
        this.choices = this.#items;
        this.finishReason ||= this.#innerReason;
      }
    }
    this.#innerReason = '';
    this.#hasItem = false;
    this.#items = [];
  }

  #endItem(kind: JsonValue['kind']): void {
    this.#hasItem = true;
    if (kind === 'object' && this.#items.length < MAX_CHOICES) this.#items.push(this.#item);
    this.#item = NO_CHOICE;
  }
}
