/** Starts a test's server on a free port of this machine. */

import { once } from 'node:events';
import { isIPv6, type AddressInfo, type Server, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

export interface Listening {
  readonly port: number;
  /** The value for a provider's `base_url`. */
  readonly baseUrl: string;
  /** The open connections. */
  readonly sockets: ReadonlySet<Socket>;
}

/** Listens until the test ends, and then closes all connections. */
export async function listen(
  t: TestContext,
  server: Server,
  host = '127.0.0.1',
): Promise<Listening> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.once('close', () => sockets.delete(socket));
  });
  server.listen(0, host);
  await once(server, 'listening');
  t.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const { port } = server.address() as AddressInfo;
  const urlHost = isIPv6(host) ? `[${host}]` : host;
  return { port, baseUrl: `http://${urlHost}:${port}/v1`, sockets };
}
