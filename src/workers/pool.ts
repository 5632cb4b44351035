/** The worker threads: together they are one listener. The main thread starts them, replaces those that die, and ends them. */

import { packConfig, type Config } from '../config/config.ts';
import type { DrainOptions, DrainResult, HttpServer } from '../downstream/http-server.ts';
import type { Logger } from '../lib/log.ts';
import type { RequestObserver } from '../lib/request-facts.ts';
import type { LoopDelay, SharedCounter, SharedMemory } from '../lib/shared-memory.ts';
import {
  WorkerThread,
  type Address,
  type Batch,
  type FromWorker,
  type KnownStates,
  type ThreadEvent,
  type ThreadRuntime,
} from './thread.ts';

/** Before a dead worker is replaced. Doubled with each death, until one has lived for a minute. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 30_000;
const LONG_LIFE_MS = 60_000;
/** Beyond the limit of the drain itself. */
const DRAIN_GRACE_MS = 5000;
/** For a worker to start, and to connect to the store of rate limits. */
const START_MS = 30_000;
const USE_MS = 10_000;
/** A worker counts what it has sent until it hears that it was taken: not with each batch. */
const TAKEN_CHARACTERS = 1_048_576;

/** The app of the main thread. */
interface MainApp {
  readonly snapshot: { readonly config: Config };
  readonly reloads: number;
  readonly known: KnownStates;
  readonly memory: SharedMemory;
  readonly inFlight: SharedCounter;
  readonly logger: Logger;
  readonly observe?: RequestObserver | undefined;
  readonly onModels?: ((provider: string, names: readonly string[]) => void) | undefined;
  apply(event: ThreadEvent): void;
}

export interface PoolRuntime extends ThreadRuntime {
  /** The program that worker threads run: the file of the gateway itself. */
  readonly workerFile: string;
  readonly writeLog: (lines: string) => void;
}

export class WorkerPool implements HttpServer {
  isDraining = false;
  port = 0;
  /** Since the start, over all workers. */
  droppedLines = 0;
  droppedRequests = 0;
  readonly #app: MainApp;
  readonly #runtime: PoolRuntime;
  /** By their numbers. Those that have failed are among them until they have ended. */
  readonly #workers = new Map<number, WorkerThread>();
  readonly #pauses = new Set<NodeJS.Timeout>();
  #host = '';
  #deaths = 0;
  /** Why a worker has ended. */
  #lastCause: string | undefined;

  constructor(app: MainApp, runtime: PoolRuntime) {
    this.#app = app;
    this.#runtime = runtime;
  }

  get inFlight(): number {
    return this.#app.inFlight.value;
  }

