/** The bodies of test/long/large-bodies.ts: 30 MB prompts with quotes and accents. */

import { createHash } from 'node:crypto';

const TEXT =
  'He said \\"no\\"; the caf\u00e9 was closed.\\nThen the 3rd of May came, and 15% of it went. ';
const LONG = Buffer.from(TEXT.repeat(Math.ceil(30_000_000 / Buffer.byteLength(TEXT))));
const START = '"messages":[{"role":"user","content":"';

/** Returns a unique 30 MB request, and the hash of its forwarded body. */
export function createLargeRequest(number: number): { parts: Buffer[]; forwardedHash: string } {
  const end = Buffer.from(`"}],"user":"${number}"}`);
  const hash = createHash('sha1').update(`{"model":"m",${START}`).update(LONG).update(end);
  const parts = [Buffer.from(`{"model":"p/m",${START}`), LONG, end];
  return { parts, forwardedHash: hash.digest('hex') };
}

/** Returns a 30 MB completion. */
export function createLargeAnswer(): Buffer {
  const start = Buffer.from('{"choices":[{"index":0,"message":{"role":"assistant","content":"');
  return Buffer.concat([start, LONG, Buffer.from('"},"finish_reason":"stop"}]}')]);
}
