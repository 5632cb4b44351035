/** Reads complete answers: in full, up to a limit, and checked to be JSON without an error. */

import { Reservation } from '../../lib/memory/byte-budget.ts';
import { readEach } from '../../lib/memory/byte-source.ts';
import { joinParts, sliceText, withoutMark } from '../../lib/chunk-buffer.ts';
import { GatewayError } from '../../lib/errors.ts';
import { HeldBody } from '../../lib/memory/held-body.ts';
import { MAX_PARSED_CHARACTERS } from '../../lib/json.ts';
import { JsonOutline, readJson } from '../../lib/json-outline.ts';
import { beginsJson, firstByteOf } from '../../protocol/answer-json.ts';
import { reportsFailure } from '../../protocol/error-body.ts';
import { MAX_PAGE_CHARACTERS, pageWordsOf } from '../../protocol/page-words.ts';
import { emptyAnswerError, MAX_BYTES, tooLargeError } from './answer-errors.ts';
import type { Answer, AttemptContext } from './attempt-context.ts';
import { describeResponse, errorOf } from './provider-error.ts';
import type { UpstreamResponse } from '../connections/upstream-request.ts';

/** The media type with or without parameters; a comma follows if the header is repeated. */
export const EVENT_STREAM_TYPE = /^\s*text\/event-stream\s*(?:[;,]|$)/i;

/**
 * Reads a complete answer. Returns without a promise if the whole body has arrived. Throws or
 * rejects with `provider` if the answer is too large or an event stream, `rateLimit` if it does not
 * fit the memory budget now, `serialization` if it is not JSON, and the provider's error if it
 * reports an error.
 */
export function openCompleteAnswer(
  { status, headers, body }: UpstreamResponse,
  answerHeaders: Record<string, string>,
  context: AttemptContext,
): Answer | Promise<Answer> {
  const { call, deadline } = context;
  let outline: JsonOutline | undefined;
  const { maxBufferedBytes } = call.budget.limits;
  const held = new HeldBody(new Reservation(call.budget));
  call.answerMemory = held;
  const announcedBytes = Number(headers.get('content-length') ?? 0) || 0;
  const maxBytes = Math.min(MAX_BYTES.answer, maxBufferedBytes);
  held.begin(announcedBytes, maxBytes, () => tooLargeError('answer', maxBufferedBytes));
  let firstByte: number | undefined;
  const isLabelledStream = EVENT_STREAM_TYPE.test(headers.get('content-type') ?? '');
  const reading = readEach(body, (chunk) => {
    held.push(chunk);
    if (isLabelledStream) {
      firstByte ??= firstByteOf(chunk);
      // An event stream may never end, so it is refused at its first byte.
      if (firstByte !== undefined && !beginsJson(firstByte)) throw streamAnswered();
    }
    // A shorter answer is parsed at its end, because `JSON.parse` takes a quarter of the scan's
    // time.
    if (held.size <= MAX_PARSED_CHARACTERS) return true;
    const added = outline ? [chunk] : withoutMark(held.parts);
    outline ??= new JsonOutline();
    for (const part of added) outline.push(part);
    return !outline.hasError;
  });
  const open = (): Answer => {
    const { parts } = held;
    const failure = readAnswer(outline ? outline.finish() : parse(parts), context);
    if (failure === 'not JSON') {
      if (isLabelledStream || beginsEvents(parts)) throw streamAnswered();
      const text = 'the provider did not answer with usable JSON';
      const beginning = sliceText(parts, 0, MAX_PAGE_CHARACTERS);
      const cause = `no JSON: ${describeResponse(pageWordsOf(beginning), context)}`;
      throw new GatewayError('serialization', text, { cause });
    }
    if (failure) throw failure;
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
 * Returns the failure if a provider has sent a completion in place of a stream. Returns undefined
 * if the bytes are not JSON.
 */
export function failureOfCompletion(
  parts: readonly Buffer[],
  context: AttemptContext,
): GatewayError | undefined {
  const failure = readAnswer(parse(parts), context);
  if (failure === 'not JSON') return undefined;
  return failure ?? noStreaming(context.attempt.provider);
}

/** Returns the error for a provider that sends a completion in place of a stream. */
export function noStreaming(provider: string): GatewayError {
  const text = `Provider ${provider} does not support streaming`;
  return new GatewayError('unsupported', text);
}

function streamAnswered(): GatewayError {
  const text = 'a stream was answered to a request for a complete answer';
  return new GatewayError('provider', text);
}

function beginsEvents(parts: readonly Buffer[]): boolean {
  return /^\ufeff?\s*(?:data|event|id|retry|error)?:/.test(sliceText(parts, 0, 1024));
}

/** Undefined for a good answer. */
type AnswerFailure = GatewayError | 'not JSON' | undefined;

/** Notes the facts of an answer. Returns its failure, if any. */
function readAnswer(json: unknown, context: AttemptContext): AnswerFailure {
  const { attempt, call, services } = context;
  const { endpoint } = call.history;
  if (json === undefined) return 'not JSON';
  if (reportsFailure(json) || endpoint.hasFailed?.(json)) return errorOf(json, context);
  const failedReason = endpoint.failedReasonOf?.(json);
  if (failedReason) return emptyAnswerError(failedReason);
  if (services.config.server.emptyAnswers === 'fail' && endpoint.isEmpty?.(json)) {
    return emptyAnswerError();
  }
  endpoint.noteAnswer(json, attempt);
  return undefined;
}

function parse(parts: readonly Buffer[]): unknown {
  return readJson(joinParts(parts).toString('utf8'));
}
