/** Starts a test's server on a free port of 127.0.0.1. */

import { once } from 'node:events';
import type { AddressInfo, Server, Socket } from 'node:net';
import type { TestContext } from 'node:test';

export interface Listening {
  readonly port: number;
  /** The value for a provider's `base_url`. */
  readonly baseUrl: string;
  /** The open connections. */
  readonly sockets: ReadonlySet<Socket>;
}

/** Listens until the test ends, and then closes all connections. */
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
