/** An attempt's context, shared by the files that send its request and read its response. */

import type { Config, ProviderSettings } from '../../config/config.ts';
import type { Attempt, RequestHistory } from '../../request/history.ts';
import type { ByteBudget, ReservedMemory } from '../../lib/memory/byte-budget.ts';
import type { Cancellation, Deadline } from '../../lib/cancellation.ts';
import type { Redactor } from '../../lib/secrets.ts';
import type { Transport } from '../connections/transport.ts';

export interface AttemptServices {
  readonly config: Config;
  readonly transport: Transport;
  readonly redact: Redactor;
}

/** Takes a stream's comments before its first token. */
interface CommentSink {
  /** True once the head was sent, either by the answer or by a comment before it. */
  readonly headersSent: boolean;
  readonly hasRoom: boolean;
  /**
   * Returns false if the client has no room for more: then the caller waits for `onRoom` before the
   * next chunk, unless that chunk ends the stream.
   */
  write(chunk: Buffer): boolean;
}

/** The client's response, to which an answer is delivered. */
export interface AnswerSink extends CommentSink {
  /** True once only the answer's end is missing. A client that leaves then is no disconnect. */
  mayClientLeave: boolean;
  send(
    status: number,
    headers: Record<string, string>,
    body: readonly Buffer[],
  ): Promise<void> | undefined;
  beginStream(status: number, headers: Record<string, string>): void;
  onRoom: () => void;
  end(): void;
}

/**
 * A checked complete answer, or a stream with its first token. The client has received nothing of
 * it yet.
 */
export interface Answer {
  /**
   * Sends the answer to the client, once. Returns undefined if the answer is sent at once. Throws
   * if node:http refuses the head, and rejects if a stream breaks off.
   *
   * @param onData - called whenever stream data was passed on
   */
  deliver(reply: AnswerSink, onData?: () => void): Promise<void> | undefined;
}

/**
 * The request is no member, because a stream would hold its body, often megabytes, until the end.
 */
export interface AttemptContext {
  readonly attempt: Attempt;
  readonly settings: Pick<ProviderSettings, 'forwardHeaders' | 'headers' | 'returnHeaders'>;
  /** The time limit for the complete answer or the stream's first token. */
  readonly limitMs: number;
  readonly call: {
    readonly headers: Readonly<Record<string, unknown>>;
    readonly cancellation: Cancellation;
    readonly budget: ByteBudget;
    answerMemory: ReservedMemory | undefined;
    readonly reply: CommentSink;
    readonly history: Pick<RequestHistory, 'endpoint' | 'redactKey'>;
  };
  readonly services: AttemptServices;
  readonly isStream: boolean;
  readonly deadline: Deadline;
}
