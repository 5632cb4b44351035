/** The built gateway as a process of the soak. */

import { fork, type ChildProcess } from 'node:child_process';
import { on, once } from 'node:events';
import { openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { parseMetrics } from './exposition.ts';
import { freePort, ROOT, SERVER, tcpSocketsOf } from './process.ts';
import { TRANSPORT_ENV } from './transport.ts';

// Without optimised code, because V8 adds some 60 KiB for it in twenty minutes, which is no leak.
const FLAGS = ['--expose-gc', '--no-opt', '--no-maglev', '--no-sparkplug'];
const PROBE = join(ROOT, 'test/support/soak-probe.mjs');

/** What a gateway holds. All but the bytes of its memory are 0 or empty without requests. */
export interface Vitals {
  readonly heapBytes: number;
  readonly rssBytes: number;
  readonly inFlight: number;
  readonly bufferedBytes: number;
  /** Open connections on both sides. */
  readonly sockets: number;
  /** Timers, sockets and other handles that were not there at the start. */
  readonly resources: readonly string[];
  /** The requests in flight. */
  readonly requests: readonly string[];
}

export class SoakGateway {
  readonly child: ChildProcess;
  readonly logPath: string;
  readonly #adminPort: number;
  /** How many handles of each kind an idle gateway has. */
  #idle: ReadonlyMap<string, number> = new Map();

  private constructor(child: ChildProcess, adminPort: number, logPath: string) {
    this.child = child;
    this.#adminPort = adminPort;
    this.logPath = logPath;
  }

  /** Starts the program with the settings of this file, and waits until it listens. */
  static async start(config: string, port: number, logPath: string): Promise<SoakGateway> {
    const log = openSync(logPath, 'a');
    const adminPort = await freePort();
    const child = fork(SERVER, ['--config', config, '--port', `${port}`], {
      execArgv: [...FLAGS, '--import', PROBE],
      env: {
        PATH: process.env['PATH'],
        SOAK_TELLS_ACCEPTS: process.env['SOAK_TELLS_ACCEPTS'],
        GATEWAY_ADMIN_PORT: `${adminPort}`,
        ...TRANSPORT_ENV,
      },
      stdio: ['ignore', log, log, 'ipc'],
    });
    const gateway = new SoakGateway(child, adminPort, logPath);
    while (!(await gateway.#readMetrics().catch(() => undefined))) {
      if (child.exitCode !== null) throw new Error(readFileSync(logPath, 'utf8'));
      await sleep(20);
    }
    gateway.#idle = countEach((await gateway.#probe()).resources);
    return gateway;
  }

  /** Sends SIGTERM. Returns the exit code, or the name of the signal that has ended the process. */
  async terminate(): Promise<number | string> {
    const exited = once(this.child, 'exit') as Promise<[number | null, string]>;
    this.child.kill('SIGTERM');
    const [code, signal] = await exited;
    return code ?? signal;
  }

  async vitals(): Promise<Vitals> {
    const sockets = tcpSocketsOf(this.child.pid!).others;
    const metrics = await this.#readMetrics();
    const { heapBytes, rssBytes, resources, requests } = await this.#probe();
    const more = [...countEach(resources)].flatMap(([kind, count]) =>
      Array<string>(Math.max(0, count - (this.#idle.get(kind) ?? 0))).fill(kind),
    );
    return {
      heapBytes,
      rssBytes,
      inFlight: metrics.sum('gateway_requests_in_flight'),
      bufferedBytes: metrics.sum('gateway_buffered_bytes'),
      sockets,
      resources: more,
      requests,
    };
  }

  async #readMetrics() {
    const headers = { connection: 'close' };
    const answer = await fetch(`http://127.0.0.1:${this.#adminPort}/metrics`, { headers });
    return parseMetrics(await answer.text());
  }

  async #probe(): Promise<Pick<Vitals, 'heapBytes' | 'rssBytes' | 'resources' | 'requests'>> {
    const messages = on(this.child, 'message');
    this.child.send('vitals');
    for await (const [message] of messages) {
      if ('heapBytes' in (message as object)) return message as Vitals;
    }
    throw new Error('unreachable');
  }
}

function countEach(values: readonly string[]): ReadonlyMap<string, number> {
  const counts = new Map<string, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return counts;
}
