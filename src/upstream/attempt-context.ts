/** The settings, the state and the client of one attempt: for all that reads its reply. */

import type { Config, ProviderSettings } from '../config/config.ts';
import type { Attempt } from '../lib/attempt.ts';
import type { Reservation } from '../lib/byte-budget.ts';
import type { ChunkBuffer } from '../lib/chunk-buffer.ts';
import type { Cancellation, Deadline } from '../lib/cancellation.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Redactor } from '../lib/secrets.ts';
import type { Transport } from './transport.ts';

export interface AttemptServices {
  readonly config: Config;
  readonly transport: Transport;
  /** Removes keys from text that is sent to a client. */
  readonly redact: Redactor;
}

/** One attempt, without its request: a stream would hold the body, often megabytes, until it ends. */
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
    /** The memory that the answer takes until it is delivered. */
    readonly answerReservation: Reservation;
    readonly passComments?: ((comments: ChunkBuffer) => void) | undefined;
    /** `[DONE]` was passed on: a client that leaves has its answer. */
    isDelivered: boolean;
  };
  readonly services: AttemptServices;
  readonly isStream: boolean;
  readonly deadline: Deadline;
  /** Called when a stream has ended, with its failure if there is one; not if the client leaves. */
  readonly onStreamEnd: (failure?: GatewayError) => void;
  /** Called when data of a stream has been passed on. */
  readonly onData?: (() => void) | undefined;
}
