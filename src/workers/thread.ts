/** One worker thread as the main thread sees it, and the messages between the two. */

import { EventEmitter, once } from 'node:events';
import { Worker } from 'node:worker_threads';

import type { PackedConfig } from '../config/config.ts';
import type { CLIENT_LIMITS } from '../downstream/call.ts';
import { startTimer } from '../lib/cancellation.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import type { LoopDelay, SharedBlocks, SharedMemory, ThreadPlace } from '../lib/shared-memory.ts';
import type { CircuitEvent } from '../policy/circuit-breaker.ts';
import type { KeyEvent } from '../policy/key-pool.ts';

export type ThreadEvent = CircuitEvent | KeyEvent;

/** Options with which the main thread is started, and which it hands to its workers. */
export interface ThreadRuntime {
  /** The log goes to a terminal. */
  readonly isTerminal: boolean;
  readonly colour: boolean;
  readonly clientLimits: typeof CLIENT_LIMITS;
}

export interface MainRuntime extends ThreadRuntime {
  /** The program that worker threads run: the file of the gateway itself. */
  readonly workerFile: string;
  readonly writeLog: (lines: string) => void;
  /** Log lines that were not written, since the start. */
  readonly droppedLogLines?: () => number;
}

export interface WorkerData {
  readonly config: PackedConfig;
  readonly blocks: SharedBlocks;
  readonly place: ThreadPlace;
  readonly port: number;
  readonly host: string;
  /** It is an error if anybody listens there. Else other workers do. */
  readonly isFree: boolean;
  readonly known: readonly ThreadEvent[];
  readonly runtime: ThreadRuntime;
}

/** Report of a worker on one turn of the event loop. */
export interface Batch {
  lines: string;
  readonly requests: FinishedRequest[];
  readonly events: ThreadEvent[];
  /** The size of all that, about. */
  characters: number;
}

/** The messages to a worker. A message is the name of an event and its arguments: the receiver emits it. */
export interface ToWorker {
  use: [PackedConfig, SharedBlocks];
  drain: [delayMs: number, timeoutMs: number, reason: string];
  /** The drain ends at once. */
  endDrain: [];
  learn: [ThreadEvent];
}

export interface FromWorker {
  batch: [Batch];
  /** Without a port it does not listen. Of Node's error the code is lost unless it is sent beside. */
  listening: [{ readonly port?: number; readonly error?: { message: string } }];
  /** It has new settings. */
  using: [];
  drained: [];
  /** The models that a provider lists. */
  models: [provider: string, names: readonly string[]];
  loopDelay: [LoopDelay];
  /** An exception was not caught: the worker accepts no more connections, finishes its requests and ends. */
  failed: [];
}

/** Counts the size of what the main thread has taken of the thread's batches, and what was dropped because it did not run. */
export function batchCounters(memory: SharedMemory, thread = memory.place.thread) {
  return {
    taken: memory.totalCounter('batches taken', thread),
    droppedLines: memory.totalCounter('log lines dropped'),
    droppedRequests: memory.totalCounter('requests dropped'),
  };
}

export class WorkerThread extends EventEmitter<FromWorker> {
  /** Resolves when it has ended, with what was thrown, if that is known. */
  readonly ended: Promise<Error | undefined>;
  /** A second ago at most. Undefined at first, and if there is no admin listener. */
  loopDelay: LoopDelay | undefined;
  /** It accepts connections. */
  isServing = false;
  /** The main thread has ended it. */
  isTerminated = false;
  readonly #worker: Worker;

  constructor(file: string, data: WorkerData) {
    super();
    this.#worker = new Worker(file, { workerData: data, name: `worker ${data.place.thread}` });
    this.#worker.on('message', (message: ['failed']) => this.emit(...message));
    this.on('loopDelay', (loopDelay) => (this.loopDelay = loopDelay));
    let thrown: Error | undefined;
    this.#worker.on('error', (error: Error) => (thrown = error));
    this.ended = new Promise((resolve) => this.#worker.on('exit', () => resolve(thrown)));
  }

  send<Name extends keyof ToWorker>(name: Name, ...args: ToWorker[Name]): void {
    this.#worker.postMessage([name, ...args]);
  }

  /** Resolves with its next message of this name; with undefined if there is none in time, or it ends before. */
  async next<Name extends keyof FromWorker>(name: Name, limitMs: number) {
    const stop = new AbortController();
    const limit = startTimer(() => stop.abort(), limitMs);
    void this.ended.then(() => stop.abort());
    const args = await once(this, name, stop).catch(() => undefined);
    clearTimeout(limit);
    return args as FromWorker[Name] | undefined;
  }

  async terminate(): Promise<void> {
    this.isTerminated = true;
    await this.#worker.terminate();
    await this.ended;
  }
}
