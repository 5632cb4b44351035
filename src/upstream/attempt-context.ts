/** The context of an attempt, shared by the files that send its request and read its reply. */

import type { Config, ProviderSettings } from '../config/config.ts';
import type { Attempt } from '../request/history.ts';
import type { ByteBudget, ReservedMemory } from '../lib/byte-budget.ts';
import type { Cancellation, Deadline } from '../lib/cancellation.ts';
import type { Redactor } from '../lib/secrets.ts';
import type { Transport } from './transport.ts';

/** The services of the gateway that an attempt uses. */
export interface AttemptServices {
  readonly config: Config;
  readonly transport: Transport;
  /** Removes keys from text that is sent to a client. */
  readonly redact: Redactor;
}

/** Takes the comments of a stream before its first token. */
interface CommentSink {
  /** True once the head was sent, either by the answer or by a comment before it. */
  readonly headersSent: boolean;
  /** True if `write` has room for a chunk. */
  readonly hasRoom: boolean;
  /**
   * Takes a chunk. Returns false if the caller should wait for `onRoom`; only the end of a stream
   * is written without waiting.
   */
  write(chunk: Buffer): boolean;
}

/** The response to the client, to which an answer is delivered. */
export interface AnswerSink extends CommentSink {
  /** The answer is whole but for its end: a client that leaves is no disconnect. */
  mayBeLeft: boolean;
  send(
    status: number,
    headers: Record<string, string>,
    body: readonly Buffer[],
  ): Promise<void> | undefined;
  beginStream(status: number, headers: Record<string, string>): void;
  /** Called when there is room again after `write` has returned false. */
  onRoom: () => void;
  end(): void;
}

/**
 * An answer that has begun: either a checked complete answer, or a stream with its first token. The
 * client has received nothing of it yet.
 */
export interface Answer {
  /**
   * Sends the answer to the client. May be called only once. Returns undefined if the answer is
   * sent at once. Throws if node:http refuses the head, and rejects if a stream breaks off.
   *
   * @param onData - called each time that data of a stream was passed on
   */
  deliver(reply: AnswerSink, onData?: () => void): Promise<void> | undefined;
}

/**
 * The context of an attempt. It does not have the request, because a stream would hold the body,
 * often megabytes, until the stream ends.
 */
export interface AttemptContext {
  /** Receives the facts about the attempt as they become known. */
  readonly attempt: Attempt;
  readonly settings: Pick<ProviderSettings, 'forwardHeaders' | 'returnHeaders' | 'timeoutMs'>;
  readonly call: {
    /** The headers of the client's request. */
    readonly headers: Readonly<Record<string, unknown>>;
    /** Cancelled when the client leaves or the gateway gives up the request. */
    readonly cancellation: Cancellation;
    readonly budget: ByteBudget;
    /** The memory reserved for the answer until the answer is delivered. */
    answerMemory: ReservedMemory | undefined;
    readonly reply: CommentSink;
  };
  readonly services: AttemptServices;
  readonly isStream: boolean;
  readonly deadline: Deadline;
}
