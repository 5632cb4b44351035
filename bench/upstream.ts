/**
 * The provider on raw sockets. It answers a request for a stream with a stream, and any other with
 * the JSON answer. Arguments: a stream's number of events, and the milliseconds between them.
 */

import { createServer, type AddressInfo, type Socket } from 'node:net';

import { JSON_ANSWER, streamOf } from './payloads.ts';

const [events = 2, everyMs = 10] = process.argv.slice(2).map(Number);
/** Long enough for the head and the body's beginning with `"stream":true`. */
const LOOK_INTO_BYTES = 4096;

const head = (type: string, framing: string) =>
  `HTTP/1.1 200 OK\r\ncontent-type: ${type}\r\n${framing}\r\n\r\n`;
const jsonReply = Buffer.from(
  head('application/json', `content-length: ${JSON_ANSWER.length}`) + JSON_ANSWER.toString(),
);
const pieces = streamOf(events).map((event, index) => {
  const before = index === 0 ? head('text/event-stream', 'transfer-encoding: chunked') : '';
  const after = index === events - 1 ? '\r\n0\r\n\r\n' : '\r\n';
  return Buffer.from(`${before}${event.length.toString(16)}\r\n${event.toString()}${after}`);
});

interface Stream {
  readonly socket: Socket;
  next: number;
}
/** The streams, by their millisecond within the interval. */
const slots = Array.from({ length: everyMs }, () => new Set<Stream>());
let served = Math.floor(performance.now());

function writeDue(): void {
  const now = Math.floor(performance.now());
  while (served < now) {
    served += 1;
    const slot = slots[served % everyMs]!;
    for (const stream of slot) {
      stream.socket.write(pieces[stream.next]!);
      stream.next += 1;
      if (stream.next === pieces.length) slot.delete(stream);
    }
  }
}
setInterval(writeDue, 1);

function beginStream(socket: Socket): void {
  writeDue();
  const slot = slots[served % everyMs]!;
  const stream = { socket, next: 1 };
  socket.write(pieces[0]!);
  slot.add(stream);
  socket.once('close', () => slot.delete(stream));
}

const server = createServer({ noDelay: true }, (socket) => {
  let text = '';
  let missing = 0;
  socket.setMaxListeners(0);
  socket.on('error', () => {});
  socket.on('data', (chunk) => {
    if (missing === 0) {
      text += chunk.toString('latin1');
      const headEnd = text.indexOf('\r\n\r\n');
      if (headEnd < 0) return;
      const length = Number(/\r\ncontent-length: *(\d+)/i.exec(text)?.[1] ?? 0);
      missing = length - (text.length - headEnd - 4);
    } else {
      missing -= chunk.length;
      if (text.length < LOOK_INTO_BYTES) text += chunk.toString('latin1', 0, LOOK_INTO_BYTES);
    }
    if (missing > 0) return;
    const wantsStream = text.includes('"stream":true');
    text = '';
    if (wantsStream) beginStream(socket);
    else socket.write(jsonReply);
  });
});
server.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, () => {
  process.send!({ result: (server.address() as AddressInfo).port });
});
process.on('disconnect', () => process.exit());
