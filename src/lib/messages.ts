/** What the client's side and the provider's side hand to each other: a chat request, and its answer. */

import type { ByteStream } from './byte-source.ts';

/** A validated chat completion request. */
export interface ChatRequest {
  /** As the client wrote it: `<provider_id>/<model_name>` or an alias. */
  readonly model: string;
  readonly stream: boolean;
  /** The client's bytes with only the `model` value replaced, in parts: nothing is copied. */
  bodyWithModel(model: string): readonly Buffer[];
}

/** What the client is sent. */
export interface Answer {
  readonly status: number;
  /** Owned by the answer: whoever sends it adds to them. */
  readonly headers: Record<string, string>;
  /** Text, bytes in parts, or a stream. What the client is told of its failure is part of the stream. */
  readonly body: string | readonly Buffer[] | ByteStream;
}

/** Whether an answer is sent as it is made. */
export function isStream(body: Answer['body']): body is ByteStream {
  return typeof body === 'object' && !Array.isArray(body);
}
