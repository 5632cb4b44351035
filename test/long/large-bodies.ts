/**
 * Many large bodies at once through the built gateway. Checks that it survives in little memory and
 * gives memory back, and that every byte arrives. Measures how long the event loop stalls, and how
 * soon small requests are answered.
 *
 *   npm run test:large -- [--nodes 20,24] [--limits 256,512] [--kinds chunked] [--rounds 5]
 *   npm run test:large -- --stalls
 *
 * The stalls take half a minute. The table takes an hour, on Linux as root with cgroups' memory
 * controller: in each cell, a gateway in a cgroup with the limit gets 300 bodies of 30 MB at once
 * in each round.
 */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { chatBody } from '../support/gateway.ts';
import {
  type Delay,
  messageOf,
  probeHealth,
  readMeasured,
  startPeer,
  startProbedGateway,
} from '../support/probed-gateway.ts';
import { buildOnce } from '../support/process.ts';
import { openChat } from '../support/streams.ts';
import { TRANSPORT_ENV } from '../support/transport.ts';

const MIB = 1_048_576;
/** The most that may be in use at the end, in V8's heap and outside it. */
const MAX_LIVE_BYTES = 32 * MIB;
/** The most that may be resident a minute after the load. */
const LEFT_BYTES = 96 * MIB;
const REST_MS = 60_000;
const SMALL = chatBody({ user: 'small' });
const MEGABYTE = chatBody({ user: 'small', metadata: { pad: 'x'.repeat(MIB) } });

/** By name, whether clients send or ask for the bodies, and whether the head has their length. */
const KINDS: Readonly<Record<string, readonly ['uploads' | 'answers', 'announced' | 'chunked']>> = {
  chunked: ['uploads', 'chunked'],
  announced: ['uploads', 'announced'],
  'answers-chunked': ['answers', 'chunked'],
  'answers-announced': ['answers', 'announced'],
};

interface Cell {
  readonly kind: string;
  readonly count: number;
  readonly rounds: number;
  /** The path of the gateway's Node. */
  readonly node: string;
  /** The gateway's cgroup limit; undefined without a cgroup. */
  readonly limitMiB?: number;
}

/** Creates a cgroup with this limit. Throws if the machine does not allow it. */
function createGroup(limitMiB: number): string {
  const isV2 = existsSync('/sys/fs/cgroup/cgroup.controllers');
  const folder = `/sys/fs/cgroup/${isV2 ? '' : 'memory/'}gateway-large-${process.pid}`;
  mkdirSync(folder);
  const name = isV2 ? 'memory.max' : 'memory.limit_in_bytes';
  writeFileSync(join(folder, name), String(limitMiB * MIB));
  return folder;
}

function removeGroup(folder: string | undefined): void {
  if (folder) rmdirSync(folder);
}

/** Returns the resident memory in bytes; 0 after the process's end. */
function residentBytes(pid: number): number {
  try {
    const [, kilobytes] =
      /^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
    return Number(kilobytes ?? 0) * 1024;
  } catch {
    return 0;
  }
}

/** Returns why a completion is not answered with 200; undefined if it is. */
async function failureOf(port: number, body: object): Promise<string | undefined> {
  const { ended, response } = openChat(port, body);
  return ended.then(
    async (text) => {
      const { statusCode } = await response;
      return statusCode === 200 ? undefined : `${statusCode} ${text}`;
    },
    (error: unknown) => String(error),
  );
}

/** Waits up to a minute until memory is given back. Returns the resident bytes. */
async function awaitRelease(pid: number, toBytes: number): Promise<number> {
  for (let restedMs = 0; restedMs < REST_MS; restedMs += 1000) {
    if (residentBytes(pid) < toBytes) break;
    await sleep(1000);
  }
  return residentBytes(pid);
}

const inMiB = (bytes: number) => Math.round(bytes / MIB);

