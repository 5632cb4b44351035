/**
 * Runs a world in this process: the whole gateway, its clients and its providers, on a virtual
 * clock.
 */

import type { Server } from 'node:http';

import { App } from '../../src/app.ts';
import { loadConfig } from '../../src/config/config.ts';
import { CLIENT_TIME_LIMITS } from '../../src/downstream/listener.ts';
import { GatewayError } from '../../src/lib/errors.ts';
import { heldBy } from '../support/held.ts';
import { createRandom } from '../support/random.ts';
import { Client } from './client.ts';
import { Clock } from './clock.ts';
import type { Event, Exchange, History, Line, Try } from './history.ts';
import { type Plan, type Settings, toToml } from './plan.ts';
import { createProviders } from './provider.ts';
import { connectionsOf, MemorySocket } from './socket.ts';
import { Store } from './store.ts';

/**
 * The time after the last answer: uploads are still read and dropped, clients that left without
 * reading are noticed after 60 s, and refusals are summed up until a minute had none.
 */
const REST_MS = 130_000;
/** The time after a request in which everything that it began must end. */
const QUIET_MS = 700;
const realImmediate = setImmediate;

/** Runs a world in one turn of the real event loop. */
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
      if (line.message === 'request') {
        exchange?.lines.push({ line, atMs: clock.nowMs, order });
        clock.after(QUIET_MS, () => history.leftovers.push(...left()));
      }
      events.push({ atMs: clock.nowMs, kind: 'line', line, exchange });
    };
    let left: () => string[] = () => [];
    const runtime = { writeLog, isTerminal: false, clientTimeLimits: CLIENT_TIME_LIMITS };
    const store = new Store(clock, random, history);
    const app = new App(load(plan.settings), runtime, {
      createTransport: (_setting, _origin, onReached) =>
        createProviders(clock, plan, history, onReached),
      openStore: (_, options) => store.connect(options),
    });
    events.push({ atMs: clock.nowMs, kind: 'settings', settings: plan.settings });
    void app.parts.store?.connect();
    void app.server.listen(8080, '0.0.0.0');
    void app.admin?.server.listen(8081, '127.0.0.1');
    const server = servers[0]!;
    const open = new Set(plan.connections);
    for (const connection of plan.connections) {
      const onDone = () => open.delete(connection);
      const client = new Client({ clock, server, history }, connection.asks, onDone);
      clock.after(connection.atMs, () => client.begin());
    }
    const reason = new GatewayError('internal', 'The gateway is shutting down');
    const drain = (options: { readonly delayMs: number; readonly timeoutMs: number }) => {
      if (app.server.isDraining) return;
      events.push({ atMs: clock.nowMs, kind: 'drain' });
      void app
        .drain({ ...options, reason })
        .then(() => events.push({ atMs: clock.nowMs, kind: 'drained' }));
    };
    for (const incident of plan.incidents) {
      clock.after(incident.atMs, () => {
        if (incident.kind === 'store') store.set(incident.isUp);
        else if (incident.kind === 'drain') drain(incident);
        else {
          const { settings } = incident;
          const before = app.config;
          app.reload(() => load(settings));
          // Refused settings change nothing.
          if (app.config !== before) events.push({ atMs: clock.nowMs, kind: 'settings', settings });
        }
      });
    }
    // Timers running as long as the gateway does.
    clock.run(() => true);
    const atRest = new Set(clock.running());
    left = () => (app.parts.store || !isQuiet(history) ? [] : timersOf(clock, atRest, history));
    clock.run(() => open.size === 0);
    let isRested = false;
    clock.after(REST_MS, () => (isRested = true));
    clock.run(() => isRested);
    const isUnnoticed = ({ isUnnoticed: is, lines }: Exchange) => is && lines.length === 0;
    if (!history.exchanges.some(isUnnoticed)) {
      history.leftovers.push(...leftoversOf(app, connectionsOf(server), clock, atRest));
      if (app.admin) history.metrics = scrape(servers[1]!, clock);
    }
    drain({ delayMs: 0, timeoutMs: 1000 });
    clock.run(() => events.at(-1)!.kind === 'drained' || events.some(isDrained));
    return history;
  } finally {
    uninstall();
  }
}

/** Returns the admin listener's metrics. */
function scrape(server: Server, clock: Clock): string {
  let text = '';
  let isOver = false;
  const onBytes = (bytes: Buffer) => (text += bytes.toString());
  const socket = new MemorySocket(server, { onBytes, onEnd: () => (isOver = true) }, '127.0.0.1');
  socket.receive(Buffer.from('GET /metrics HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n'));
  clock.run(() => isOver);
  socket.receive(null);
  // The listener also asks the providers for their models.
  let isRested = false;
  clock.after(4000, () => (isRested = true));
  clock.run(() => isRested);
  return text.slice(text.indexOf('\r\n\r\n') + 4);
}

const isDrained = ({ kind }: Event) => kind === 'drained';

/** Whether no request is in flight, to the gateway or to a provider. */
function isQuiet({ events, exchanges, lists }: History): boolean {
  const isOver = ({ ask, headSentAtMs, lines, tries }: Exchange) =>
    (headSentAtMs === undefined || lines.length > 0 || ask.broken) && tries.every(isEnded);
  return (
    exchanges.every(isOver) && lists.every(isEnded) && !events.some(({ kind }) => kind === 'drain')
  );
}

const isEnded = ({ end }: Try) => end !== 'open';

/**
 * Returns the gateway's unexpected timers. Four kinds need no request: a closed connection is read
 * on, incidents are watched, connections are kept, and a failed stream's connection is kept while
 * its client waits for the end.
 */
function timersOf(clock: Clock, atRest: ReadonlySet<string>, { exchanges }: History): string[] {
  // While a client does not read, it may have nothing of its answer yet.
  const isWaiting = ({ answer, leftAtMs, lines }: Exchange) =>
    lines.length > 0 && (answer?.end ?? 'open') === 'open' && leftAtMs === undefined;
  let cut = exchanges.filter(isWaiting).length;
  const isOfCut = (text: string) =>
    text === `in ${CLIENT_TIME_LIMITS.failedStreamMs} ms` && cut-- > 0;
  const isExpected = (text: string) => atRest.has(text) || /^every 1000 |^in \d{5,} /.test(text);
  const left = clock.running().filter((text) => !isExpected(text) && !isOfCut(text));
  return left.map((text) => `a timer while nobody asks: ${text}`);
}

/** The timer for a request for models. */
const LIST_TIMEOUT = 'in 3000 ms';

/** Returns everything still held by the gateway when all requests are over. */
function leftoversOf(
  app: App,
  connections: number,
  clock: Clock,
  atRest: ReadonlySet<string>,
): string[] {
  const counts = { ...heldBy(app), connections };
  // An absent store is asked again and again.
  const timers = clock
    .running()
    .filter((text) => !atRest.has(text) && !app.parts.store?.state.isAway);
  // The admin listener asks again for an unreadable list.
  const fetching = timers.indexOf(LIST_TIMEOUT);
  if (app.admin && fetching !== -1) timers.splice(fetching, 1);
  // An incident lasts, and is watched, until a provider has answered.
  if (timers.includes('every 1000 ms')) timers.splice(timers.indexOf('every 1000 ms'), 1);
  const left = Object.entries(counts).filter(([, count]) => count !== 0);
  return [...timers, ...left.map(([name, count]) => `${name}: ${count}`)];
}

/** Prepares a server without a port: clients hand their sockets to it. */
function prepare(server: Server): Server {
  // Node's own check of its connections would run on real time for ever.
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
