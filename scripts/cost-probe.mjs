/**
 * Preloaded into a process whose requests are counted (scripts/cost.ts): each message begins a count of this kind, or ends
 * the one that was begun and answers with it.
 */

import { Session } from 'node:inspector/promises';
import { GCProfiler } from 'node:v8';

const session = new Session();
session.connect();

const SAMPLED_BYTES = 8192;
/** What a young collection promotes comes to lie there. */
const OLD_SPACES = new Set(['old_space', 'large_object_space', 'trusted_space']);

const used = ({ heapStatistics }) => heapStatistics.usedHeapSize;
const usedOld = ({ heapSpaceStatistics: spaces }) =>
  spaces.reduce((sum, one) => sum + (OLD_SPACES.has(one.spaceName) ? one.spaceUsedSize : 0), 0);

/** By its name what begins a count and returns what ends it. */
const COUNTS = {
  /** Bytes of the heap: all that were allocated, and those that young collections have kept. */
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
  /** Bytes that each function has allocated, by sampling. */
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
  /** Blocks of code that were run, those of Node and its libraries too. */
  async steps() {
    await session.post('Profiler.takePreciseCoverage');
    return async () => {
      const { result } = await session.post('Profiler.takePreciseCoverage');
      const ranges = result.flatMap(({ functions }) => functions.flatMap(({ ranges: all }) => all));
      return ranges.reduce((sum, { count }) => sum + count, 0);
    };
  },
  /** Bytes of the heap that are in use. */
  heap() {
    // What the first one finalizes, the second one frees.
    globalThis.gc();
    globalThis.gc();
    return () => process.memoryUsage().heapUsed;
  },
  /** The most memory that the process has taken so far, in bytes. */
  peak: () => () => 1024 * process.resourceUsage().maxRSS,
};

if (process.env['COUNTS_STEPS']) {
  await session.post('Profiler.enable');
  // Before anything else is compiled: only then V8 counts the turns of loops.
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: true });
}

let end;
process.on('message', async (name) => {
  const result = name in COUNTS ? ((end = await COUNTS[name]()), null) : await end();
  process.send(result);
});
process.channel.unref();
