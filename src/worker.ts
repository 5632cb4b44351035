/** The program of a worker thread: serves requests with the settings that the main thread hands it, and reports to it. */

import { parentPort, workerData, type MessagePort } from 'node:worker_threads';

import { createLoopWatch } from './admin/figures.ts';
import type { DrainResult } from './downstream/http-server.ts';
import type { ModelListAnswer } from './gateway/model-list.ts';
import { GatewayError } from './lib/errors.ts';
import { unpackConfig } from './config/config.ts';
import type { FinishedRequest, RequestObserver } from './lib/request-facts.ts';
import { SharedMemory } from './lib/shared-memory.ts';
import { createServing, type Serving } from './serving.ts';
import { Backlog } from './workers/backlog.ts';
import { Calls } from './workers/calls.ts';
import type { Command, FromWorker, Reply, ToWorker, WorkerData } from './workers/messages.ts';

const LOOP_DELAY_MS = 1000;
/** The main thread waits 3 s for the providers. */
const LIST_MS = 10_000;

/** Serves until the main thread ends it, or an exception is not caught. */
export function runWorker(): void {
  const data = workerData as WorkerData;
  const port = parentPort!;
  const { place, blocks, generationBlocks, upstream, config: packed, ...runtime } = data;
  const memory = new SharedMemory(place, blocks);
  const outbox = createOutbox(port, new Backlog(memory));
  const lists = new Calls<SharedArrayBuffer>();
  const config = unpackConfig(packed);
  const serving = createServing(
    { ...config, server: { ...config.server, upstream } },
    { ...runtime, writeLog: outbox.writeLog },
    {
      memory,
      generationMemory: new SharedMemory(place, generationBlocks),
      observe: config.admin && outbox.observe,
      listModels: async (client) => await askForModels(client?.models, lists, outbox),
    },
  );
  const drain = createDrain(serving);
  // The state of the thread is unknown, but its requests in flight may still be completed.
  process.on('uncaughtException', (error) => {
    const { logger } = serving.permanent;
    logger.log('error', 'uncaught exception', { worker: place.thread, cause: error.stack });
    outbox.send({ type: 'failed' });
    const timeoutMs = serving.current.config.server.shutdownTimeoutMs;
    const reason = 'Internal server error';
    void drain({ type: 'drain', delayMs: 0, timeoutMs, reason }).then(() => process.exit());
  });
  port.on('message', (message: ToWorker) => {
    if (message.type === 'models') return lists.settle(message.call, message.body);
    const { call, command } = message;
    void obey(command, serving, drain).then((reply) => outbox.send({ type: 'reply', call, reply }));
  });
  if (config.admin) {
    const readLoopDelay = createLoopWatch(LOOP_DELAY_MS);
    const report = () => outbox.send({ type: 'loopDelay', loopDelay: readLoopDelay() });
    setInterval(report, LOOP_DELAY_MS);
  }
}

interface Outbox {
  readonly writeLog: (line: string) => void;
  readonly observe: RequestObserver;
  readonly send: (message: FromWorker) => void;
}

/** Sends messages in order; log lines and requests together, once in a turn of the event loop. */
function createOutbox(port: MessagePort, backlog: Backlog): Outbox {
  let lines = '';
  let requests: FinishedRequest[] = [];
  const flush = () => {
    if (lines === '' && requests.length === 0) return;
    const batch = { type: 'batch', lines, requests } as const;
    lines = '';
    requests = [];
    backlog.add(batch);
    port.postMessage(batch satisfies FromWorker);
  };
  const flushSoon = () => {
    if (lines === '' && requests.length === 0) setImmediate(flush);
  };
  process.on('exit', flush);
  return {
    writeLog(line: string) {
      if (backlog.isFull) return backlog.dropLine();
      flushSoon();
      lines += line;
    },
    observe(request: FinishedRequest) {
      if (backlog.isFull) return backlog.dropRequest();
      flushSoon();
      requests.push(request);
    },
    send(message: FromWorker) {
      flush();
      port.postMessage(message);
    },
  };
}

/** Asks the main thread for the list of these models, or of all. Throws if it does not answer. */
async function askForModels(
  models: readonly string[] | undefined,
  lists: Calls<SharedArrayBuffer>,
  { send }: Outbox,
): Promise<ModelListAnswer> {
  const body = await lists.ask((call) => send({ type: 'models', call, models }), LIST_MS);
  if (body === undefined) throw new Error('no list of models from the main thread');
  const headers = { 'content-type': 'application/json' };
  return { status: 200, headers, body: [Buffer.from(body)] };
}

type Drain = (command: Extract<Command, { type: 'drain' }>) => Promise<DrainResult>;

/** A second drain waits for the first. */
function createDrain({ server }: Serving): Drain {
  let draining: Promise<DrainResult> | undefined;
  return async ({ delayMs, timeoutMs, reason }) => {
    const error = new GatewayError('internal', reason);
    draining ??= server.drain({ delayMs, timeoutMs, reason: error });
    return await draining;
  };
}

/** Resolves when the command has been carried out. */
async function obey(command: Command, serving: Serving, drain: Drain): Promise<Reply> {
  if (command.type === 'drain') return await drain(command);
  if (command.type === 'listen') return await listen(command, serving);
  if (command.type === 'cut') {
    serving.server.cut();
    return {};
  }
  const memory = new SharedMemory(serving.current.memory.place, command.blocks);
  serving.use(unpackConfig(command.config), memory);
  return {};
}

async function listen(
  { port, host }: Extract<Command, { type: 'listen' }>,
  { permanent, server }: Serving,
): Promise<Reply> {
  try {
    await permanent.store?.connect();
    if (server.isDraining) return {};
    const address = await server.listen(port, host, true);
    return { port: address.port };
  } catch (thrown) {
    const error = thrown as Error;
    return { error: Object.assign({ message: error.message }, error) };
  }
}
