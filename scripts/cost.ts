/**
 * Counts a request's cost (`npm run cost`) in figures independent of other load: bytes allocated on
 * the heap, bytes kept by young collections, and steps. The built gateway is a child process,
 * beside a bare relay (bench/relay.ts). This process is its provider and its clients, which take
 * turns: an event is sent when the last has arrived, so no two are written together.
 *
 *   npm run cost [-- --top N]   also the N functions that allocate most for a JSON request
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { connect, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { parseArgs } from 'node:util';

import { transform } from 'esbuild';

const ROOT = join(import.meta.dirname, '..');
const PROBE = join(import.meta.dirname, 'cost-probe.mjs');
const REQUEST_BYTES = 400;
const EVENT_BYTES = 225;
/** After so many requests V8 has compiled their code, and the process's memory no longer grows. */
const WARM_UP_REQUESTS = 3000;
const REQUESTS = 2400;
const CONNECTIONS = 32;
const STREAMS = 40;
const STREAMING_CONNECTIONS = 4;
/** The events in short and long streams. The difference between both is the cost of events. */
const [FEW_EVENTS, MANY_EVENTS] = [20, 120];
const CROWD = 1000;
const STEPPED_REQUESTS = 50;

/** Heap bytes. `kept` are the bytes found in use by a young collection. */
interface Bytes {
  readonly allocated: number;
  readonly kept: number;
}

interface Cost {
  /** The cost of a complete answer, and of a stream with 20 events. */
  readonly json: Bytes;
  readonly stream: Bytes;
  /** The cost of each further event. */
  readonly event: Bytes;
  /** The process's peak memory, at 32 connections. */
  readonly peakBytes: number;
}

export interface Costs {
  readonly gateway: Cost;
  readonly relay: Cost;
  /** Promises for a complete answer. */
  readonly promises: number;
  /** Heap bytes for each idle connection, and for each open stream. */
  readonly idleBytes: number;
  readonly streamBytes: number;
  /** A complete answer's bytes with `[admin]`, divided by its bytes without. */
  readonly adminRatio: number;
  /** A complete answer's steps beside 1,000 open streams, divided by its steps without streams. */
  readonly stepsRatio: number;
  /** The functions that allocate most for a complete answer, with their bytes. */
  readonly top: readonly (readonly [name: string, bytes: number])[];
}

const ANSWER = JSON.stringify({
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1_700_000_000,
  model: 'm',
  choices: [
    { index: 0, message: { role: 'assistant', content: 'x'.repeat(200) }, finish_reason: 'stop' },
  ],
  usage: { prompt_tokens: 10, completion_tokens: 20, total_tokens: 30 },
});

const EVENT = padded(EVENT_BYTES, (pad) => {
  const choice = { index: 0, delta: { content: pad }, finish_reason: null };
  const head = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1_700_000_000 };
  return `data: ${JSON.stringify({ ...head, model: 'm', choices: [choice] })}\n\n`;
});
const LAST_EVENTS =
  'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n' +
  'data: [DONE]\n\n';

function padded(bytes: number, build: (pad: string) => string): string {
  return build('x'.repeat(bytes - build('').length));
}

