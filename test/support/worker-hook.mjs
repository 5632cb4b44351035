/**
 * Preloaded with --import. Names the thread in each response (`x-thread`), and lets a worker fail if a request has the
 * header `x-fault`, or at its start: WORKER_FAULT=start. WORKER_CLOCK=stopped stops the clocks of all threads;
 * WORKER_SLOW_MS is how long a worker takes to start. What blocks a worker is said on standard error before. MAIN_TIMERS are delays of the main
 * thread as JSON, and what they are instead, in milliseconds. SIGUSR2 stalls the main thread until there is a file
 * MAIN_STALL.
 */
import { subscribe } from 'node:diagnostics_channel';
import { existsSync, writeSync } from 'node:fs';
import { isMainThread, workerData } from 'node:worker_threads';

const { WORKER_FAULT, WORKER_CLOCK, WORKER_SLOW_MS, MAIN_STALL, MAIN_TIMERS = '{}' } = process.env;
const thread = isMainThread ? 0 : workerData.place.thread;

const faults = {
  throw() {
    throw new Error('thrown by a test');
  },
  exit: () => process.exit(1),
  busy() {
    writeSync(2, `worker ${thread} is busy\n`);
    block(1500);
  },
  memory() {
    const held = [];
    for (;;) held.push(Array.from({ length: 1000 }, () => ({})));
  },
};

subscribe('http.server.request.start', ({ request, response }) => {
  response.setHeader('x-thread', thread);
  const fault = faults[request.headers['x-fault']];
  if (fault) setImmediate(() => fault());
});
if (WORKER_CLOCK === 'stopped') {
  performance.now = () => 1000;
  process.hrtime.bigint = () => 1_000_000_000_000_000n;
}
if (!isMainThread && WORKER_FAULT === 'start') faults.throw();
if (isMainThread) {
  const { setTimeout } = globalThis;
  const replaced = JSON.parse(MAIN_TIMERS);
  globalThis.setTimeout = (task, ms, ...args) => setTimeout(task, replaced[ms] ?? ms, ...args);
}
if (isMainThread && MAIN_STALL) {
  process.on('SIGUSR2', () => {
    writeSync(2, 'main thread is stalled\n');
    while (!existsSync(MAIN_STALL)) block(20);
  });
}
if (!isMainThread && WORKER_SLOW_MS) {
  writeSync(2, `worker ${thread} starts\n`);
  block(Number(WORKER_SLOW_MS));
}

function block(ms) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}
