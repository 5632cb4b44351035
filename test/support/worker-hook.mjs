/**
 * Preloaded with --import. Names the thread in each response (`x-thread`), and lets a worker fail if a request has the
 * header `x-fault`, or at its start: WORKER_FAULT=start. WORKER_CLOCK=stopped stops the clocks of all threads, and
 * WORKER_SLOW_MS is how long a worker takes to start.
 */
import { subscribe } from 'node:diagnostics_channel';
import { isMainThread, workerData } from 'node:worker_threads';

const { WORKER_FAULT, WORKER_CLOCK, WORKER_SLOW_MS } = process.env;
const thread = isMainThread ? 0 : workerData.place.thread;

const faults = {
  throw() {
    throw new Error('thrown by a test');
  },
  exit: () => process.exit(1),
  busy: () => block(1500),
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
if (!isMainThread && WORKER_SLOW_MS) {
  block(Number(WORKER_SLOW_MS));
}

function block(ms) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}
