/** The worker threads: together they are one listener. The main thread starts them, replaces those that die, and ends them. */

import { packConfig, type Config } from '../config/config.ts';
import type { DrainOptions, DrainResult, HttpServer } from '../downstream/http-server.ts';
import type { Logger } from '../lib/log.ts';

import type { RequestObserver } from '../lib/request-facts.ts';
import { placeOfMain, type SharedBlocks, type SharedCounter } from '../lib/shared-memory.ts';
import type { LoopDelay } from '../lib/thread-figures.ts';
import { startAt } from './address.ts';
import type { Backlog } from './backlog.ts';
import type { Address, WorkerData } from './messages.ts';
import { WorkerThread, type Report } from './worker-thread.ts';

const MAX_DEATHS_AT_START = 3;
/** Before a dead worker is replaced. Doubled with each death, until one has lived for a minute. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 30_000;
const LONG_LIFE_MS = 60_000;
/** Beyond the limit of the drain itself. */
const DRAIN_GRACE_MS = 5000;
/** For a worker to start, and to connect to the store of rate limits. */
const START_MS = 30_000;
const USE_MS = 10_000;
const CUT_MS = 1000;

interface WorkerPoolOptions {
  /** How many. */
  readonly workers: number;
  /** The program that they run. */
  readonly file: string;
  readonly logger: Logger;
  readonly backlog: Backlog;
  readonly writeLog: (lines: string) => void;
  readonly observe: RequestObserver | undefined;
  /** Returns the body of the list with these models only, or with all. */
  readonly listModels: (models: readonly string[] | undefined) => Promise<SharedArrayBuffer>;
  /** Counts the requests in all threads. */
  readonly inFlight: SharedCounter;
  /** What a worker in this place starts with now. */
  readonly describeStart: (place: WorkerData['place']) => WorkerData;
  /** Frees what a thread that has ended still held. */
  readonly reclaim: (thread: number) => void;
}

export class WorkerPool implements HttpServer {
  readonly #options: WorkerPoolOptions;
  readonly #threads: number;
  /** By their numbers. Those that have failed are among them until they have ended. */
  readonly #workers = new Map<number, WorkerThread>();
  /** When each that accepts connections has begun to. */
  readonly #servingSinceMs = new Map<WorkerThread, number>();
  readonly #pauses = new Set<NodeJS.Timeout>();
  #address: Address = { port: 0, host: '' };
  #isDraining = false;
  #deaths = 0;
  /** Why a worker has ended. */
  #lastCause: string | undefined;
  /** Those of the backlog's dropped lines that the log has told of. */
  #reportedLines = 0;
  /** Those of its dropped requests. */
  #reportedRequests = 0;

  constructor(options: WorkerPoolOptions) {
    this.#options = options;
    this.#threads = placeOfMain(options.workers).threads;
  }

  get inFlight(): number {
    return this.#options.inFlight.value;
  }

  /** A worker accepts connections. */
  get isServing(): boolean {
    return this.#servingSinceMs.size > 0;
  }

  get isDraining(): boolean {
    return this.#isDraining;
  }

  get port(): number {
    return this.#address.port;
  }

