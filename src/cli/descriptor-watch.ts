/** Notices when no more files and connections can be opened. */

import { closeSync, openSync } from 'node:fs';

import type { ExhaustionLog } from '../lib/exhaustion.ts';

const CHECK_MS = 1000;

/**
 * Opens `path`, a file that may be read, once a second, and records if it fails. Nothing else tells of clients that are
 * turned away: libuv closes the connections that it cannot accept, or leaves them waiting, without an error.
 */
export function watchDescriptors(path: string, exhaustion: ExhaustionLog): void {
  setInterval(() => {
    try {
      closeSync(openSync(path, 'r'));
    } catch (error) {
      exhaustion.record(error);
    }
  }, CHECK_MS).unref();
}
