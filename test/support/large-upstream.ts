/** A provider in a process of its own for test/large-bodies.ts: it answers with the hash of what it was sent, or with 30 MB. */

import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

import { createLargeAnswer } from './large-body.ts';

const answer = createLargeAnswer();

const server = createServer((request, response) => {
  const hash = createHash('sha1');
  let bytes = 0;
  request.on('error', () => {});
  response.on('error', () => {});
  request.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    hash.update(chunk);
  });
  request.on('end', () => {
    response.writeHead(200, { 'content-type': 'application/json' });
    const isUpload = bytes > 1000;
    response.end(isUpload ? JSON.stringify({ choices: [hash.digest('hex')] }) : answer);
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
process.on('disconnect', () => process.exit());
