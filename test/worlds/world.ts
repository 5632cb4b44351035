/** Runs a world: the whole gateway in this process, its clients and providers, on a virtual clock. */

import type { Server } from 'node:http';

import { createService } from '../../src/app.ts';
import { loadConfig } from '../../src/config/config.ts';
import { CLIENT_LIMITS } from '../../src/downstream/call.ts';
import { GatewayError } from '../../src/lib/errors.ts';
import { createRandom } from '../support/random.ts';
import { Client } from './client.ts';
import { Clock } from './clock.ts';
import type { History, Line } from './history.ts';
import { type Plan, type Settings, toToml } from './plan.ts';
import { createProviders } from './provider.ts';

/** For what the gateway may still wait for after the last answer: the end of streams, uploads that are read and dropped. */
const REST_MS = 40_000;
const realImmediate = setImmediate;

/** Runs it in a turn of the real event loop, without any real time between its parts. */
export function runWorld(plan: Plan): Promise<History> {
  return new Promise((resolve, reject) => {
    realImmediate(() => {
      try {
        resolve(run(plan));
      } catch (error) {
        reject(error);
      }
    });
  });
}

function load(settings: Settings) {
  return loadConfig({ toml: toToml(settings), env: {} });
}

function run(plan: Plan): History {
  const clock = new Clock();
  const history: History = { events: [], exchanges: [], lists: [], leftovers: [], metrics: '' };
  const servers: Server[] = [];
  const uninstall = clock.install(createRandom(plan.seed), (server) =>
    servers.push(prepare(server)),
  );
  try {
    const { events } = history;
    const writeLog = (text: string) => {
      const line = JSON.parse(text) as Line;
      const exchange = history.exchanges.find(({ ask }) => ask.id === line['request_id']);
      if (line.message === 'request') exchange?.lines.push(line);
      events.push({ atMs: clock.nowMs, kind: 'line', line, exchange });
    };
    const runtime = { writeLog, isTerminal: false, colour: false, clientLimits: CLIENT_LIMITS };
    const transport = createProviders(clock, plan, history);
    const service = createService(load(plan.settings), runtime, {
      createTransport: () => transport,
      openStore: () => {
        throw new Error('no store');
      },
    });
    events.push({ atMs: clock.nowMs, kind: 'settings', settings: plan.settings });
    void service.server.listen(8080, '0.0.0.0');
    const [server] = servers;
    let open = plan.connections.length;
    for (const { atMs, asks } of plan.connections) {
      const client = new Client({ clock, server: server!, history }, asks, () => (open -= 1));
      clock.after(atMs, () => client.begin());
    }
    clock.run(() => open === 0);
    let isRested = false;
    clock.after(REST_MS, () => (isRested = true));
    clock.run(() => isRested);
    history.leftovers.push(...clock.running());
    if (service.budget.reservedBytes > 0)
      history.leftovers.push(`${service.budget.reservedBytes} bytes`);
    const { counts } = service.server;
    if (counts.inFlight > 0) history.leftovers.push(`${counts.inFlight} requests in flight`);
    let isDrained = false;
    const reason = new GatewayError('internal', 'The gateway is shutting down');
    void service.drain({ delayMs: 0, timeoutMs: 1000, reason }).then(() => (isDrained = true));
    clock.run(() => isDrained);
    return history;
  } finally {
    uninstall();
  }
}

/** A server that listens nowhere: clients are handed to it. */
function prepare(server: Server): Server {
  // Node's own check of its connections runs on real time, for ever.
  server.removeAllListeners('listening');
  Object.assign(server, {
    listen: () => {
      Object.assign(server, { _handle: { close: () => {} } });
      process.nextTick(() => server.emit('listening'));
      return server;
    },
    address: () => ({ port: 8080, address: '0.0.0.0', family: 'IPv4' }),
  });
  return server;
}
