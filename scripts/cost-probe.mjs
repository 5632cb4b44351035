/**
 * Preload for processes that scripts/cost.ts measures. A message begins a count of its kind, and
 * the next ends it and gets the result.
 */

import { Session } from 'node:inspector/promises';
import { GCProfiler } from 'node:v8';

const session = new Session();
session.connect();

const SAMPLED_BYTES = 8192;
/** The spaces to which a young collection promotes. */
const OLD_SPACES = new Set(['old_space', 'large_object_space', 'trusted_space']);

const used = ({ heapStatistics }) => heapStatistics.usedHeapSize;
const usedOld = ({ heapSpaceStatistics: spaces }) =>
  spaces.reduce((sum, one) => sum + (OLD_SPACES.has(one.spaceName) ? one.spaceUsedSize : 0), 0);

/** By name, functions that begin a count and return its end. */
const COUNTS = {
  /** Bytes of the heap: all allocated bytes, and those kept by young collections. */
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
  /** The bytes that each function has allocated, by sampling. */
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
  /** Executed blocks of code, also in Node and its libraries. */
  async steps() {
    await session.post('Profiler.takePreciseCoverage');
    return async () => {
      const { result } = await session.post('Profiler.takePreciseCoverage');
      const ranges = result.flatMap(({ functions }) => functions.flatMap(({ ranges: all }) => all));
      return ranges.reduce((sum, { count }) => sum + count, 0);
    };
  },
  /** Bytes of the heap in use. */
  heap() {
    // The second collection frees the objects that the first has finalized.
    globalThis.gc();
    globalThis.gc();
    return () => process.memoryUsage().heapUsed;
  },
  /** The process's peak memory so far, in bytes. */
  peak: () => () => 1024 * process.resourceUsage().maxRSS,
};

if (process.env['COUNTS_STEPS']) {
  await session.post('Profiler.enable');
  // Before anything else is compiled, because V8 counts the turns of loops only then.
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: true });
}

let end;
process.on('message', async (name) => {
  const result = name in COUNTS ? ((end = await COUNTS[name]()), null) : await end();
  process.send(result);
});
process.channel.unref();
