/**
 * Sends requests to providers through Node's fetch and its own connections. Uses nothing
 * undocumented.
 */

import type { ByteSink, ByteSource } from '../../lib/memory/byte-source.ts';
import type { Cancellation } from '../../lib/cancellation.ts';
import { nextTurn, TurnLimit } from '../../lib/memory/turns.ts';
import { type ConnectionFailure, TransportError } from './network-error.ts';
import {
  SlicedBody,
  toBody,
  type UpstreamResponse,
  type UpstreamRequest,
} from './upstream-request.ts';

/**
 * Sends a request once. Rejects, and fails the body, with a `TransportError` or the cancellation's
 * reason.
 */
export async function sendByFetch(
  request: UpstreamRequest,
  cancellation: Cancellation,
): Promise<UpstreamResponse> {
  const controller = new AbortController();
  cancellation.onCancel(() => controller.abort(cancellation.reason));
  const { body: parts, heldBody, isStream, fixed } = request;
  // fetch keeps a body until the response ends, but nothing of a sliced body.
  const body = isStream ? new SlicedBody(parts!, heldBody) : toBody(request);
  const pairs = [...fixed.pairs, ...request.headers];
  const headers = new Headers();
  for (let at = 0; at < pairs.length; at += 2) headers.append(pairs[at]!, pairs[at + 1]!);
  if (body instanceof SlicedBody) {
    headers.append('content-length', `${body.length}`);
    // Up to Node 22, a cancelled fetch does not touch the body while its connection is being made.
    cancellation.onCancel(() => body.release());
  }
  try {
    const response = await fetch(request.origin + request.path, {
      method: request.method,
      headers,
      body: body instanceof SlicedBody ? toStream(body) : (body ?? null),
      duplex: 'half',
      // Following a redirect would carry the prompt and custom key headers to another host.
      redirect: 'manual',
      signal: controller.signal,
    });
    const { status } = response;
    const received = new Map([...response.headers].map(([name, value]) => [name, value.trim()]));
    return { status, headers: received, body: readBody(response.body, cancellation) };
  } catch (thrown) {
    cancellation.throwIfCancelled();
    const { cause } = thrown as { cause?: unknown };
    // fetch turns a 407, even a provider's own, into an error without a text or a code. Every other
    // fetch error has a text or a code.
    if (cause instanceof Error && cause.message === '' && !('code' in cause)) {
      return { status: 407, headers: new Map(), body: readBody(null, cancellation) };
    }
    throw toTransportError(thrown);
  }
}

function toStream(body: SlicedBody): ReadableStream<Uint8Array> {
  // `ReadableStream.from` takes nothing from the body before fetch reads.
  const stream = ReadableStream.from(slicesOf(body));
  // Up to Node 24, fetch tees a body that it might send again and never reads the first branch,
  // which would keep the whole body until the response ends.
  stream.tee = () => [new ReadableStream(), stream];
  return stream;
}

async function* slicesOf(body: SlicedBody): AsyncGenerator<Buffer> {
  const turn = new TurnLimit();
  try {
    for (let slice = body.next(); slice; slice = body.next()) {
      if (turn.spend(slice.length)) await nextTurn();
      yield slice;
    }
  } finally {
    body.release();
  }
}

/** The reader is created at once, because fetch cancels a body that becomes garbage unread. */
function readBody(body: ReadableStream<Uint8Array> | null, cancellation: Cancellation): ByteSource {
  const reader = body?.getReader();
  let resume = () => {};
  cancellation.onCancel(() => {
    // On Node 20 and 22 a read never settles if an abort meets unread data.
    void reader?.cancel().catch(() => {});
    // A paused sink may never resume.
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
  // fetch wraps a refused tunnel in an abort, and Node 26 wraps several failed addresses in a
  // timeout.
  const isWrapped = outer instanceof DOMException || outer.cause instanceof AggregateError;
  const cause = isWrapped && outer.cause instanceof Error ? outer.cause : outer;
  return new TransportError(cause, failure);
}
