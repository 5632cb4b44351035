/**
 * Collects garbage where V8 would wait too long: Buffers lie outside of its heap, and in a container of 512 MiB the ones
 * that were read from sockets in one burst are more than all of it.
 */

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** Collecting the youngest objects takes 0.3 ms. */
const PASSING_BYTES = 8_388_608;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as (options?: { readonly type: 'minor' }) => void;

let passingBytes = 0;

/** Counts bytes that are read or copied, to be passed on or dropped. Collects the youngest objects after each 8 MiB of them. */
export function countPassing(bytes: number): void {
  passingBytes += bytes;
  if (passingBytes < PASSING_BYTES) return;
  passingBytes = 0;
  collect({ type: 'minor' });
}

/** Collects all garbage: 10 ms, and with thousands of open streams some 100 ms. */
export function collectAll(): void {
  collect();
}
