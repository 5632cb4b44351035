/**
 * Runs a root folder as an engine would: process 1 of its own namespace, not root, nothing
 * writable.
 */

import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';

import { eventually } from '../support/streams.ts';
import type { Image } from './image.ts';

/**
 * Mounts in a namespace, which ends with its last process. $1 is the root, and $2 to $4 are
 * workdir, gid and uid.
 */
const ENTER = `
set -e
root=$1 workdir=$2 gid=$3 uid=$4
shift 4
mount --make-rprivate /
mount --bind "$root" "$root"
mount -o remount,bind,ro,nosuid,nodev "$root"
exec setpriv --no-new-privs unshare --pid --fork --mount-proc --root "$root" --wd "$workdir" \
  --setgid "$gid" --setuid "$uid" -- "$@"
`;

export const CANNOT_UNSHARE =
  spawnSync('unshare', [
    '--mount',
    '--pid',
    '--uts',
    '--ipc',
    '--fork',
    'mount',
    '--make-rprivate',
    '/',
  ]).status !== 0 && 'unshare is not permitted here: this needs Linux and root';

export interface Container {
  /** Process 1's pid outside the container. */
  readonly pid: number;
  readonly stdout: () => string;
  readonly stderr: () => string;
  /** The exit code, or the name of the ending signal. */
  readonly exit: Promise<number | string>;
  /** Runs a command inside as this user. Returns its exit code and output. */
  readonly execute: (
    command: readonly string[],
    uid: number,
  ) => { code: number | null; output: string };
}

export async function startContainer(t: TestContext, image: Image): Promise<Container> {
  const { root, workdir, gid, uid, entrypoint, env } = image;
  // The mount point of proc.
  mkdirSync(join(root, 'proc'), { recursive: true });
  const into = ['sh', '-c', ENTER, 'sh', root, workdir, String(gid), String(uid)];
  const child = spawn('unshare', ['--mount', '--uts', '--ipc', ...into, ...entrypoint], {
    env: { PATH: process.env['PATH'], ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let [stdout, stderr] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  const exit = once(child, 'close').then(([code, signal]) => (code ?? signal) as number | string);
  t.after(async () => {
    // The namespace and its mounts end with its process 1.
    for (const pid of childrenOf(child)) process.kill(pid, 'SIGKILL');
    child.kill('SIGKILL');
    await exit;
  });
  await eventually(
    () => child.exitCode !== null || /^listening /m.test(stderr),
    'the gateway in the container listens',
  );
  const [pid] = childrenOf(child);
  if (pid === undefined) throw new Error(`it ended: ${stderr}`);
  const execute = (command: readonly string[], asUid: number) => {
    const user = [`--setuid=${asUid}`, `--setgid=${asUid}`];
    const namespaces = ['--mount', '--pid', '--root', '--wd'];
    const enter = [`--target=${pid}`, ...namespaces, ...user, '--', ...command];
    const done = spawnSync('nsenter', enter, { encoding: 'utf8', env });
    return { code: done.status, output: `${done.stdout}${done.stderr}` };
  };
  return { pid, stdout: () => stdout, stderr: () => stderr, exit, execute };
}

function childrenOf({ pid, exitCode }: ChildProcess): number[] {
  if (exitCode !== null) return [];
  try {
    const list = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
    return list.split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}
