/**
 * The tools for the files of deploy/: the machine's own, or unpacked into a folder outside the
 * project, so nothing is installed. Remove the folder to download them again.
 */

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

const CACHE = join(process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'inference-gateway');
const SYSTEM_PATH = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/sbin', '/sbin'];
const FETCH_MS = 120_000;

/** Whether the network was too slow once. It is not tried again. */
let isTooSlow = false;

export interface Tool {
  readonly path: string;
  readonly env: Readonly<Record<string, string>>;
}

export interface Run {
  readonly code: number | null;
  /** Standard output, then standard error. */
  readonly output: string;
}

/** Where to get a missing program. */
export interface Source {
  /** The name of its folder in the cache, with the version, so a new version is downloaded. */
  readonly folder: string;
  /** The program's path below that folder. */
  readonly program: string;
  /** Commands to fill the folder. They run in it. */
  readonly commands: readonly (readonly string[])[];
  readonly env?: Readonly<Record<string, string>>;
}

export function runTool(
  { path, env }: Tool,
  args: readonly string[],
  options: { readonly cwd?: string; readonly timeout?: number } = {},
): Run {
  const { status, stdout, stderr, error } = spawnSync(path, args, {
    env: { ...process.env, ...env },
    encoding: 'utf8',
    timeout: 60_000,
    ...options,
  });
  return { code: status, output: error ? error.message : `${stdout}${stderr}` };
}

export interface RunningServer {
  readonly pid: number;
  /** The text on standard error so far. */
  readonly stderr: () => string;
}

/** Runs a server until the test ends. Waits until its port is open. */
export async function runServer(
  t: TestContext,
  tool: Tool,
  args: readonly string[],
  port: number,
): Promise<RunningServer> {
  const child = spawn(tool.path, args, {
    env: { ...process.env, ...tool.env },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let output = '';
  child.stderr.on('data', (chunk: Buffer) => (output += chunk.toString()));
  const ended = once(child, 'close');
  t.after(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  for (;;) {
    assert.equal(child.exitCode, null, output);
    const socket = connect(port, '127.0.0.1');
    const isOpen = await once(socket, 'connect').then(
      () => true,
      () => false,
    );
    socket.destroy();
    if (isOpen) return { pid: child.pid!, stderr: () => output };
    await sleep(20);
  }
}

export function findProgram(name: string): string | undefined {
  return SYSTEM_PATH.map((folder) => join(folder, name)).find((path) => existsSync(path));
}

/** Debian packages, unpacked and not installed. */
export function debian(program: string, packages: readonly string[]): Source {
  const unpack = 'for one in *.deb; do dpkg-deb --extract "$one" . || exit 1; done';
  return {
    folder: packages[0]!,
    program,
    commands: [
      ['apt-get', '--quiet', '--quiet', 'download', ...packages],
      ['sh', '-c', unpack],
    ],
  };
}

/** Returns the tool, or skips the test with the reason and returns undefined. */
export function getTool(t: TestContext, name: string, source?: Source): Tool | undefined {
  const tool = findTool(name, source, { cache: 'deploy', timeout: FETCH_MS });
  if (typeof tool !== 'string') return tool;
  t.skip(tool);
  return undefined;
}

/**
 * Returns the machine's own program, or the program in the cache (downloaded if necessary), or the
 * reason for neither.
 */
export function findTool(
  name: string,
  source: Source | undefined,
  { cache, timeout }: { readonly cache: string; readonly timeout: number },
): Tool | string {
  // The machine's own program serves only if any version will do.
  const path = source?.folder.includes('@') ? undefined : findProgram(name);
  if (path) return { path, env: {} };
  if (!source) return `there is no ${name}`;
  const folder = join(CACHE, cache, source.folder);
  const isThere = existsSync(join(folder, source.program));
  const failure = isThere ? undefined : fetchTool(folder, source, timeout);
  return failure === undefined
    ? { path: join(folder, source.program), env: librariesOf(folder) }
    : `there is no ${name}, and it cannot be fetched: ${failure}`;
}

/** Fills the folder, which gets its name when it is complete. Returns why it failed. */
function fetchTool(
  folder: string,
  { commands, env = {}, program }: Source,
  timeout: number,
): string | undefined {
  if (isTooSlow) return 'the network is too slow';
  const incomplete = `${folder}.${process.pid}`;
  mkdirSync(incomplete, { recursive: true });
  try {
    for (const [path = '', ...args] of commands) {
      const options = { cwd: incomplete, timeout };
      const startedAt = performance.now();
      const { code, output } = runTool({ path, env }, args, options);
      isTooSlow = performance.now() - startedAt >= timeout;
      if (code !== 0) return `${path}: ${output.trim().split('\n').at(-1)}`;
    }
    if (!existsSync(join(incomplete, program))) return `${program} is missing`;
    rmSync(folder, { recursive: true, force: true });
    renameSync(incomplete, folder);
    return undefined;
  } finally {
    rmSync(incomplete, { recursive: true, force: true });
  }
}

function librariesOf(folder: string): Record<string, string> {
  const parent = join(folder, 'usr/lib');
  if (!existsSync(parent)) return {};
  const folders = readdirSync(parent).filter((name) => name.endsWith('-linux-gnu'));
  return { LD_LIBRARY_PATH: folders.map((name) => join(parent, name)).join(delimiter) };
}
