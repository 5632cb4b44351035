/** The settings, the state and the client of one attempt: for all that reads its reply. */

import type { Config, ProviderSettings } from '../config/config.ts';
import type { Attempt } from '../request/record.ts';
import type { Reservation } from '../lib/byte-budget.ts';
import type { Cancellation, Deadline } from '../lib/cancellation.ts';
import type { Redactor } from '../lib/secrets.ts';
import type { Transport } from './transport.ts';

export interface AttemptServices {
  readonly config: Config;
  readonly transport: Transport;
  /** Removes keys from text that is sent to a client. */
  readonly redact: Redactor;
  readonly incidents: {
    /** Is told of a stream that has begun. */
    readonly watches: { addGood(attempt: Attempt): void };
  };
}

/** The response to the client, as far as an attempt needs it. */
export interface AnswerSink {
  /** The head was sent: by the answer, or by a comment before it. */
  readonly headersSent: boolean;
  isDelivered: boolean;
  /** A chunk would be taken. */
  readonly hasRoom: boolean;
  send(
    status: number,
    headers: Record<string, string>,
    body: readonly Buffer[],
  ): Promise<void> | undefined;
  beginStream(status: number, headers: Record<string, string>): void;
  /**
   * Returns false if no more should come until `onRoom` is called; at the end of a stream it takes
   * more nevertheless.
   */
  write(chunk: Buffer): boolean;
  onRoom: () => void;
  end(): void;
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
    readonly bodyReservation: Reservation;
    /** The memory that the answer takes until it is delivered. */
    readonly answerReservation: Reservation;
    readonly reply: AnswerSink;
  };
  readonly services: AttemptServices;
  readonly isStream: boolean;
  readonly deadline: Deadline;
  /** Called when data of a stream has been passed on. */
  readonly onData?: (() => void) | undefined;
}
