/** A real Redis or Valkey without a disk, which tests can kill, freeze, restart and fill. */

import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import type { TestContext } from 'node:test';

import { encodeCommand } from '../../src/store/redis-connection.ts';
import { emptyFolder, freePort } from './process.ts';

/** The servers installed here. */
export const REDIS_SERVERS = ['redis-server', 'valkey-server'].filter(
  (name) => spawnSync(name, ['--version']).status === 0,
);

/** Skips the test, with a message, and returns true if no server is installed. */
export function isRedisMissing(t: TestContext): boolean {
  if (REDIS_SERVERS.length > 0) return false;
  const text = 'NOT TESTED: no redis-server or valkey-server; apt-get install redis-server';
  console.error(text);
  t.skip(text);
  return true;
}

export interface RedisServer {
  readonly port: number;
  /** Runs a command. Returns the reply's bytes, such as `+OK\r\n`. */
  command(...args: string[]): Promise<string>;
  kill(): Promise<void>;
  /** Starts the server on the same port, empty. */
  restart(): Promise<void>;
  /** Stops the process: it keeps its connections, but neither reads nor writes. */
  freeze(): void;
  thaw(): void;
  /** Makes commands fail with OOM if they need memory. */
  fill(): Promise<void>;
  /** Removes the limit set by `fill`. */
  unfill(): Promise<void>;
}

interface RedisOptions {
  readonly program?: string;
  /** Further arguments. */
  readonly args?: readonly string[];
  readonly password?: string;
}

/** Starts a server until the test ends. */
export async function startRedis(
  t: TestContext,
  { program = REDIS_SERVERS[0]!, args = [], password }: RedisOptions = {},
): Promise<RedisServer> {
  const port = await freePort();
  const folder = emptyFolder(t);
  let child = await spawnRedis();
  t.after(kill);

  async function spawnRedis(): Promise<ChildProcess> {
    const settings = ['--port', `${port}`, '--bind', '127.0.0.1', '--dir', folder];
    const noDisk = ['--save', '', '--appendonly', 'no'];
    const secret = password === undefined ? [] : ['--requirepass', password];
    const started = spawn(program, [...settings, ...noDisk, ...secret, ...args], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let output = '';
    await new Promise<void>((resolve, reject) => {
      started.stdout.setEncoding('utf8').on('data', (text: string) => {
        output += text;
        if (output.includes('Ready to accept connections')) resolve();
      });
      started.once('exit', () => reject(new Error(`${program} ended: ${output}`)));
    });
    return started;
  }

  async function kill(): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  async function command(...words: string[]): Promise<string> {
    const login = password === undefined ? [] : [['AUTH', password]];
    const commands = [...login, words, ['QUIT']];
    const socket = connect(port, '127.0.0.1');
    let text = '';
    socket.setEncoding('latin1').on('data', (chunk: string) => (text += chunk));
    socket.write(commands.map(encodeCommand).join(''));
    await once(socket, 'close');
    const ok = '+OK\r\n';
    return text.slice(ok.length * login.length, -ok.length);
  }

  return {
    port,
    command,
    kill,
    async restart() {
      await kill();
      child = await spawnRedis();
    },
    freeze: () => void child.kill('SIGSTOP'),
    thaw: () => void child.kill('SIGCONT'),
    fill: async () => void (await command('CONFIG', 'SET', 'maxmemory', '1')),
    unfill: async () => void (await command('CONFIG', 'SET', 'maxmemory', '0')),
  };
}
