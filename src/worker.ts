/** The program of a worker thread: serves requests with the settings that the main thread hands it, and reports to it. */

import { EventEmitter, once } from 'node:events';
import { createServer } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';

import { createLoopWatch } from './admin/figures.ts';
import { createApp } from './app.ts';
import { unpackConfig } from './config/config.ts';
import type { DrainOptions, HttpServer } from './downstream/http-server.ts';
import { GatewayError } from './lib/errors.ts';
import type { FinishedRequest } from './lib/request-facts.ts';
import { SharedMemory } from './lib/shared-memory.ts';
import {
  backlogOf,
  DROPPED_LINES,
  DROPPED_REQUESTS,
  type Batch,
  type FromWorker,
  type ThreadEvent,
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
  const { place, blocks, config: packed, runtime, known } = data;
  const config = unpackConfig(packed);
  const memory = new SharedMemory(place, blocks);
  const outbox = createOutbox(memory);
  const app = createApp(config, {
    ...runtime,
    known,
    memory,
    writeLog: (line) => outbox.addLine(line),
    observe: config.admin && ((request) => outbox.addRequest(request)),
    onModels: config.admin && ((...models) => outbox.send('models', ...models)),
    share: (event) => outbox.addEvent(event),
  });
  const { logger, server, store } = app;
  let draining: Promise<unknown> | undefined;
  const drain = async (options: DrainOptions) => (draining ??= server.drain(options));
  // The state of the thread is unknown, but its requests in flight may still be completed.
  process.on('uncaughtException', (error) => {
    logger.log('error', 'uncaught exception', { worker: place.thread, cause: error.stack });
    outbox.send('failed');
    const timeoutMs = app.snapshot.config.server.shutdownTimeoutMs;
    const reason = new GatewayError('internal', 'Internal server error');
    void drain({ delayMs: 0, timeoutMs, reason }).then(() => process.exit());
  });
  const inbox = new EventEmitter<ToWorker>();
  parentPort!.on('message', (message: ['cut']) => inbox.emit(...message));
  inbox.on('learn', app.apply);
  inbox.on('cut', () => server.cut());
  inbox.on('use', (next) => {
    memory.blocks = next.blocks;
    app.use(unpackConfig(next.config));
    outbox.send('using');
  });
  inbox.on('drain', (delayMs, timeoutMs, text) => {
    const reason = new GatewayError('internal', text);
    void drain({ delayMs, timeoutMs, reason }).then(() => outbox.send('drained'));
  });
  void (store?.connect() ?? Promise.resolve())
    .then(() => (server.isDraining ? {} : listen(server, data)))
    .then((result) => outbox.send('listening', result));
  if (config.admin) {
    const readLoopDelay = createLoopWatch(LOOP_DELAY_MS);
    setInterval(() => outbox.send('loopDelay', readLoopDelay()), LOOP_DELAY_MS);
  }
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

/** Sends messages in order; log lines, requests and events together, once in a turn of the event loop. */
function createOutbox(memory: SharedMemory) {
  const { untaken, dropped } = backlogOf(memory);
  const { thread } = memory.place;
  const createBatch = (): Batch => ({ lines: '', requests: [], events: [], characters: 0 });
  let batch = createBatch();
  const flush = () => {
    if (batch.characters > 0) parentPort!.postMessage(['batch', batch]);
    batch = createBatch();
  };
  const hasRoom = (characters: number) => {
    if (Atomics.load(untaken, thread) > MAX_CHARACTERS) return false;
    Atomics.add(untaken, thread, characters);
    if (batch.characters === 0) setImmediate(flush);
    batch.characters += characters;
    return true;
  };
  process.on('exit', flush);
  return {
    addLine(line: string) {
      if (hasRoom(line.length)) batch.lines += line;
      else Atomics.add(dropped, DROPPED_LINES, 1);
    },
    addRequest(request: FinishedRequest) {
      if (hasRoom(REQUEST_CHARACTERS)) batch.requests.push(request);
      else Atomics.add(dropped, DROPPED_REQUESTS, 1);
    },
    /** One that is dropped is a failure or an answer that other threads meet by themselves. */
    addEvent(event: ThreadEvent) {
      if (hasRoom(REQUEST_CHARACTERS)) batch.events.push(event);
    },
    send<Name extends keyof FromWorker>(name: Name, ...args: FromWorker[Name]) {
      flush();
      parentPort!.postMessage([name, ...args]);
    },
  };
}
