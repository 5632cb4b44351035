/** The worker threads: together they are one listener. The main thread starts them, replaces those that die, and ends them. */

import { once } from 'node:events';

import { packConfig, type Config } from '../config/config.ts';
import { requestCounters, type DrainOptions, type HttpServer } from '../downstream/http-server.ts';
import { Cancellation, pause } from '../lib/cancellation.ts';
import type { Logger } from '../lib/log.ts';
import type { RequestObserver } from '../lib/request-facts.ts';
import type { SharedMemory } from '../lib/shared-memory.ts';
import {
  batchCounters,
  WorkerThread,
  type Batch,
  type MainRuntime,
  type ThreadEvent,
} from './thread.ts';

/** Before a dead worker is replaced. Doubled with each death, until one has lived for ten seconds. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 30_000;
const LONG_LIFE_MS = 10_000;
/** Beyond the limit of the drain itself. */
const DRAIN_GRACE_MS = 5000;
/** For a worker to start, and to connect to the store of rate limits. */
const START_MS = 30_000;
const USE_MS = 10_000;

/** The app of the main thread. */
interface MainApp {
  readonly snapshot: { readonly config: Config };
  readonly known: readonly ThreadEvent[];
  readonly memory: SharedMemory;
  readonly logger: Logger;
  readonly observe?: RequestObserver | undefined;
  readonly onModels?: ((provider: string, names: readonly string[]) => void) | undefined;
  readonly apply: (event: ThreadEvent) => void;
}

export class WorkerPool implements Omit<HttpServer, 'calls'> {
  port = 0;
  /** By their numbers. Those that have failed are among them until they have ended. */
  readonly workers = new Map<number, WorkerThread>();
  readonly #app: MainApp;
  readonly #runtime: MainRuntime;
  readonly #draining = new Cancellation();
  #host = '';
  #deaths = 0;
  #latestCause: string | undefined;
  /** How much of what was dropped the log tells of. */
  readonly #logged = { lines: 0, requests: 0 };

  constructor(app: MainApp, runtime: MainRuntime) {
    this.#app = app;
    this.#runtime = runtime;
  }

  get isDraining(): boolean {
    return this.#draining.reason !== undefined;
  }

  /** The number of workers that accept connections. */
  get serving(): number {
    return [...this.workers.values()].filter(({ isServing }) => isServing).length;
  }

  /** Starts the workers. Rejects with Node's error if the address cannot be had, and if workers die as they start. */
  async listen(port: number, host: string): Promise<{ readonly port: number }> {
    const start = async (isFree = false) => {
      const started = await this.#start(isFree);
      if (started !== undefined || this.isDraining) return started ?? 0;
      throw new Error(
        `a worker thread ends as it starts: ${this.#latestCause ?? 'no cause is known'}`,
      );
    };
    this.#host = host;
    this.port = port;
    this.port = await start(port !== 0);
    const others = this.#app.snapshot.config.server.workers - 1;
    await Promise.all(Array.from({ length: others }, async () => start()));
    return this;
  }

  /** Hands the settings of the main thread to all workers. Resolves when each uses them, or has not said so for 10 s. */
  async use(): Promise<void> {
    const { logger, memory, snapshot } = this.#app;
    const use = async ([thread, worker]: [number, WorkerThread]) => {
      worker.send('use', packConfig(snapshot.config), memory.blocks);
      if ((await worker.next('using', USE_MS)) || !worker.isServing) return;
      logger.log('warn', 'worker is late', { worker: thread });
    };
    await Promise.all([...this.workers].map(use));
  }

  async drain({ delayMs, timeoutMs, reason }: DrainOptions): Promise<void> {
    this.#draining.cancel(reason);
    const drain = async (worker: WorkerThread) => {
      worker.send('drain', delayMs, timeoutMs, reason.message);
      await worker.next('drained', delayMs + timeoutMs + DRAIN_GRACE_MS);
      await worker.terminate();
    };
    await Promise.all([...this.workers.values()].map(drain));
  }

