/**
 * Preload for test/upstream/wire-long-event.test.ts: counts the bytes that methods of Buffer copy
 * or convert. When the process ends, it writes their sum, and the largest sum of one turn of the
 * event loop, into the file COPY_COUNT_FILE.
 */

import { writeFileSync } from 'node:fs';

const counts = { bytes: 0, maxBytesInTurn: 0 };
let bytesInTurn = 0;

function count(bytes) {
  if (bytesInTurn === 0) setImmediate(() => (bytesInTurn = 0));
  bytesInTurn += bytes;
  counts.bytes += bytes;
  counts.maxBytesInTurn = Math.max(counts.maxBytesInTurn, bytesInTurn);
}

/**
 * Replaces a method. `measure` returns the copied bytes of a call from its result and arguments.
 */
function wrap(object, name, measure) {
  const original = object[name];
  object[name] = function (...args) {
    const returned = original.apply(this, args);
    count(measure(returned, args) || 0);
    return returned;
  };
}

wrap(Buffer, 'concat', (bytes) => bytes.length);
wrap(Buffer, 'from', (bytes, [source]) => (source instanceof ArrayBuffer ? 0 : bytes.length));
wrap(Buffer.prototype, 'copy', (length) => length);
for (const name of ['toString', 'latin1Slice', 'utf8Slice']) {
  wrap(Buffer.prototype, name, (text) => text.length);
}
process.on('exit', () => writeFileSync(process.env['COPY_COUNT_FILE'], JSON.stringify(counts)));
