/** One worker thread, as the main thread sees it. */

import { Worker } from 'node:worker_threads';

import type { LoopDelay } from '../lib/thread-figures.ts';
import { Calls } from './calls.ts';
import type { Command, FromWorker, Reply, ToWorker, WorkerData } from './messages.ts';

/** What a worker tells by itself. */
export type Report = Exclude<FromWorker, { type: 'reply' | 'loopDelay' }>;

export class WorkerThread {
  /** Its number among the threads of the process. */
  readonly thread: number;
  /** Resolves when it has ended, with what was thrown, if that is known. */
  readonly ended: Promise<Error | undefined>;
  /** A second ago at most. Undefined at first, and if there is no admin listener. */
  loopDelay: LoopDelay | undefined;
  /** It ends because the main thread has ended it. */
  isTerminated = false;
  readonly #worker: Worker;
  readonly #calls = new Calls<Reply>();

  /** Starts it. `onReport` receives what it tells by itself. */
  constructor(file: string, data: WorkerData, onReport: (report: Report) => void) {
    this.thread = data.place.thread;
    const worker = new Worker(file, { workerData: data, name: `worker ${this.thread}` });
    this.#worker = worker;
    worker.on('message', (message: FromWorker) => {
      if (message.type === 'reply') this.#calls.settle(message.call, message.reply);
      else if (message.type === 'loopDelay') this.loopDelay = message.loopDelay;
      else onReport(message);
    });
    this.ended = new Promise((resolve) => {
      let thrown: Error | undefined;
      worker.on('error', (error: Error) => (thrown = error));
      worker.on('exit', () => {
        this.#calls.end();
        resolve(thrown);
      });
    });
  }

  /** Resolves with the reply; with undefined if there is none after `limitMs`, or the thread ends before. */
  async call(command: Command, limitMs: number): Promise<Reply | undefined> {
    return await this.#calls.ask((call) => this.send({ type: 'command', call, command }), limitMs);
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
