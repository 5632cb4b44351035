/** Notices when no more files and connections can be opened. */

import { closeSync, openSync } from 'node:fs';

import type { Logger } from '../lib/log.ts';

const CHECK_MS = 1000;
const REPORT_MS = 10_000;

const LIMITS = new Map([
  ['EMFILE', 'open files of the process (ulimit -n)'],
  ['ENFILE', 'open files of the system (fs.file-max)'],
]);

/**
 * Opens `path`, a file that may be read, once a second, and logs if the system has no file descriptor for it: once in
 * ten seconds at most. Nothing else tells: libuv closes the connections that it cannot accept without an error.
 */
export function watchDescriptors(path: string, logger: Logger): void {
  let reportedAtMs = -Infinity;
  const check = () => {
    const code = tryToOpen(path);
    const limit = LIMITS.get(code ?? '');
    if (limit === undefined || performance.now() - reportedAtMs < REPORT_MS) return;
    reportedAtMs = performance.now();
    logger.log('error', 'descriptors exhausted', { cause: code, limit });
  };
  setInterval(check, CHECK_MS).unref();
}

/** Returns the code of the failure, if it fails. */
function tryToOpen(path: string): string | undefined {
  try {
    closeSync(openSync(path, 'r'));
    return undefined;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code;
  }
}
