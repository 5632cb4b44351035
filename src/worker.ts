/** The program of a worker thread: serves requests with the settings that the main thread hands it, and reports to it. */

import { EventEmitter, once } from 'node:events';
import { createServer } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';

import { createLoopWatch } from './admin/figures.ts';
import { createApp } from './app.ts';
import { unpackConfig } from './config/config.ts';
import type { DrainOptions, HttpServer } from './downstream/http-server.ts';
import { GatewayError } from './lib/errors.ts';
import { SharedMemory, type SharedCounter } from './lib/shared-memory.ts';
import {
  batchCounters,
  type Batch,
  type FromWorker,
  type ToWorker,
  type WorkerData,
} from './workers/thread.ts';

const LOOP_DELAY_MS = 1000;
/** Limit for what the main thread has not taken: nothing else bounds it while that thread is kept from running. */
const MAX_CHARACTERS = 4_194_304;
/** About as many as a finished request takes. */
const REQUEST_CHARACTERS = 1000;

/** Serves until the main thread ends it, or an exception is not caught. */
export function runWorker(): void {
  const data = workerData as WorkerData;
  const config = unpackConfig(data.config);
  const memory = new SharedMemory(data.place, data.blocks);
  const { droppedLines, droppedRequests } = batchCounters(memory);
  const add = createBatches(memory);
  const app = createApp(config, {
    ...data.runtime,
    known: data.known,
    memory,
    writeLog: (line) => add(line.length, (batch) => (batch.lines += line), droppedLines),
    observe:
      config.admin &&
      ((one) => add(REQUEST_CHARACTERS, ({ requests }) => requests.push(one), droppedRequests)),
    onModels: config.admin && ((...models) => send('models', ...models)),
    // One that is dropped is a failure or an answer that other threads meet by themselves.
    share: (event) => add(REQUEST_CHARACTERS, ({ events }) => events.push(event)),
  });
  const { logger, server, store } = app;
  let draining: Promise<void> | undefined;
  const drain = async (options: DrainOptions) => (draining ??= server.drain(options));
  // The state of the thread is unknown, but its requests in flight may still be completed.
  process.on('uncaughtException', (error) => {
    logger.log('error', 'uncaught exception', { worker: data.place.thread, cause: error.stack });
    // The log says why before.
    setImmediate(send, 'failed');
    const timeoutMs = app.snapshot.config.server.shutdownTimeoutMs;
    const reason = new GatewayError('internal', 'Internal server error');
    void drain({ delayMs: 0, timeoutMs, reason }).then(() => process.exit());
  });
  const inbox = new EventEmitter<ToWorker>();
  parentPort!.on('message', (message: ['endDrain']) => inbox.emit(...message));
  inbox.on('learn', app.apply);
  inbox.on('endDrain', () => server.endDrain());
  inbox.on('use', (next, blocks) => {
    memory.blocks = blocks;
    app.use(unpackConfig(next));
    send('using');
  });
  inbox.on('drain', (delayMs, timeoutMs, text) => {
    const reason = new GatewayError('internal', text);
    // The log lines of the last requests come before it.
    void drain({ delayMs, timeoutMs, reason }).then(() => setImmediate(send, 'drained'));
  });
  void (store?.connect() ?? Promise.resolve())
    .then(() => listen(server, data))
    .then((result) => send('listening', result));
  if (config.admin) {
    const readLoopDelay = createLoopWatch(LOOP_DELAY_MS);
    setInterval(() => send('loopDelay', readLoopDelay()), LOOP_DELAY_MS);
  }
}

function send<Name extends keyof FromWorker>(name: Name, ...args: FromWorker[Name]): void {
  parentPort!.postMessage([name, ...args]);
}

/** With SO_REUSEPORT the listener would share the port with another gateway unknowingly: a probe without it would not. */
async function listen(server: HttpServer, { port, host, isFree }: WorkerData) {
  try {
    if (isFree) {
      const probe = createServer().listen({ port, host });
      await once(probe, 'listening');
      await once(probe.close(), 'close');
    }
    return { port: (await server.listen(port, host, true)).port };
  } catch (thrown) {
    const error = thrown as Error;
    return { error: Object.assign({ message: error.message }, error) };
  }
}

/** Returns a function that has `put` add something of about this size to what is sent once in a turn. For want of room it is `dropped`. */
function createBatches(memory: SharedMemory) {
  const { taken } = batchCounters(memory);
  // That of the former threads of this number.
  let sentCharacters = taken.own;
  const createBatch = (): Batch => ({ lines: '', requests: [], events: [], characters: 0 });
  let batch = createBatch();
  const flush = () => {
    if (batch.characters > 0) send('batch', batch);
    batch = createBatch();
  };
  process.on('exit', flush);
  return (characters: number, put: (batch: Batch) => void, dropped?: SharedCounter) => {
    const hasRoom = sentCharacters - taken.own <= MAX_CHARACTERS;
    if (!hasRoom) {
      dropped?.add(1);
      return;
    }
    if (batch.characters === 0) setImmediate(flush);
    sentCharacters += characters;
    batch.characters += characters;
    put(batch);
  };
}
