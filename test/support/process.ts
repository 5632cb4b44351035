/** The built program as a process with its own environment, until the test ends. */

import assert from 'node:assert/strict';
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';

import { countGroup } from './progress.ts';
import { TRANSPORT_ENV } from './transport.ts';

/** The project's folder, where npm runs its scripts. */
export const ROOT = process.cwd();
export const SERVER = join(ROOT, 'dist', 'server.js');

export interface ProgramOptions {
  /** The program's environment, beside PATH and the transport. */
  readonly env?: Readonly<Record<string, string>>;
  /** The working folder; by default a new empty folder, without a gateway.toml. */
  readonly cwd?: string;
  readonly script?: string;
  /** Runs the program as this user, if the tests run as root and this user may run Node. */
  readonly uid?: number;
}

const NODE_FLAGS = [...process.allowedNodeEnvironmentFlags];
const PERMISSION = NODE_FLAGS.find((flag) => /^--(?:experimental-)?permission$/.test(flag));
export const NO_PERMISSION_MODEL =
  PERMISSION === undefined && `Node ${process.version} has no permission model`;
/** Whether Node's permission model can deny the network. */
export const CAN_DENY_NET = NODE_FLAGS.includes('--allow-net');

/** Returns Node's options to permit reading these files, and the network if `allowsNet`. */
export function permitOnly(files: readonly string[], allowsNet = true): string[] {
  const net = allowsNet && CAN_DENY_NET ? ['--allow-net'] : [];
  return [PERMISSION!, ...files.map((file) => `--allow-fs-read=${file}`), ...net];
}

export type Line = Readonly<Record<string, unknown>>;

export interface Program {
  readonly child: ChildProcess;
  readonly stdout: () => string;
  /** The parsed whole log lines with one of these messages; all lines without an argument. */
  readonly lines: (...messages: readonly string[]) => Line[];
  readonly stderr: () => string;
  /** The exit code, or the name of the ending signal. */
  readonly exit: Promise<number | string>;
}

export interface Finished {
  readonly code: number | string;
  readonly stdout: string;
  readonly stderr: string;
}

/** Builds dist/server.js if it is missing or older than the sources and the build script. */
export async function buildOnce(): Promise<void> {
  const sources = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' });
  const changedAtMs = [...sources.map((name) => join('src', name)), 'scripts/build.mjs'].map(
    (name) => statSync(join(ROOT, name)).mtimeMs,
  );
  const builtAtMs = existsSync(SERVER) ? statSync(SERVER).mtimeMs : 0;
  if (builtAtMs > Math.max(...changedAtMs)) return;
  const [code] = (await once(
    spawn('npm', ['run', '-s', 'build'], { cwd: ROOT, stdio: 'inherit' }),
    'exit',
  )) as [number];
  if (code !== 0) throw new Error('npm run build failed');
}

/** Creates a folder with these files until the test ends. */
export function emptyFolder(t: TestContext, files: Readonly<Record<string, string>> = {}): string {
  const folder = mkdtempSync(join(tmpdir(), 'gateway-'));
  t.after(() => {
    chmodSync(folder, 0o700);
    rmSync(folder, { recursive: true, force: true });
  });
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
  return folder;
}

/** Parses a log's whole lines with these messages; all lines if none is given. */
export function parseLog(text: string, ...messages: readonly string[]): Line[] {
  const lines = text.split('\n').slice(0, -1);
  return lines
    .filter((line) => messages.length === 0 || messages.some((one) => line.includes(`"${one}"`)))
    .map((line) => JSON.parse(line) as Line)
    .filter(({ message }) => messages.length === 0 || messages.includes(String(message)));
}

