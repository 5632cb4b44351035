/**
 * Starts V8's garbage collector, which a flag exposes. V8 itself would wait too long, because
 * Buffers lie outside its heap: the Buffers of a single burst may fill a container's memory.
 */

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');

/** Collects all garbage now, or with `{ type: 'minor' }` only young objects. */
export const collectGarbage = runInNewContext('gc') as (options?: { type: 'minor' }) => void;
