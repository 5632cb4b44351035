/** A contender alone with an upstream and a generator, from start to kill. */

import type { ChildProcess } from 'node:child_process';

import { CONTENDERS, type Contender, type ContenderId } from './contenders.ts';
import type { Options, Results, Target } from './load.ts';
import { JSON_ANSWER, requestBody, streamOf } from './payloads.ts';
import * as processes from './processes.ts';
import { toolOf } from './tools.ts';
import { hasWrk, runWrk } from './wrk.ts';

const PATH = '/v1/chat/completions';

export interface Plan {
  /** The number of events, for a stream. */
  readonly events?: number;
  readonly everyMs?: number;
  readonly nodeArgs?: readonly string[];
  readonly isProbed?: boolean;
}

interface Vitals {
  readonly p99: number;
  readonly max: number;
  readonly heldBytes: number;
  readonly allocatedBytes: number;
}

interface Parts extends Required<Plan> {
  readonly contender: Contender;
  /** The contender, or the upstream if it is measured directly. */
  readonly child: ChildProcess;
  /** The contender, and other processes at its port. */
  readonly children: readonly ChildProcess[];
  readonly port: number;
  readonly startMs: number;
  readonly upstream: ChildProcess;
  readonly upstreamPort: number;
  readonly load: ChildProcess;
}

export class Cell {
  readonly child: ChildProcess;
  readonly children: readonly ChildProcess[];
  readonly startMs: number;
  readonly #parts: Parts;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #stream: Buffer;

  constructor(parts: Parts) {
    this.child = parts.child;
    this.children = parts.children;
    this.startMs = parts.startMs;
    this.#parts = parts;
    this.#headers = {
      Host: `127.0.0.1:${parts.port}`,
      'content-type': 'application/json',
      authorization: 'Bearer bench',
      ...parts.contender.headers?.(parts.upstreamPort),
    };
    this.#stream = Buffer.concat(streamOf(parts.events));
  }

  /** The contender's CPU time so far. */
  cpuMs(): number {
    if (!this.#parts.contender.command) return NaN;
    return this.children.reduce((sum, child) => sum + processes.cpuMs(child), 0);
  }

  benchCpuMs(): number {
    return processes.cpuMs(this.#parts.upstream) + processes.cpuMs(this.#parts.load);
  }

  /** Gives the generator a job. The expected answer depends on the body. */
  async load<K extends keyof Options>(kind: K, body: Buffer, options: Options[K]) {
    const target = this.#targetOf(body);
    return processes.ask<Results[K]>(this.#parts.load, { kind, target, options });
  }

  #targetOf(body: Buffer): Target {
    const headers = { ...this.#headers, 'content-length': body.length };
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    const head = `POST ${PATH} HTTP/1.1\r\n${lines.join('')}\r\n`;
    const expected = body.includes('"stream":true') ? this.#stream : JSON_ANSWER;
    const request = Buffer.concat([Buffer.from(head), body]);
    const isRewritten = this.#parts.contender.isRewriting ?? false;
    return { port: this.#parts.port, request, expected, isRewritten };
  }

  /** Sends as many requests as possible in a closed loop. Returns their number, and their rate. */
  async saturate(connections: number, ms: number) {
    const body = requestBody(1000, false);
    if (!hasWrk) {
      const { requests, seconds } = await this.load('closed', body, { connections, ms });
      return { requests, perSecond: requests / seconds };
    }
    // Compared byte by byte. The answers to wrk must be as long as this answer.
    const sample = await this.load('closed', body, { connections: 1, ms: 0 });
    const url = `http://127.0.0.1:${this.#parts.port}${PATH}`;
    const answerBytes = sample.bytes;
    return runWrk({ url, headers: this.#headers, body, connections, ms, answerBytes });
  }

  /**
   * Returns, since its last call, the event loop's delays in milliseconds and the bytes allocated
   * on the heap, and the bytes held now on and off the heap.
   */
  async delay(): Promise<Vitals> {
    if (!this.#parts.isProbed || !this.#parts.contender.isNode) {
      return { p99: NaN, max: NaN, heldBytes: NaN, allocatedBytes: NaN };
    }
    const written = processes.next<Buffer>(
      this.child,
      this.child.stdio[3] as NodeJS.ReadableStream,
    );
    this.child.kill('SIGUSR2');
    return JSON.parse((await written).toString()) as Vitals;
  }
}

/** Starts everything, runs `use`, and kills everything. */
export async function inCell<T>(
  id: ContenderId,
  { events = 2, everyMs = 10, nodeArgs = [], isProbed = false }: Plan,
  use: (cell: Cell) => Promise<T>,
): Promise<T> {
  const started: ChildProcess[] = [];
  const keep = (child: ChildProcess) => {
    started.unshift(child);
    return child;
  };
  try {
    const upstream = keep(processes.startProgram('upstream', [`${events}`, `${everyMs}`]));
    const { result: upstreamPort } = await processes.next<{ result: number }>(upstream);
    const load = keep(processes.startProgram('load', []));
    const contender: Contender = CONTENDERS[id];
    const given = { events, everyMs, nodeArgs, isProbed, contender, upstream, upstreamPort, load };
    if (!contender.command) {
      const direct = { child: upstream, children: [upstream], port: upstreamPort, startMs: NaN };
      return await use(new Cell({ ...given, ...direct }));
    }
    const probe = isProbed ? ['--require', processes.program('probe')] : [];
    const port = await processes.freePort();
    const tool = contender.tool && toolOf(contender.tool);
    if (typeof tool === 'string') throw new Error(tool);
    const { path = '', env } = tool ?? {};
    const launch = { port, upstreamPort, nodeArgs: [...nodeArgs, ...probe], program: path };
    const command = contender.command(launch);
    const startedAt = performance.now();
    const count = contender.processes;
    const start = () =>
      keep(processes.startContender(command, { ...contender.env, ...env }, count !== undefined));
    const children = Array.from({ length: count ?? 1 }, start);
    const child = children[0]!;
    if (count !== undefined) await processes.untilListening(child, port, count);
    await processes.untilAnswered(child, port, contender.health);
    const startMs = performance.now() - startedAt;
    return await use(new Cell({ ...given, child, children, port, startMs }));
  } finally {
    for (const child of started) await processes.stop(child);
  }
}
