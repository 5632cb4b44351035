/** The program of a worker thread: serves requests with the settings that the main thread hands it, and reports to it. */

import { parentPort, workerData, type MessagePort } from 'node:worker_threads';

import { createProcessFigures } from './admin/figures.ts';
import type { DrainResult } from './downstream/http-server.ts';
import type { ModelList } from './gateway/model-list.ts';
import { GatewayError } from './lib/errors.ts';
import { unpackSecrets } from './lib/packed-secrets.ts';
import type { FinishedRequest, RequestObserver } from './lib/request-facts.ts';
import { SharedMemory } from './lib/shared-memory.ts';
import { createServing, type Serving } from './serving.ts';
import type {
  Address,
  Command,
  FromWorker,
  Reply,
  ToWorker,
  WorkerData,
} from './workers/messages.ts';

const FIGURES_MS = 1000;

/** Serves until the main thread ends it, or an exception is not caught. */
export function runWorker(): void {
  const data = workerData as WorkerData;
  const port = parentPort!;
  const outbox = createOutbox(port);
  const models = createModelQuestions(outbox);
  const { place, blocks, generationBlocks, isObserved, clientLimits, ...terminal } = data;
  const serving = createServing(
    unpackSecrets(data.config),
    { ...terminal, ...(clientLimits ? { clientLimits } : {}), writeLog: outbox.writeLog },
    {
      memory: new SharedMemory(place, blocks),
      generationMemory: new SharedMemory(place, generationBlocks),
      observe: isObserved ? outbox.observe : undefined,
      listModels: models.ask,
    },
  );
  const drain = createDrain(serving);
  // The state of the thread is unknown, but its requests in flight may still be completed.
  process.on('uncaughtException', (error) => {
    const { logger } = serving.permanent;
    logger.log('error', 'uncaught exception', { worker: place.thread, cause: error.stack });
    outbox.send({ type: 'failed' });
    const timeoutMs = serving.current.config.server.shutdownTimeoutMs;
    const reason = 'The gateway is shutting down';
    void drain({ type: 'drain', delayMs: 0, timeoutMs, reason }).then(() => process.exit());
  });
  port.on('message', (message: ToWorker) => {
    if (message.type === 'models') return models.answer(message.call, message.body);
    const { call, command } = message;
    void obey(command, serving, drain).then((reply) => outbox.send({ type: 'reply', call, reply }));
  });
  if (isObserved) reportFigures(serving, outbox);
}

interface Outbox {
  readonly writeLog: (line: string) => void;
  readonly observe: RequestObserver;
  readonly send: (message: FromWorker) => void;
}

/** Sends messages in order; log lines and requests together, once in a turn of the event loop. */
function createOutbox(port: MessagePort): Outbox {
  let lines = '';
  let requests: FinishedRequest[] = [];
  const flush = () => {
    if (lines === '' && requests.length === 0) return;
    const batch: FromWorker = { type: 'batch', lines, requests };
    lines = '';
    requests = [];
    port.postMessage(batch);
  };
  const flushSoon = () => {
    if (lines === '' && requests.length === 0) setImmediate(flush);
  };
  process.on('exit', flush);
  return {
    writeLog(line: string) {
      flushSoon();
      lines += line;
    },
    observe(request: FinishedRequest) {
      flushSoon();
      requests.push(request);
    },
    send(message: FromWorker) {
      flush();
      port.postMessage(message);
    },
  };
}

/** Asks the main thread for lists of models. */
function createModelQuestions({ send }: Outbox) {
  const waiting = new Map<number, (body: string) => void>();
  let lastCall = 0;
  const ask: ModelList = async (client) => {
    lastCall += 1;
    const call = lastCall;
    const body = new Promise<string>((resolve) => waiting.set(call, resolve));
    send({ type: 'models', call, models: client?.models });
    return {
      status: 200,
      headers: { 'content-type': 'application/json' },
      body: [Buffer.from(await body)],
    };
  };
  const answer = (call: number, body: string) => {
    waiting.get(call)?.(body);
    waiting.delete(call);
  };
  return { ask, answer };
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
  const memory = new SharedMemory(serving.current.memory.place, command.blocks);
  serving.use(unpackSecrets(command.config), memory);
  return {};
}

async function listen({ port, host }: Address, { permanent, server }: Serving): Promise<Reply> {
  try {
    await permanent.store?.connect();
    const address = await server.listen(port, host, { isShared: true });
    void permanent.transport.check();
    return { port: address.port };
  } catch (thrown) {
    const error = thrown as Error;
    return { error: Object.assign({ message: error.message }, error) };
  }
}

function reportFigures({ permanent }: Serving, { send }: Outbox): void {
  const read = createProcessFigures(FIGURES_MS);
  const report = () => {
    const { loopDelayMs } = read();
    const { connectionFigures: connections } = permanent.transport;
    send({ type: 'figures', figures: { connections, loopDelayMs } });
  };
  setInterval(report, FIGURES_MS);
}
