/** Where log lines go. */

/** Log bytes buffered while the stream is not read; further lines are dropped. */
const MAX_BUFFERED_BYTES = 4_194_304;

/**
 * Returns a function that writes lines to `stream`, those of one turn of the event loop at once: a system
 * call costs as much as making a line. `onDropped` is told how many lines were dropped once the stream is
 * read again.
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
