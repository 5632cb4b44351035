/**
 * Mixed load on the built gateway: streams and complete answers. Three in ten clients leave at some
 * point, and one in ten requests meets a faulty provider. All answers are compared by their hash.
 *
 *   npm run test:soak -- [MINUTES]   20 by default
 *   ... --processes 2                at one port; both reload every 5 s, one is killed every 20 s
 *   ... --rough                      rough clients too (soak-rough.ts), a reload every 3 s, and pauses
 *                                    of the process; all is logged, and nothing may be held afterwards
 */

import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { on } from 'node:events';
import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { Agent, request as httpRequest } from 'node:http';
import type { Socket } from 'node:net';
import { availableParallelism, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { readAnswer } from '../support/answer.ts';
import { assertErrorObject } from '../support/documented.ts';
import { buildOnce, freePort } from '../support/process.ts';
import { createRandom, type Random } from '../support/random.ts';
import { answerTo, FAULTS, sha256, type SoakRequest } from '../support/soak-answers.ts';
import { SoakGateway, type Vitals } from '../support/soak-gateway.ts';
import { playRough, SOAK_KEY } from '../support/soak-rough.ts';
import { errorAfter } from '../support/streams.ts';

const { positionals, values: options } = parseArgs({
  allowPositionals: true,
  options: {
    processes: { type: 'string', default: '1' },
    rough: { type: 'boolean', default: false },
  },
});
const MINUTES = Number(positionals[0] ?? 20);
const PROCESSES = Number(options.processes);
const IS_ROUGH = options.rough;
const SEED = Number(process.env['FUZZ_SEED'] ?? Date.now() % 2 ** 31);
const CLIENTS = 40;
const ROUGH_CLIENTS = 30;
/** Between two moments of rest, in which the gateway must hold nothing. */
const SAMPLE_EVERY_MS = IS_ROUGH ? 20_000 : 5000;
/** The time for both sides to notice a closed connection. */
const CLOSING_MS = 500;
/** Far beyond every limit of this gateway. A later answer counts as lost. */
const LOST_MS = 20_000;
const RELOAD_EVERY_MS = IS_ROUGH ? 3000 : 5000;
const RELOADS_PER_KILL = 4;
/** The longest pause of the process by SIGSTOP. */
const STOP_MS = 1500;
/**
 * How long the gateway may hold something of clients that are gone. It does not see their end if a
 * pipelined upload keeps their sockets unread: then three tries have their time limits, and the
 * connection lingers.
 */
const HELD_MS = 20_000;
/** `shutdown_timeout`, and the time for the clients to take their last bytes. */
const SHUTDOWN_SECONDS = 10;
const LAST_BYTES_MS = 4000;
/** Below this many minutes, the slope is noise. */
const SLOPE_MINUTES = 10;
const MAX_SLOPE_PERCENT_PER_HOUR = 2;
/** The share of the time in which caches still grow. */
const WARM_UP_SHARE = 0.25;
/** Twice the standard error, so the slope is below with 95 % confidence. */
const CONFIDENCE = 2;

const children: ChildProcess[] = [];
process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));

function watchChild(name: string, child: ChildProcess): void {
  children.push(child);
  child.once('exit', (code, signal) => {
    if (child.killed) return;
    console.log(`FAILED: ${name} ended with ${code ?? signal}`);
    process.exit(1);
  });
}

async function startUpstream() {
  const child = fork(join(import.meta.dirname, '../support/soak-upstream.ts'), {
    execArgv: ['--import', 'tsx'],
  });
  watchChild('the provider', child);
  for await (const [message] of on(child, 'message')) {
    return { child, port: (message as { port: number }).port };
  }
  throw new Error('unreachable');
}

await buildOnce();
const upstream = await startUpstream();
const isShared = PROCESSES > 1;
/** Longer if the gateways do not have the cores for themselves. */
const TIMEOUT_SECONDS = isShared || IS_ROUGH ? 3 : 1;

/** Returns the settings after so many reloads. Some change the provider, which then begins anew. */
function settingsAfter(reloads: number): string {
  const provider = (id: string, more = '') =>
    `[providers.${id}]\nbase_url = "http://127.0.0.1:${upstream.port}/${id}/v1"\napi_key = "none"\n${more}`;
  const changing = ['', `[clients.c${reloads}]\nkey = "c-${reloads}-0123456789"\n`];
  const clients = IS_ROUGH ? changing[reloads % 3] : '';
  return [
    `[server]\nhost = "127.0.0.1"\nreuse_port = ${isShared}\nshutdown_timeout = ${SHUTDOWN_SECONDS}`,
    `timeout = ${TIMEOUT_SECONDS}\nstream_idle_timeout = ${TIMEOUT_SECONDS}`,
    `[server.auth]\nkeys = ["${SOAK_KEY}"]`,
    `[logging]\nformat = "json"\n${IS_ROUGH ? 'level = "trace"\nverbose = true' : ''}`,
    `[providers]\nfallback = ["q"]`,
    provider('p', `retries = ${1 - (reloads % 2)}\n`),
    provider('q'),
    `[aliases]\nalias = { targets = ["p/m", "q/m"], balance = "least_busy" }\n`,
    clients,
  ].join('\n');
}

