/**
 * Preload for processes measured by scripts/cost.ts. A message begins the named count, and the next
 * message ends it and gets the result.
 */

import { Session } from 'node:inspector/promises';
import { GCProfiler, promiseHooks } from 'node:v8';

const session = new Session();
session.connect();

const SAMPLED_BYTES = 8192;
/** The heap spaces for objects promoted by a young collection. */
const OLD_SPACES = new Set(['old_space', 'large_object_space', 'trusted_space']);

const used = ({ heapStatistics }) => heapStatistics.usedHeapSize;
const usedOld = ({ heapSpaceStatistics: spaces }) =>
  spaces.reduce((sum, one) => sum + (OLD_SPACES.has(one.spaceName) ? one.spaceUsedSize : 0), 0);

/** By name, functions to begin a count. Each returns a function to end it. */
const COUNTS = {
  /** Heap bytes: all allocated bytes, and the bytes kept by young collections. */
  bytes() {
    globalThis.gc();
    const collections = new GCProfiler();
    collections.start();
    const before = process.memoryUsage().heapUsed;
    return () => {
      let allocated = process.memoryUsage().heapUsed - before;
      let kept = 0;
      for (const { beforeGC, afterGC, gcType } of collections.stop().statistics) {
        allocated += used(beforeGC) - used(afterGC);
        if (gcType === 'Scavenge') kept += usedOld(afterGC) - usedOld(beforeGC);
      }
      return { allocated, kept };
    };
  },
  /** The bytes allocated by each function, by sampling. */
  async functions() {
    await session.post('HeapProfiler.startSampling', {
      samplingInterval: SAMPLED_BYTES,
      includeObjectsCollectedByMajorGC: true,
      includeObjectsCollectedByMinorGC: true,
    });
    return async () => {
      const { profile } = await session.post('HeapProfiler.stopSampling');
      const bytes = {};
      const add = ({ callFrame, selfSize, children }) => {
        const { functionName, url, lineNumber } = callFrame;
        const name = `${functionName || '(anonymous)'} ${url.split('/').at(-1)}:${lineNumber + 1}`;
        bytes[name] = (bytes[name] ?? 0) + selfSize;
        children.forEach(add);
      };
      add(profile.head);
      return bytes;
    };
  },
  /** Executed code blocks, also in Node and its libraries. */
  async steps() {
    await session.post('Profiler.takePreciseCoverage');
    return async () => {
      const { result } = await session.post('Profiler.takePreciseCoverage');
      const ranges = result.flatMap(({ functions }) => functions.flatMap(({ ranges: all }) => all));
      return ranges.reduce((sum, { count }) => sum + count, 0);
    };
  },
  /** Created promises, with those that V8 creates for an `await` only while a hook is set. */
  promises() {
    let created = 0;
    const stop = promiseHooks.onInit(() => (created += 1));
    return () => {
      stop();
      return created;
    };
  },
  /** Heap bytes in use. */
  heap() {
    // The second collection frees the objects finalized by the first.
    globalThis.gc();
    globalThis.gc();
    return () => process.memoryUsage().heapUsed;
  },
  /** The process's peak memory so far, in bytes. */
  peak: () => () => 1024 * process.resourceUsage().maxRSS,
};

if (process.env['COUNTS_STEPS']) {
  await session.post('Profiler.enable');
  // Before anything else is compiled, because otherwise V8 does not count loop turns.
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: true });
}

let end;
process.on('message', async (name) => {
  const result = name in COUNTS ? ((end = await COUNTS[name]()), null) : await end();
  process.send(result);
});
// A killed parent leaves no process behind.
process.once('disconnect', () => process.exit(1));
process.channel.unref();