  endDrain(): void {
    for (const worker of this.workers.values()) worker.send('endDrain');
  }

  /**
   * Returns the port; undefined if the worker ends before it listens, or failed ones still have all the numbers. Rejects
   * with Node's error if the address cannot be had.
   */
  async #start(isFree = false): Promise<number | undefined> {
    const { known, memory, onModels, snapshot } = this.#app;
    const { clientLimits, colour, isTerminal, workerFile } = this.#runtime;
    let thread = 1;
    while (this.workers.has(thread)) thread += 1;
    if (thread >= memory.place.threads || this.isDraining) return undefined;
    const counters = batchCounters(memory, thread);
    const worker = new WorkerThread(workerFile, {
      config: packConfig(snapshot.config),
      blocks: memory.blocks,
      place: { ...memory.place, thread },
      port: this.port,
      host: this.#host,
      isFree,
      known,
      runtime: { clientLimits, colour, isTerminal },
    });
    this.workers.set(thread, worker);
    worker.on('batch', (batch) => this.#take(worker, batch, counters));
    worker.on('models', (...models) => onModels?.(...models));
    void worker.ended.then((thrown) => this.#remove(thread, worker, thrown));
    const [{ error, port }] = (await worker.next('listening', START_MS)) ?? [{}];
    if (port === undefined) await worker.terminate();
    else void this.#watch(worker);
    // A drain has closed the port, which then may be another's.
    if (error && !this.isDraining) throw Object.assign(new Error(error.message), error);
    return port;
  }

  #take(worker: WorkerThread, batch: Batch, counters: ReturnType<typeof batchCounters>): void {
    const { apply, logger, observe } = this.#app;
    for (const event of batch.events) {
      apply(event);
      for (const other of this.workers.values()) if (other !== worker) other.send('learn', event);
    }
    counters.taken.add(batch.characters);
    if (batch.lines !== '') this.#runtime.writeLog(batch.lines);
    for (const request of batch.requests) observe?.(request);
    const lines = counters.droppedLines.value - this.#logged.lines;
    const requests = counters.droppedRequests.value - this.#logged.requests;
    this.#logged.lines += lines;
    this.#logged.requests += requests;
    if (lines > 0) logger.log('warn', 'log lines were dropped', { lines });
    if (requests > 0) logger.log('warn', 'requests were not counted', { requests });
  }

  #remove(thread: number, { isTerminated }: WorkerThread, thrown: Error | undefined): void {
    const { logger, memory } = this.#app;
    this.workers.delete(thread);
    requestCounters(memory).cancelled.add(memory.inFlightCounter('requests', thread).own);
    memory.reclaim(thread);
    if (isTerminated) return;
    this.#latestCause = thrown?.message;
    logger.log('error', 'worker ended', { worker: thread, cause: thrown?.stack });
  }

  /** Waits until a worker accepts no more connections, and starts another one: again after each pause, until it listens. */
  async #watch(worker: WorkerThread): Promise<void> {
    const { logger } = this.#app;
    const startedAtMs = performance.now();
    worker.isServing = true;
    await Promise.race([worker.ended, once(worker, 'failed')]);
    worker.isServing = false;
    if (performance.now() - startedAtMs > LONG_LIFE_MS) this.#deaths = 0;
    let port: number | undefined;
    while (port === undefined && !this.isDraining) {
      const pauseMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#deaths);
      logger.log('warn', 'worker missing', { workers: this.serving, pause_ms: pauseMs });
      this.#deaths += 1;
      await pause(pauseMs, this.#draining);
      port = await this.#start().catch((error: Error) => {
        logger.log('error', 'worker cannot listen', { cause: error.message });
        return undefined;
      });
    }
    if (port !== undefined) logger.log('info', 'worker started', { workers: this.serving });
  }
}
