/**
 * The provider of test/long/large-bodies.ts, as a child process. It answers an upload with its
 * hash, and a short request with 30 MB: with a Content-Length if `user` is `announced`, but with
 * the hash if `user` is `small`.
 */

import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

import { createLargeAnswer } from './large-body.ts';

const answer = createLargeAnswer();

const server = createServer((request, response) => {
  const hash = createHash('sha1');
  let bytes = 0;
  let first = '';
  request.on('error', () => {});
  response.on('error', () => {});
  request.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    first ||= chunk.toString('latin1');
    hash.update(chunk);
  });
  request.on('end', () => {
    const isLarge = bytes < 1000 && !first.includes('"small"');
    const body = isLarge ? answer : Buffer.from(JSON.stringify({ choices: [hash.digest('hex')] }));
    const isAnnounced = first.includes('"announced"');
    response.writeHead(200, {
      'content-type': 'application/json',
      ...(isAnnounced && { 'content-length': body.length }),
    });
    response.end(body);
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
process.on('disconnect', () => process.exit());
