/**
 * Fails a test whose gateway keeps something. `test/run.ts` runs these checks after each test with
 * a gateway.
 */

import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import type { App } from '../../src/app.ts';
import type { Config } from '../../src/config/config.ts';
// Imported before timers are watched, because its own timers are not the gateway's.
import { type ManualTimers, manualTimers } from './clock.ts';
import { heldBy } from './held.ts';
import { parseLog } from './process.ts';

const ROUND_MS = 10;
/** More than 5 s together: a provider's stream is read for 5 s after its last event. */
const ROUNDS = 800;
const RESPONSE_FINISH = 'http.server.response.finish';

interface Watched {
  readonly app: App;
  readonly answers: readonly string[];
  /** `[logging]` of the first settings, and of each reload. */
  readonly logging: Config['logging'][];
  /** Every log line. A test may clear its own copy. */
  readonly log: string[];
  readonly lingerCheckMs: number;
}

/** A fake provider. */
interface WatchedUpstream {
  /** Counts the requests neither answered nor lost by the provider. */
  readonly open: () => number;
}

interface OfTest {
  readonly gateways: Watched[];
  readonly upstreams: WatchedUpstream[];
}

const tests = new WeakMap<TestContext, OfTest>();
/** The number of gateways. Simultaneous tests start timers, too. */
let running = 0;

/** The members of Node's timers, the same in each supported version. */
type Timer = NodeJS.Timeout & {
  readonly _destroyed: boolean;
  readonly _idleTimeout: number;
  readonly _repeat: number | null;
};

/** The timers started while a gateway ran, each with its source line. */
const timers = new Map<Timer, string>();
for (const name of ['setTimeout', 'setInterval'] as const) {
  const start = globalThis[name] as (...args: unknown[]) => Timer;
  const watched = (...args: unknown[]) => {
    const timer = start(...args);
    if (running > 0) {
      const caller = callerOf(watched);
      // Node's own undici, used by other code of the process too, keeps connections for minutes.
      if (!caller.includes('(node:')) timers.set(timer, caller);
    }
    return timer;
  };
  Object.assign(globalThis, { [name]: Object.assign(watched, start) });
}

/** Returns the caller's stack line. */
function callerOf(callee: (...args: never[]) => unknown): string {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 1;
  const trace = { stack: '' };
  Error.captureStackTrace(trace, callee);
  Error.stackTraceLimit = stackTraceLimit;
  return trace.stack.split('\n').at(-1)!.trim();
}

/**
 * The timers keeping the process alive, without the lingering check, whose interval ends when it
 * finds no connection.
 */
function runningTimers(lingerCheckMs: number): string[] {
  return [...timers].flatMap(([timer, caller]) => {
    const { _destroyed: isOver, _idleTimeout: ms, _repeat: intervalMs } = timer;
    const isExpected = isOver || !timer.hasRef() || intervalMs === lingerCheckMs;
    return isExpected ? [] : `a timer of ${ms} ms, started ${caller}`;
  });
}

function ofTest(t: TestContext): OfTest {
  const found = tests.get(t) ?? { gateways: [], upstreams: [] };
  tests.set(t, found);
  return found;
}

export function watchUpstream(t: TestContext, open: () => number): void {
  ofTest(t).upstreams.push({ open });
}

/** Registers a listening gateway for the check at the test's end. The caller adds log lines. */
export function watchGateway(t: TestContext, app: App, lingerCheckMs: number): Watched {
  const answers: string[] = [];
  const { port } = app.server;
  const onFinish = (message: unknown) => {
    type Finished = { socket: Socket; request: IncomingMessage; response: ServerResponse };
    const { socket, request, response } = message as Finished;
    if (socket.localPort !== port) return;
    const { _header: head } = response as unknown as { readonly _header: string };
    const id = /^x-request-id: (.*?)\r$/im.exec(head)?.[1] ?? '';
    const isHealth = /^[^?]*\/health(?:\?|$)/.test(request.url!) && /^\S+ (?:2\d\d|503)/.test(head);
    answers.push(isHealth ? 'health' : `${id} ${response.statusCode}`);
  };
  subscribe(RESPONSE_FINISH, onFinish);
  running += 1;
  t.after(() => {
    unsubscribe(RESPONSE_FINISH, onFinish);
    running -= 1;
  });
  const logging = [app.config.logging];
  const watched = { app, answers, logging, log: [], lingerCheckMs };
  ofTest(t).gateways.push(watched);
  return watched;
}

