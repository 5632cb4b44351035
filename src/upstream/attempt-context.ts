/** The settings, the state and the client of one attempt: for all that reads its reply. */

import type { Config, ProviderSettings } from '../config/config.ts';
import type { Attempt } from '../request/history.ts';
import type { ByteBudget } from '../lib/byte-budget.ts';
import type { Cancellation, Deadline } from '../lib/cancellation.ts';
import type { Redactor } from '../lib/secrets.ts';
import type { Transport } from './transport.ts';

export interface AttemptServices {
  readonly config: Config;
  readonly transport: Transport;
  /** Removes keys from text that is sent to a client. */
  readonly redact: Redactor;
}

/** Where comments of a stream may go before its first token. */
interface CommentSink {
  /** The head was sent: by the answer, or by a comment before it. */
  readonly headersSent: boolean;
  /** A chunk would be taken. */
  readonly hasRoom: boolean;
  /**
   * Returns false if no more should come until `onRoom` is called; at the end of a stream it takes
   * more nevertheless.
   */
  write(chunk: Buffer): boolean;
}

/** The response to the client, as an answer is delivered to it. */
export interface AnswerSink extends CommentSink {
  /** The answer is whole but for its end: a client that leaves is no disconnect. */
  mayBeLeft: boolean;
  send(
    status: number,
    headers: Record<string, string>,
    body: readonly Buffer[],
  ): Promise<void> | undefined;
  beginStream(status: number, headers: Record<string, string>): void;
  /** Called when there is room after `write` has returned false. */
  onRoom: () => void;
  end(): void;
}

/**
 * An answer that has begun: complete and checked, or a stream with its first token. The client has
 * nothing of it yet.
 */
export interface Answer {
  /**
   * Sends the answer to the client; without a promise if that is done at once. Called once. Throws
   * if node:http refuses the head. Rejects if a stream breaks off. `onData` is called each time
   * that data of a stream was passed on.
   */
  deliver(reply: AnswerSink, onData?: () => void): Promise<void> | undefined;
}

/**
 * One attempt, without its request: a stream would hold the body, often megabytes, until it ends.
 */
export interface AttemptContext {
  /** Receives what becomes known of the attempt. */
  readonly attempt: Attempt;
  /** The provider's settings. */
  readonly settings: Pick<ProviderSettings, 'forwardHeaders' | 'returnHeaders' | 'timeoutMs'>;
  readonly call: {
    /** The headers of the client's request. */
    readonly headers: Readonly<Record<string, unknown>>;
    /** Cancelled when the client leaves or the gateway gives the request up. */
    readonly cancellation: Cancellation;
    readonly budget: ByteBudget;
    /** The memory that the answer takes until it is delivered. */
    answerMemory: { close(): void } | undefined;
    readonly reply: CommentSink;
  };
  readonly services: AttemptServices;
  readonly isStream: boolean;
  readonly deadline: Deadline;
}
