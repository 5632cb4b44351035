/** The worker threads: together they are one listener. The main thread starts them, replaces those that die, and ends them. */

import type { Config } from '../config/config.ts';
import type { DrainOptions, DrainResult, HttpServer } from '../downstream/http-server.ts';
import type { Logger } from '../lib/log.ts';
import { packSecrets } from '../lib/packed-secrets.ts';
import type { RequestObserver } from '../lib/request-facts.ts';
import { placeOfMain, type SharedBlocks, type SharedCounter } from '../lib/shared-memory.ts';
import type { LoopDelay } from '../lib/thread-figures.ts';
import {
  WorkerThread,
  type Address,
  type Batch,
  type Report,
  type ThreadEvent,
  type WorkerData,
} from './thread.ts';

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
/** A worker counts what it has sent until it hears that it was taken: not with each batch. */
const TAKEN_CHARACTERS = 1_048_576;

interface WorkerPoolOptions {
  /** How many. */
  readonly workers: number;
  /** The program that they run. */
  readonly file: string;
  readonly logger: Logger;
  readonly writeLog: (lines: string) => void;
  readonly observe: RequestObserver | undefined;
  readonly onModels: ((provider: string, names: readonly string[]) => void) | undefined;
  /** Makes a change of a worker's in this thread. Returns false if it applies to former settings. */
  readonly apply: (event: ThreadEvent, reloads: number) => boolean;
  /** Counts the requests in all threads. */
  readonly inFlight: SharedCounter;
  /** Returns what a worker in this place starts with now. */
  readonly describeStart: (place: WorkerData['place']) => WorkerData;
  /** Takes back what a thread that has ended still had in flight. */
  readonly reclaim: (thread: number) => void;
}

export class WorkerPool implements HttpServer {
  isDraining = false;
  /** Since the start, over all workers. */
  droppedLines = 0;
  droppedRequests = 0;
  readonly #options: WorkerPoolOptions;
  /** By their numbers. Those that have failed are among them until they have ended. */
  readonly #workers = new Map<number, WorkerThread>();
  readonly #pauses = new Set<NodeJS.Timeout>();
  #address: Address = { port: 0, host: '' };
  #deaths = 0;
  /** Why a worker has ended. */
  #lastCause: string | undefined;

  constructor(options: WorkerPoolOptions) {
    this.#options = options;
  }

  get inFlight(): number {
    return this.#options.inFlight.value;
  }

