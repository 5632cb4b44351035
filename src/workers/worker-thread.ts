/** One worker thread, as the main thread sees it. */

import { Worker } from 'node:worker_threads';

import type { ThreadFigures } from '../lib/thread-figures.ts';
import type { Command, FromWorker, Reply, ToWorker, WorkerData } from './messages.ts';

/** What a worker tells by itself. */
export type Report = Exclude<FromWorker, { type: 'reply' | 'figures' }>;

export class WorkerThread {
  /** Its number among the threads of the process. */
  readonly thread: number;
  /** Resolves when it has ended, with what was thrown, if that is known. */
  readonly ended: Promise<Error | undefined>;
  /** The latest. */
  figures: ThreadFigures | undefined;
  /** It ends because the main thread has ended it. */
  isTerminated = false;
  readonly #worker: Worker;
  readonly #calls = new Map<number, (reply: Reply | undefined) => void>();
  #lastCall = 0;

  /** Starts it. `onReport` receives what it tells by itself. */
  constructor(file: string, data: WorkerData, onReport: (report: Report) => void) {
    this.thread = data.place.thread;
    const worker = new Worker(file, { workerData: data, name: `worker ${this.thread}` });
    this.#worker = worker;
    worker.on('message', (message: FromWorker) => {
      if (message.type === 'reply') this.#settle(message.call, message.reply);
      else if (message.type === 'figures') this.figures = message.figures;
      else onReport(message);
    });
    this.ended = new Promise((resolve) => {
      let thrown: Error | undefined;
      worker.on('error', (error: Error) => (thrown = error));
      worker.on('exit', () => {
        for (const call of this.#calls.keys()) this.#settle(call, undefined);
        resolve(thrown);
      });
    });
  }

  /** Resolves with the reply; with undefined if the thread ends before. */
  async call(command: Command): Promise<Reply | undefined> {
    this.#lastCall += 1;
    const call = this.#lastCall;
    const reply = new Promise<Reply | undefined>((resolve) => this.#calls.set(call, resolve));
    this.send({ type: 'command', call, command });
    return await reply;
  }

  send(message: ToWorker): void {
    this.#worker.postMessage(message);
  }

  /** Ends it at once. */
  async terminate(): Promise<void> {
    this.isTerminated = true;
    await this.#worker.terminate();
  }

  #settle(call: number, reply: Reply | undefined): void {
    this.#calls.get(call)?.(reply);
    this.#calls.delete(call);
  }
}