const folder = mkdtempSync(join(tmpdir(), 'soak-'));
const configPath = join(folder, 'gateway.toml');
/** By our port, the process that accepted its latest connection, and when it reported that. */
const owners = new Map<number, { readonly child: ChildProcess; readonly atMs: number }>();

/** The gateways, the oldest first. */
const gateways: SoakGateway[] = [];
const gatewayPort = await freePort();
const allLogs: string[] = [];
if (isShared) process.env['SOAK_TELLS_ACCEPTS'] = 'yes';

/** Replaces the file at once, because another gateway may read it. */
function writeSettings(): void {
  writeFileSync(`${configPath}.new`, settingsAfter(totals.reloads));
  renameSync(`${configPath}.new`, configPath);
}

async function startGateway(): Promise<void> {
  const logPath = join(folder, `log-${allLogs.length}`);
  allLogs.push(logPath);
  const gateway = await SoakGateway.start(configPath, gatewayPort, logPath);
  const { child } = gateway;
  watchChild('a gateway', child);
  child.on('message', ({ acceptedFrom: from }: { acceptedFrom?: number }) => {
    if (from !== undefined) owners.set(from, { child, atMs: performance.now() });
  });
  gateways.push(gateway);
}

const agent = new Agent({ keepAlive: true, maxSockets: CLIENTS });

/** Reads the gateways' vitals while no request is in flight and no connection is open. */
async function ask(): Promise<Vitals[]> {
  agent.destroy();
  upstream.child.send('close');
  await sleep(CLOSING_MS);
  return Promise.all(gateways.map(async (gateway) => gateway.vitals()));
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
  /** Good requests that the gateway has given up, because it was paused or got no time. */
  late: 0,
  lost: 0,
  mismatched: 0,
  errorLines: 0,
  rough: 0,
  reloads: 0,
  stops: 0,
};

