/**
 * Reads a stream up to its first token, and finds out whether the response is a stream at all.
 *
 * The answer begins with the first event that is not a preamble. Until then the client gets
 * nothing, except that comments pass if the gateway's own comment has already begun the stream.
 */

import type { ByteSource } from '../../lib/memory/byte-source.ts';
import { ChunkBuffer, sliceText, withoutMark } from '../../lib/chunk-buffer.ts';
import { GatewayError } from '../../lib/errors.ts';
import { beginsJson } from '../../protocol/answer-json.ts';
import { MAX_PAGE_CHARACTERS, pageWordsOf } from '../../protocol/page-words.ts';
import { emptyAnswerError } from './answer-errors.ts';
import type { Answer, AttemptContext } from './attempt-context.ts';
import { failureOfCompletion, noStreaming } from './complete-answer.ts';
import { EventInflow, type StreamPhase } from './event-inflow.ts';
import type { PassedEvents } from './event-reader.ts';
import { describeResponse } from './provider-error.ts';
import { type StreamBeginning, StreamRelay } from './stream-relay.ts';

/** Preambles and comments before the first token. */
const MAX_PREAMBLE_BYTES = 1_048_576;

/**
 * Reads a stream up to its first token. Rejects after an error event, a cut, a time limit or the
 * client's disconnect.
 */
export function openStream(
  body: ByteSource,
  headers: Record<string, string>,
  context: AttemptContext,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const inflow = new EventInflow(body, context);
    inflow.start(new StreamOpening(inflow, headers, context, { resolve, reject }));
  });
}

interface Settle {
  readonly resolve: (answer: Answer) => void;
  readonly reject: (failure: unknown) => void;
}

class StreamOpening implements StreamPhase {
  readonly #inflow: EventInflow;
  readonly #context: AttemptContext;
  readonly #settle: Settle;
  /** From the first token to the delivery, the relay has the beginning too. */
  readonly #beginning: StreamBeginning;
  /** The words of the page that has ended in place of a stream. */
  #pageWords: string | undefined;

  constructor(
    inflow: EventInflow,
    headers: Record<string, string>,
    context: AttemptContext,
    settle: Settle,
  ) {
    this.#inflow = inflow;
    this.#context = context;
    this.#settle = settle;
    const bytes = new ChunkBuffer();
    this.#beginning = { headers, bytes, hasLongEvent: false, error: undefined };
  }

  get heldBytes(): number {
    return this.#beginning.bytes.size;
  }

  /**
   * From the first token to the delivery the provider is paused, but its response may still end.
   */
  take({ before = [], toPass, error }: PassedEvents): boolean {
    const { reader } = this.#inflow;
    const { bytes } = this.#beginning;
    for (const part of before) bytes.push(part);
    if (toPass.length > 0) bytes.push(toPass);
    this.#inflow.updateRoom(bytes.size);
    this.#beginning.hasLongEvent ||= before.length > 0;
    this.#beginning.error ??= error;
    if (!reader.hasBegun) {
      if (error) throw error;
      reader.hasBegun = this.#isPreambleOver(bytes.size);
      if (!this.#hasEndedEmpty() && !reader.hasBegun) {
        this.#passComments(bytes);
        return true;
      }
    }
    this.#settle.resolve(new StreamRelay(this.#inflow, this.#beginning, this.#context));
    return false;
  }

  /**
   * Throws for a completion, or an error as JSON, in place of a stream. Before the end, a response
   * that is too long to hold is `unsupported` if it begins as JSON, and `provider` if it is only
   * white space.
   */
  checkKind(hasEnded: boolean): void {
    const { firstByte, splitter } = this.#inflow.reader;
    if (!hasEnded && firstByte === undefined)
      throw new GatewayError('provider', 'too much before the first token');
    if (!hasEnded && beginsJson(firstByte)) throw noStreaming(this.#context.attempt.provider);
    if (!hasEnded) return;
    const parts = [...this.#beginning.bytes.parts, ...splitter.unfinished.parts];
    this.#pageWords = pageWordsOf(sliceText(parts, 0, MAX_PAGE_CHARACTERS));
    if (!beginsJson(firstByte)) return;
    const failure = failureOfCompletion(parts, this.#context);
    if (failure) throw failure;
  }

  fail(failure: unknown): void {
    this.#settle.reject(failure);
  }

  /**
   * Returns whether a stream has ended as an empty answer that passes. Throws if it has ended in
   * another way without a beginning.
   */
  #hasEndedEmpty(): boolean {
    const { services } = this.#context;
    const { hasOtherLines, isDone, rules } = this.#inflow.reader;
    if (!isDone && !this.#inflow.hasEnded) return false;
    if (rules.hasChoice && (isDone || rules.isFinished)) {
      if (services.config.server.emptyAnswers === 'pass') return true;
      throw emptyAnswerError();
    }
    const cause = `no events: ${describeResponse(this.#pageWords, this.#context)}`;
    if (isDone || !hasOtherLines) {
      const text = 'the stream ended before its first token';
      throw new GatewayError('provider', text, { cause, problem: 'cut' });
    }
    throw new GatewayError('provider', 'the answer was no stream of events', { cause });
  }

  /**
   * Returns whether the answer begins with its preambles, because they are too long to hold: OpenAI
   * repeats the instructions of a response in three of them.
   */
  #isPreambleOver(bytes: number): boolean {
    const { hasOtherLines, hasPreamble, splitter } = this.#inflow.reader;
    if (bytes + splitter.unfinished.size > MAX_PREAMBLE_BYTES) this.checkKind(false);
    if (bytes <= MAX_PREAMBLE_BYTES) return false;
    if (hasOtherLines || !hasPreamble)
      throw new GatewayError('provider', 'too much before the first token');
    return true;
  }

  /**
   * Passes comments on if the gateway's own comment has already begun the client's stream. A
   * preamble is held back, because another provider may still be asked.
   */
  #passComments(bytes: ChunkBuffer): void {
    const { reply } = this.#context.call;
    const { hasOtherLines, hasPreamble } = this.#inflow.reader;
    if (hasOtherLines || hasPreamble || !reply.headersSent || !reply.hasRoom) return;
    for (const part of withoutMark([bytes.take()])) reply.write(part);
    this.#inflow.updateRoom(0);
  }
}
