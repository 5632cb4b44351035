/** A process with a store of rate limits over TLS, whose host and port are its arguments. Prints what came first: a take, or why not. */

import { bucket, storeSettings, until } from './redis-store.ts';
import { newMemory } from './shared.ts';
import { createRedisStore } from '../../src/store/redis-store.ts';

const [host = '', port] = process.argv.slice(2);
let cause: unknown;
const store = createRedisStore(storeSettings({ host, port: Number(port), isTls: true }), {
  logger: { log: (_level, _message, facts) => (cause = facts?.['cause']), isEnabled: () => true },
  memory: newMemory(),
  answerMs: 10_000,
});
void store.connect();
await until(() => !store.isAway || cause !== undefined);
console.log(cause ?? (await store.take([bucket('tls', 1)])));
// Nothing else keeps the process alive then.
store.end();
