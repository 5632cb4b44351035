/** The body of a complete answer: read in full, bounded, and checked for being JSON and no error. */

import { MAX_USAGE_BYTES } from '../request/usage.ts';
import { readEach } from '../lib/byte-source.ts';
import { joinParts, sliceText } from '../lib/chunk-buffer.ts';
import { GatewayError } from '../lib/errors.ts';
import {
  JsonScanner,
  type JsonValue,
  MAX_PARSED_CHARACTERS,
  memberOf,
  parseUntrustedJson,
} from '../lib/json.ts';
import { isEmptyCompletion, reportsError } from './answer-json.ts';
import type { AttemptContext } from './attempt-context.ts';
import { emptyAnswerError, providerError } from './network-error.ts';
import { errorOf } from './provider-error.ts';
import type { UpstreamResponse } from './provider.ts';

/** A longer answer is no completion. */
const MAX_ANSWER_BYTES = 67_108_864;

/**
 * Reads a complete answer and sends it with these headers, without a promise if it has come. Throws `provider` if it
 * is too large, `rateLimit` if it does not fit the reservation's budget, `serialization` if it is not JSON, its
 * error if that is all it is, and `unsupported` if a stream was asked for.
 */
export function passCompletion(
  { status, headers, body }: UpstreamResponse,
  answerHeaders: Record<string, string>,
  context: AttemptContext,
): Promise<void> | undefined {
  const { attempt, call } = context;
  const { provider } = attempt;
  let scan: AnswerScan | undefined;
  const held = call.answerReservation.holdBody({
    announcedBytes: Number(headers.get('content-length') ?? 0) || 0,
    maxBytes: MAX_ANSWER_BYTES,
    tooLarge: () => providerError(provider, 'the answer is too large'),
  });
  const reading = readEach(body, (chunk) => {
    held.push(chunk);
    // Below that, `JSON.parse` takes a quarter of the scan's time.
    if (held.size <= MAX_PARSED_CHARACTERS) return true;
    const added = scan ? [chunk] : held.parts;
    scan ??= new AnswerScan();
    for (const part of added) scan.json.push(part);
    return !scan.json.fault;
  });
  const send = (): Promise<void> | undefined => {
    const { parts } = held;
    const fault = scan ? scan.finish(parts, context) : readShort(parts, context);
    if (fault === 'not JSON') {
      const text = 'the provider did not answer with usable JSON';
      const cause = `content-type: ${headers.get('content-type') ?? 'none'}`;
      throw new GatewayError('serialization', text, { provider, cause });
    }
    if (fault) throw fault;
    if (context.isStream) {
      const text = `Provider ${provider} does not support streaming`;
      throw new GatewayError('unsupported', text, { provider });
    }
    attempt.beginAnswer();
    return call.reply.send(status, answerHeaders, parts);
  };
  return reading ? reading.then(send) : send();
}

/** Undefined if nothing is wrong with the answer: one with `choices` is a completion, whatever else it has. */
type AnswerFault = GatewayError | 'not JSON' | undefined;

/** Stands for an error that is too long to be parsed. */
export const ERROR_WITHOUT_TEXT = { error: {} };

/** Notes what a completion says about itself, or returns what is wrong with the answer. */
function readShort(parts: readonly Buffer[], context: AttemptContext): AnswerFault {
  const bytes = joinParts(parts);
  const json = parseUntrustedJson(bytes.toString('utf8'));
  if (json === undefined) return 'not JSON';
  const choices = memberOf(json, 'choices') ?? undefined;
  if (choices === undefined && reportsError(json)) return errorOf(json, context);
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

/** Returns whether the JSON of an event, too long to be parsed, is an error. Its message is not passed on. */
export function isLongError(data: string): boolean {
  const scan = new AnswerScan();
  scan.json.push(Buffer.from(data));
  return !scan.json.finish() && scan.isError;
}

/**
 * Looks for the members by which long answers differ, while they arrive. They are not parsed: the log probabilities of
 * one may be a million elements.
 */
class AnswerScan {
  readonly json = new JsonScanner((value) => this.#note(value), Infinity);
  #hasError = false;
  #hasChoices = false;
  #model = '';
  /** The first one in the current member, and the first one in `choices`. */
  #innerReason = '';
  #finishReason = '';
  /** The offset of the last `usage` that is not null; 0 if there is none. */
  #usageStart = 0;

  /** There are no choices beside it. */
  get isError(): boolean {
    return this.#hasError && !this.#hasChoices;
  }

  /** As `readShort`; the error of a long answer has no text. `parts` are the bytes of the answer. */
  finish(parts: readonly Buffer[], context: AttemptContext): AnswerFault {
    if (this.json.finish()) return 'not JSON';
    if (this.isError) return errorOf(ERROR_WITHOUT_TEXT, context);
    if (!this.#hasChoices) return undefined;
    context.attempt.noteModel(this.#model);
    context.attempt.noteFinishReason(this.#finishReason);
    const start = this.#usageStart;
    if (start > 0) context.attempt.noteUsage(sliceText(parts, start, start + MAX_USAGE_BYTES));
    return undefined;
  }

  /** A value comes after those inside it. */
  #note({ kind, depth, name, start, text }: JsonValue): void {
    if (depth === 3 && name === 'finish_reason') this.#innerReason ||= text;
    if (depth !== 1) return;
    if (kind !== 'null') {
      if (name === 'error') this.#hasError = true;
      if (name === 'model') this.#model ||= text;
      if (name === 'usage') this.#usageStart = start;
      if (name === 'choices') {
        this.#hasChoices = true;
        this.#finishReason ||= this.#innerReason;
      }
    }
    this.#innerReason = '';
  }
}
