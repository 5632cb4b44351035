/** The rules of an endpoint. Each endpoint has a file in this folder. */

import type { GatewayError } from '../lib/errors.ts';
import type { ModelRequestParser } from './model-request.ts';

/** Takes the facts of an answer as they become known. All of them are untrusted. */
export interface AnswerNotes {
  noteModel(model: unknown): void;
  noteFinishReason(reason: unknown): void;
  /** Takes a `usage`. The last call counts. */
  noteUsage(usage: unknown): void;
  /** True if the gateway has asked for the `usage`, and removes its event from the stream. */
  readonly usageAdded: boolean;
}

/** The kinds of a stream's events. */
export type EventKind =
  /** It comes before the first token: another provider may still be asked. */
  | 'preamble'
  /** It has no part of the answer, and does not restart the idle limit. */
  | 'heartbeat'
  /** A heartbeat that passes as a comment does, even before the answer. */
  | 'comment'
  | 'part'
  /** The gateway has asked for it, and the client has not. */
  | 'removed'
  /** The answer's last event. */
  | 'end'
  | EventFailure;

/** An event by which an answer fails. */
export type EventFailure =
  /**
   * The JSON with the error. `passes` is set if the answer has begun, and the event shows the error
   * to the client by itself.
   */
  | { readonly fault: unknown; readonly passes?: true }
  /** The answer has ended without content. The reason is the provider's, if it gives any. */
  | { readonly emptyReason: string | undefined };

/** The rules of one stream, and what they remember of it. */
export interface StreamRules {
  /**
   * The length of the longest heartbeat, 0 without any: part of an event restarts the idle limit
   * only if it is longer.
   */
  readonly maxHeartbeatBytes: number;
  /** True if `[DONE]` ends the stream, and is added if absent. Else `[DONE]` is a cut. */
  readonly hasDone: boolean;
  /** True if the answer is whole although no last event has come. */
  readonly isFinished: boolean;
  /** True once the stream has an answer, even if the answer is empty. */
  readonly hasAnswer: boolean;
  /**
   * Returns whether `read` would learn nothing from these whole events, which come behind the
   * answer's beginning, but a `usage`, which is then noted. Absent if each event is to be read.
   */
  skim?(events: Buffer): boolean;
  /**
   * Takes an event, and notes its facts. Never gets an error that all endpoints have in common.
   *
   * @param json - the event's data, parsed or as an outline; undefined if it is not JSON
   * @param hasBegun - whether the answer has begun before this event
   */
  read(json: unknown, hasBegun: boolean): EventKind;
}

/** How an endpoint's answers are read. */
export interface AnswerRules {
  /**
   * Begins a stream.
   *
   * @param failsEmpty - whether an answer without content has failed (`empty_answers`)
   */
  readonly startStream: (notes: AnswerNotes, failsEmpty: boolean) => StreamRules;
  /** Notes the facts of a complete answer, which is parsed or an outline. */
  readonly noteAnswer: (json: unknown, notes: AnswerNotes) => void;
  /**
   * Returns why a complete answer without content has failed, if the provider says so. Absent if
   * its errors alone say so.
   */
  readonly failedReasonOf?: (json: unknown) => string | undefined;
  /**
   * Returns whether a complete answer has failed, though it may have no error. Absent if each
   * failed answer has one.
   */
  readonly hasFailed?: (json: unknown) => boolean;
}

/** How the headers and errors of an endpoint differ from OpenAI's. */
interface Protocol {
  /** The header that may carry a key without `Bearer`, in place of `Authorization`. */
  readonly keyHeader: string;
  /**
   * The client's headers that every provider gets, in lower case, each with its value for a client
   * that sends none.
   */
  readonly passedHeaders: ReadonlyMap<string, string | undefined>;
  /** Encodes a failure as the body of an HTTP error. */
  readonly encodeErrorBody: (failure: GatewayError, requestId: string) => string;
}

/** An endpoint whose request names a model. */
export interface Endpoint extends AnswerRules {
  /** The path below a provider's `base_url`. Clients use the same path below `/v1`. */
  readonly path: string;
  /** `gen_ai_operation_name` of the metrics. */
  readonly operation: string;
  /** Validates the body of a request while it arrives. */
  readonly Parser: new (mayListModels: boolean) => ModelRequestParser;
  /** Returns whether a complete answer is empty. Absent if an answer without content is usual. */
  readonly isEmpty?: (json: unknown) => boolean;
  /**
   * True if `[providers] fallback` does not apply, because answers of two models cannot be
   * compared. An alias that names its targets does.
   */
  readonly ignoresFallback?: true;
  /**
   * Matches the message of a 404 or 409 about something that only the request can have named.
   * Absent if a request names nothing but a model.
   */
  readonly references?: RegExp;
  /** Absent for OpenAI's. Few providers speak another, so a 404 may only mean that one does not. */
  readonly protocol?: Protocol;
  /** Encodes the event that ends a failed stream. Absent if its data is the error object. */
  readonly encodeError?: (failure: GatewayError, requestId: string) => Buffer;
}
