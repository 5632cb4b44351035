/** Processes: pinned to a core, measured through /proc, asked over IPC, and always ended. */

import { fork, spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { buildSync } from 'esbuild';

import { MS_PER_TICK } from './machine.ts';
import { NODE } from './options.ts';

const ANSWER_WITHIN_MS = 120_000;
const START_WITHIN_MS = 120_000;
const STOP_WITHIN_MS = 30_000;
/** Below the port range for outgoing connections. */
const PORTS = { first: 12_000, count: 20_000 };

export const folder = mkdtempSync(join(tmpdir(), 'bench-'));
/** Every process so far, with a promise that rejects when it ends. */
const endings = new Map<ChildProcess, Promise<never>>();
process.on('exit', () => {
  for (const child of endings.keys()) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
});
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => process.exit(130));
}

export const has = (command: string) => spawnSync(command, ['-h']).error === undefined;

const cores = availableParallelism();
const ALL_CORES = `0-${cores - 1}`;
const moveTo = (list: string) =>
  spawnSync('taskset', ['-a', '-c', '-p', list, `${process.pid}`]).status === 0;
/** Moves the bench to core 1, with all its children except the processes started on core 0. */
export const isPinned = cores >= 2 && moveTo('1');
const ON_CONTENDER_CORE = isPinned ? ['taskset', '-c', '0'] : [];
/** Returns the command with permission to use all cores. */
export const onAllCores = (command: readonly string[]) => [
  ...(isPinned ? ['taskset', '-c', ALL_CORES] : []),
  ...command,
];
/** Lets processes started meanwhile use all cores. */
export async function withAllCores<T>(run: () => Promise<T>): Promise<T> {
  if (isPinned) moveTo(ALL_CORES);
  try {
    return await run();
  } finally {
    if (isPinned) moveTo('1');
  }
}

// Plain JavaScript, because tsx would count in the programs' memory and start.
buildSync({
  entryPoints: ['upstream', 'load', 'relay', 'parse', 'probe'].map((name) =>
    join(import.meta.dirname, `${name}.ts`),
  ),
  bundle: true,
  platform: 'node',
  format: 'cjs',
  outdir: folder,
  outExtension: { '.js': '.cjs' },
});
export const program = (name: string) => join(folder, `${name}.cjs`);

function track(child: ChildProcess, stderr?: string): ChildProcess {
  const ended = Promise.race([once(child, 'exit'), once(child, 'error')]).then(([how]) => {
    const lastLine = stderr && readFileSync(stderr, 'utf8').trim().split('\n').at(-1);
    throw new Error(`it ended with ${how}, ${lastLine?.slice(0, 200)}`);
  });
  ended.catch(() => {});
  endings.set(child, ended);
  return child;
}

const ENV = { PATH: process.env['PATH'] };

/** Starts a contender on its core, or on all cores. Descriptor 3 is the probe's. */
export function startContender(
  command: readonly string[],
  env: Readonly<Record<string, string>>,
  isFree: boolean,
): ChildProcess {
  const [file = '', ...args] = isFree ? onAllCores(command) : [...ON_CONTENDER_CORE, ...command];
  const path = join(folder, 'stderr');
  const stderr = openSync(path, 'w');
  const stdio = ['ignore', 'ignore', stderr, 'pipe'] as const;
  const child = spawn(file, args, { cwd: folder, env: { ...ENV, ...env }, stdio: [...stdio] });
  closeSync(stderr);
  return track(child, path);
}

/** Starts another program beside the bench, for a limited time. */
export function startBeside(file: string, args: readonly string[], timeout: number): ChildProcess {
  const stdio = ['ignore', 'pipe', 'ignore'] as const;
  return track(spawn(file, args, { stdio: [...stdio], timeout, killSignal: 'SIGKILL' }));
}

/** Starts one of the bench's programs for `ask`: beside the bench, or on the contender's core. */
export function startProgram(name: string, args: readonly string[], isContender = false) {
  const [execPath, ...execArgv] = isContender ? [...ON_CONTENDER_CORE, NODE] : [NODE];
  const options = { execPath, execArgv, env: ENV, serialization: 'advanced' } as const;
  return track(fork(program(name), args, options));
}

/**
 * Returns the next data from a source, or the next IPC message. Rejects if the process ends or
 * takes too long.
 */
export async function next<T>(child: ChildProcess, source?: NodeJS.ReadableStream): Promise<T> {
  const said = source ? once(source, 'data') : once(child, 'message');
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(reject, ANSWER_WITHIN_MS, new Error('nothing came for too long'));
  });
  try {
    const [value] = await Promise.race([said, late, endings.get(child)!]);
    return value as T;
  } finally {
    clearTimeout(timer);
  }
}

/** Asks one of the bench's programs, and returns its answer. */
export async function ask<T>(child: ChildProcess, question: object): Promise<T> {
  const reply = next<{ error?: string; result: T }>(child);
  child.send(question);
  const { error, result } = await reply;
  if (error !== undefined) throw new Error(error);
  return result;
}

export async function stop(child: ChildProcess, signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
  child.kill(signal);
  const killer = setTimeout(() => child.kill('SIGKILL'), STOP_WITHIN_MS);
  await endings.get(child)!.catch(() => {});
  clearTimeout(killer);
}

/** Returns a free port outside the range for outgoing connections. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = PORTS.first + Math.floor(Math.random() * PORTS.count);
    const server = createServer().listen(port);
    const isFree = await once(server, 'listening').then(
      () => true,
      () => false,
    );
    server.close();
    if (isFree) return port;
  }
}

/** Waits until `count` sockets listen at the port. */
export async function untilListening(child: ChildProcess, port: number, count: number) {
  const listener = new RegExp(`:${port.toString(16).toUpperCase().padStart(4, '0')} \\S+ 0A `, 'g');
  const giveUpAt = performance.now() + START_WITHIN_MS;
  while (readFileSync('/proc/net/tcp', 'utf8').match(listener)?.length !== count) {
    if (performance.now() > giveUpAt) throw new Error('it did not start');
    await Promise.race([nextTurn(), endings.get(child)!]);
  }
}

/** Returns an answer's first bytes; empty without an answer. */
async function get(port: number, path: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1').setTimeout(1000, () => socket.destroy());
    socket.write(`GET ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n`);
    socket.on('error', () => {});
    socket.on('close', () => resolve(''));
    socket.on('data', (data) => {
      resolve(String(data));
      socket.destroy();
    });
  });
}

/** Asks without pause until an answer has status 200. */
export async function untilAnswered(child: ChildProcess, port: number, path: string) {
  const giveUpAt = performance.now() + START_WITHIN_MS;
  while (!(await get(port, path)).startsWith('HTTP/1.1 200')) {
    if (performance.now() > giveUpAt) throw new Error('it did not start');
    await Promise.race([nextTurn(), endings.get(child)!]);
  }
}

/** Returns the CPU time of all threads, user and system. */
export function cpuMs({ pid }: ChildProcess): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)!.split(' ');
  return (Number(fields[11]) + Number(fields[12])) * MS_PER_TICK;
}

export function rssKiB({ pid }: ChildProcess): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]);
}
