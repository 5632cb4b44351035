/** Preload for a gateway of `long/soak.ts`: answers each message with the state of its process. */

import { subscribe } from 'node:diagnostics_channel';
import { setTimeout as sleep } from 'node:timers/promises';

process.on('message', async () => {
  for (let round = 0; round < 3; round += 1) {
    globalThis.gc();
    await sleep(20);
  }
  const { heapUsed: heapBytes, rss: rssBytes } = process.memoryUsage();
  const requests = process['_getActiveHandles']().flatMap(describe);
  process.send({ heapBytes, rssBytes, resources: process.getActiveResourcesInfo(), requests });
});

/** Describes the request in flight on a client's connection. */
function describe({ _httpMessage: response, bytesRead, bytesWritten }) {
  if (!response?.req) return [];
  const { complete, headers, url } = response.req;
  const phase = response.headersSent ? 'answering' : complete ? 'asking' : 'uploading';
  return `${headers['x-request-id']} ${url} ${phase}, ${bytesRead} read, ${bytesWritten} written`;
}
if (process.env['SOAK_TELLS_ACCEPTS']) {
  subscribe('net.server.socket', ({ socket }) => {
    process.send({ acceptedFrom: socket.remotePort });
  });
}
process.once('disconnect', () => process.exit(1));
process.channel.unref();
