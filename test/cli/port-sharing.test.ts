/** Several built gateways at one port (SO_REUSEPORT). */

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { before, describe, test, type TestContext } from 'node:test';

import { chatBody, providerToml } from '../support/gateway.ts';
import {
  assertStops,
  buildOnce,
  emptyFolder,
  freePort,
  SERVER,
  startServing,
  type Serving,
} from '../support/process.ts';
import { isRedisMissing, startRedis } from '../support/redis-server.ts';
import { answerChat, PATIENT_MS, programWaiting, startLoad } from '../support/replicas.ts';
import { createGate, eventually, openChat } from '../support/streams.ts';
import { CHUNK, completionEvents, startUpstream } from '../support/upstream.ts';

before(buildOnce);

const [MAJOR = 0, MINOR = 0] = process.versions.node.split('.').map(Number);
const CAN_SHARE = process.platform === 'linux' && (MAJOR > 22 || (MAJOR === 22 && MINOR >= 12));
const MIGRATION = '/proc/sys/net/ipv4/tcp_migrate_req';
const IS_MIGRATED = existsSync(MIGRATION) && readFileSync(MIGRATION, 'utf8').trim() === '1';
const OPTIONS = {
  skip: !CAN_SHARE && 'processes share a port on Linux, with Node 22.12 or newer',
  timeout: 300_000,
};
// Without it, the kernel resets connections arriving between the last `accept` and the close.
const ROLLING = {
  ...OPTIONS,
  skip: OPTIONS.skip || (!IS_MIGRATED && `${MIGRATION} is not 1, as npm run test:ports sets it`),
};

const HELD = chatBody({ model: 'p/held', stream: true });
const RESTARTS = Number(process.env['ROLLING_RESTARTS'] ?? 6);

/** Starts processes at one port. Their provider holds the streams of one model until `finish`. */
async function startAtOnePort(t: TestContext, count: number, more = '', script = SERVER) {
  const gate = createGate();
  const upstream = await startUpstream(t, async (request, response) => {
    if (request.body.includes('"held"')) {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(CHUNK);
      await gate.opened;
      response.end(completionEvents());
    } else await answerChat(request, response);
  });
  const port = await freePort();
  const server = `[server]\nport = ${port}\nhost = "127.0.0.1"\nreuse_port = true\n`;
  const cwd = emptyFolder(t, { 'gateway.toml': `${server}${providerToml(upstream)}${more}` });
  const processes: Serving[] = [];
  const start = async () => processes.push(await startServing(t, [], { cwd, script }));
  for (let started = 0; started < count; started += 1) await start();
  return { port, cwd, processes, start, finish: gate.open };
}

/** Asks on its own connection. Returns the status, or the error's code. */
async function ask(port: number): Promise<number | string> {
  const chat = openChat(port, chatBody({ model: 'p/m' }));
  try {
    const { statusCode = 0 } = await chat.response;
    await chat.ended;
    return statusCode;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error);
  }
}

async function askMany(port: number, count: number) {
  const replies: (number | string)[] = [];
  for (let asked = 0; asked < count; asked += 1) replies.push(await ask(port));
  return replies;
}

const served = ({ lines }: Serving) => lines('request').length;

describe('processes at one port', { concurrency: false }, () => {
  test('both answer, and a killed process costs only its own connections', OPTIONS, async (t) => {
    const { port, processes, finish } = await startAtOnePort(t, 2);
    const [one, other] = processes as [Serving, Serving];
    assert.deepEqual(new Set(await askMany(port, 60)), new Set([200]));
    await eventually(() => served(one) + served(other) === 60, 'a line for each request');
    assert.ok(served(one) > 0 && served(other) > 0, `${served(one)} and ${served(other)}`);

    const streams = Array.from({ length: 20 }, () => openChat(port, HELD));
    await eventually(() => streams.every(({ text }) => text() === CHUNK), 'all have begun');
    one.child.kill('SIGKILL');
    await one.exit;
    assert.deepEqual(new Set(await askMany(port, 60)), new Set([200]));
    finish();
    const ends = await Promise.allSettled(streams.map(({ ended }) => ended));
    const whole = ends.filter(({ status }) => status === 'fulfilled').length;
    assert.ok(whole > 0 && whole < 20, `${whole} of 20`);
    await assertStops(other);
    const own = other.lines('request').filter(({ stream }) => stream === true);
    assert.deepEqual(
      [own.length, new Set(own.map(({ outcome }) => outcome))],
      [whole, new Set(['ok'])],
    );
  });

  test('rolling restarts under load lose no request and no stream', ROLLING, async (t) => {
    const { port, processes, start, finish } = await startAtOnePort(t, 2);
    const streams = Array.from({ length: 10 }, () => openChat(port, HELD));
    await eventually(() => streams.every(({ text }) => text() === CHUNK), 'all have begun');
    const kept = startLoad(t, port);
    const failed: (number | string)[] = [];
    let count = 0;
    const state = { isOver: false };
    const load = Array.from({ length: 8 }, async () => {
      while (!state.isOver) {
        const reply = await ask(port);
        count += 1;
        if (reply !== 200) failed.push(reply);
      }
    });
    for (let index = 0; index < RESTARTS; index += 1) {
      await kept.rounds();
      const stopping = processes[index]!;
      stopping.child.kill('SIGTERM');
      await eventually(() => stopping.lines('draining').length === 1, 'the drain');
      await start();
      // Each of the first two has drained beside its successor.
      if (index === 1) finish();
    }
    await kept.rounds();
    const whole = CHUNK + completionEvents();
    for (const { ended } of streams) assert.equal(await ended, whole);
    for (const { exit, lines } of processes.slice(0, RESTARTS)) {
      assert.equal(await exit, 0);
      assert.equal(lines('stopped')[0]!['cut'], 0);
    }
    state.isOver = true;
    await Promise.all([...load, kept.stop()]);
    const counts = processes.map(served);
    t.diagnostic(
      `${RESTARTS} restarts, ${counts.join(' + ')} requests, ${count} on a new connection`,
    );
    assert.deepEqual([...failed, ...kept.faults], []);
  });

  test('a rate limit in a store is exact over both', OPTIONS, async (t) => {
    if (isRedisMissing(t)) return;
    const redis = await startRedis(t);
    const limit = 'enabled = true\nrequests_per_second = 1\nburst_capacity = 40\n';
    const store = `store = "redis://127.0.0.1:${redis.port}/0"\n`;
    // A long limit for the store, because a busy machine delays it.
    const program = await programWaiting(t, PATIENT_MS);
    // Each refused request has a line at this level.
    const toml = `[logging]\nlevel = "debug"\n[rate_limit]\n${limit}${store}`;
    const { port, processes } = await startAtOnePort(t, 2, toml, program);
    const begunAtMs = performance.now();
    const replies = await Promise.all(Array.from({ length: 200 }, () => ask(port)));
    const refilled = Math.ceil((performance.now() - begunAtMs) / 1000);
    const admitted = replies.filter((reply) => reply === 200).length;
    assert.equal(replies.filter((reply) => reply === 429).length, 200 - admitted);
    assert.ok(admitted >= 40 && admitted <= 40 + refilled, `${admitted} in ${refilled} s`);
    await eventually(
      () => processes.reduce((sum, one) => sum + served(one), 0) === 200,
      'a line for each request',
    );
    for (const one of processes) assert.ok(served(one) > 0);
  });
});
