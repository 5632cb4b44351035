/** One worker thread as the main thread sees it, and the messages between the two. */

import { Worker } from 'node:worker_threads';

import type { Config } from '../config/config.ts';
import type { CLIENT_LIMITS } from '../downstream/call.ts';
import { startTimer } from '../lib/clock.ts';
import type { Packed } from '../lib/packed-secrets.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import type { SharedBlocks, ThreadPlace } from '../lib/shared-memory.ts';
import type { LoopDelay } from '../lib/thread-figures.ts';
import type { Circuit, CircuitEvent } from '../policy/circuit-breaker.ts';
import type { KeyEvent } from '../policy/key-pool.ts';

export type ThreadEvent = CircuitEvent | KeyEvent;

/** The circuits and cooldowns that the other threads know when one starts. */
export interface KnownStates {
  readonly circuits: readonly (readonly [string, Circuit])[];
  readonly keys: readonly KeyEvent[];
}

export interface WorkerData {
  readonly place: ThreadPlace;
  readonly config: Packed<Config>;
  readonly known: KnownStates;
  /** How often settings were read again before. */
  readonly reloads: number;
  readonly blocks: SharedBlocks;
  readonly isTerminal: boolean;
  readonly colour: boolean;
  readonly clientLimits: typeof CLIENT_LIMITS;
}

export interface Address {
  readonly port: number;
  readonly host: string;
}

export type Command =
  /** `isAlone`: it is an error if anybody listens at the address. Else other workers do. */
  | ({ readonly type: 'listen'; readonly isAlone: boolean } & Address)
  | { readonly type: 'use'; readonly config: Packed<Config>; readonly blocks: SharedBlocks }
  | {
      readonly type: 'drain';
      readonly delayMs: number;
      readonly timeoutMs: number;
      readonly reason: string;
    }
  /** The drain ends at once. */
  | { readonly type: 'cut' };

/** The result of a command. */
export interface Reply {
  /** Of `listen`. */
  readonly port?: number;
  /** Of `listen`: Node's error with its code, which an error loses on its way. */
  readonly error?: { readonly message: string };
  /** Of `drain`. */
  readonly finished?: number;
  readonly cut?: number;
}

export type ToWorker =
  | { readonly type: 'command'; readonly call: number; readonly command: Command }
  | { readonly type: 'event'; readonly event: ThreadEvent }
  /** The main thread has taken this many characters of batches. */
  | { readonly type: 'taken'; readonly characters: number };

/** What a worker has to report of one turn of the event loop. */
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

/** Messages that answer no command. */
export type Report =
  | Batch
  /** The models that a provider lists. */
  | { readonly type: 'models'; readonly provider: string; readonly names: readonly string[] }
  | { readonly type: 'loopDelay'; readonly loopDelay: LoopDelay }
  /** An exception was not caught: the worker accepts no more connections, finishes its requests and ends. */
  | { readonly type: 'failed' };

export type FromWorker =
  | Report
  | { readonly type: 'reply'; readonly call: number; readonly reply: Reply };

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
  /** The commands without a reply, by number. */
  readonly #calls = new Map<number, (reply: Reply | undefined) => void>();
  #lastCall = 0;

  /** Starts it. `onReport` receives what it sends by itself. */
  constructor(file: string, data: WorkerData, onReport: (report: Report) => void) {
    this.thread = data.place.thread;
    const worker = new Worker(file, { workerData: data, name: `worker ${this.thread}` });
    this.#worker = worker;
    worker.on('message', (message: FromWorker) => {
      if (message.type === 'reply') this.#calls.get(message.call)?.(message.reply);
      else onReport(message);
    });
    this.ended = new Promise((resolve) => {
      let thrown: Error | undefined;
      worker.on('error', (error: Error) => (thrown = error));
      worker.on('exit', () => {
        for (const settle of this.#calls.values()) settle(undefined);
        resolve(thrown);
      });
    });
  }

  /** Resolves with the reply; with undefined if there is none after `limitMs`, or the thread ends before. */
  async call(command: Command, limitMs: number): Promise<Reply | undefined> {
    this.#lastCall += 1;
    const call = this.#lastCall;
    let limit: NodeJS.Timeout | undefined;
    const replied = new Promise<Reply | undefined>((resolve) => {
      this.#calls.set(call, resolve);
      limit = startTimer(() => resolve(undefined), limitMs);
    });
    this.send({ type: 'command', call, command });
    const reply = await replied;
    clearTimeout(limit);
    this.#calls.delete(call);
    return reply;
  }

  send(message: ToWorker): void {
    this.#worker.postMessage(message);
  }

  /** Ends it at once. */
  async terminate(): Promise<void> {
    this.isTerminated = true;
    await this.#worker.terminate();
  }
}
