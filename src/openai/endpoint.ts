/** What the gateway knows of an endpoint: a file of this folder for each, and chat's below. */

import type { GatewayError } from '../lib/errors.ts';
import { isEmptyCompletion } from './answer-json.ts';
import { ChatRequestParser } from './chat-request.ts';

/** What an event of a stream with typed events is. */
export type EventKind =
  /** It comes before the first token: another provider may still be asked. */
  | 'preamble'
  | 'part'
  /** The answer's last event. */
  | 'end'
  /** The last event of an answer that has failed. */
  | 'failure';

/** The rules of a stream whose events have a `type`. */
export interface TypedEvents {
  /** Returns the kind of an event with this data. */
  readonly kindOf: (json: unknown) => EventKind;
  /** Returns why the answer has ended, from the last event's `response` or a complete answer. */
  readonly finishReasonOf: (answer: unknown) => unknown;
  /** Encodes the event that ends a failed stream. */
  readonly encodeError: (failure: GatewayError) => Buffer;
}

/** An endpoint whose request names a model. */
export interface Endpoint {
  /** The path below a provider's `base_url`. Clients use the same path below `/v1`. */
  readonly path: string;
  /** `gen_ai_operation_name` of the metrics. */
  readonly operation: string;
  /** Validates the body of a request while it arrives. */
  readonly Parser: new (mayListModels: boolean) => ChatRequestParser;
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
  /** Absent if a stream consists of chunks with `choices` and ends with `[DONE]`. */
  readonly typedEvents?: TypedEvents;
}

export const CHAT: Endpoint = {
  path: '/chat/completions',
  operation: 'chat',
  Parser: ChatRequestParser,
  isEmpty: isEmptyCompletion,
};
