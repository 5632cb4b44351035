/** Writes log lines to a stream, in batches and with a bounded buffer. */

/** Log bytes buffered while the stream is not read; further lines are dropped. */
const MAX_BUFFERED_BYTES = 4_194_304;

/**
 * Writes lines to `stream`. Lines of one turn of the event loop are written together, to save system calls.
 * Once the stream drains, `onDropped` receives the number of lines that were dropped meanwhile.
 */
export function createLineWriter(stream: NodeJS.WriteStream, onDropped: (lines: number) => void) {
  let lines = '';
  let droppedLines = 0;
  let reportedLines = 0;
  const flush = () => {
    stream.write(lines);
    lines = '';
  };
  process.on('exit', flush);
  stream.on('drain', () => {
    const count = droppedLines - reportedLines;
    reportedLines = droppedLines;
    if (count > 0) onDropped(count);
  });
  return {
    /** Takes one line or several, each with its end. */
    write: (text: string) => {
      // One turn may log thousands of lines.
      if (stream.writableLength + lines.length > MAX_BUFFERED_BYTES) {
        droppedLines += text.split('\n').length - 1;
        return;
      }
      if (lines === '') setImmediate(flush);
      lines += text;
    },
    /** Since the start. */
    get droppedLines() {
      return droppedLines;
    },
  };
}
