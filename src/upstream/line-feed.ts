/** Ends a stream whose last line feed may come in a packet of its own, or never. */

import type { ByteSink } from '../lib/byte-source.ts';
import { LINE_FEED } from '../lib/sse.ts';

/**
 * Long enough for a lost packet to be repeated, and shorter than any interval of
 * `stream_keepalive`.
 */
const LINE_FEED_MS = 500;

/**
 * Returns a function that ends the client's stream; if `next` begins with a line feed, the line
 * feed is written first. Only its first call has an effect. If it is not called within 500 ms, the
 * stream ends without the line feed.
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