  /** The number of workers that accept connections. */
  get serving(): number {
    const workers = [...this.#workers.values()];
    return workers.filter(({ servingSinceMs }) => servingSinceMs !== undefined).length;
  }

  /** Of each worker, a second ago at most. */
  get loopDelays(): readonly LoopDelay[] {
    return [...this.#workers.values()].flatMap(({ loopDelay }) => loopDelay ?? []);
  }

  /** Starts the workers. Rejects with Node's error if the address cannot be had, and if workers die as they start. */
  async listen(port: number, host: string): Promise<{ readonly port: number }> {
    this.#host = host;
    this.port = port;
    this.port = await this.#startFirst(port !== 0);
    const others = Array.from({ length: this.#app.snapshot.config.server.workers - 1 });
    await Promise.all(others.map(() => this.#startFirst()));
    return this;
  }

  /** Hands the settings of the main thread to all workers. Resolves when each uses them, or has not said so for 10 s. */
  async use(): Promise<void> {
    const { logger, memory, snapshot } = this.#app;
    const { blocks } = memory;
    const message = { type: 'use', config: packConfig(snapshot.config), blocks } as const;
    const use = async (worker: WorkerThread) => {
      worker.send(message);
      if ((await worker.next('using', USE_MS)) || worker.servingSinceMs === undefined) return;
      logger.log('warn', 'worker is late', { worker: worker.thread });
    };
    await Promise.all([...this.#workers.values()].map(use));
  }

  async drain({ delayMs, timeoutMs, reason }: DrainOptions): Promise<DrainResult> {
    this.isDraining = true;
    for (const pause of this.#pauses) clearTimeout(pause);
    const drain = async (worker: WorkerThread) => {
      worker.send({ type: 'drain', delayMs, timeoutMs, reason: reason.message });
      return await worker.next('drained', delayMs + timeoutMs + DRAIN_GRACE_MS);
    };
    const workers = [...this.#workers.values()];
    const results = await Promise.all(workers.map(drain));
    await Promise.all(workers.map((worker) => worker.terminate()));
    const sum = (name: keyof DrainResult) =>
      results.reduce((before, result) => before + (result?.[name] ?? 0), 0);
    return { finished: sum('finished'), cut: sum('cut') };
  }

  cut(): void {
    for (const worker of this.#workers.values()) worker.send({ type: 'cut' });
  }

  /** Starts one and returns its port. Rejects if it dies before it listens. */
  async #startFirst(isFree = false): Promise<number> {
    const port = await this.#start(isFree);
    if (port !== undefined || this.isDraining) return port ?? 0;
    throw new Error(`a worker thread ends as it starts: ${this.#lastCause ?? 'no cause is known'}`);
  }

  /**
   * Returns the port; undefined if the worker ends before it listens, or failed ones still have all the numbers. Rejects
   * with Node's error if the address cannot be had.
   */
  async #start(isFree = false): Promise<number | undefined> {
    const { threads } = this.#app.memory.place;
    let thread = 1;
    while (this.#workers.has(thread)) thread += 1;
    if (thread >= threads || this.isDraining) return undefined;
    const data = this.#describeStart(thread, { port: this.port, host: this.#host, isFree });
    const worker: WorkerThread = new WorkerThread(this.#runtime.workerFile, data, (message) =>
      this.#receive(worker, message),
    );
    this.#workers.set(thread, worker);
    void worker.ended.then((thrown) => this.#remove(worker, thrown));
    const { error, port } = (await worker.next('listening', START_MS)) ?? {};
    if (port === undefined) await worker.terminate();
    else worker.servingSinceMs = performance.now();
    // A drain has closed the port, which then may be another's.
    if (error && !this.isDraining) throw Object.assign(new Error(error.message), error);
    return port;
  }

  #describeStart(thread: number, address: Address) {
    const { known, memory, reloads, snapshot } = this.#app;
    const { clientLimits, colour, isTerminal } = this.#runtime;
    const config = packConfig(snapshot.config);
    const runtime = { clientLimits, colour, isTerminal };
    const place = { ...memory.place, thread };
    return { place, address, config, reloads, known, blocks: memory.blocks, runtime };
  }

  #receive(worker: WorkerThread, message: FromWorker): void {
    if (message.type === 'batch') this.#take(worker, message);
    if (message.type === 'failed') this.#replaceLater(worker);
    if (message.type === 'loopDelay') worker.loopDelay = message.loopDelay;
    if (message.type === 'models') this.#app.onModels?.(message.provider, message.names);
  }

  #take(worker: WorkerThread, batch: Batch): void {
    const { logger, observe, reloads } = this.#app;
    const { droppedLines, droppedRequests, lines, requests } = batch;
    // The others are about a provider as it was.
    const events = batch.events.filter((one) => one.reloads === reloads);
    for (const { event } of events) {
      this.#app.apply(event);
      for (const other of this.#workers.values()) {
        if (other !== worker) other.send({ type: 'event', event });
      }
    }
    worker.takenCharacters += batch.characters;
    if (worker.takenCharacters > TAKEN_CHARACTERS) {
      worker.send({ type: 'taken', characters: worker.takenCharacters });
      worker.takenCharacters = 0;
    }
    if (lines !== '') this.#runtime.writeLog(lines);
    for (const request of requests) observe?.(request);
    this.droppedLines += droppedLines;
    this.droppedRequests += droppedRequests;
    if (droppedLines > 0) logger.log('warn', 'log lines were dropped', { lines: droppedLines });
    if (droppedRequests > 0)
      logger.log('warn', 'requests were not counted', { requests: droppedRequests });
  }

  #remove(worker: WorkerThread, thrown: Error | undefined): void {
    const { logger, memory } = this.#app;
    const { thread } = worker;
    this.#workers.delete(thread);
    memory.reclaim(thread);
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
    this.#app.logger.log('warn', 'worker missing', fields);
    this.#deaths += 1;
    const pause = setTimeout(() => {
      this.#pauses.delete(pause);
      void this.#startAnother();
    }, pauseMs);
    this.#pauses.add(pause);
  }

  async #startAnother(): Promise<void> {
    const { logger } = this.#app;
    const port = await this.#start().catch((error: Error) => {
      logger.log('error', 'worker cannot listen', { cause: error.message });
    });
    if (port !== undefined) logger.log('info', 'worker started', { workers: this.serving });
    else if (!this.isDraining) this.#startLater();
  }
}
