/**
 * Bodies in tiny chunks: how long /health waits, asked by another process, while uploads or a provider's stream of
 * 1.5 MB come through the built gateway, and through a bare Node server.
 *
 *   npm run test:chunks           two minutes
 */

import { fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { buildOnce, freePort, SERVER } from '../support/process.ts';
import { TRANSPORT_ENV } from '../support/transport.ts';

const SUPPORT = join(process.cwd(), 'test/support');
const DELAY_PROBE = join(SUPPORT, 'loop-delay.mjs');
/** How much longer than a bare Node, which reads the same bytes, the gateway may be busy without a turn. */
const MAX_STALL_MS = 100;
const GIVE_UP_MS = 20_000;

const folder = mkdtempSync(join(tmpdir(), 'gateway-chunks-'));
const delayFile = join(folder, 'delay.json');
const children: ChildProcess[] = [];

interface Scenario {
  readonly kind: 'upload' | 'without a key' | 'stream';
  readonly count: number;
  readonly chunkBytes: number;
}

const SCENARIOS: readonly Scenario[] = [
  { kind: 'upload', count: 1, chunkBytes: 1 },
  { kind: 'upload', count: 10, chunkBytes: 1 },
  { kind: 'upload', count: 10, chunkBytes: 17 },
  { kind: 'without a key', count: 1, chunkBytes: 1 },
  { kind: 'without a key', count: 10, chunkBytes: 1 },
  { kind: 'stream', count: 1, chunkBytes: 1 },
  { kind: 'stream', count: 10, chunkBytes: 1 },
];

/** Starts a program of test/support/tiny-chunk-peer.ts. */
function startPeer(args: readonly unknown[], preload: readonly string[] = []): ChildProcess {
  const child = fork(join(SUPPORT, 'tiny-chunk-peer.ts'), args.map(String), {
    execArgv: ['--import', 'tsx', ...preload],
    env: { ...process.env, LOOP_DELAY_FILE: delayFile },
  });
  children.push(child);
  return child;
}

async function messageOf<T>(child: ChildProcess): Promise<T> {
  const [message] = (await once(child, 'message')) as [T];
  return message;
}

async function startBare(providerPort: number | '') {
  const child = startPeer(['bare', providerPort], ['--import', DELAY_PROBE]);
  return { child, port: await messageOf<number>(child), end: () => child.disconnect() };
}

async function startGateway(providerPort: number | '') {
  const port = await freePort();
  const config = join(folder, 'gateway.toml');
  const baseUrl = `http://127.0.0.1:${providerPort || 1}/v1`;
  writeFileSync(config, `[providers.p]\nbase_url = "${baseUrl}"\napi_key = "none"\n`);
  const child = spawn(process.execPath, ['--import', DELAY_PROBE, SERVER], {
    cwd: folder,
    env: {
      ...TRANSPORT_ENV,
      LOOP_DELAY_FILE: delayFile,
      GATEWAY_PORT: String(port),
      GATEWAY_HOST: '127.0.0.1',
      GATEWAY_CONFIG: config,
      GATEWAY_LOG_LEVEL: 'error',
    },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  children.push(child);
  let printed = '';
  for await (const text of child.stderr) {
    printed += String(text);
    if (/^listening/m.test(printed)) break;
  }
  return { child, port, end: () => child.kill('SIGTERM') };
}

/** Asks for /health until `end` settles. Returns the longest time that one took. */
async function probe(port: number, end: Promise<unknown>): Promise<number> {
  const state = { isOver: false, longestMs: 0 };
  void end.finally(() => (state.isOver = true));
  while (!state.isOver) {
    const begunMs = performance.now();
    const [answer] = await once(get({ port, path: '/health', agent: false }), 'response');
    answer.resume();
    await once(answer, 'end');
    state.longestMs = Math.max(state.longestMs, performance.now() - begunMs);
    await sleep(1);
  }
  return state.longestMs;
}

/** Runs one scenario. Returns the longest waits, in milliseconds, and how the requests were answered. */
async function run({ kind, count, chunkBytes }: Scenario, start: typeof startBare) {
  const provider = kind === 'stream' ? startPeer(['provider']) : undefined;
  const server = await start(provider ? await messageOf<number>(provider) : '');
  // Of the start, and of code that is not compiled yet, nothing is measured.
  await probe(server.port, sleep(1000));
  const client = startPeer(['client', server.port, count, chunkBytes, kind]);
  const done = messageOf<string[]>(client);
  const healthMs = await probe(server.port, Promise.race([done, sleep(GIVE_UP_MS)]));
  const answers = await Promise.race([done, Promise.resolve(['unfinished'])]);
  const statuses = [...new Set(answers)].join(', ');
  const exit = once(server.child, 'exit');
  server.end();
  await exit;
  client.disconnect();
  provider?.disconnect();
  const { busy } = JSON.parse(readFileSync(delayFile, 'utf8')) as { busy: { max: number } };
  return { healthMs, busyMs: busy.max, statuses };
}

await buildOnce();
console.log(`node ${process.version}, ${TRANSPORT_ENV['GATEWAY_UPSTREAM'] ?? 'auto'}`);
console.log('longest wait of /health, longest stall of the server’s own doing, in ms; answers');
try {
  for (const scenario of SCENARIOS) {
    const { kind, count, chunkBytes } = scenario;
    console.log(`${kind}, ${count} at once, chunks of ${chunkBytes} B`);
    let bareMs = 0;
    for (const [name, start] of [
      ['bare Node', startBare],
      ['gateway', startGateway],
    ] as const) {
      const { healthMs, busyMs, statuses } = await run(scenario, start);
      const figures = [healthMs, busyMs].map((ms) => ms.toFixed(0).padStart(7)).join('');
      console.log(`  ${name.padEnd(10)}${figures}  ${statuses}`);
      bareMs ||= busyMs;
      if (busyMs - bareMs < MAX_STALL_MS) continue;
      console.log(`FAILED: the gateway stalled for ${MAX_STALL_MS} ms longer`);
      process.exitCode = 1;
    }
  }
} finally {
  for (const child of children) child.kill();
  rmSync(folder, { recursive: true });
}
