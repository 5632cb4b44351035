/** One worker thread as the main thread sees it, and the messages between the two. */

import { Worker } from 'node:worker_threads';

import type { PackedConfig } from '../config/config.ts';
import type { CLIENT_LIMITS } from '../downstream/call.ts';
import type { DrainResult } from '../downstream/http-server.ts';
import { startTimer } from '../lib/cancellation.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import type { LoopDelay, SharedBlocks, ThreadPlace } from '../lib/shared-memory.ts';
import type { Circuit, CircuitEvent } from '../policy/circuit-breaker.ts';
import type { KeyEvent } from '../policy/key-pool.ts';

export type ThreadEvent = CircuitEvent | KeyEvent;

/** The circuits and cooldowns that the other threads know when one starts. */
export interface KnownStates {
  readonly circuits: readonly (readonly [string, Circuit])[];
  readonly keys: readonly KeyEvent[];
}

/** Options with which the main thread is started, and which it hands to its workers. */
export interface ThreadRuntime {
  /** The log goes to a terminal. */
  readonly isTerminal: boolean;
  readonly colour: boolean;
  readonly clientLimits: typeof CLIENT_LIMITS;
}

export interface Address {
  readonly port: number;
  readonly host: string;
  /** It is an error if anybody listens there. Else other workers do. */
  readonly isFree: boolean;
}

export interface WorkerData {
  readonly place: ThreadPlace;
  readonly address: Address;
  readonly config: PackedConfig;
  /** The number of reloads before. */
  readonly reloads: number;
  readonly known: KnownStates;
  readonly blocks: SharedBlocks;
  readonly runtime: ThreadRuntime;
}

export type ToWorker =
  | { readonly type: 'use'; readonly config: PackedConfig; readonly blocks: SharedBlocks }
  | {
      readonly type: 'drain';
      readonly delayMs: number;
      readonly timeoutMs: number;
      readonly reason: string;
    }
  /** The drain ends at once. */
  | { readonly type: 'cut' }
  | { readonly type: 'event'; readonly event: ThreadEvent }
  /** The main thread has taken this many characters of batches. */
  | { readonly type: 'taken'; readonly characters: number };

/** Report of a worker on one turn of the event loop. */
export interface Batch {
  readonly type: 'batch';
  lines: string;
  readonly requests: FinishedRequest[];
  /** `reloads` says to which settings an event applies. */
  readonly events: { readonly event: ThreadEvent; readonly reloads: number }[];
  /** The size of all that, about. */
  characters: number;
  /** Since the batch before. */
  droppedLines: number;
  droppedRequests: number;
}

export type FromWorker =
  | Batch
  /** Without a port it does not listen. Of Node's error the code is lost unless it is sent beside. */
  | { readonly type: 'listening'; readonly port?: number; readonly error?: { message: string } }
  /** It has new settings. */
  | { readonly type: 'using' }
  | ({ readonly type: 'drained' } & DrainResult)
  /** The models that a provider lists. */
  | { readonly type: 'models'; readonly provider: string; readonly names: readonly string[] }
  | { readonly type: 'loopDelay'; readonly loopDelay: LoopDelay }
  /** An exception was not caught: the worker accepts no more connections, finishes its requests and ends. */
  | { readonly type: 'failed' };

type Message<Type extends FromWorker['type']> = Extract<FromWorker, { type: Type }>;

export class WorkerThread {
  /** Its number among the threads of the process. */
  readonly thread: number;
  /** Resolves when it has ended, with what was thrown, if that is known. */
  readonly ended: Promise<Error | undefined>;
  /** A second ago at most. Undefined at first, and if there is no admin listener. */
  loopDelay: LoopDelay | undefined;
  /** When it began to accept connections; undefined if it does not, or no longer. */
  servingSinceMs: number | undefined;
  /** It ends because the main thread has ended it. */
  isTerminated = false;
  /** Of batches, and not said to be. */
  takenCharacters = 0;
  readonly #worker: Worker;

  /** Starts it. */
  constructor(file: string, data: WorkerData, onMessage: (message: FromWorker) => void) {
    this.thread = data.place.thread;
    const worker = new Worker(file, { workerData: data, name: `worker ${this.thread}` });
    this.#worker = worker;
    worker.on('message', onMessage);
    this.ended = new Promise((resolve) => {
      let thrown: Error | undefined;
      worker.on('error', (error: Error) => (thrown = error));
      worker.on('exit', () => resolve(thrown));
    });
  }

  send(message: ToWorker): void {
    this.#worker.postMessage(message);
  }

  /** Resolves with its next message of this type; with undefined if there is none in time, or it ends before. */
  async next<Type extends FromWorker['type']>(
    type: Type,
    limitMs: number,
  ): Promise<Message<Type> | undefined> {
    let stop = () => {};
    const message = await new Promise<Message<Type> | undefined>((resolve) => {
      const receive = (one: FromWorker) =>
        void (one.type === type && resolve(one as Message<Type>));
      const limit = startTimer(() => resolve(undefined), limitMs);
      void this.ended.then(() => resolve(undefined));
      this.#worker.on('message', receive);
      stop = () => {
        clearTimeout(limit);
        this.#worker.off('message', receive);
      };
    });
    stop();
    return message;
  }

  /** Ends it at once. */
  async terminate(): Promise<void> {
    this.isTerminated = true;
    await this.#worker.terminate();
  }
}
