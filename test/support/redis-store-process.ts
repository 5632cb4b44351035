/** A process with stores of rate limits over TLS, which its arguments name as `host:port`. Prints what came first of each: a take, or why not. */

import { bucket, createStore, until } from './redis-store.ts';
import { createScope } from './scope.ts';

for (const [host = '', port] of process.argv.slice(2).map((one) => one.split(':'))) {
  const scope = createScope();
  const { store, lines } = createStore(scope.t, { host, port: Number(port), isTls: true });
  await until(() => !store.isAway || lines.length > 0);
  console.log(lines[0]?.facts?.['cause'] ?? (await store.take([bucket('tls', 1)])));
  // Nothing else keeps the process alive then.
  await scope.close();
}
