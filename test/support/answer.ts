/** The body of an answer, read to its end. */

import type { IncomingMessage } from 'node:http';

const ERROR_EVENT = /(?:^|[\r\n])data: \{"error":\{"type".*\}\}\n\n$/;

/**
 * Reads the body. `onChunk` takes each part as it comes. Rejects when the connection breaks, but behind the error event of
 * a failed stream, where it has to: then it rejects for an answer that is whole.
 */
export function readAnswer(
  response: IncomingMessage,
  onChunk: (chunk: Buffer) => void = () => {},
): Promise<Buffer> {
  const chunks: Buffer[] = [];
  const isStream = /^text\/event-stream/i.test(response.headers['content-type'] ?? '');
  const hasFailed = () => isStream && ERROR_EVENT.test(Buffer.concat(chunks).toString());
  return new Promise((resolve, reject) => {
    response.on('data', (chunk: Buffer) => {
      chunks.push(chunk);
      onChunk(chunk);
    });
    response.on('error', (error) => (hasFailed() ? resolve(Buffer.concat(chunks)) : reject(error)));
    response.on('end', () => {
      if (hasFailed()) reject(new Error('a failed stream has a last chunk'));
      else resolve(Buffer.concat(chunks));
    });
  });
}
