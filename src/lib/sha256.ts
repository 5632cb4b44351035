/** A digest. `node:crypto` is imported whole: see `assertNodeVersion` of version.ts. */

import crypto from 'node:crypto';

/** Returns the SHA-256 digest of the text's UTF-8 bytes. */
export function sha256(text: string): Buffer {
  return crypto.hash('sha256', text, 'buffer');
}
