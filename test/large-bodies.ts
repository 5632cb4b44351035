/**
 * Large bodies, many at once, through the built gateway: how long the event loop stalls, how soon /health answers, how much
 * memory is taken, and whether every byte arrives.
 *
 *   npm run test:large            three minutes; on Linux, with a memory controller (cgroup v1) that may be written
 */

import assert from 'node:assert/strict';
import { fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { buildOnce, freePort, SERVER } from './support/process.ts';
import { TRANSPORT_ENV } from './support/transport.ts';

const GIB = 1_073_741_824;
const MIB = 1_048_576;
/** How long after the load the memory is looked at again. */
const REST_MS = 60_000;
const SUPPORT = join(process.cwd(), 'test/support');

/** In milliseconds. */
interface Delay {
  readonly p99: number;
  readonly max: number;
}

interface Scenario {
  readonly kind: 'uploads' | 'answers';
  readonly count: number;
  readonly memoryBytes?: number;
  /** How long the event loop may be busy without a turn, and 99 of 100 health checks may take. */
  readonly limits?: { readonly stallMs: number; readonly healthMs: number };
}

const SCENARIOS: readonly Scenario[] = [
  { kind: 'uploads', count: 60, limits: { stallMs: 100, healthMs: 250 } },
  { kind: 'uploads', count: 200, memoryBytes: GIB },
  { kind: 'answers', count: 200, memoryBytes: GIB },
];

/** Starts test/support/<name>.ts in a process of its own. */
function start(name: string, args: readonly string[] = []): ChildProcess {
  return fork(join(SUPPORT, `${name}.ts`), args, { execArgv: ['--import', 'tsx'] });
}

/** Makes a cgroup for so much memory; `undefined` if that is not possible here. */
function createGroup(memoryBytes: number): string | undefined {
  const folder = `/sys/fs/cgroup/memory/gateway-large-${process.pid}`;
  try {
    mkdirSync(folder);
    writeFileSync(join(folder, 'memory.limit_in_bytes'), String(memoryBytes));
    return folder;
  } catch (error) {
    console.log(`NOT TRIED: no memory limit can be set here (${String(error)})`);
    return undefined;
  }
}

async function startGateway(upstreamPort: number, group: string | undefined) {
  const port = await freePort();
  const file = join(tmpdir(), `gateway-loop-delay-${process.pid}.json`);
  const args = ['--import', join(SUPPORT, 'loop-delay.mjs'), SERVER];
  const enter = group ? `echo $$ > ${group}/cgroup.procs && ` : '';
  const child = spawn('sh', ['-c', `${enter}exec "$0" "$@"`, process.execPath, ...args], {
    cwd: tmpdir(),
    env: {
      PATH: process.env['PATH'],
      ...TRANSPORT_ENV,
      LOOP_DELAY_FILE: file,
      GATEWAY_PORT: String(port),
      GATEWAY_HOST: '127.0.0.1',
      GATEWAY_CONFIG: writeConfig(upstreamPort),
      GATEWAY_LOG_LEVEL: 'warn',
      P_API_KEY: 'none',
    },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  while (!(await isHealthy(port))) {
    assert.equal(child.exitCode, null, 'the gateway ended');
    await sleep(20);
  }
  const end = async () => {
    child.kill('SIGTERM');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    assert.equal(child.exitCode, 0, `the gateway ended with ${child.signalCode}`);
    return JSON.parse(readFileSync(file, 'utf8')) as {
      late: Delay;
      busy: Delay;
    };
  };
  return { port, child, end };
}

function writeConfig(upstreamPort: number): string {
  const file = join(tmpdir(), `gateway-large-${process.pid}.toml`);
  const baseUrl = `http://127.0.0.1:${upstreamPort}/v1`;
  writeFileSync(file, `[server]\ntimeout = 300\n[providers.p]\nbase_url = "${baseUrl}"\n`);
  return file;
}

async function isHealthy(port: number): Promise<boolean> {
  return fetch(`http://127.0.0.1:${port}/health`).then(
    ({ status }) => status === 200,
    () => false,
  );
}

/** Resident memory in bytes; 0 if the process has ended. */
function residentBytes(pid: number): number {
  try {
    const [, kilobytes] =
      /^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
    return Number(kilobytes ?? 0) * 1024;
  } catch {
    return 0;
  }
}

/** Asks for /health again and again until `end` settles. Returns how long each took, sorted, and the most memory seen. */
async function observe(port: number, pid: number, end: Promise<unknown>) {
  const healthMs: number[] = [];
  let peakBytes = 0;
  const state = { isOver: false };
  void end.finally(() => (state.isOver = true));
  while (!state.isOver) {
    const begunMs = performance.now();
    assert.ok(await isHealthy(port), '/health failed under load');
    healthMs.push(performance.now() - begunMs);
    peakBytes = Math.max(peakBytes, residentBytes(pid));
    await sleep(10);
  }
  return { healthMs: healthMs.toSorted((a, b) => a - b), peakBytes };
}

async function run({ kind, count, memoryBytes, limits }: Scenario): Promise<void> {
  const group = memoryBytes === undefined ? undefined : createGroup(memoryBytes);
  if (memoryBytes !== undefined && group === undefined) return;
  const upstream = start('large-upstream');
  const [upstreamPort] = (await once(upstream, 'message')) as [number];
  const gateway = await startGateway(upstreamPort, group);
  const pid = gateway.child.pid!;
  const before = residentBytes(pid);
  const client = start('large-client', [String(gateway.port), kind, String(count)]);
  const counted = once(client, 'message') as Promise<[Record<string, number>]>;
  const { healthMs, peakBytes } = await observe(gateway.port, pid, counted);
  const [counts] = await counted;
  const p99 = healthMs[Math.floor(healthMs.length * 0.99)]!;
  if (memoryBytes !== undefined) await sleep(REST_MS);
  const after = residentBytes(pid);
  const { late, busy } = await gateway.end();
  upstream.disconnect();
  if (group) rmdirSync(group);

  const inMiB = (bytes: number) => `${Math.round(bytes / MIB)} MiB`;
  const where = memoryBytes === undefined ? '' : ` in ${inMiB(memoryBytes)}`;
  console.log(`${count} ${kind} of 30 MB at once${where}: ${JSON.stringify(counts)}`);
  console.log(
    `  event loop: late p99 ${Math.round(late.p99)} ms, max ${Math.round(late.max)} ms, ` +
      `of its own doing p99 ${Math.round(busy.p99)} ms, max ${Math.round(busy.max)} ms; ` +
      `/health: p99 ${Math.round(p99)} ms, max ${Math.round(healthMs.at(-1)!)} ms of ${healthMs.length}`,
  );
  const rest = memoryBytes === undefined ? '' : `, a minute later ${inMiB(after)}`;
  console.log(`  resident: ${inMiB(before)} before, ${inMiB(peakBytes)} at the peak${rest}`);
  assert.ok((counts['200'] ?? 0) > 0, 'nothing was answered');
  assert.deepEqual(
    Object.keys(counts).filter((outcome) => !/^(?:200|429)$/.test(outcome)),
    [],
  );
  if (!limits) return;
  assert.ok(busy.max < limits.stallMs, `the event loop stalled for ${busy.max} ms`);
  assert.ok(p99 < limits.healthMs, `/health took ${p99} ms`);
}

await buildOnce();
console.log(`node ${process.version}, ${TRANSPORT_ENV['GATEWAY_UPSTREAM'] ?? 'auto'}`);
for (const scenario of SCENARIOS) {
  await run(scenario).catch((error: unknown) => {
    console.log(`FAILED: ${String(error)}`);
    process.exitCode = 1;
  });
}
