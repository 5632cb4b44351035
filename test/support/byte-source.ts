import type { ByteSink, ByteSource } from '../../src/lib/memory/byte-source.ts';

/** Returns a body that arrives in these pieces and then ends, with `error` if given. */
export function bodyOf(pieces: readonly Buffer[], error?: Error): ByteSource {
  const left = pieces.map((piece) => Buffer.from(piece));
  let sink: ByteSink | undefined;
  const handOver = () => {
    for (let piece = left.shift(); piece; piece = left.shift()) {
      if (!sink?.write(piece)) return;
    }
    const ended = sink;
    sink = undefined;
    ended?.end(error);
  };
  return {
    start(to) {
      sink = to;
      queueMicrotask(handOver);
    },
    resume: () => queueMicrotask(handOver),
  };
}
