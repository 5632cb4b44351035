/** Worker threads that fail, and gateways with workers that cannot start. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { readFileSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { before, describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { chatBody, providerToml } from '../support/gateway.ts';
import { startHeldUpstream } from '../support/held-stream.ts';
import {
  buildOnce,
  emptyFolder,
  freePort,
  permitOnly,
  ROOT,
  runProgram,
  SERVER,
  startProgram,
  type Line,
  type Program,
} from '../support/process.ts';
import { createGate, eventually } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { completion, sendJson, startUpstream } from '../support/upstream.ts';
import {
  launchWorkers,
  startWorkers,
  type Client,
  type WorkerProgram,
} from '../support/worker-program.ts';
import { isRefused } from '../support/raw.ts';
import { ONLY_ONE_WORKER as skip } from '../support/workers.ts';

before(buildOnce);

/** A gateway of two workers, each with a request that the provider answers when `finish` is called. */
async function startBusy(t: TestContext, nodeOptions = '', server = '') {
  const { opened, open: finish } = createGate();
  const upstream = await startUpstream(t, async ({ body }, response) => {
    if (body.includes('"model":"held"')) await opened;
    sendJson(response, completion());
  });
  const limits = 'max_concurrent_requests = 4';
  const toml = `${server}[admin]\nport = 0\n${providerToml(upstream, 'p', `models = ["m"]\n${limits}`)}`;
  const program = await startWorkers(t, { toml, workers: 2, nodeOptions });
  const clients = await program.connectToEach();
  const held = new Map(
    [...clients].map(([thread, client]) => [thread, client.chat(chatBody({ model: 'p/held' }))]),
  );
  for (const reply of held.values()) reply.catch(() => {});
  const wasSent = () => upstream.requests.length === 2;
  await eventually(wasSent, 'both requests are at the provider');
  return { program, upstream, clients, held, finish };
}

/** Returns a new connection to the worker. */
async function connectTo(program: WorkerProgram, thread: number): Promise<Client> {
  return (await program.connectToEach()).get(thread)!;
}

/** Waits for the value of a metric: a request is over a little after its client has the answer. */
async function untilMetric(program: WorkerProgram, figure: string): Promise<void> {
  const read = async () => (await fetch(program.adminUrl('/metrics'))).text();
  while (!(await read()).includes(`\ngateway_${figure}\n`)) await sleep(20);
}

/** Nothing of a worker that has ended is counted any more, and all four requests may be in flight. */
async function assertReclaimed(program: WorkerProgram): Promise<void> {
  const expected = ['requests_in_flight 0', 'buffered_bytes 0', 'open_streams 0'];
  // That of the other worker.
  if (!OVER_FETCH) expected.push('upstream_connections_open 1');
  for (const figure of expected) await untilMetric(program, figure);
  const clients = Array.from({ length: 4 }, program.connect);
  const replies = await Promise.all(clients.map((client) => client.chat()));
  assert.deepEqual(
    replies.map(({ status }) => status),
    [200, 200, 200, 200],
  );
}

async function assertStops(program: WorkerProgram): Promise<void> {
  program.child.kill('SIGTERM');
  assert.equal(await program.exit, 0, program.stderr());
  assert.equal(program.lines().at(-1)!['message'], 'stopped');
}

