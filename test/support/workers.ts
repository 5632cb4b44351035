/** `TEST_WORKERS=2 npm test` runs everything that can so with two worker threads. Needs a Node that can have them. */

import { whyOnlyOneWorker } from '../../src/config/config.ts';

export const WORKERS = Number(process.env['TEST_WORKERS'] || 1);

/** The part of a gateway's environment that says so. */
export const WORKERS_ENV: Readonly<Record<string, string>> =
  WORKERS > 1 ? { GATEWAY_WORKERS: `${WORKERS}` } : {};

/** For a gateway whose connections to providers are counted: each worker has its own. */
export const ONE_WORKER = { GATEWAY_WORKERS: '1' };

const { versions, platform } = process;
/** Why tests of several workers are skipped; false if they are not. */
export const ONLY_ONE_WORKER = whyOnlyOneWorker(versions.node, platform) ?? false;

function clocks(): readonly unknown[] {
  const { setTimeout, setInterval } = globalThis;
  // oxlint-disable-next-line typescript/unbound-method
  return [performance.now, Date.now, Math.random, setTimeout, setInterval];
}
const OWN_CLOCKS = clocks();

/** The test has replaced a clock, timers or chance: a worker thread would have its own. */
export function isClockReplaced(): boolean {
  return clocks().some((clock, i) => clock !== OWN_CLOCKS[i]);
}
