/**
 * A process with rate limit stores over TLS at its arguments, `host:port` each. Prints the first
 * take's result, or why the store cannot be reached.
 */

import { bucket, createStore, until } from './redis-store.ts';
import { createScope } from './scope.ts';

for (const [host = '', port] of process.argv.slice(2).map((one) => one.split(':'))) {
  const scope = createScope();
  const { store, lines } = createStore(scope.t, { host, port: Number(port), isTls: true });
  await until(() => !store.isAway || lines.length > 0);
  console.log(lines[0]?.facts?.['cause'] ?? (await store.take([bucket('tls', 1)])));
  // The open connection would keep the process alive.
  await scope.close();
}