describe('a worker', { concurrency: 2, skip }, () => {
  test('in which an exception is not caught finishes its requests and is replaced', async (t) => {
    const { program, held, finish } = await startBusy(t);
    await (await connectTo(program, 2)).inflict('throw');
    const [line] = await program.logged('uncaught exception');
    assert.deepEqual([line!['level'], line!['worker']], ['error', 2]);
    assert.match(String(line!['cause']), /^Error: thrown by a test\n/);
    await program.logged('worker started');
    // It takes no connections, but its request is still there.
    assert.deepEqual(program.lines('worker ended'), []);
    assert.deepEqual(new Set((await program.connectToEach()).keys()), new Set([1, 3]));
    finish();
    for (const [thread, reply] of held) {
      const { status, thread: answeredBy } = await reply;
      assert.deepEqual([status, answeredBy], [200, thread]);
    }
    const [ended] = await program.logged('worker ended');
    assert.deepEqual([ended!['level'], ended!['worker']], ['error', 2]);
    const isLogged = ({ upstream_model: model }: Line) => model === 'held';
    assert.equal(program.lines('request').filter(isLogged).length, 2, 'the last line is not lost');
    await assertReclaimed(program);
    await assertStops(program);
    assert.equal(program.lines('uncaught exception').length, 1);
    assert.equal(program.lines('worker started').length, 1);
  });

  test('that ends with its last request logs that one too', async (t) => {
    const { program, clients } = await startBusy(t);
    const client = await connectTo(program, 1);
    await client.inflict('throw');
    client.close();
    await program.logged('worker started');
    clients.get(1)!.close();
    await program.logged('worker ended');
    const [{ upstream_model: model, outcome } = {}] = program.lines('request');
    assert.deepEqual([model, outcome], ['held', 'client_closed']);
  });

  for (const [what, fault, nodeOptions] of [
    ['ends', 'exit', ''],
    // Node can end the thread alone only if V8's last collection moves little: with more, V8 ends the process.
    ['runs out of memory', 'memory', '--max-old-space-size=64 --max-semi-space-size=1'],
  ] as const) {
    test(`that ${what} takes only its own requests with it, and is replaced`, async (t) => {
      const { program, held, finish } = await startBusy(t, nodeOptions);
      await (await connectTo(program, 1)).inflict(fault);
      await assert.rejects(held.get(1)!);
      const [line] = await program.logged('worker ended');
      assert.equal(line!['worker'], 1);
      if (fault === 'memory') assert.match(String(line!['cause']), /ERR_WORKER_OUT_OF_MEMORY/);
      await program.logged('worker started');
      finish();
      assert.equal((await held.get(2)!).status, 200);
      await assertReclaimed(program);
      await assertStops(program);
    });
  }

  test('that fails before a drain finishes its requests in it, which are counted', async (t) => {
    const { program, finish } = await startBusy(t);
    await (await connectTo(program, 1)).inflict('throw');
    await program.logged('worker started');
    await untilMetric(program, 'requests_in_flight 2');
    program.child.kill('SIGTERM');
    await program.logged('draining');
    finish();
    await program.exit;
    const { finished, cut } = program.lines('stopped')[0]!;
    assert.deepEqual([finished, cut], [2, 0]);
  });

  test('that ends in a drain: its requests are counted as cut', async (t) => {
    const { program, finish } = await startBusy(t, '', '[server]\ndrain_delay = 2\n');
    const client = await connectTo(program, 1);
    await untilMetric(program, 'requests_in_flight 2');
    program.child.kill('SIGTERM');
    await program.logged('draining');
    await client.inflict('exit');
    await program.logged('worker ended');
    finish();
    assert.equal(await program.exit, 0, program.stderr());
    const { finished, cut } = program.lines('stopped')[0]! as { finished?: number; cut?: number };
    // The request that ends the worker is answered before, or cut.
    assert.equal(finished! + cut!, 3);
    assert.ok(cut! > 0 && finished! > 0, `${finished} are finished, ${cut} are cut`);
  });

  test('that dies again and again is replaced after growing pauses', async (t) => {
    const upstream = await startUpstream(t);
    const program = await startWorkers(t, { toml: providerToml(upstream), workers: 2 });
    for (let deaths = 1; deaths <= 3; deaths += 1) {
      await (await connectTo(program, 1)).inflict('exit');
      await program.logged('worker started', deaths);
    }
    const times = (message: string) =>
      program.lines(message).map(({ time }) => Date.parse(String(time)));
    const started = times('worker started');
    const pauses = times('worker ended').map((ended, index) => started[index]! - ended);
    // Without the few milliseconds by which timers and the clock of the log differ.
    for (const [index, leastMs] of [95, 195, 395].entries()) {
      assert.ok(pauses[index]! >= leastMs, `${pauses.join(' ')} ms`);
    }
    await assertStops(program);
  });

  // In the pause, while its successor starts, and a little later.
  for (const pauseMs of [0, 150, 350]) {
    test(`is being replaced: SIGTERM ${pauseMs} ms after its end ends the process with 0`, async (t) => {
      const upstream = await startUpstream(t);
      const env = { WORKER_SLOW_MS: '300' };
      const program = await startWorkers(t, { toml: providerToml(upstream), workers: 2, env });
      await (await connectTo(program, 1)).inflict('exit');
      await program.logged('worker ended');
      await sleep(pauseMs);
      await assertStops(program);
    });
  }
});

