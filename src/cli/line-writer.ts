/** Writes log lines to a stream, in batches and with a bounded buffer. */

/** Log bytes buffered while the stream is not read; further lines are dropped. */
const MAX_BUFFERED_BYTES = 4_194_304;

/**
 * Returns a function that writes lines to `stream`. Lines of one turn of the event loop are written
 * together, to save system calls. Once the stream drains, `onDropped` receives the number of lines that
 * were dropped meanwhile.
 */
export function createLineWriter(
  stream: NodeJS.WriteStream,
  onDropped: (lines: number) => void,
): (line: string) => void {
  let lines = '';
  let dropped = 0;
  const flush = () => {
    stream.write(lines);
    lines = '';
  };
  process.on('exit', flush);
  stream.on('drain', () => {
    const count = dropped;
    dropped = 0;
    if (count > 0) onDropped(count);
  });
  return (line) => {
    if (stream.writableLength > MAX_BUFFERED_BYTES) {
      dropped += 1;
      return;
    }
    if (lines === '') setImmediate(flush);
    lines += line;
  };
}
