/** Identifiers: random ones as flat strings, where `randomUUID` joins some thirty strings. */

import { randomFillSync } from 'node:crypto';

const DIGITS = Buffer.from('0123456789abcdef');
/** Enough for hundreds of identifiers, because a call to the generator costs more than the rest. */
const random = Buffer.alloc(16_384);
let nextAt = random.length;

/**
 * A single `traceparent`: its trace id, the id of the caller's span, and its flags. Node joins
 * repeated headers with `, `, and W3C Trace Context 3.2 does not allow repetition. Version ff and
 * all-zero ids are invalid.
 */
export const TRACEPARENT =
  /^(?!ff)[\da-f]{2}-(?!0{32})([\da-f]{32})-(?!0{16})([\da-f]{16})-([\da-f]{2})$/;

/**
 * Returns a function that creates identifiers: `pattern` with each `x` replaced by a random
 * hexadecimal digit.
 */
export function createIds(pattern: string): () => string {
  const id = Buffer.from(pattern);
  const places = [...id.keys()].filter((place) => pattern[place] === 'x');
  return () => {
    if (nextAt + places.length > random.length) {
      randomFillSync(random);
      nextAt = 0;
    }
    for (const place of places) {
      id[place] = DIGITS[random[nextAt]! % DIGITS.length]!;
      nextAt += 1;
    }
    return id.toString('latin1');
  };
}

/** Returns a random UUID (RFC 9562, version 4). */
export const createUuid = createIds('xxxxxxxx-xxxx-4xxx-axxx-xxxxxxxxxxxx');
