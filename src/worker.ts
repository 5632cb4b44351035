/** The program of a worker thread: serves requests with the settings that the main thread hands it, and reports to it. */

import { once } from 'node:events';
import { createServer } from 'node:net';
import { parentPort, workerData, type MessagePort } from 'node:worker_threads';

import { createLoopWatch } from './admin/figures.ts';
import { createApp, type App } from './app.ts';
import { unpackConfig } from './config/config.ts';
import type { DrainOptions, DrainResult, HttpServer } from './downstream/http-server.ts';
import { GatewayError } from './lib/errors.ts';
import type { FinishedRequest } from './lib/request-facts.ts';
import { SharedMemory } from './lib/shared-memory.ts';
import type { Address, Batch, FromWorker, ToWorker, WorkerData } from './workers/thread.ts';

const LOOP_DELAY_MS = 1000;
/** Limit for what the main thread has not acknowledged: nothing else bounds it while that thread is kept from running. */
const MAX_CHARACTERS = 4_194_304;
/** About as many as a finished request takes. */
const REQUEST_CHARACTERS = 1000;

/** Serves until the main thread ends it, or an exception is not caught. */
export function runWorker(): void {
  const { place, address, blocks, config: packed, runtime, ...before } = workerData as WorkerData;
  const port = parentPort!;
  const config = unpackConfig(packed);
  const memory = new SharedMemory(place, blocks);
  const outbox = new Outbox(port);
  const app: App = createApp(config, {
    ...runtime,
    ...before,
    memory,
    writeLog: (line) => outbox.addLine(line),
    observe: config.admin && ((request) => outbox.addRequest(request)),
    onModels:
      config.admin && ((provider, names) => outbox.send({ type: 'models', provider, names })),
    share: (event) => outbox.addEvent({ event, reloads: app.reloads }),
  });
  const { logger, server, store } = app;
  let draining: Promise<DrainResult> | undefined;
  const drain = async (options: DrainOptions) => (draining ??= server.drain(options));
  // The state of the thread is unknown, but its requests in flight may still be completed.
  process.on('uncaughtException', (error) => {
    logger.log('error', 'uncaught exception', { worker: place.thread, cause: error.stack });
    outbox.send({ type: 'failed' });
    const timeoutMs = app.snapshot.config.server.shutdownTimeoutMs;
    const reason = new GatewayError('internal', 'Internal server error');
    void drain({ delayMs: 0, timeoutMs, reason }).then(() => process.exit());
  });
  port.on('message', (message: ToWorker) => {
    if (message.type === 'taken') outbox.taken(message.characters);
    if (message.type === 'event') app.apply(message.event);
    if (message.type === 'cut') server.cut();
    if (message.type === 'use') {
      memory.add(message.blocks);
      app.use(unpackConfig(message.config));
      outbox.send({ type: 'using' });
    }
    if (message.type === 'drain') {
      const reason = new GatewayError('internal', message.reason);
      void drain({ ...message, reason }).then((result) =>
        outbox.send({ type: 'drained', ...result }),
      );
    }
  });
  void (store?.connect() ?? Promise.resolve())
    .then(() => (server.isDraining ? {} : listen(server, address)))
    .then((result) => outbox.send({ type: 'listening', ...result }));
  if (config.admin) {
    const readLoopDelay = createLoopWatch(LOOP_DELAY_MS);
    const report = () => outbox.send({ type: 'loopDelay', loopDelay: readLoopDelay() });
    setInterval(report, LOOP_DELAY_MS);
  }
}

/** With SO_REUSEPORT the listener would share the port with another gateway unknowingly: a probe without it would not. */
async function listen(server: HttpServer, { port, host, isFree }: Address) {
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
class Outbox {
  readonly #port: MessagePort;
  #batch = createBatch();
  #isFlushing = false;
  /** Sent, or about to be, and not known to be taken. */
  #characters = 0;

  constructor(port: MessagePort) {
    this.#port = port;
    process.on('exit', () => this.#flush());
  }

  addLine(line: string): void {
    if (this.#hasRoom(line.length)) this.#batch.lines += line;
    else this.#batch.droppedLines += 1;
  }

  addRequest(request: FinishedRequest): void {
    if (this.#hasRoom(REQUEST_CHARACTERS)) this.#batch.requests.push(request);
    else this.#batch.droppedRequests += 1;
  }

  /** One that is dropped is a failure or an answer that other threads meet by themselves. */
  addEvent(event: Batch['events'][number]): void {
    if (this.#hasRoom(REQUEST_CHARACTERS)) this.#batch.events.push(event);
  }

  send(message: FromWorker): void {
    this.#flush();
    this.#port.postMessage(message);
  }

  /** The main thread has taken so much. */
  taken(characters: number): void {
    this.#characters -= characters;
    // The numbers of what was dropped.
    this.#flushSoon();
  }

  #hasRoom(characters: number): boolean {
    if (this.#characters > MAX_CHARACTERS) return false;
    this.#characters += characters;
    this.#batch.characters += characters;
    this.#flushSoon();
    return true;
  }

  #flushSoon(): void {
    if (!this.#isFlushing) setImmediate(() => this.#flush());
    this.#isFlushing = true;
  }

  #flush(): void {
    this.#isFlushing = false;
    const batch = this.#batch;
    if (batch.characters + batch.droppedLines + batch.droppedRequests === 0) return;
    this.#batch = createBatch();
    this.#port.postMessage(batch);
  }
}

function createBatch(): Batch {
  const counts = { characters: 0, droppedLines: 0, droppedRequests: 0 };
  return { type: 'batch', lines: '', requests: [], events: [], ...counts };
}
