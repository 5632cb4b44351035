/**
 * Preload for test/long/large-bodies.ts: measures for how long the event loop is kept from its
 * timers. When the process ends, it writes the 99th percentile and the maximum, in milliseconds,
 * into the file LOOP_DELAY_FILE. `busy` is at most the CPU time taken, so it leaves out the time in
 * which the machine did other things. `liveBytes` is the heap after a full collection.
 */

import { writeFileSync } from 'node:fs';
import { createHistogram } from 'node:perf_hooks';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

const INTERVAL_MS = 5;
const late = createHistogram();
const busy = createHistogram();
let lastMs = performance.now();
/**
 * This thread's CPU time if Node has it, because compiler and garbage collector have threads too.
 */
const cpuUsage = process.threadCpuUsage ?? process.cpuUsage;
let lastCpu = cpuUsage();
const inMs = (histogram) => ({ p99: histogram.percentile(99) / 1e3, max: histogram.max / 1e3 });

setInterval(() => {
  const nowMs = performance.now();
  const { user, system } = cpuUsage(lastCpu);
  const lateMicros = Math.max(1, Math.round(1000 * (nowMs - lastMs - INTERVAL_MS)));
  late.record(lateMicros);
  busy.record(Math.max(1, Math.min(lateMicros, user + system)));
  lastMs = nowMs;
  lastCpu = cpuUsage();
}, INTERVAL_MS).unref();

process.on('exit', () => {
  setFlagsFromString('--expose-gc');
  runInNewContext('gc')();
  const { heapUsed, external } = process.memoryUsage();
  const measured = { late: inMs(late), busy: inMs(busy), liveBytes: heapUsed + external };
  writeFileSync(process.env['LOOP_DELAY_FILE'], JSON.stringify(measured));
});
