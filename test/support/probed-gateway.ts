/** The built gateway with loop-delay.mjs, and its requests, for scripts. */

import { fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { providerToml } from './gateway.ts';
import { freePort, SERVER } from './process.ts';
import { TRANSPORT_ENV } from './transport.ts';

const folder = mkdtempSync(join(tmpdir(), 'gateway-long-'));
const LOOP_DELAY_FILE = join(folder, 'delay.json');
export const DELAY_PROBE = join(import.meta.dirname, 'loop-delay.mjs');

/** Delays in milliseconds. */
export interface Delay {
  readonly p99: number;
  readonly max: number;
}

interface Measured {
  readonly late: Delay;
  readonly busy: Delay;
  readonly liveBytes: number;
}

/** Returns the measurements of the last ended process. */
export function readMeasured(): Measured {
  return JSON.parse(readFileSync(LOOP_DELAY_FILE, 'utf8')) as Measured;
}

/** Starts test/support/<name>.ts as a process. */
export function startPeer(
  name: string,
  args: readonly unknown[] = [],
  preload: readonly string[] = [],
): ChildProcess {
  return fork(join(import.meta.dirname, `${name}.ts`), args.map(String), {
    execArgv: ['--import', 'tsx', ...preload],
    env: { ...process.env, LOOP_DELAY_FILE },
  });
}

export async function messageOf<T>(child: ChildProcess): Promise<T> {
  const [message] = (await once(child, 'message')) as [T];
  return message;
}

/** Starts the gateway in front of a provider at this port, after the shell command `enter`. */
export async function startProbedGateway(
  upstreamPort: number,
  { node = process.execPath, enter = ':' } = {},
) {
  const port = await freePort();
  const config = join(folder, 'gateway.toml');
  const baseUrl = `http://127.0.0.1:${upstreamPort}/v1`;
  writeFileSync(config, `[server]\ntimeout = 300\n${providerToml({ baseUrl })}`);
  const args = ['--import', DELAY_PROBE, SERVER];
  const child = spawn('sh', ['-c', `${enter}; exec "$0" "$@"`, node, ...args], {
    cwd: folder,
    env: {
      PATH: process.env['PATH'],
      ...TRANSPORT_ENV,
      LOOP_DELAY_FILE,
      GATEWAY_PORT: String(port),
      GATEWAY_HOST: '127.0.0.1',
      GATEWAY_CONFIG: config,
      GATEWAY_LOG_LEVEL: 'error',
    },
    stdio: 'ignore',
  });
  process.once('exit', () => child.kill('SIGKILL'));
  const isAlive = () => child.exitCode === null && child.signalCode === null;
  while (!(await isHealthy(port))) {
    if (!isAlive()) throw new Error('the gateway ended');
    await sleep(20);
  }
  return { port, child, isAlive, end: () => child.kill('SIGTERM') };
}

export async function isHealthy(port: number): Promise<boolean> {
  const signal = AbortSignal.timeout(60_000);
  return fetch(`http://127.0.0.1:${port}/health`, { signal }).then(
    async (response) => {
      await response.arrayBuffer();
      return response.status === 200;
    },
    () => false,
  );
}

/**
 * Repeats a request to /health, and a call of `alsoDo`, until `end` settles. Returns the sorted
 * times of /health.
 */
export async function probeHealth(
  port: number,
  end: Promise<unknown>,
  alsoDo: () => unknown = () => {},
): Promise<number[]> {
  const times: number[] = [];
  const state = { isOver: false };
  void end.finally(() => (state.isOver = true));
  while (!state.isOver) {
    const begunMs = performance.now();
    if (!(await isHealthy(port))) throw new Error('/health failed under load');
    times.push(performance.now() - begunMs);
    await alsoDo();
    await sleep(1);
  }
  return times.toSorted((a, b) => a - b);
}
