/** Notices when this machine, and not a provider, cannot open another connection. */

import { isIPv4 } from 'node:net';

import type { Logger } from './log.ts';
import type { SharedCounter, SharedMemory } from './shared-memory.ts';

const REPORT_MS = 1000;

const LIMITS: Readonly<Record<string, string>> = {
  EMFILE: 'open files of the process (ulimit -n)',
  ENFILE: 'open files of the system (fs.file-max)',
  EADDRNOTAVAIL: 'local ports (net.ipv4.ip_local_port_range)',
};

/** What the system reports if something cannot be opened or connected. `address` is that of the other end. */
interface SystemError extends NodeJS.ErrnoException {
  readonly code: string;
  readonly address?: string;
}

/** Returns the error that says what has run out, if `error` is one, or has one for an address that was tried. */
export function exhaustionOf(error: unknown): SystemError | undefined {
  const errors: unknown[] = error instanceof AggregateError ? error.errors : [error];
  return errors.find(isExhaustion);
}

function isExhaustion(error: unknown): error is SystemError {
  const { code = '', address = '' } = (error ?? {}) as Partial<SystemError>;
  // For an IPv6 address it means no more than that this machine has none itself.
  if (code === 'EADDRNOTAVAIL') return isIPv4(address);
  return Object.hasOwn(LIMITS, code);
}

/** Counts these errors and logs them, once a second at most. */
export class ExhaustionLog {
  readonly #logger: Logger;
  readonly #errors: SharedCounter;
  #loggedAtMs = -Infinity;

  constructor(logger: Logger, memory: SharedMemory) {
    this.#logger = logger;
    this.#errors = memory.totalCounter('descriptors exhausted');
  }

  /** Since the start, in all threads. */
  get count(): number {
    return this.#errors.value;
  }

  /** Other errors are ignored. */
  record(error: unknown): void {
    const cause = exhaustionOf(error)?.code;
    if (cause === undefined) return;
    this.#errors.add(1);
    const nowMs = performance.now();
    if (nowMs - this.#loggedAtMs < REPORT_MS) return;
    this.#loggedAtMs = nowMs;
    this.#logger.log('error', 'descriptors exhausted', { cause, limit: LIMITS[cause] });
  }
}
