import type { TestContext } from 'node:test';

import type { Call } from '../../src/downstream/call.ts';
import { CLIENT_TIME_LIMITS } from '../../src/downstream/listener.ts';
import { createHttpServer } from '../../src/downstream/http-server.ts';
import { newBudget } from './shared.ts';

/**
 * Starts the gateway's HTTP server, without a gateway, until the test ends. A call ends as soon as
 * `handle` resolves. Returns the port.
 */
export async function startHttpServer(
  t: TestContext,
  handle: (call: Call) => Promise<void>,
  host = '127.0.0.1',
): Promise<number> {
  const handleAndClose = (call: Call) => handle(call).then(() => call.close());
  const options = {
    handler: {
      handle: handleAndClose,
      answerBroken: () => ({ status: 400, headers: {}, body: '' }),
    },
    timeLimits: CLIENT_TIME_LIMITS,
    budget: newBudget(),
  };
  const server = createHttpServer(options, 75_000);
  const { port } = await server.listen(0, host);
  t.after(() => server.drain({ delayMs: 0, timeoutMs: 0, reason: new Error('test is over') }));
  return port;
}

/** Resolves when the whole response is written or the client is gone. */
export function responseClosed({ reply }: Pick<Call, 'reply'>): Promise<void> {
  return new Promise((resolve) => reply.onClosed(resolve));
}
