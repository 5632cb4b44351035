/** `[server] workers`: the number of threads that serve requests. */

import type { SectionReader } from './section-reader.ts';
import { MAX_WORKERS } from './shared-rows.ts';

/** What the number of workers depends on. */
export interface Machine {
  /** What `auto` stands for. */
  readonly processors: number;
  /** Node's version, such as `22.12.0`. */
  readonly version: string;
  readonly platform: string;
}

/** The first version of Node in which several threads can listen on one port (`reusePort`). */
const NEEDED = { major: 22, minor: 12 };

/** Returns the number that the setting stands for. Reports more workers than one if the machine can have only one. */
export function countWorkers(
  written: number | 'auto',
  { processors, version, platform }: Machine,
  section: SectionReader,
): number {
  const count = written === 'auto' ? Math.min(processors, MAX_WORKERS) : written;
  section.showResolved('workers', count);
  const problem = count > 1 ? whyOnlyOneWorker(version, platform) : undefined;
  if (problem) section.problem('workers', `${count} workers need ${problem}`);
  return count;
}

/** Returns what several workers need and what there is instead, or undefined if there can be several. */
export function whyOnlyOneWorker(version: string, platform: string): string | undefined {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const isNew = major > NEEDED.major || (major === NEEDED.major && minor >= NEEDED.minor);
  if (isNew && platform === 'linux') return undefined;
  const needed = `Node ${NEEDED.major}.${NEEDED.minor} or newer on Linux`;
  return `${needed}; this is Node ${version} on ${platform}`;
}
