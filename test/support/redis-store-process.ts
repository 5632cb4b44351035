/** A process with a store of rate limits over TLS, whose host and port are its arguments. Prints what came first: a take, or why not. */

import { bucket, createStore, until } from './redis-store.ts';
import { createScope } from './scope.ts';

const [host = '', port] = process.argv.slice(2);
const scope = createScope();
const { store, lines } = createStore(scope.t, { host, port: Number(port), isTls: true });
await until(() => !store.isAway || lines.length > 0);
console.log(lines[0]?.facts?.['cause'] ?? (await store.take([bucket('tls', 1)])));
// Nothing else keeps the process alive then.
await scope.close();