function requestOf(members: object): string {
  const body = padded(REQUEST_BYTES, (content) =>
    JSON.stringify({ model: 'p/m', ...members, messages: [{ role: 'user', content }] }),
  );
  const head =
    'POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t\r\n' +
    `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
  return head + body;
}

const JSON_REQUEST = requestOf({});
const HEALTH_REQUEST = 'GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n';

/** Starts a provider whose streams send an event at each call of `sendEvent`. */
async function startProvider() {
  const open = new Map<string, ServerResponse>();
  const answer = async (request: IncomingMessage, response: ServerResponse) => {
    const { user, stream } = JSON.parse(await text(request)) as { user: string; stream?: true };
    response.sendDate = false;
    if (stream) {
      open.set(user, response);
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(EVENT);
    } else {
      const headers = { 'content-type': 'application/json', 'content-length': ANSWER.length };
      response.writeHead(200, headers).end(ANSWER);
    }
  };
  const server = createServer({ keepAliveTimeout: 0 }, (...exchange) => void answer(...exchange));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    sendEvent: (stream: string) => void open.get(stream)!.write(EVENT),
    end(stream: string) {
      open.get(stream)!.end(LAST_EVENTS);
      open.delete(stream);
    },
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** Opens a client connection on which each request waits for the answer before it. */
async function openClient(port: number) {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  await once(socket, 'connect');
  let received = '';
  let check = () => {};
  /** Sends the request, if there is one, and waits until the bytes since then end with `ending`. */
  const ask = (request: string, ending: string) =>
    new Promise<void>((resolve, reject) => {
      received = '';
      check = () => {
        if (socket.destroyed || /^HTTP\/1.1 (?!200)/.test(received)) reject(new Error(received));
        if (received.endsWith(ending)) resolve();
      };
      if (request) socket.write(request);
    });
  socket.on('data', (data: Buffer) => {
    received += data.toString('latin1');
    check();
  });
  socket.on('close', () => check());
  return { ask, close: () => socket.destroy() };
}

type Ask = Awaited<ReturnType<typeof openClient>>['ask'];
type Provider = Awaited<ReturnType<typeof startProvider>>;

/** Uses `count` connections at the same time, and closes them. */
async function withClients(
  port: number,
  count: number,
  use: (ask: Ask, index: number) => Promise<void>,
): Promise<void> {
  const clients = await Promise.all(Array.from({ length: count }, () => openClient(port)));
  await Promise.all(clients.map(({ ask }, index) => use(ask, index)));
  for (const { close } of clients) close();
}

const sendRequests = (port: number, connections: number, count: number) =>
  withClients(port, connections, async (ask) => {
    for (let left = count / connections; left > 0; left -= 1) await ask(JSON_REQUEST, ANSWER);
  });

/** The end of an event in a chunked response. */
const EVENT_END = `${EVENT}\r\n`;
const beginStream = (ask: Ask, user: string) => ask(requestOf({ stream: true, user }), EVENT_END);

function sendStreams(port: number, provider: Provider, events: number): Promise<void> {
  return withClients(port, STREAMING_CONNECTIONS, async (ask, index) => {
    for (let left = STREAMS / STREAMING_CONNECTIONS; left > 0; left -= 1) {
      const user = `${index}-${left}`;
      await beginStream(ask, user);
      for (let event = 1; event < events; event += 1) {
        const arrived = ask('', EVENT_END);
        provider.sendEvent(user);
        await arrived;
      }
      const ended = ask('', '\r\n0\r\n\r\n');
      provider.end(user);
      await ended;
    }
  });
}

/** Starts a program with the probe, and waits until it prints its address. */
async function start(
  file: string,
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
) {
  const child = fork(file, args, {
    execArgv: ['--expose-gc', '--import', PROBE],
    env: { PATH: process.env['PATH'], ...env },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  const post = async (message: string) => {
    const answer = once(child, 'message');
    child.send(message);
    const [result] = (await answer) as unknown[];
    return result;
  };
  /** Returns the probe's count while `act` ran. */
  const count = async <T>(kind: string, act: () => Promise<unknown>) => {
    await post(kind);
    await act();
    return (await post('end')) as T;
  };
  let printed = '';
  for await (const part of child.stderr!) {
    printed += String(part);
    const port = /^listening .*:(\d+)\//m.exec(printed)?.[1];
    if (port !== undefined) return { port: Number(port), count, stop: () => child.kill() };
  }
  throw new Error(`${file} did not start: ${printed}`);
}

type Started = Awaited<ReturnType<typeof start>>;

/**
 * Starts the built gateway with default settings, this provider without a fetched list, and `more`.
 */
function startGateway(providerPort: number, more = '', env = {}): Promise<Started> {
  const server = '[server]\nport = 0\nhost = "127.0.0.1"\n';
  const provider = `api_key = "k-0123456789"\nbase_url = "http://127.0.0.1:${providerPort}/v1"`;
  const toml = `${server}[providers.p]\n${provider}\nmodels = ["m"]\n${more}`;
  return start(join(ROOT, 'dist/server.js'), [], { GATEWAY_CONFIG_TOML: toml, ...env });
}

/** Starts the relay without its types, because Node 20 cannot remove them. */
async function startRelay(providerPort: number): Promise<Started> {
  const source = readFileSync(join(ROOT, 'bench/relay.ts'), 'utf8');
  const { code } = await transform(source, { loader: 'ts' });
  const folder = mkdtempSync(join(tmpdir(), 'cost-'));
  const file = join(folder, 'relay.mjs');
  writeFileSync(file, code);
  const started = await start(file, ['0', String(providerPort), 'agent']);
  rmSync(folder, { recursive: true });
  return started;
}

async function costOf({ port, count }: Started, provider: Provider): Promise<Cost> {
  const bytesOf = async (divisor: number, act: () => Promise<unknown>): Promise<Bytes> => {
    const { allocated, kept } = await count<Bytes>('bytes', act);
    return { allocated: allocated / divisor, kept: kept / divisor };
  };
  await sendRequests(port, CONNECTIONS, WARM_UP_REQUESTS);
  await sendStreams(port, provider, FEW_EVENTS);
  const json = await bytesOf(REQUESTS, () => sendRequests(port, CONNECTIONS, REQUESTS));
  const peakBytes = await count<number>('peak', async () => {});
  const [stream, longer] = [
    await bytesOf(STREAMS, () => sendStreams(port, provider, FEW_EVENTS)),
    await bytesOf(STREAMS, () => sendStreams(port, provider, MANY_EVENTS)),
  ];
  const ofEvent = (name: keyof Bytes) => (longer[name] - stream[name]) / (MANY_EVENTS - FEW_EVENTS);
  const event = { allocated: ofEvent('allocated'), kept: ofEvent('kept') };
  return { json, stream, event, peakBytes };
}

/** Runs `begin` on each of 1,000 connections, and counts while they are open. */
async function countBeside<T>(
  port: number,
  begin: (ask: Ask, index: number) => Promise<void>,
  count: () => Promise<T>,
): Promise<T> {
  let waiting = CROWD;
  let beginCounting = () => {};
  const counted = new Promise<void>((resolve) => (beginCounting = resolve)).then(count);
  await withClients(port, CROWD, async (ask, index) => {
    await begin(ask, index);
    waiting -= 1;
    if (waiting === 0) beginCounting();
    await counted;
  });
  return counted;
}

const beginCrowdStream = (ask: Ask, index: number) => beginStream(ask, `crowd-${index}`);

/**
 * Returns the fewest bytes of a complete answer for both gateways in turn, because uncompiled code
 * allocates more. `warm` has run before.
 */
async function fewestBytesOf(warm: Started, other: Started): Promise<number[]> {
  await sendRequests(other.port, CONNECTIONS, 2 * WARM_UP_REQUESTS);
  const both = [warm, other];
  const fewest = both.map(() => Infinity);
  for (let turn = 0; turn < 3; turn += 1) {
    for (const [index, { port, count }] of both.entries()) {
      const act = () => sendRequests(port, CONNECTIONS, REQUESTS);
      const { allocated } = await count<Bytes>('bytes', act);
      fewest[index] = Math.min(fewest[index]!, allocated / REQUESTS);
    }
  }
  return fewest;
}

async function stepsRatioOf({ port, count }: Started): Promise<number> {
  const steps = () => count<number>('steps', () => sendRequests(port, 1, STEPPED_REQUESTS));
  // The first requests run code not needed by later requests.
  await steps();
  const alone = await steps();
  return (await countBeside(port, beginCrowdStream, steps)) / alone;
}

async function promisesOf({ port, count }: Started): Promise<number> {
  const requests = () => sendRequests(port, CONNECTIONS, REQUESTS);
  return (await count<number>('promises', requests)) / REQUESTS;
}

/** Returns the heap bytes for each connection in a crowd. */
async function heldBytesOf(
  { port, count }: Started,
  begin: (ask: Ask, index: number) => Promise<void>,
): Promise<number> {
  const heap = () => count<number>('heap', async () => {});
  const before = await heap();
  return ((await countBeside(port, begin, heap)) - before) / CROWD;
}

/** Returns the functions that allocate most for a complete answer. */
async function topOf({ port, count }: Started, topCount: number): Promise<Costs['top']> {
  const bytes = await count<Record<string, number>>('functions', () =>
    sendRequests(port, CONNECTIONS, REQUESTS),
  );
  return Object.entries(bytes)
    .map(([name, sum]) => [name, sum / REQUESTS] as const)
    .toSorted((one, other) => other[1] - one[1])
    .slice(0, topCount);
}

/**
 * Counts a request's cost on this Node. Names the `topCount` functions, or ten if a figure is above
 * its budget.
 */
export async function countCosts(topCount = 0): Promise<Costs> {
  const provider = await startProvider();
  const relay = await startRelay(provider.port);
  const gateway = await startGateway(provider.port);
  const crowded = await startGateway(provider.port);
  const watched = await startGateway(provider.port, '[admin]\nport = 0\n');
  const stepped = await startGateway(provider.port, '', { COUNTS_STEPS: 'yes' });
  try {
    await sendStreams(crowded.port, provider, FEW_EVENTS);
    const both = {
      relay: await costOf(relay, provider),
      gateway: await costOf(gateway, provider),
    };
    const [plain, admin] = (await fewestBytesOf(gateway, watched)) as [number, number];
    const costs = {
      ...both,
      top: [],
      adminRatio: admin / plain,
      promises: await promisesOf(stepped),
      // A request without a connection to the provider.
      idleBytes: await heldBytesOf(gateway, (ask) => ask(HEALTH_REQUEST, '"}')),
      streamBytes: await heldBytesOf(crowded, beginCrowdStream),
      stepsRatio: await stepsRatioOf(stepped),
    };
    const named = topCount || (isAboveBudget(costs) ? 10 : 0);
    return named > 0 ? { ...costs, top: await topOf(gateway, named) } : costs;
  } finally {
    for (const { stop } of [gateway, watched, crowded, stepped, relay]) stop();
    provider.close();
  }
}

/** Returns each figure with the relay's figure and the budget, which may be undefined. */
export function rowsOf(costs: Costs) {
  const { gateway, relay, adminRatio, promises, idleBytes, streamBytes, stepsRatio } = costs;
  const mebibytes = (bytes: number) => bytes / 2 ** 20;
  const event = gateway.event.allocated / relay.event.allocated;
  const json = gateway.json.allocated / relay.json.allocated;
  // The relay takes less for an event on Node 20, and for a request on Node 20 and 26.
  const isNode20 = process.version.startsWith('v20.');
  const isNode26 = process.version.startsWith('v26.');
  const rows: [name: string, gateway: number, relay: number | undefined, budget?: number][] = [
    ['JSON request, bytes allocated', gateway.json.allocated, relay.json.allocated],
    ['JSON request, to that of the relay', json, undefined, isNode20 || isNode26 ? 2.05 : 2],
    // 1.01 to 1.04, because V8 compiles at different times in each run.
    ['JSON request with [admin], to without', adminRatio, undefined, isNode26 ? 1.06 : 1.05],
    // Up to 9.1, because new connections and the probe create a few. A tenth promise is too many.
    ['JSON request, promises', promises, undefined, 9.5],
    ['JSON request, bytes kept', gateway.json.kept, relay.json.kept, 300],
    ['stream of 20 events, bytes allocated', gateway.stream.allocated, relay.stream.allocated],
    ['event, bytes allocated', gateway.event.allocated, relay.event.allocated],
    ['event, to that of the relay', event, undefined, isNode20 ? 0.9 : 0.8],
    [
      'peak memory at 32 connections, MiB',
      mebibytes(gateway.peakBytes),
      mebibytes(relay.peakBytes),
      165,
    ],
    ['idle connection, bytes of the heap', idleBytes, undefined, 9216],
    ['open stream, bytes of the heap', streamBytes, undefined, 14_500],
    ['steps beside 1,000 streams, to none', stepsRatio, undefined, 1.3],
  ];
  return rows;
}

const isAboveBudget = (costs: Costs) =>
  rowsOf(costs).some(([, value, , budget = Infinity]) => value > budget);

function format(value: number | undefined): string {
  if (value === undefined) return '';
  return value < 10 ? value.toFixed(2) : Math.round(value).toLocaleString('en-US');
}

if (process.argv[1] === import.meta.filename) {
  const { values } = parseArgs({ options: { top: { type: 'string', default: '0' } } });
  const costs = await countCosts(Number(values.top));
  for (const [name, bytes] of costs.top) console.log(`${format(bytes).padStart(8)}  ${name}`);
  console.log(`${`Node ${process.version}`.padEnd(38)} gateway   relay  budget`);
  for (const [name, ...figures] of rowsOf(costs)) {
    console.log(name.padEnd(38) + figures.map((one) => format(one).padStart(8)).join(''));
  }
  if (isAboveBudget(costs)) process.exitCode = 1;
}