test(
  'no worker accepts connections: the gateway is not ready, and says how many are missing',
  { skip },
  async (t) => {
    const upstream = await startUpstream(t);
    const toml = `[admin]\nport = 0\n${providerToml(upstream)}`;
    const env = { WORKER_SLOW_MS: '1500' };
    const program = await startWorkers(t, { toml, workers: 2, env });
    const ready = async () => {
      const response = await fetch(program.adminUrl('/ready'));
      return [response.status, await response.json()];
    };
    assert.deepEqual(await ready(), [200, { status: 'ready' }]);
    const clients = [...(await program.connectToEach()).values()];
    for (const [index, client] of clients.entries()) {
      await client.inflict('exit');
      await program.logged('worker missing', index + 1);
    }
    const missing = program.lines('worker missing');
    assert.deepEqual(await ready(), [503, { status: 'no worker' }]);
    assert.deepEqual(
      missing.map(({ level, workers, pause_ms }) => [level, workers, pause_ms]),
      [
        ['warn', 1, 100],
        ['warn', 0, 200],
      ],
    );
    await program.logged('worker started');
    assert.deepEqual(await ready(), [200, { status: 'ready' }]);
  },
);

describe('a start with several workers', { concurrency: 2, skip }, () => {
  test('fails if one of them ends as it starts, with one line', async (t) => {
    const settings = { toml: '', workers: 2, env: { WORKER_FAULT: 'start' } };
    const program = launchWorkers(t, settings);
    assert.equal(await program.exit, 1);
    assert.match(program.stderr(), /^inference-gateway: a worker thread ends as it starts: .+\n$/);
    const ended = program.lines().filter(({ message }) => message === 'worker ended');
    assert.equal(ended.length, 1);
  });

  test('is ended by SIGTERM before it listens, as with one', async (t) => {
    const nodeOptions = `--import=${join(ROOT, 'test', 'support', 'slow-listen.mjs')}`;
    for (const workers of [1, 2]) {
      const program = launchWorkers(t, { toml: '', workers, nodeOptions });
      await eventually(() => program.stderr().includes('about to listen'), 'the start');
      program.child.kill('SIGTERM');
      assert.equal(await program.exit, 0);
      const messages = program.lines().map(({ message }) => message);
      assert.deepEqual(messages, ['draining', 'stopped']);
      assert.equal(program.stderr(), 'about to listen\n');
    }
  });

  test('is ended by SIGTERM while the second worker starts, and when both listen', async (t) => {
    const preload = join(ROOT, 'test', 'support', 'slow-listen.mjs');
    for (const [moment, env, nodeOptions] of [
      ['worker 2 starts', { WORKER_SLOW_MS: '700' }, ''],
      ['about to listen', { SLOW_LISTEN: 'main' }, `--import=${preload}`],
    ] as const) {
      const toml = '[admin]\nport = 0\n';
      const port = await freePort();
      const allEnv = { ...env, GATEWAY_PORT: `${port}` };
      const program = launchWorkers(t, { toml, workers: 2, env: allEnv, nodeOptions });
      await eventually(() => program.stderr().includes(moment), moment);
      program.child.kill('SIGTERM');
      await eventually(async () => isRefused(port), 'the first worker has closed the port');
      // Another one takes it before the second worker can.
      const other = createServer()
        .listen(port, '127.0.0.1')
        .on('error', () => {});
      t.after(() => other.close());
      assert.equal(await program.exit, 0, program.stderr());
      const messages = program.lines().map(({ message }) => message);
      assert.deepEqual(messages, ['draining', 'stopped']);
    }
  });

  const run = async (t: TestContext, workers: number, host: string, port: number) =>
    runProgram(t, ['--host', host, '--port', `${port}`], {
      env: { GATEWAY_WORKERS: `${workers}` },
    });

  test('on a port that another server has says so, as with one', async (t) => {
    const server = createServer().listen(0, '127.0.0.1');
    t.after(() => server.close());
    await once(server, 'listening');
    const gateway = await startWorkers(t, { toml: '', workers: 2 });
    for (const port of [(server.address() as AddressInfo).port, gateway.port]) {
      const stderr = `inference-gateway: port ${port} is already in use; choose another with --port\n`;
      for (const workers of [1, 2]) {
        assert.deepEqual(await run(t, workers, '127.0.0.1', port), { code: 1, stdout: '', stderr });
      }
    }
  });

  /** Starts both at once, with workers that take their time, and waits until each listens or has ended. */
  const startBoth = async (t: TestContext, hosts: readonly string[], port: number) => {
    const hook = join(ROOT, 'test', 'support', 'worker-hook.mjs');
    const env = {
      GATEWAY_WORKERS: '2',
      NODE_OPTIONS: `--import=${hook}`,
      WORKER_SLOW_MS: '500',
    };
    const programs = hosts.map((host) =>
      startProgram(t, ['--host', host, '--port', `${port}`], { env }),
    );
    const isSettled = ({ child, stderr }: Program) =>
      child.exitCode !== null || /^listening /m.test(stderr());
    await eventually(() => programs.every(isSettled), 'each listens or has ended');
    return programs;
  };

  test('at the same moment as another one at an overlapping address: one listens, one says so', async (t) => {
    let port = 0;
    let ended: Program[] = [];
    // Both may listen if they probe within the same microseconds, as docs/deployment.md says.
    for (let attempt = 0; attempt < 4 && ended.length !== 1; attempt += 1) {
      port = await freePort();
      const programs = await startBoth(t, ['0.0.0.0', '127.0.0.1'], port);
      ended = programs.filter(({ child }) => child.exitCode !== null);
    }
    assert.equal(ended.length, 1);
    assert.equal(await ended[0]!.exit, 1);
    const text = `inference-gateway: port ${port} is already in use; choose another with --port\n`;
    assert.ok(ended[0]!.stderr().endsWith(text), ended[0]!.stderr());
  });

  test('needs no socket that another user could take first', async (t) => {
    const port = await freePort();
    const squatter = createServer().listen(`\0inference-gateway ${port}`);
    t.after(() => squatter.close());
    await once(squatter, 'listening');
    const env = { GATEWAY_WORKERS: '2' };
    const args = ['--host', '127.0.0.1', '--port', `${port}`];
    const { child, stderr } = startProgram(t, args, { env });
    await eventually(() => /^listening /m.test(stderr()), 'it listens');
    const sockets = readFileSync('/proc/net/unix', 'utf8');
    assert.equal(sockets.match(/@inference-gateway /g)!.length, 1, 'there is the other one alone');
    assert.equal(child.exitCode, null);
  });

  test('on the port of another one with its own address listens, also at the same moment', async (t) => {
    const programs = await startBoth(t, ['127.0.0.1', '127.0.0.2'], await freePort());
    for (const { stderr } of programs) assert.match(stderr(), /^listening /m);
  });

  test('on an address that cannot be had says so, as with one', async (t) => {
    for (const host of ['192.0.2.1', 'no.such.host.invalid']) {
      const [one, two] = [await run(t, 1, host, 0), await run(t, 2, host, 0)];
      assert.equal(one.code, 1);
      assert.match(one.stderr, /^inference-gateway: [^\n]+--host\n$/);
      assert.deepEqual(two, one);
    }
  });

  test('on a port that is not permitted says so, as with one', (t) => {
    const unprivileged = ['setpriv', '--bounding-set=-all', '--inh-caps=-all'];
    const [one, two] = [1, 2].map((workers) => {
      const args = [SERVER, '--host', '127.0.0.1', '--port', '1', '--workers', `${workers}`];
      const [file = '', ...rest] = [...unprivileged, process.execPath, ...args];
      const cwd = emptyFolder(t);
      return spawnSync(file, rest, { cwd, encoding: 'utf8', timeout: 9000 });
    });
    if (one!.status !== 1) return t.skip('every port is permitted here');
    const line = 'inference-gateway: port 1 is not permitted; choose one above 1023 with --port\n';
    for (const { status, stdout, stderr } of [one!, two!]) {
      assert.deepEqual([status, stdout, stderr], [1, '', line]);
    }
  });

  test('listens at an IPv6 address', async (t) => {
    const probe = createServer().listen(0, '::1');
    const hasIpv6 = await once(probe, 'listening').then(
      () => true,
      () => false,
    );
    if (!hasIpv6) return t.skip('there is no IPv6 here');
    probe.close();
    const program = await startWorkers(t, { toml: '', workers: 2, env: { GATEWAY_HOST: '::1' } });
    const response = await fetch(`http://[::1]:${program.port}/health`);
    assert.equal(response.status, 200);
  });

  test('without permission for threads says which option is missing, in one line', (t) => {
    const folder = realpathSync(emptyFolder(t));
    const options = permitOnly([SERVER, folder]);
    const args = [SERVER, '--host', '127.0.0.1', '--port', '0', '--workers', '2'];
    const { status, stdout, stderr } = spawnSync(process.execPath, [...options, ...args], {
      cwd: folder,
      encoding: 'utf8',
    });
    assert.deepEqual([status, stdout], [1, '']);
    assert.match(stderr, /^(?:\(.*\n)*inference-gateway: .*; add --allow-worker\n$/);
  });

  test('is healthy for --healthcheck', async (t) => {
    const { upstream } = await startHeldUpstream(t);
    const program = await startWorkers(t, { toml: providerToml(upstream), workers: 2 });
    const args = ['--healthcheck', '--host', '127.0.0.1', '--port', `${program.port}`];
    const { code, stdout } = await runProgram(t, args, { env: { GATEWAY_WORKERS: '2' } });
    assert.equal(code, 0);
    assert.match(stdout, /healthy/);
  });
});
