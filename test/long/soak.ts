/**
 * Mixed load: streams and complete answers. Three in ten clients leave at some point, and one in
 * ten requests meets a faulty provider. All answers are compared by their hash.
 *
 *   npm run test:soak -- [MINUTES]   20 by default
 *   ... --processes 2                at one port; both reload every 5 s, one is killed every 20 s
 */

import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { on } from 'node:events';
import { Agent, request as httpRequest } from 'node:http';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { readAnswer } from '../support/answer.ts';
import { assertErrorObject } from '../support/documented.ts';
import { createRandom, type Random } from '../support/random.ts';
import { answerTo, FAULTS, sha256, type SoakRequest } from '../support/soak-answers.ts';
import type { Vitals } from '../support/soak-gateway.ts';
import { errorAfter } from '../support/streams.ts';

const { positionals, values: options } = parseArgs({
  allowPositionals: true,
  options: { processes: { type: 'string', default: '1' } },
});
const MINUTES = Number(positionals[0] ?? 20);
const PROCESSES = Number(options.processes);
const SEED = Number(process.env['FUZZ_SEED'] ?? Date.now() % 2 ** 31);
const CLIENTS = 40;
const SAMPLE_EVERY_MS = 5000;
/** The time for both sides to notice a closed connection. */
const CLOSING_MS = 500;
/** Far beyond every limit of this gateway. A later answer counts as lost. */
const LOST_MS = 20_000;
const RELOAD_EVERY_MS = 5000;
const RELOADS_PER_KILL = 4;
/** Below this many minutes, the slope is noise. */
const SLOPE_MINUTES = 10;
const MAX_SLOPE_PERCENT_PER_HOUR = 2;
/** The share of the time in which caches still grow. */
const WARM_UP_SHARE = 0.25;
/** Twice the standard error, so the slope is below with 95 % confidence. */
const CONFIDENCE = 2;

const children: ChildProcess[] = [];
process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));

async function startChild(
  name: string,
  { env = {}, flags = [] }: { env?: Record<string, string>; flags?: readonly string[] } = {},
) {
  const child = fork(join(import.meta.dirname, '../support', name), {
    execArgv: [...flags, '--import', 'tsx'],
    env: { ...process.env, ...env },
  });
  children.push(child);
  child.once('exit', (code, signal) => {
    if (child.killed) return;
    console.log(`FAILED: ${name} ended with ${code ?? signal}`);
    process.exit(1);
  });
  const { port } = await receive<{ port: number }>(child, 'port');
  return { child, port };
}

/** Returns the next message with this member. */
async function receive<T>(child: ChildProcess, key: keyof T & string): Promise<T> {
  for await (const [message] of on(child, 'message')) {
    if (key in (message as object)) return message as T;
  }
  throw new Error('unreachable');
}

const upstream = await startChild('soak-upstream.ts');
const provider = (id: string) =>
  `[providers.${id}]\nbase_url = "http://127.0.0.1:${upstream.port}/${id}/v1"\napi_key = "none"\n`;
// Without optimised code, because V8 adds some 60 KiB for it in twenty minutes, which is no leak.
const flags = ['--expose-gc', '--no-opt', '--no-maglev', '--no-sparkplug'];
const isShared = PROCESSES > 1;
/** Longer for several processes, because each start takes the cores from the others for a while. */
const TIMEOUT_SECONDS = isShared ? 3 : 1;
const SOAK_TOML = [
  `[server]\nreuse_port = ${isShared}`,
  `timeout = ${TIMEOUT_SECONDS}\nstream_idle_timeout = ${TIMEOUT_SECONDS}`,
  `[providers]\nfallback = ["q"]\n${provider('p')}retries = 1\n${provider('q')}`,
].join('\n');
/** By our port, the process that accepted its latest connection, and when it reported that. */
const owners = new Map<number, { readonly child: ChildProcess; readonly atMs: number }>();

/** The gateways, the oldest first. */
const gateways: ChildProcess[] = [];

async function startGateway(atPort = 0): Promise<number> {
  const env = { SOAK_TOML, SOAK_PORT: String(atPort) };
  const { child, port } = await startChild('soak-gateway.ts', { flags, env });
  child.on('message', ({ acceptedFrom: from }: { acceptedFrom?: number }) => {
    if (from !== undefined) owners.set(from, { child, atMs: performance.now() });
  });
  gateways.push(child);
  return port;
}

const gatewayPort = await startGateway();
while (gateways.length < PROCESSES) await startGateway(gatewayPort);

const agent = new Agent({ keepAlive: true, maxSockets: CLIENTS });

/** Reads the gateways' vitals while no request is in flight and no connection is open. */
async function ask(): Promise<Vitals[]> {
  agent.destroy();
  upstream.child.send('close');
  await sleep(CLOSING_MS);
  return Promise.all(
    gateways.map(async (gateway) => {
      const vitals = receive<Vitals>(gateway, 'heapBytes');
      gateway.send('vitals');
      return vitals;
    }),
  );
}

