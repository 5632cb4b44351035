/**
 * V8's garbage collector, which a program can start only if a flag exposes it. V8 itself waits too
 * long: Buffers lie outside of its heap, and those of one burst may be all the memory that a
 * container has.
 */

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');

/** Collects garbage now: all of it, or only young objects. */
export const collectGarbage = runInNewContext('gc') as (options?: { type: 'minor' }) => void;
