// No named import: on an old Node it would fail before `assertNodeVersion` can name the version it
// needs.
import crypto from 'node:crypto';

/** Returns the SHA-256 digest of the text's UTF-8 bytes. */
export function sha256(text: string): Buffer {
  return crypto.hash('sha256', text, 'buffer');
}
