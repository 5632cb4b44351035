/** Runs a world: the whole gateway in this process, its clients and providers, on a virtual clock. */

import type { Server } from 'node:http';

import { createService, type Service } from '../../src/app.ts';
import { loadConfig } from '../../src/config/config.ts';
import { CLIENT_LIMITS } from '../../src/downstream/call.ts';
import { GatewayError } from '../../src/lib/errors.ts';
import { createRandom } from '../support/random.ts';
import { Client } from './client.ts';
import { Clock } from './clock.ts';
import type { Event, History, Line } from './history.ts';
import { type Plan, type Settings, toToml } from './plan.ts';
import { createProviders } from './provider.ts';
import { Store } from './store.ts';

/** For what lasts after the last answer: the end of streams, uploads that are read and dropped. */
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
  const random = createRandom(plan.seed);
  const uninstall = clock.install(random, (server) => servers.push(prepare(server)));
  try {
    const { events } = history;
    const writeLog = (text: string) => {
      const line = JSON.parse(text) as Line;
      const exchange = history.exchanges.find(({ ask }) => ask.id === line['request_id']);
      const order = events.length;
      if (line.message === 'request') exchange?.lines.push({ line, atMs: clock.nowMs, order });
      events.push({ atMs: clock.nowMs, kind: 'line', line, exchange });
    };
    const runtime = { writeLog, isTerminal: false, clientLimits: CLIENT_LIMITS };
    const transport = createProviders(clock, plan, history);
    const store = new Store(clock, random, history);
    const service = createService(load(plan.settings), runtime, {
      createTransport: () => transport,
      openStore: (_, options) => store.connect(options),
    });
    events.push({ atMs: clock.nowMs, kind: 'settings', settings: plan.settings });
    void service.store?.connect();
    void service.server.listen(8080, '0.0.0.0');
    const server = servers[0]!;
    const open = new Set(plan.connections);
    for (const connection of plan.connections) {
      const onDone = () => open.delete(connection);
      const client = new Client({ clock, server, history }, connection.asks, onDone);
      clock.after(connection.atMs, () => client.begin());
    }
    const reason = new GatewayError('internal', 'The gateway is shutting down');
    const drain = (options: { readonly delayMs: number; readonly timeoutMs: number }) => {
      if (service.server.isDraining) return;
      events.push({ atMs: clock.nowMs, kind: 'drain' });
      void service
        .drain({ ...options, reason })
        .then(() => events.push({ atMs: clock.nowMs, kind: 'drained' }));
    };
    for (const incident of plan.incidents) {
      clock.after(incident.atMs, () => {
        if (incident.kind === 'store') store.set(incident.isUp);
        else if (incident.kind === 'drain') drain(incident);
        else {
          const { settings } = incident;
          const before = service.config;
          service.reload(() => load(settings));
          // Settings that are wrong change nothing.
          if (service.config !== before)
            events.push({ atMs: clock.nowMs, kind: 'settings', settings });
        }
      });
    }
    // What runs as long as the gateway does.
    clock.run(() => true);
    const atRest = new Set(clock.running());
    clock.run(() => open.size === 0);
    let isRested = false;
    clock.after(REST_MS, () => (isRested = true));
    clock.run(() => isRested);
    history.leftovers.push(...leftoversOf(service, clock, atRest));
    drain({ delayMs: 0, timeoutMs: 1000 });
    clock.run(() => events.at(-1)!.kind === 'drained' || events.some(isDrained));
    return history;
  } finally {
    uninstall();
  }
}

const isDrained = ({ kind }: Event) => kind === 'drained';

/** What should be back where it was, once all is over. */
function leftoversOf(
  { budget, server, store }: Service,
  clock: Clock,
  atRest: ReadonlySet<string>,
): string[] {
  const counts = {
    'reserved bytes': budget.reservedBytes,
    'bytes of bodies': budget.bodyBytes,
    'waiting bytes': budget.waitingBytes,
    'waiting streams': budget.queue.size,
    'requests in flight': server.counts.inFlight,
  };
  // A store that is away is asked for again and again.
  const timers = clock.running().filter((text) => !atRest.has(text) && !store?.state.isAway);
  // An incident lasts, and is watched, until a provider has answered.
  if (timers.includes('every 1000 ms')) timers.splice(timers.indexOf('every 1000 ms'), 1);
  const left = Object.entries(counts).filter(([, count]) => count !== 0);
  return [...timers, ...left.map(([name, count]) => `${name}: ${count}`)];
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