writeSettings();
while (gateways.length < PROCESSES) await startGateway();

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
      headers: { authorization: `Bearer ${SOAK_KEY}`, 'content-type': 'application/json' },
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
    }, LOST_MS * slowness());
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
function check(soak: SoakRequest, { status, text }: Outcome): 'whole' | 'refused' | 'late' {
  const expected = answerTo(soak).join('');
  if (status === 200 && sha256(text) === sha256(expected)) return 'whole';
  const isLate = IS_ROUGH && text.includes('"code":"TIMEOUT"');
  assert.ok(soak.fault !== undefined || isLate, 'a request without a fault');
  const seen = soak.fault === undefined ? 'late' : 'refused';
  if (status !== 200) {
    assertErrorObject(text, status);
    return seen;
  }
  assert.ok(soak.stream, 'another answer');
  const kept = text.lastIndexOf('data: {"error"');
  const before = text.slice(0, kept).replace(/\n+$/, '\n\n');
  assert.ok(kept > 0 && expected.startsWith(before));
  errorAfter(text, before);
  return seen;
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
    try {
      if (outcome.text.includes('INTERNAL_ERROR')) throw new Error('an internal error');
      const seen = check(soak, outcome);
      if (seen !== 'whole') totals[seen] += 1;
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
  const rests = samples.map(({ hours, heapBytes }) => (heapBytes - y - slope * (hours - x)) ** 2);
  const error = Math.sqrt((mean(rests) * samples.length) / (samples.length - 2) / spread);
  return { meanBytes: y, slope, error };
}

/** The requests of rough clients, by their ids: what each is. */
const roughRequests = new Map<string, string>();

async function runRough(client: number): Promise<void> {
  const random = createRandom(SEED + 1000 + client);
  const onId = (id: string, what: string) => void roughRequests.set(id, what);
  for (let round = 0; !load.isOver; round += 1) {
    if (load.isPaused) {
      await sleep(5);
      continue;
    }
    totals.rough += 1;
    load.busy += 1;
    await playRough(`rough-${client}-${round}`, { port: gatewayPort, random, onId });
    load.busy -= 1;
  }
}

function reload(): void {
  totals.reloads += 1;
  writeSettings();
  for (const { child } of gateways) child.kill('SIGHUP');
}

async function reloadOften(): Promise<void> {
  for (; !load.isOver; await sleep(RELOAD_EVERY_MS)) reload();
}

/**
 * Reloads several gateways, and kills one of them now and then. Takes no samples, because during a
 * sample there are no requests for a reload or a kill to meet.
 */
async function killOften(): Promise<void> {
  let starting = Promise.resolve();
  while (performance.now() < endsAt) {
    await sleep(RELOAD_EVERY_MS);
    reload();
    if (totals.reloads % RELOADS_PER_KILL > 0) continue;
    await starting;
    totals.killed += 1;
    gateways.shift()!.child.kill('SIGKILL');
    starting = startGateway();
  }
  await starting;
}

/** Pauses the process now and then, as a machine does that swaps or is moved. */
async function stopOften(): Promise<void> {
  const random = createRandom(SEED + 999);
  for (; !load.isOver; await sleep(random.integer(1000, 10_000))) {
    totals.stops += 1;
    for (const { child } of gateways) child.kill('SIGSTOP');
    await sleep(random.integer(50, STOP_MS));
    for (const { child } of gateways) child.kill('SIGCONT');
  }
}

/** How long a gateway without clients held something, at most. */
let heldMs = 0;

/** Waits until no gateway holds anything. Returns what is held after `HELD_MS`. */
async function rest(): Promise<string[]> {
  load.isPaused = true;
  while (load.busy > 0) await sleep(5);
  const begunAtMs = performance.now();
  for (;;) {
    const held = (await ask()).flatMap(heldBy);
    const tookMs = performance.now() - begunAtMs;
    if (held.length === 0) heldMs = Math.max(heldMs, tookMs);
    if (held.length === 0 || tookMs > HELD_MS * slowness()) return held;
  }
}

function heldBy({ inFlight, bufferedBytes, sockets, resources, requests }: Vitals): string[] {
  const figures = Object.entries({ inFlight, bufferedBytes, sockets });
  const described = requests.map((one) => `${one}: ${roughRequests.get(one.split(' ')[0]!)}`);
  return [
    ...figures.flatMap(([name, value]) => (value === 0 ? [] : `${value} ${name}`)),
    ...resources,
    ...described,
  ];
}

/** By how much a busy machine extends a limit. */
function slowness(): number {
  return Math.max(1, loadavg()[0]! / availableParallelism());
}

/** Sends SIGTERM under load. Returns what was wrong with the end. */
async function terminate(): Promise<string[]> {
  load.isPaused = false;
  await sleep(2000);
  for (const { child } of gateways) child.kill('SIGCONT');
  load.isOver = true;
  const begunAtMs = performance.now();
  const codes = await Promise.all(gateways.map(async (gateway) => gateway.terminate()));
  const tookMs = performance.now() - begunAtMs;
  console.log(`ended with ${codes.join()} after ${Math.round(tookMs)} ms`);
  const limitMs = (SHUTDOWN_SECONDS * 1000 + LAST_BYTES_MS) * slowness();
  const isGood = codes.every((code) => code === 0) && tookMs < limitMs;
  return isGood ? [] : [`ended with ${codes.join()} after ${tookMs} ms`];
}

console.log(`node ${process.version}, ${MINUTES} minutes, FUZZ_SEED=${SEED}, ${folder}`);
const startedAt = performance.now();
const endsAt = startedAt + MINUTES * 60_000;
const others = IS_ROUGH ? [reloadOften(), stopOften()] : [];
const clients = [
  ...Array.from({ length: CLIENTS }, async (_, client) => runClient(client)),
  ...Array.from({ length: IS_ROUGH ? ROUGH_CLIENTS : 0 }, async (_, client) => runRough(client)),
];
const samples: { hours: number; heapBytes: number }[] = [];

/** Rests again and again. Returns what was held then. */
async function sample(): Promise<string[]> {
  for (;;) {
    await sleep(Math.min(SAMPLE_EVERY_MS, Math.max(1, endsAt - performance.now())));
    const held = await rest();
    const [{ heapBytes, rssBytes }] = (await ask()) as [Vitals];
    samples.push({ hours: (performance.now() - startedAt) / 3_600_000, heapBytes });
    if (IS_ROUGH || samples.length % 12 === 0) {
      const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
      const done = `${totals.requests} requests, ${totals.rough} rough clients`;
      console.log(`${done}, heap ${mib(heapBytes)}, rss ${mib(rssBytes)}, held ${heldMs | 0} ms`);
    }
    if (held.length > 0 || performance.now() > endsAt) return held;
    load.isPaused = false;
  }
}

if (isShared) await killOften();
const held = await (isShared ? rest() : sample());
if (held.length > 0) console.log(`HELD:\n${held.join('\n')}`);
const wrong = [...held, ...(await terminate())];
await Promise.all([...clients, ...others]);
const errorLines = allLogs.flatMap((path) =>
  readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => /"level":"error"|^\w*Error|uncaught/.test(line)),
);
totals.errorLines = errorLines.length;
console.log(errorLines.slice(0, 20).join('\n'));
console.log(JSON.stringify({ ...totals, heldMs: Math.round(heldMs) }));
const bad = [totals.lost, totals.mismatched, totals.errorLines, wrong.length].some((n) => n !== 0);
const isGood = !bad && (isShared || IS_ROUGH || isSteady());
if (isGood) rmSync(folder, { recursive: true });
console.log(isGood ? 'ok' : `FAILED; the logs are in ${folder}`);
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
