/** Ends a stream whose last line feed may arrive in a separate packet, or never. */

import type { ByteSink } from '../../lib/memory/byte-source.ts';
import { LINE_FEED } from '../../lib/sse.ts';

/** Long enough to repeat a lost packet, and shorter than any `stream_keepalive`. */
const LINE_FEED_MS = 500;

/**
 * Returns a function that ends the client's stream, at the latest after 500 ms. A line feed at the
 * beginning of `next` is written first.
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
