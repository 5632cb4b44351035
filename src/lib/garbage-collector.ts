/**
 * V8's garbage collector, which a program can start only if a flag exposes it. V8 alone would wait
 * too long, because Buffers lie outside its heap: the Buffers of a single burst may fill the memory
 * of a container.
 */

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');

/** Collects garbage now: all of it, or young objects only with `{ type: 'minor' }`. */
export const collectGarbage = runInNewContext('gc') as (options?: { type: 'minor' }) => void;