/** Starts a command without waiting for it. The command may start others. */
export function startCommand(
  t: TestContext,
  command: readonly string[],
  { env = {}, cwd = emptyFolder(t), uid }: ProgramOptions = {},
): Program {
  const [file = '', ...args] = command;
  const child = spawn(file, args, {
    cwd,
    env: { PATH: process.env['PATH'], ...TRANSPORT_ENV, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    // A process group, so the test can kill all processes started by the command.
    detached: true,
    ...userOptions(uid),
  });
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  const exit = once(child, 'close').then(([code, signal]) => (code ?? signal) as number | string);
  countGroup(child.pid!, 1);
  t.after(async () => {
    endGroup(child.pid!);
    await exit;
    countGroup(child.pid!, -1);
  });
  const lines = (...messages: readonly string[]) => parseLog(stdout, ...messages);
  return { child, stdout: () => stdout, lines, stderr: () => stderr, exit };
}

/** Kills the processes of a group, if there are any. */
export function endGroup(id: number): void {
  try {
    process.kill(-id, 'SIGKILL');
  } catch {
    // The group has ended already.
  }
}

/** Starts the program and does not wait for it. */
export function startProgram(
  t: TestContext,
  args: readonly string[],
  options: ProgramOptions = {},
): Program {
  return startCommand(t, [process.execPath, options.script ?? SERVER, ...args], options);
}

function userOptions(uid: number | undefined): { uid?: number; gid?: number } {
  if (uid === undefined) return {};
  const options = { uid, gid: uid };
  return spawnSync(process.execPath, ['--version'], options).status === 0 ? options : {};
}

/** Runs the program to its end. */
export async function runProgram(
  t: TestContext,
  args: readonly string[],
  options: ProgramOptions = {},
): Promise<Finished> {
  const { exit, stdout, stderr } = startProgram(t, args, options);
  const code = await exit;
  return { code, stdout: stdout(), stderr: stderr() };
}

/** Sends SIGTERM, and checks for a drain and exit code 0. */
export async function assertStops({ child, exit, stderr }: Program): Promise<void> {
  child.kill('SIGTERM');
  assert.equal(await exit, 0, stderr());
}

export interface Serving extends Program {
  readonly port: number;
}

/** Starts the program and waits until it listens. */
export async function startServing(
  t: TestContext,
  args: readonly string[],
  options: ProgramOptions = {},
): Promise<Serving> {
  return untilServing(startProgram(t, args, options));
}

/** Waits until a program listens. Rejects with its output if it ends first. */
export async function untilServing(program: Program): Promise<Serving> {
  const listening = new Promise<number>((resolve) => {
    program.child.stderr!.on('data', () => {
      const port = /^listening .*:(\d+)\/v1/m.exec(program.stderr())?.[1];
      if (port !== undefined) resolve(Number(port));
    });
  });
  const ended = program.exit.then((code) => {
    throw new Error(`it ended with ${code}: ${program.stdout()} ${program.stderr()}`);
  });
  // A working program ends long after the race, when nobody waits for this promise.
  ended.catch(() => {});
  return { ...program, port: await Promise.race([listening, ended]) };
}

/** Counts a process's TCP sockets over IPv4. */
export function tcpSocketsOf(pid: number): { readonly listening: number; readonly others: number } {
  const states = new Map(
    readFileSync(`/proc/${pid}/net/tcp`, 'utf8')
      .split('\n')
      .map((line) => line.trim().split(/\s+/))
      .map((columns) => [`socket:[${columns[9]}]`, columns[3]]),
  );
  const found = readdirSync(`/proc/${pid}/fd`).flatMap((name) => {
    try {
      return states.get(readlinkSync(`/proc/${pid}/fd/${name}`)) ?? [];
    } catch {
      // The socket was closed meanwhile.
      return [];
    }
  });
  const listening = found.filter((state) => state === '0A').length;
  return { listening, others: found.length - listening };
}

/** Returns a port free until now, outside the range for outgoing connections. */
export async function freePort(): Promise<number> {
  const port = 10_000 + Math.floor(Math.random() * 6000);
  const server = createServer().listen(port, '127.0.0.1');
  const isFree = await once(server, 'listening').then(
    () => true,
    () => false,
  );
  if (!isFree) return freePort();
  server.close();
  await once(server, 'close');
  return port;
}