  /** Of each worker, a second ago at most. */
  get loopDelays(): readonly LoopDelay[] {
    return [...this.#workers.values()].flatMap(({ loopDelay }) => loopDelay ?? []);
  }

  /** Starts the workers. Rejects with Node's error if the address cannot be had, and if workers die as they start. */
  async listen(port: number, host: string): Promise<{ readonly port: number }> {
    this.#address = { port, host };
    const start = async () => this.#startWithRetries();
    this.#address = { port: await (port === 0 ? start() : startAt(this.#address, start)), host };
    const others = Array.from({ length: this.#options.workers - 1 });
    await Promise.all(others.map(() => this.#startWithRetries()));
    return this.#address;
  }

  /** Hands the settings to all workers. Resolves when each uses them, or has not said so for 10 s. */
  async use(config: Config, blocks: SharedBlocks): Promise<void> {
    const command = { type: 'use', config: packConfig(config), blocks } as const;
    const use = async (worker: WorkerThread) => {
      const reply = await worker.call(command, USE_MS);
      const isMissing = !reply && this.#servingSinceMs.has(worker);
      if (isMissing) this.#options.logger.log('warn', 'worker is late', { worker: worker.thread });
    };
    await Promise.all([...this.#workers.values()].map(use));
  }

  async drain({ delayMs, timeoutMs, reason }: DrainOptions): Promise<DrainResult> {
    this.#isDraining = true;
    for (const pause of this.#pauses) clearTimeout(pause);
    const workers = [...this.#workers.values()];
    const command = { type: 'drain', delayMs, timeoutMs, reason: reason.message } as const;
    const limitMs = delayMs + timeoutMs + DRAIN_GRACE_MS;
    const replies = await Promise.all(workers.map((worker) => worker.call(command, limitMs)));
    await Promise.all(workers.map((worker) => worker.terminate()));
    const sum = (name: 'finished' | 'cut') =>
      replies.reduce((before, reply) => before + (reply?.[name] ?? 0), 0);
    return { finished: sum('finished'), cut: sum('cut') };
  }

  cut(): void {
    for (const worker of this.#workers.values()) void worker.call({ type: 'cut' }, CUT_MS);
  }

  /** Starts one, and another instead if it dies before it listens. Returns its port. */
  async #startWithRetries(): Promise<number> {
    for (;;) {
      const port = await this.#start();
      if (port !== undefined || this.#isDraining) return port ?? 0;
      this.#deaths += 1;
      if (this.#deaths < MAX_DEATHS_AT_START) continue;
      throw new Error(
        `worker threads end as they start: ${this.#lastCause ?? 'no cause is known'}`,
      );
    }
  }

  /** Returns the port; undefined if the worker ends before it listens. Rejects with Node's error if the address cannot be had. */
  async #start(): Promise<number | undefined> {
    const { describeStart, file } = this.#options;
    let thread = 1;
    while (this.#workers.has(thread)) thread += 1;
    if (thread === this.#threads) thread = await this.#endOldestFailed();
    if (this.#isDraining) return undefined;
    const data = describeStart({ thread, threads: this.#threads });
    const worker: WorkerThread = new WorkerThread(file, data, (report) =>
      this.#receive(worker, report),
    );
    this.#workers.set(thread, worker);
    void worker.ended.then((thrown) => this.#remove(worker, thrown));
    const command = { type: 'listen', ...this.#address } as const;
    const reply = await worker.call(command, START_MS);
    if (reply?.port === undefined) await worker.terminate();
    else this.#servingSinceMs.set(worker, performance.now());
    if (reply?.error) throw Object.assign(new Error(reply.error.message), reply.error);
    return reply?.port;
  }

  /** The requests that it has not finished are lost. Returns its number. */
  async #endOldestFailed(): Promise<number> {
    const workers = [...this.#workers.values()];
    // Not one that gives way to another already.
    const oldest = workers.find(
      (worker) => !this.#servingSinceMs.has(worker) && !worker.isTerminated,
    )!;
    await oldest.terminate();
    await oldest.ended;
    this.#options.logger.log('error', 'worker ended', { worker: oldest.thread, cause: 'replaced' });
    return oldest.thread;
  }

  #receive(worker: WorkerThread, report: Report): void {
    const { backlog, listModels, logger, observe, writeLog } = this.#options;
    if (report.type === 'failed') return this.#replaceLater(worker);
    if (report.type === 'models') {
      const { call, models } = report;
      void listModels(models).then((body) => worker.send({ type: 'models', call, body }));
      return;
    }
    backlog.take(report);
    if (report.lines !== '') writeLog(report.lines);
    for (const request of report.requests) observe?.(request);
    const lines = backlog.droppedLines - this.#reportedLines;
    this.#reportedLines += lines;
    if (lines > 0) logger.log('warn', 'log lines were dropped', { lines });
    const requests = backlog.droppedRequests - this.#reportedRequests;
    this.#reportedRequests += requests;
    if (requests > 0) logger.log('warn', 'requests were not counted', { requests });
  }

  #remove(worker: WorkerThread, thrown: Error | undefined): void {
    const { logger, reclaim } = this.#options;
    const { thread } = worker;
    this.#workers.delete(thread);
    reclaim(thread);
    if (worker.isTerminated) return;
    this.#lastCause = thrown?.message;
    const cause = thrown?.stack;
    logger.log('error', 'worker ended', { worker: thread, cause });
    this.#replaceLater(worker);
  }

  /** Does nothing for a worker that has been replaced, or never listened. */
  #replaceLater(worker: WorkerThread): void {
    const sinceMs = this.#servingSinceMs.get(worker);
    if (sinceMs === undefined || this.#isDraining) return;
    this.#servingSinceMs.delete(worker);
    if (performance.now() - sinceMs > LONG_LIFE_MS) this.#deaths = 0;
    this.#startLater();
  }

  #startLater(): void {
    const pauseMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#deaths);
    const facts = { workers: this.#servingSinceMs.size, pause_ms: pauseMs };
    this.#options.logger.log('warn', 'worker missing', facts);
    this.#deaths += 1;
    const pause = setTimeout(() => {
      this.#pauses.delete(pause);
      void this.#startAnother();
    }, pauseMs);
    this.#pauses.add(pause);
  }

  async #startAnother(): Promise<void> {
    const { logger } = this.#options;
    try {
      if ((await this.#start()) !== undefined) {
        logger.log('info', 'worker started', { workers: this.#servingSinceMs.size });
        return;
      }
    } catch (error) {
      logger.log('error', 'worker cannot listen', { cause: (error as Error).message });
    }
    if (!this.#isDraining) this.#startLater();
  }
}