  /** How many workers accept connections. */
  get serving(): number {
    const workers = [...this.#workers.values()];
    return workers.filter(({ servingSinceMs }) => servingSinceMs !== undefined).length;
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
    this.#address = { port: await this.#startWithRetries(port !== 0), host };
    const others = Array.from({ length: this.#options.workers - 1 });
    await Promise.all(others.map(() => this.#startWithRetries()));
    return this.#address;
  }

  /** Hands the settings to all workers. Resolves when each uses them, or has not said so for 10 s. */
  async use(config: Config, blocks: SharedBlocks): Promise<void> {
    const command = { type: 'use', config: packSecrets(config), blocks } as const;
    const use = async (worker: WorkerThread) => {
      const reply = await worker.call(command, USE_MS);
      if (reply || worker.servingSinceMs === undefined) return;
      this.#options.logger.log('warn', 'worker is late', { worker: worker.thread });
    };
    await Promise.all([...this.#workers.values()].map(use));
  }

  async drain({ delayMs, timeoutMs, reason }: DrainOptions): Promise<DrainResult> {
    this.isDraining = true;
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
  async #startWithRetries(isAlone = false): Promise<number> {
    for (;;) {
      const port = await this.#start(isAlone);
      if (port !== undefined || this.isDraining) return port ?? 0;
      this.#deaths += 1;
      if (this.#deaths < MAX_DEATHS_AT_START) continue;
      throw new Error(
        `worker threads end as they start: ${this.#lastCause ?? 'no cause is known'}`,
      );
    }
  }

  /** Returns the port; undefined if the worker ends before it listens. Rejects with Node's error if the address cannot be had. */
  async #start(isAlone = false): Promise<number | undefined> {
    const { describeStart, file, workers } = this.#options;
    const { threads } = placeOfMain(workers);
    let thread = 1;
    while (this.#workers.has(thread)) thread += 1;
    if (thread === threads) thread = await this.#endOldestFailed();
    if (this.isDraining) return undefined;
    const data = describeStart({ thread, threads });
    const worker: WorkerThread = new WorkerThread(file, data, (report) =>
      this.#receive(worker, report),
    );
    this.#workers.set(thread, worker);
    void worker.ended.then((thrown) => this.#remove(worker, thrown));
    const command = { type: 'listen', ...this.#address, isAlone } as const;
    const reply = await worker.call(command, START_MS);
    if (reply?.port === undefined) await worker.terminate();
    else worker.servingSinceMs = performance.now();
    if (reply?.error) throw Object.assign(new Error(reply.error.message), reply.error);
    return reply?.port;
  }

  /** The requests that it has not finished are lost. Returns its number. */
  async #endOldestFailed(): Promise<number> {
    // Not one that gives way to another already.
    const oldest = [...this.#workers.values()].find(
      ({ servingSinceMs, isTerminated }) => servingSinceMs === undefined && !isTerminated,
    )!;
    await oldest.terminate();
    await oldest.ended;
    this.#options.logger.log('error', 'worker ended', { worker: oldest.thread, cause: 'replaced' });
    return oldest.thread;
  }

  #receive(worker: WorkerThread, report: Report): void {
    if (report.type === 'batch') this.#take(worker, report);
    else if (report.type === 'failed') this.#replaceLater(worker);
    else if (report.type === 'loopDelay') worker.loopDelay = report.loopDelay;
    else this.#options.onModels?.(report.provider, report.names);
  }

  #take(worker: WorkerThread, batch: Batch): void {
    const { apply, logger, observe, writeLog } = this.#options;
    const { droppedLines, droppedRequests, events, lines, requests } = batch;
    for (const { event, reloads } of events) {
      if (!apply(event, reloads)) continue;
      for (const other of this.#workers.values()) {
        if (other !== worker) other.send({ type: 'event', event });
      }
    }
    worker.takenCharacters += batch.characters;
    if (worker.takenCharacters > TAKEN_CHARACTERS) {
      worker.send({ type: 'taken', characters: worker.takenCharacters });
      worker.takenCharacters = 0;
    }
    if (lines !== '') writeLog(lines);
    for (const request of requests) observe?.(request);
    this.droppedLines += droppedLines;
    this.droppedRequests += droppedRequests;
    if (droppedLines > 0) logger.log('warn', 'log lines were dropped', { lines: droppedLines });
    if (droppedRequests > 0)
      logger.log('warn', 'requests were not counted', { requests: droppedRequests });
  }

  #remove(worker: WorkerThread, thrown: Error | undefined): void {
    const { logger, reclaim } = this.#options;
    const { thread } = worker;
    this.#workers.delete(thread);
    reclaim(thread);
    if (worker.isTerminated) return;
    this.#lastCause = thrown?.message;
    logger.log('error', 'worker ended', { worker: thread, cause: thrown?.stack });
    this.#replaceLater(worker);
  }

  /** Does nothing for a worker that has been replaced, or never listened. */
  #replaceLater(worker: WorkerThread): void {
    const { servingSinceMs } = worker;
    if (servingSinceMs === undefined || this.isDraining) return;
    worker.servingSinceMs = undefined;
    if (performance.now() - servingSinceMs > LONG_LIFE_MS) this.#deaths = 0;
    this.#startLater();
  }

  #startLater(): void {
    const pauseMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#deaths);
    const fields = { workers: this.serving, pause_ms: pauseMs };
    this.#options.logger.log('warn', 'worker missing', fields);
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
        logger.log('info', 'worker started', { workers: this.serving });
        return;
      }
    } catch (error) {
      logger.log('error', 'worker cannot listen', { cause: (error as Error).message });
    }
    if (!this.isDraining) this.#startLater();
  }
}
