/** The generator on raw sockets. It does one job after another, and reports each result. */

import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { EVENT_BYTES } from './payloads.ts';
import { Reader } from './reader.ts';

export interface Target {
  readonly port: number;
  readonly request: Buffer;
  /** The expected body of the answer. */
  readonly expected: Buffer;
  /** Whether the contender rebuilds the bytes. */
  readonly isRewritten: boolean;
}

export interface Options {
  /** Connections that send a request after each answer; without time, only once. */
  readonly closed: { readonly connections: number; readonly ms: number };
  /** A request at each interval, whatever becomes of earlier requests. */
  readonly open: { readonly everyMs: number; readonly ms: number };
  /** More streams, at most one each millisecond. The job ends when each has an event. */
  readonly streams: { readonly count: number };
  /** The streams' state. */
  readonly progress: object;
}

export interface Quantiles {
  readonly p50: number;
  readonly p99: number;
}
export interface Results {
  /** `bytes` includes the heads. */
  readonly closed: { readonly requests: number; readonly bytes: number; readonly seconds: number };
  readonly open: { readonly firstMs: Quantiles; readonly totalMs: Quantiles };
  readonly streams: null;
  /** `least`: the slowest stream's bytes. `running`: the number of unfinished streams. */
  readonly progress: { readonly bytes: number; readonly least: number; readonly running: number };
}

interface Times {
  firstMs: number;
  totalMs: number;
}

class Connection {
  readonly socket: Socket;
  readonly reader: Reader;
  readonly #request: Buffer;
  #sentAt = 0;
  #firstMs = NaN;
  #settle: { resolve(times: Times): void; reject(error: Error): void } | undefined;

  constructor({ port, request, expected, isRewritten }: Target) {
    this.reader = new Reader(expected, isRewritten);
    this.#request = request;
    this.socket = connect({ port, host: '127.0.0.1', noDelay: true });
    this.socket.on('error', (error) => this.#settle?.reject(error));
    this.socket.on('close', () => this.#settle?.reject(new Error('closed the connection')));
    this.socket.on('data', (data: Buffer) => this.#read(data));
  }

  #read(data: Buffer): void {
    try {
      const isWhole = this.reader.feed(data);
      const totalMs = performance.now() - this.#sentAt;
      if (Number.isNaN(this.#firstMs) && (isWhole || this.reader.received >= EVENT_BYTES)) {
        this.#firstMs = totalMs;
      }
      if (isWhole) this.#settle?.resolve({ firstMs: this.#firstMs, totalMs });
    } catch (error) {
      this.#settle?.reject(error as Error);
    }
  }

  /** Times count from the write, because a delay of this process is not the contender's. */
  async exchange(): Promise<Times> {
    return new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
      this.#firstMs = NaN;
      this.#sentAt = performance.now();
      this.socket.write(this.#request);
    });
  }
}

async function closed(target: Target, { connections, ms }: Options['closed']) {
  const startedAt = performance.now();
  let [requests, bytes] = [0, 0];
  const worker = async () => {
    const connection = new Connection(target);
    do {
      await connection.exchange();
      requests += 1;
    } while (performance.now() < startedAt + ms);
    bytes += connection.socket.bytesRead;
    connection.socket.destroy();
  };
  await Promise.all(Array.from({ length: connections }, worker));
  return { requests, bytes, seconds: (performance.now() - startedAt) / 1000 };
}

function quantiles(values: number[]): Quantiles {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.floor(share * (sorted.length - 1))]!;
  return { p50: at(0.5), p99: at(0.99) };
}

async function open(target: Target, { everyMs, ms }: Options['open']) {
  const connections = new Set<Connection>();
  const idle: Connection[] = [];
  const times: Times[] = [];
  const failures: Error[] = [];
  const exchange = async (connection: Connection) => {
    connections.add(connection);
    times.push(await connection.exchange());
    idle.push(connection);
  };
  const startedAt = performance.now();
  let sent = 0;
  for (; sent * everyMs < ms; await sleep(1)) {
    for (; sent * everyMs < performance.now() - startedAt; sent += 1) {
      // The longest idle connection, so none is idle until it is closed.
      exchange(idle.shift() ?? new Connection(target)).catch((error) => failures.push(error));
    }
  }
  while (times.length + failures.length < sent) await sleep(5);
  for (const { socket } of connections) socket.destroy();
  if (failures.length > 0) throw failures[0]!;
  return {
    firstMs: quantiles(times.map(({ firstMs }) => firstMs)),
    totalMs: quantiles(times.map(({ totalMs }) => totalMs)),
  };
}

/** The most streams without an event, because more would only fill the accept queue. */
const MAX_WAITING = 100;
const opened: Connection[] = [];
const ended = { count: 0, failure: undefined as unknown };

function progress() {
  if (ended.failure) throw ended.failure;
  let [bytes, least] = [0, Infinity];
  for (const { reader } of opened) {
    bytes += reader.received;
    least = Math.min(least, reader.received);
  }
  return { bytes, least, running: opened.length - ended.count };
}

async function streams(target: Target, { count }: Options['streams']) {
  const before = opened.length;
  const startedAt = performance.now();
  const openOne = async () => {
    const connection = new Connection(target);
    opened.push(connection);
    await connection.exchange();
    ended.count += 1;
  };
  for (let begun = before; begun < before + count; await sleep(1)) {
    if (ended.failure) throw ended.failure;
    while (begun < opened.length && opened[begun]!.reader.received >= EVENT_BYTES) begun += 1;
    const due = Math.min(count, performance.now() - startedAt);
    while (opened.length < Math.min(before + due, begun + MAX_WAITING)) {
      openOne().catch((error) => (ended.failure ??= error));
    }
  }
  return null;
}

const JOBS = { closed, open, streams, progress };

interface Job {
  readonly kind: keyof Options;
  readonly target: Target;
  readonly options: never;
}
process.on('message', ({ kind, target, options }: Job) => {
  const work: Promise<unknown> = (async () => JOBS[kind](target, options))();
  work.then(
    (result) => process.send!({ result }),
    (error: Error) => process.send!({ error: error.message }),
  );
});
process.on('disconnect', () => process.exit());
