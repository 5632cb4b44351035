/**
 * Requests to providers through Node's fetch, with fetch's own connections: nothing here is
 * undocumented.
 */

import type { ByteSink, ByteSource } from '../lib/byte-source.ts';
import type { Cancellation } from '../lib/cancellation.ts';
import { nextTurn, TurnLimit } from '../lib/turns.ts';
import { type ConnectionFailure, TransportError } from './network-error.ts';
import { SlicedBody, toBody, type UpstreamResponse, type UpstreamRequest } from './provider.ts';

/**
 * Sends once. Rejects, and fails the body, with a `TransportError` or the reason of the
 * cancellation.
 */
export async function sendByFetch(
  request: UpstreamRequest,
  cancellation: Cancellation,
): Promise<UpstreamResponse> {
  const controller = new AbortController();
  cancellation.onCancel(() => controller.abort(cancellation.reason));
  const body = toBody(request);
  const headers = new Headers();
  for (let at = 0; at < request.headers.length; at += 2) {
    headers.append(request.headers[at]!, request.headers[at + 1]!);
  }
  if (body instanceof SlicedBody) {
    headers.append('content-length', `${body.length}`);
    // Up to Node 22 fetch leaves the body alone while its connection is being made.
    cancellation.onCancel(() => body.release());
  }
  try {
    const response = await fetch(request.origin + request.path, {
      method: request.method,
      headers,
      body: body instanceof SlicedBody ? toStream(body) : (body ?? null),
      duplex: 'half',
      // A followed redirect would carry the prompt, and custom key headers, to another host.
      redirect: 'manual',
      signal: controller.signal,
    });
    const { status } = response;
    const received = new Map([...response.headers].map(([name, value]) => [name, value.trim()]));
    return { status, headers: received, body: readBody(response.body, cancellation) };
  } catch (thrown) {
    cancellation.throwIfCancelled();
    const { cause } = thrown as { cause?: unknown };
    // fetch turns a 407, also a provider's own, into its only error that has neither a text nor a
    // code.
    if (cause instanceof Error && cause.message === '' && !('code' in cause)) {
      return { status: 407, headers: new Map(), body: readBody(null, cancellation) };
    }
    throw toTransportError(thrown);
  }
}

function toStream(body: SlicedBody): ReadableStream<Uint8Array> {
  // Nothing is pulled before it is wanted.
  const stream = ReadableStream.from(body);
  // Up to Node 24 fetch tees the body for a request that it might repeat, and never reads the first
  // branch: all of the body would be kept there until the response ends.
  stream.tee = () => [new ReadableStream(), stream];
  return stream;
}

/** The response's body. Read from the start: fetch cancels a body that becomes garbage unread. */
function readBody(body: ReadableStream<Uint8Array> | null, cancellation: Cancellation): ByteSource {
  const reader = body?.getReader();
  let resume = () => {};
  cancellation.onCancel(() => {
    // On Node 20 and 22 a read stays unsettled if an abort meets data that has not been read.
    void reader?.cancel().catch(() => {});
    // A reader that has paused may never go on.
    resume();
  });
  const handOver = async (sink: ByteSink) => {
    const turn = new TurnLimit();
    for (;;) {
      const chunk = await reader?.read().catch((thrown: unknown) => {
        cancellation.throwIfCancelled();
        throw toTransportError(thrown, 'inBody');
      });
      cancellation.throwIfCancelled();
      if (!chunk?.value) return;
      const { buffer, byteOffset, length } = chunk.value;
      const isTaken = sink.write(Buffer.from(buffer, byteOffset, length));
      if (!isTaken) await new Promise<void>((resolve) => (resume = resolve));
      if (turn.spend(length)) await nextTurn();
    }
  };
  return {
    start: (sink) =>
      void handOver(sink).then(
        () => sink.end(),
        (error: unknown) => sink.end(error),
      ),
    resume: () => resume(),
  };
}

function toTransportError(thrown: unknown, failure?: ConnectionFailure): unknown {
  const outer = thrown instanceof TypeError ? thrown.cause : undefined;
  if (!(outer instanceof Error)) return thrown;
  // The refusal of a tunnel comes inside an abort; Node 26 calls several failed addresses a
  // timeout.
  const isWrapped = outer instanceof DOMException || outer.cause instanceof AggregateError;
  const cause = isWrapped && outer.cause instanceof Error ? outer.cause : outer;
  return new TransportError(cause, failure);
}
