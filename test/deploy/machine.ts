/**
 * A machine with systemd as process 1, on a copy of this machine's files. Its changes are
 * discarded.
 */

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';

import { emptyFolder } from '../support/process.ts';
import { eventually } from '../support/streams.ts';

const SYSTEMD = '/lib/systemd/systemd';
const COMMAND_MS = 60_000;

/**
 * Boots with the folder $1 as /run/project. No unit of this machine is started: neither its
 * targets' units nor its generators'.
 */
const BOOT = `
set -e
project=$1
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
cd /mnt/root
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir run/project run/old
cp -R "$project/." run/project
rm -rf etc/systemd/system/*.wants lib/systemd/system/*.wants lib/systemd/system-generators
printf '[Unit]\\nDefaultDependencies=no\\n' > etc/systemd/system/nothing.target
pivot_root . run/old
cd /
umount -l run/old
mount --make-rshared /
export container=test
exec ${SYSTEMD} --system --unit=nothing.target --log-target=console --show-status=no
`;

let machines = 0;

export interface Done {
  readonly code: number | null;
  readonly output: string;
}

export interface Machine {
  /** Runs a shell command in /run/project. */
  readonly run: (command: string, input?: string) => Done;
}

/** Why no such machine can run here; `false` if it can. */
export const NO_MACHINE =
  !existsSync(SYSTEMD) || findCgroup() === undefined
    ? 'there is no systemd or no cgroup2'
    : spawnSync('unshare', [
        '--mount',
        '--pid',
        '--cgroup',
        '--fork',
        'mount',
        '--make-rprivate',
        '/',
      ]).status !== 0 && 'unshare is not permitted here: this needs root';

function findCgroup(): string | undefined {
  if (!existsSync('/proc/mounts')) return undefined;
  return /^\S+ (\S+) cgroup2 /m.exec(readFileSync('/proc/mounts', 'utf8'))?.[1];
}

/** Boots a machine with these files in /run/project. */
export async function bootMachine(
  t: TestContext,
  files: Readonly<Record<string, string>>,
): Promise<Machine> {
  const project = emptyFolder(t, files);
  const cgroup = join(findCgroup()!, `gateway-test-${process.pid}-${(machines += 1)}`);
  mkdirSync(cgroup);
  const namespaces = ['--mount', '--pid', '--uts', '--ipc', '--cgroup', '--fork'];
  const enterGroup = 'echo $$ > "$0/cgroup.procs"; exec unshare "$@"';
  const boot = [...namespaces, 'sh', '-c', BOOT, 'sh', project];
  const child = spawn('sh', ['-c', enterGroup, cgroup, ...boot], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => (output += chunk.toString()));
  }
  const ended = once(child, 'close');
  const pidOf = () =>
    Number(readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').split(' ')[0]);
  t.after(async () => {
    // Kills every process in the group and its subgroups.
    writeFileSync(join(cgroup, 'cgroup.kill'), '1');
    await ended;
    await eventually(() => removeCgroup(cgroup), 'every process has ended');
  });
  const run = (command: string, input = '') => {
    const enter = [
      `--target=${pidOf()}`,
      '--mount',
      '--pid',
      '--uts',
      '--ipc',
      '--cgroup',
      '--root',
    ];
    const shell = ['--', 'sh', '-e', '-c', `cd /run/project; ${command}`];
    const options = { input, encoding: 'utf8', timeout: COMMAND_MS } as const;
    const done = spawnSync('nsenter', [...enter, ...shell], options);
    return { code: done.status, output: `${done.stdout}${done.stderr}` };
  };
  await eventually(
    () => child.exitCode !== null || run('systemctl is-active nothing.target').code === 0,
    'systemd has started',
  );
  if (child.exitCode !== null) throw new Error(`systemd ended: ${output}`);
  return { run };
}

/** Removes the group and its subgroups. Returns false while a process is left in them. */
function removeCgroup(path: string): boolean {
  const groups = readdirSync(path, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  if (!groups.every(({ name }) => removeCgroup(join(path, name)))) return false;
  try {
    rmdirSync(path);
    return true;
  } catch {
    return false;
  }
}