/** When each connection began, and its port on our side. */
const origins = new WeakMap<Socket, { readonly begunAtMs: number; port: number }>();

function noteOrigin(socket: Socket): void {
  if (!socket.connecting) return;
  const origin = { begunAtMs: performance.now(), port: 0 };
  origins.set(socket, origin);
  socket.once('connect', () => (origin.port = socket.localPort!));
}

/** Returns why a connection broke: cut with its process, or lost. */
function causeOf(socket: Socket | null): 'cut' | 'lost' {
  const origin = socket && origins.get(socket);
  const owner = origin && owners.get(origin.port);
  return owner && owner.atMs > origin.begunAtMs && owner.child.killed ? 'cut' : 'lost';
}

const totals = {
  requests: 0,
  aborted: 0,
  /**
   * Connections cut by their process's end. With `tcp_migrate_req` (test/network.sh), others are
   * handed on.
   */
  cut: 0,
  killed: 0,
  faulty: 0,
  refused: 0,
  lost: 0,
  mismatched: 0,
  own5xx: 0,
};

interface Outcome {
  readonly status: number;
  readonly text: string;
}

type Ending = Outcome | 'aborted' | 'cut' | 'lost';

/**
 * Sends a request. Returns its answer, `aborted` if the client left as planned, `cut` or `lost`.
 */
async function send(soak: SoakRequest, random: Random): Promise<Ending> {
  const leaves = random.next() < 1 / 12 ? 'late' : random.next() < 3 / 11 ? 'early' : 'no';
  const body = {
    soak,
    model: random.pick(['p/m', 'p/m', 'q/m']),
    stream: soak.stream,
    messages: [{ role: 'user', content: 'x'.repeat(random.pick([1, 100, 20_000])) }],
  };
  return new Promise((resolve) => {
    const request = httpRequest({
      host: '127.0.0.1',
      port: gatewayPort,
      path: '/v1/chat/completions',
      method: 'POST',
      headers: { authorization: 'Bearer soak', 'content-type': 'application/json' },
      agent,
    });
    request.once('socket', noteOrigin);
    let hasLeft = false;
    const leave = () => {
      hasLeft = true;
      request.destroy();
      finish('aborted');
    };
    const finish = (outcome: Ending) => {
      clearTimeout(lost);
      clearTimeout(leaving);
      resolve(outcome);
    };
    const lost = setTimeout(() => {
      finish('lost');
      request.destroy();
    }, LOST_MS);
    const leaving =
      leaves === 'early' ? setTimeout(leave, random.next() * random.pick([1, 5, 30])) : undefined;
    const leaveAfter = leaves === 'late' ? random.integer(0, 2000) : Infinity;
    const onError = () => finish(hasLeft ? 'aborted' : causeOf(request.socket));
    request.on('error', onError);
    request.on('response', (response) => {
      let size = 0;
      const answer = readAnswer(response, (chunk) => {
        size += chunk.length;
        if (size > leaveAfter) leave();
      });
      answer.then(
        (bytes) => finish({ status: response.statusCode!, text: bytes.toString() }),
        onError,
      );
    });
    const text = JSON.stringify(body);
    const half = random.integer(0, text.length);
    if (random.oneIn(10)) {
      request.write(text.slice(0, half));
      setTimeout(() => request.end(text.slice(half)), random.integer(0, 5));
    } else request.end(text);
  });
}

/**
 * Checks that an answer is whole, or a documented error if the provider was faulty. Throws if not.
 */
function check(soak: SoakRequest, { status, text }: Outcome): 'whole' | 'refused' {
  const expected = answerTo(soak).join('');
  if (status === 200 && sha256(text) === sha256(expected)) return 'whole';
  assert.ok(soak.fault !== undefined, 'a request without a fault');
  if (status !== 200) {
    assertErrorObject(text, status);
    return 'refused';
  }
  assert.ok(soak.stream, 'another answer');
  const kept = text.lastIndexOf('data: {"error"');
  const before = text.slice(0, kept).replace(/\n+$/, '\n\n');
  assert.ok(kept > 0 && expected.startsWith(before));
  errorAfter(text, before);
  return 'refused';
}

const load = { isPaused: false, isOver: false, busy: 0 };

async function runClient(client: number): Promise<void> {
  const random = createRandom(SEED + client);
  for (let round = 0; !load.isOver; round += 1) {
    if (load.isPaused) {
      await sleep(5);
      continue;
    }
    const isFaulty = random.oneIn(10);
    const soak: SoakRequest = {
      nonce: `${SEED}-${client}-${round}`,
      stream: random.oneIn(2),
      pieces: random.integer(1, 40),
      fault: isFaulty ? random.pick(FAULTS) : undefined,
      everywhere: random.oneIn(2),
    };
    totals.requests += 1;
    if (isFaulty) totals.faulty += 1;
    load.busy += 1;
    const outcome = await send(soak, random);
    load.busy -= 1;
    count(soak, outcome);
    await sleep(random.integer(0, 10));
  }
}