/** Call it after a test's body has passed, before anything is closed. */
export async function checkLeftovers(t: TestContext): Promise<void> {
  const found = tests.get(t);
  if (!found || found.gateways.length === 0) return;
  const { gateways, upstreams } = found;
  const calls = () => gateways.flatMap(({ app }) => app.server.calls());
  const isLeft = (call: object) =>
    (call as { connection: { socket: Socket } }).connection.socket.destroyed;
  const isNothing = (read: () => string[]) => awaitNothing(read, manualTimers.get(t));
  await isNothing(() =>
    calls()
      .filter(isLeft)
      .map(({ id }) => `request ${id} of a client that left`),
  );
  await isNothing(() => {
    const open = upstreams.reduce((sum, upstream) => sum + upstream.open(), 0);
    return open > calls().length ? [`${open} requests to providers for ${calls().length}`] : [];
  });
  // Runs after everything registered by the test.
  t.after(async () => {
    await isNothing(() => gateways.flatMap(leftoversOf));
    if (running === 0) {
      await isNothing(() => runningTimers(gateways[0]!.lingerCheckMs)).finally(() =>
        timers.clear(),
      );
    }
    for (const gateway of gateways) checkLines(gateway);
  });
}

async function awaitNothing(read: () => readonly string[], manual?: ManualTimers): Promise<void> {
  for (let round = 0; round < ROUNDS && read().length > 0; round += 1) {
    await sleep(ROUND_MS);
    manual?.advance(ROUND_MS);
  }
  assert.deepEqual(read(), [], 'something is left');
}

function leftoversOf({ app }: Watched): string[] {
  const connections = app.parts.transport.connectionFigures?.open ?? 0;
  const counts = { ...heldBy(app), 'connections to providers': connections };
  return Object.entries(counts).flatMap(([name, count]) => (count === 0 ? [] : `${count} ${name}`));
}

/**
 * Checks that each request has one access line, with its answer's id and status. At level `info` a
 * sum stands for the requests that a limit has refused behind the first.
 */
function checkLines({ app, answers, logging, log }: Watched): void {
  const [{ level }] = logging as [Config['logging']];
  const isKnown = logging.every((one) => one.level === level && one.format !== 'text');
  if (!isKnown || level === 'warn' || level === 'error') return;
  const lines = parseLog(log.join(''), 'request').map((line) =>
    line['path'] === '/health' && line['outcome'] === 'ok'
      ? 'health'
      : `${String(line['request_id'])} ${String(line['status'])}`,
  );
  const { finished, cancelled } = app.server.counts;
  const healths = level === 'info' ? answers.filter((answer) => answer === 'health').length : 0;
  // A later sum contains the sum before it.
  const sums = parseLog(log.join(''), 'requests refused').map(
    ({ client, reason, refused, since }) =>
      [`${String(client)} ${String(reason)} ${String(since)}`, Number(refused) - 1] as const,
  );
  let summed = level === 'info' ? [...new Map(sums).values()].reduce((a, b) => a + b, 0) : 0;
  const all = lines.length + healths + summed;
  assert.equal(all, finished + cancelled, 'one access line for each request');
  for (const answer of answers.filter((one) => one !== 'health')) {
    const at = lines.indexOf(answer);
    if (at >= 0) lines.splice(at, 1);
    else if (answer.endsWith(' 429')) summed -= 1;
    else assert.fail(`no access line for ${answer}`);
  }
  assert.ok(summed >= 0, 'a refused request without a line is in no sum');
}