/** Runs a cell and prints its row. Throws if a check fails. */
async function run(cell: Cell): Promise<Delay> {
  const { kind, count, rounds, node, limitMiB } = cell;
  const group = limitMiB === undefined ? undefined : createGroup(limitMiB);
  const upstream = startPeer('large-upstream');
  const enter = group && `echo $$ > ${group}/cgroup.procs`;
  const gateway = await startProbedGateway(await messageOf<number>(upstream), { node, enter });
  const pid = gateway.child.pid!;
  const before = residentBytes(pid);
  const client = startPeer('large-client', [gateway.port, ...KINDS[kind]!, count, rounds]);
  const counted = messageOf<Record<string, number>>(client);
  const version = execFileSync(node, ['--version'], { encoding: 'utf8' }).trim();
  const row = `${version}, ${limitMiB ?? 'all'} MiB, ${rounds} x ${count} ${kind}`;
  try {
    let peakBytes = 0;
    const failedSmall: string[] = [];
    const healthMs = await probeHealth(gateway.port, counted, async () => {
      peakBytes = Math.max(peakBytes, residentBytes(pid));
      const failure = await failureOf(gateway.port, SMALL);
      if (failure) failedSmall.push(failure);
      await sleep(10);
    });
    const counts = await counted;
    const maxAfter = before + LEFT_BYTES;
    const after = await awaitRelease(pid, maxAfter);
    const failureAfter = await failureOf(gateway.port, MEGABYTE);
    gateway.end();
    if (gateway.isAlive()) await once(gateway.child, 'exit');
    assert.equal(gateway.child.exitCode, 0, `the gateway ended with ${gateway.child.signalCode}`);
    const { busy, liveBytes } = readMeasured();
    const p99 = healthMs[Math.floor(healthMs.length * 0.99)]!;
    console.log(
      [
        `| ${row} | ${JSON.stringify(counts)} `,
        `| ${inMiB(before)} MiB, peak ${inMiB(peakBytes)}, then ${inMiB(after)}, `,
        `in use ${inMiB(liveBytes)} | /health p99 ${Math.round(p99)} ms, `,
        `max ${Math.round(healthMs.at(-1)!)} of ${healthMs.length}, `,
        `busy max ${Math.round(busy.max)} ms |`,
      ].join(''),
    );
    assert.equal(failureAfter, undefined, 'a megabyte is refused after the load');
    assert.ok(liveBytes < MAX_LIVE_BYTES, 'memory is kept');
    assert.ok(after < maxAfter, 'the memory is not given back');
    assert.ok((counts['200'] ?? 0) > 0, 'nothing was answered');
    // A small request may be refused, too, if `max_buffered_bytes` is full.
    const isRefused = (failure: string) => failure.startsWith('429');
    assert.deepEqual(
      failedSmall.filter((failure) => !isRefused(failure)),
      [],
    );
    assert.ok(failedSmall.length <= healthMs.length / 200, failedSmall.join('\n'));
    const others = Object.keys(counts).filter((outcome) => !/^(?:200|429)$/.test(outcome));
    assert.deepEqual(others, []);
    return { p99, max: busy.max };
  } catch (error) {
    console.log(`| ${row} | FAILED: ${(error as Error).message} |`);
    process.exitCode = 1;
    throw error;
  } finally {
    client.kill('SIGKILL');
    upstream.disconnect();
    if (gateway.isAlive()) gateway.child.kill('SIGKILL');
    await sleep(200);
    removeGroup(group);
  }
}

async function checkStalls(): Promise<void> {
  const { p99, max } = await run({
    kind: 'announced',
    count: 60,
    rounds: 1,
    node: process.execPath,
  });
  assert.ok(max < 100, `the event loop stalled for ${max} ms`);
  assert.ok(p99 < 250, `/health took ${p99} ms`);
}

const { values } = parseArgs({
  options: {
    nodes: { type: 'string', default: '20,22,24,26' },
    limits: { type: 'string', default: '256,512,1024' },
    kinds: { type: 'string', default: Object.keys(KINDS).join() },
    rounds: { type: 'string', default: '5' },
    stalls: { type: 'boolean', default: false },
  },
});

function cells(): Cell[] {
  const rounds = Number(values.rounds);
  return values.nodes.split(',').flatMap((major) => {
    const node = execFileSync('sh', ['test/nodes.sh', '--path', major], { encoding: 'utf8' });
    return values.limits.split(',').flatMap((limit) =>
      values.kinds.split(',').map((kind) => ({
        kind,
        count: 300,
        rounds,
        node: node.trim(),
        limitMiB: Number(limit),
      })),
    );
  });
}

for (const kind of values.kinds.split(',')) assert.ok(kind in KINDS, `no kind ${kind}`);
await buildOnce();
console.log(TRANSPORT_ENV['GATEWAY_UPSTREAM'] ?? 'auto');
// After a failed cell, other cells are still useful.
if (values.stalls) await checkStalls();
else {
  removeGroup(createGroup(256));
  for (const cell of cells()) await run(cell).catch(() => {});
}