function count(soak: SoakRequest, outcome: Ending): void {
  if (outcome === 'aborted' || outcome === 'cut') totals[outcome] += 1;
  else if (outcome === 'lost') {
    totals.lost += 1;
    console.log(`lost: ${JSON.stringify(soak)}`);
  } else {
    if (outcome.text.includes('INTERNAL_ERROR')) totals.own5xx += 1;
    try {
      if (check(soak, outcome) === 'refused') totals.refused += 1;
    } catch (error) {
      totals.mismatched += 1;
      const { status, text } = outcome;
      console.log(
        `mismatched: ${JSON.stringify(soak)} ${status} ${text.slice(-2000)}\n${String(error)}`,
      );
    }
  }
}

/**
 * Fits bytes of heap over hours by least squares. Returns the mean, the slope and its standard
 * error.
 */
function fit(samples: readonly { hours: number; heapBytes: number }[]) {
  const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const x = mean(samples.map(({ hours }) => hours));
  const y = mean(samples.map(({ heapBytes }) => heapBytes));
  const spread = samples.reduce((sum, { hours }) => sum + (hours - x) ** 2, 0);
  const slope =
    samples.reduce((sum, { hours, heapBytes }) => sum + (hours - x) * (heapBytes - y), 0) / spread;
  const rest = samples.map(({ hours, heapBytes }) => (heapBytes - y - slope * (hours - x)) ** 2);
  const error = Math.sqrt((mean(rest) * samples.length) / (samples.length - 2) / spread);
  return { meanBytes: y, slope, error };
}

console.log(`node ${process.version}, ${MINUTES} minutes, FUZZ_SEED=${SEED}`);
const startedAt = performance.now();
const endsAt = startedAt + MINUTES * 60_000;
const clients = Array.from({ length: CLIENTS }, async (_, client) => runClient(client));
const samples: { hours: number; heapBytes: number }[] = [];
let starting = Promise.resolve(gatewayPort);
// Without samples, because during a sample there are no requests for a reload or a kill to meet.
for (let reloads = 1; performance.now() < endsAt; reloads += 1) {
  if (!isShared) break;
  await sleep(RELOAD_EVERY_MS);
  for (const gateway of gateways) gateway.send('reload');
  if (reloads % RELOADS_PER_KILL > 0) continue;
  await starting;
  totals.killed += 1;
  gateways.shift()!.kill('SIGKILL');
  starting = startGateway(gatewayPort);
}
await starting;
while (performance.now() < endsAt) {
  await sleep(Math.min(SAMPLE_EVERY_MS, Math.max(1, endsAt - performance.now())));
  load.isPaused = true;
  while (load.busy > 0) await sleep(5);
  const [{ heapBytes, rssBytes }] = (await ask()) as [Vitals];
  samples.push({ hours: (performance.now() - startedAt) / 3_600_000, heapBytes });
  if (samples.length % 12 === 0) {
    const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
    console.log(`${totals.requests} requests, heap ${mib(heapBytes)}, rss ${mib(rssBytes)}`);
  }
  load.isPaused = false;
}
load.isOver = true;
await Promise.all(clients);
const vitals = await ask();
const sumOf = (key: keyof Vitals) => vitals.reduce((sum, one) => sum + one[key], 0);
const [live, sockets] = [sumOf('live'), sumOf('sockets')];
totals.own5xx = Math.max(totals.own5xx, sumOf('internalErrors'));
console.log(JSON.stringify({ ...totals, live, sockets }));
const bad = [totals.lost, totals.mismatched, totals.own5xx, live, sockets].some((n) => n !== 0);
const isGood = !bad && (isShared || isSteady());
console.log(isGood ? 'ok' : 'FAILED');
process.exit(isGood ? 0 : 1);

function isSteady(): boolean {
  const steady = samples.slice(Math.floor(samples.length * WARM_UP_SHARE));
  const { meanBytes, slope, error } = fit(steady);
  const percent = (bytesPerHour: number) => (bytesPerHour / meanBytes) * 100;
  const upperBound = percent(slope + CONFIDENCE * error);
  console.log(
    `heap ${(meanBytes / 2 ** 20).toFixed(2)} MiB steady, ` +
      `slope ${percent(slope).toFixed(2)} % per hour, at most ${upperBound.toFixed(2)} %`,
  );
  return MINUTES < SLOPE_MINUTES || upperBound < MAX_SLOPE_PERCENT_PER_HOUR;
}
