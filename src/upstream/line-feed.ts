/** The end of a stream whose last line feed comes alone, if it comes. */

import type { ByteSink } from '../lib/byte-source.ts';
import { LINE_FEED } from '../lib/sse.ts';

/** A lost packet is repeated within it, and a comment of `stream_keepalive` never comes so soon. */
const LINE_FEED_MS = 500;

/**
 * Returns a function that ends the client's stream, with the line feed first if `next` begins with
 * it. Only its first call has an effect; without one the stream ends after 500 ms.
 */
export function endAtLineFeed(client: ByteSink): (next?: Buffer) => void {
  let hasEnded = false;
  const end = (next?: Buffer) => {
    if (hasEnded) return;
    hasEnded = true;
    clearTimeout(timer);
    if (next?.[0] === LINE_FEED) client.write(next.subarray(0, 1));
    client.end();
  };
  const timer = setTimeout(end, LINE_FEED_MS);
  return end;
}
