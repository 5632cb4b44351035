/**
 * Preloaded into the gateway by test/upstream/wire-long-event.test.ts: counts the bytes that the methods of Buffer copy or convert,
 * and writes into the file COPY_COUNT_FILE, when the process ends, their sum and the most that one turn of the event loop has.
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

/** `measure` returns the bytes of one call from what it returned and its arguments. */
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
