/** Reads an answer's body to its end. */

import type { IncomingMessage } from 'node:http';

/** The documented error, which the event `error` of `/v1/responses` has too, and Anthropic's. */
const ERROR_EVENT =
  /(?:^|[\r\n])data: \{(?:"type":"error",(?:.*,)?)?"error":\{"type".*\}(?:,"request_id":"[^"]*")?\}\n\n$/;

/**
 * Reads the body, and hands each chunk to `onChunk`. Rejects if the connection breaks. A stream
 * that ends with the error event must break its connection, so there a clean end rejects instead.
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
