/**
 * Preloaded into the gateway by test/large-bodies.ts: measures how late timers fire, and writes the 99th percentile and the
 * longest delay, in milliseconds, into the file LOOP_DELAY_FILE when the process ends.
 */

import { writeFileSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';

const delay = monitorEventLoopDelay({ resolution: 5 });
delay.enable();
process.on('exit', () => {
  const [p99, max] = [delay.percentile(99) / 1e6, delay.max / 1e6];
  writeFileSync(process.env['LOOP_DELAY_FILE'], JSON.stringify({ p99, max }));
});
