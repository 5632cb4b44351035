/** A server of a test on a free port of 127.0.0.1. */

import { once } from 'node:events';
import type { AddressInfo, Server, Socket } from 'node:net';
import type { TestContext } from 'node:test';

export interface Listening {
  readonly port: number;
  /** What a provider's `base_url` is set to. */
  readonly baseUrl: string;
  /** Connections that are open now. */
  readonly sockets: ReadonlySet<Socket>;
}

/** Listens for the length of the test, at the end of which its connections are closed. */
export async function listen(t: TestContext, server: Server): Promise<Listening> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.once('close', () => sockets.delete(socket));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const { port } = server.address() as AddressInfo;
  return { port, baseUrl: `http://127.0.0.1:${port}/v1`, sockets };
}
