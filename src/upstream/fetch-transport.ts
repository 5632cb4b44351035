/** Requests to providers through Node's own fetch. */

import type { Cancellation } from '../lib/cancellation.ts';
import type { Agent } from './connections.ts';
import type { UpstreamReply, UpstreamRequest } from './provider.ts';

/** Sends once. Rejects with a TypeError with a cause, or with the reason of the cancellation. */
export async function sendByFetch(
  { method, origin, path, headers, body }: UpstreamRequest,
  cancellation: Cancellation,
  agent: Agent | undefined,
): Promise<UpstreamReply> {
  const controller = new AbortController();
  cancellation.onCancel(() => controller.abort(cancellation.reason));
  const response = await fetch(origin + path, {
    method,
    headers,
    signal: controller.signal,
    // A followed redirect would carry the prompt, and custom key headers, to another host.
    redirect: 'manual',
    body: body ? Buffer.concat(body) : null,
    ...(agent ? { dispatcher: agent as never } : {}),
  });
  const { status } = response;
  return { status, headers: response.headers, body: untilCancelled(response.body, cancellation) };
}

/** fetch's body, read by nobody but us from the start: an unread one fetch cancels by itself, and lets what that rejects with go. */
function untilCancelled(
  body: ReadableStream<Uint8Array> | null,
  cancellation: Cancellation,
): AsyncGenerator<Buffer> {
  const reader = body?.getReader();
  // On Node 20 and 22 a read stays unsettled where an abort meets data not yet read.
  cancellation.onCancel(() => void reader?.cancel().catch(() => {}));
  return (async function* () {
    for (;;) {
      const chunk = await reader?.read();
      cancellation.throwIfCancelled();
      if (!chunk?.value) return;
      yield Buffer.from(chunk.value.buffer, chunk.value.byteOffset, chunk.value.length);
    }
  })();
}
