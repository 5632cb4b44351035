/** `[server] workers`: the number of threads that serve requests. */

import { isNodeSince } from '../lib/version.ts';
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

/**
 * Returns the number that the setting stands for. Where there can be only one worker, `auto` is one, with a warning, and a
 * greater number is a problem.
 */
export function countWorkers(
  written: number | 'auto',
  { processors, version, platform }: Machine,
  section: SectionReader,
): number {
  const wanted = written === 'auto' ? Math.min(processors, MAX_WORKERS) : written;
  const obstacle = wanted > 1 ? whyOnlyOneWorker(version, platform) : undefined;
  if (obstacle && written === 'auto')
    section.warning('workers', `one worker: more need ${obstacle}`);
  else if (obstacle) section.problem('workers', `${wanted} workers need ${obstacle}`);
  const count = obstacle ? 1 : wanted;
  section.showResolved('workers', count);
  return count;
}

/** Returns what several workers need and what there is instead, or undefined if there can be several. */
export function whyOnlyOneWorker(version: string, platform: string): string | undefined {
  if (isNodeSince(version, NEEDED) && platform === 'linux') return undefined;
  const needed = `Node ${NEEDED.major}.${NEEDED.minor} or newer on Linux`;
  return `${needed}; this is Node ${version} on ${platform}`;
}
