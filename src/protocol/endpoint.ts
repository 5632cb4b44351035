/** The rules of an endpoint. Each endpoint has a file in this folder. */

import type { GatewayError } from '../lib/errors.ts';
import type { ModelRequestParser } from './model-request.ts';

/** Takes the facts of an answer as they become known. All of them are untrusted. */
export interface AnswerNotes {
  noteModel(model: unknown): void;
  noteFinishReason(reason: unknown): void;
  /** Takes a `usage`. The last `usage` with a count above 0 applies. */
  noteUsage(usage: unknown): void;
  /** True if the gateway has asked for the `usage`. */
  readonly usageAdded: boolean;
}

export type EventKind =
  /** Before the first token: another provider may still be asked. */
  | 'preamble'
  /** Does not restart the idle limit. */
  | 'heartbeat'
  /** A heartbeat that passes as a comment does, even before the answer. */
  | 'comment'
  | 'part'
  /** The gateway has asked for it, and the client has not. */
  | 'removed'
  | 'end'
  | EventFailure;

export type EventFailure =
  /** `passes` is set if the event shows the error to the client by itself. */
  | { readonly fault: unknown; readonly passes?: true }
  /** The answer has ended without content. The reason is the provider's, if it gives any. */
  | { readonly emptyReason: string | undefined };

/** The rules of one stream, and what they remember of it. */
export interface StreamRules {
  /** Part of an event restarts the idle limit only if it is longer than this. */
  readonly maxHeartbeatBytes: number;
  /**
   * True if `[DONE]` ends the stream, and is added if absent. Absent if an event of the kind `end`
   * ends the stream: there `[DONE]` is a cut, and `isFinished` and `hasChoice` are absent too.
   */
  readonly hasDone?: true;
  /** True if each choice has a `finish_reason`. */
  readonly isFinished?: boolean;
  /** True once an event with a choice has arrived, even if the choice is empty. */
  readonly hasChoice?: boolean;
  /**
   * Returns whether `read` would learn nothing but a `usage` from these whole events behind the
   * answer's beginning. The `usage` is noted.
   */
  skim?(events: Buffer): boolean;
  /**
   * Takes an event, and notes its facts.
   *
   * @param json - parsed or an outline; undefined if the event's data is not JSON
   * @param hasBegun - whether the answer has begun before this event
   */
  read(json: unknown, hasBegun: boolean): EventKind;
}

/** How an endpoint's answers are read. */
export interface AnswerRules {
  /** With `failsEmpty` an answer without content has failed (`empty_answers`). */
  readonly Stream: new (notes: AnswerNotes, failsEmpty: boolean) => StreamRules;
  /** Notes the facts of a complete answer, which is parsed or an outline. */
  readonly noteAnswer: (json: unknown, notes: AnswerNotes) => void;
  /** Returns why a complete answer without content has failed, if the provider says so. */
  readonly failedReasonOf?: (json: unknown) => string | undefined;
  /** Returns whether a complete answer has failed, though it may have no error. */
  readonly hasFailed?: (json: unknown) => boolean;
}

/** How the headers and errors of an endpoint differ from OpenAI's. */
interface Protocol {
  /** The header that may carry a key without `Bearer`, in place of `Authorization`. */
  readonly keyHeader: string;
  /** The client's headers that every provider gets, in lower case, each with its default. */
  readonly passedHeaders: ReadonlyMap<string, string | undefined>;
  readonly encodeErrorBody: (failure: GatewayError, requestId: string) => string;
}

/** An endpoint whose request names a model. */
export interface Endpoint extends AnswerRules {
  /** The path below a provider's `base_url`. Clients use the same path below `/v1`. */
  readonly path: string;
  /** `gen_ai_operation_name` of the metrics. */
  readonly operation: string;
  readonly Parser: new (mayListModels: boolean, required?: string) => ModelRequestParser;
  /** The member that a request must have beside `model`; `messages` if absent. */
  readonly required?: string;
  /** Absent if an answer without content is usual. */
  readonly isEmpty?: (json: unknown) => boolean;
  /**
   * True if `[providers] fallback` does not apply, because answers of two models cannot be
   * compared.
   */
  readonly ignoresFallback?: true;
  /** Matches the message of a 404 or 409 about something that only the request can have named. */
  readonly references?: RegExp;
  /**
   * Absent at the endpoints of OpenAI's protocol. Few providers speak another protocol, so a 404
   * may only mean that the provider does not.
   */
  readonly ownProtocol?: Protocol;
  /** Encodes the event that ends a failed stream. Absent if its data is the error object. */
  readonly encodeError?: (failure: GatewayError, requestId: string) => Buffer;
}
