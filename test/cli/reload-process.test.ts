/** SIGHUP and other signals, sent to the program. */

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { dirname, join } from 'node:path';
import { before, describe, test, type TestContext } from 'node:test';

import { chatBody, providerToml } from '../support/gateway.ts';
import { startHeldUpstream } from '../support/held-stream.ts';
import {
  buildOnce,
  emptyFolder,
  parseLog,
  ROOT,
  startProgram,
  startServing,
  tcpSocketsOf,
  type Line,
  type ProgramOptions,
} from '../support/process.ts';
import { eventually, openChat } from '../support/streams.ts';
import { CHUNK, completion, completionEvents, startUpstream } from '../support/upstream.ts';

before(buildOnce);

const SERVER_TOML = '[server]\nhost = "127.0.0.1"\nport = 0\n';

/** Starts the program with these settings, and other files in the same folder. */
async function start(t: TestContext, toml: string, files: Readonly<Record<string, string>> = {}) {
  const path = join(emptyFolder(t, { ...files, 'settings.toml': toml }), 'settings.toml');
  return { ...(await startWith(t, ['--config', path])), path };
}

async function startWith(t: TestContext, args: readonly string[], options: ProgramOptions = {}) {
  // On a free port, in case SIGUSR1 opens a debugger.
  const env = { NODE_OPTIONS: '--inspect-port=0', ...options.env };
  const program = await startServing(t, args, { ...options, env });
  await eventually(() => program.lines('started').length === 1, 'the start');
  /** Sends SIGHUP, and returns the first line about it. */
  const hangUp = async (): Promise<Line> => {
    const { length } = program.stdout();
    const outcomes = () => parseLog(program.stdout().slice(length), 'reloaded', 'reload failed');
    program.child.kill('SIGHUP');
    await eventually(() => outcomes().length > 0, 'a reload');
    return outcomes()[0]!;
  };
  return { ...program, hangUp };
}

/** Sends a chat completion, reads its answer, and returns the status. */
async function statusOf(port: number, token: string): Promise<number> {
  const response = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify(chatBody()),
  });
  await response.arrayBuffer();
  return response.status;
}

describe('SIGHUP', { concurrency: 4 }, () => {
  test('names changes and needed restarts, and fails if the file is gone', async (t) => {
    const upstream = await startUpstream(t);
    const { port, path, lines, hangUp } = await start(t, SERVER_TOML + providerToml(upstream));
    const more = 'cors = true\n[admin]\nport = 0\n';
    writeFileSync(path, `${SERVER_TOML.replace('0.0.1', '0.0.2')}${more}${providerToml(upstream)}`);
    assert.equal(String((await hangUp())['changed']), 'server.cors');
    const [restart] = lines('restart needed');
    const names = String(restart?.['settings']).split(',');
    assert.deepEqual(names.toSorted(), ['admin.port', 'server.host']);
    assert.equal(await statusOf(port, 'any'), 200);

    // Without the file, or with a folder in its place, the settings stay.
    rmSync(path);
    assert.equal((await hangUp())['cause'], `${path}: no such file`);
    mkdirSync(path);
    assert.equal(
      (await hangUp())['cause'],
      `${path}: is not a regular file, and cannot be read again`,
    );
    assert.equal(await statusOf(port, 'any'), 200);
    rmSync(path, { recursive: true });
    writeFileSync(path, SERVER_TOML);
    assert.equal((await hangUp())['message'], 'reloaded');
    assert.equal(await statusOf(port, 'any'), 400);
  });

  test('reads the files named in the settings again', async (t) => {
    const upstream = await startUpstream(t);
    const toml = `${SERVER_TOML}[server.auth]\nkeys = ["\${file:team}"]\n${providerToml(upstream)}`;
    const { port, path, hangUp } = await start(t, toml, { team: 'key-one\n' });
    const team = join(dirname(path), 'team');
    const statuses = async () => [await statusOf(port, 'key-one'), await statusOf(port, 'key-two')];
    assert.deepEqual(await statuses(), [200, 401]);
    writeFileSync(team, 'key-two\n');
    assert.equal(String((await hangUp())['changed']), 'server.auth.keys');
    assert.deepEqual(await statuses(), [401, 200]);
    rmSync(team);
    assert.match(String((await hangUp())['cause']), /team: no such file$/);
    assert.deepEqual(await statuses(), [401, 200]);
  });

  test('fails if ./gateway.toml is gone, and uses it if it comes later', async (t) => {
    const upstream = await startUpstream(t);
    const cwd = emptyFolder(t);
    const env = { GATEWAY_PORT: '0', GATEWAY_HOST: '127.0.0.1' };
    const { port, hangUp } = await startWith(t, [], { cwd, env });
    assert.equal((await hangUp())['message'], 'reloaded');
    const path = join(cwd, 'gateway.toml');
    writeFileSync(path, providerToml(upstream));
    assert.equal((await hangUp())['message'], 'reloaded');
    assert.equal(await statusOf(port, 'any'), 200);
    rmSync(path);
    assert.match(String((await hangUp())['cause']), /gateway\.toml: no longer exists$/);
    assert.equal(await statusOf(port, 'any'), 200);
  });

  test('fails if the settings came from a pipe, without waiting for another writer', async (t) => {
    const upstream = await startUpstream(t);
    const folder = emptyFolder(t, { text: SERVER_TOML + providerToml(upstream) });
    const pipe = join(folder, 'pipe');
    assert.equal(spawnSync('mkfifo', [pipe]).status, 0);
    const writer = spawn('sh', ['-c', `cat '${join(folder, 'text')}' > '${pipe}'`]);
    t.after(() => writer.kill());
    const { port, hangUp } = await startWith(t, ['--config', pipe]);
    assert.equal((await hangUp())['message'], 'reload failed');
    assert.equal(await statusOf(port, 'any'), 200);
  });

  test('sent several times makes reloads in sequence', async (t) => {
    const { child, lines, exit } = await start(t, SERVER_TOML);
    for (let count = 0; count < 50; count += 1) child.kill('SIGHUP');
    await eventually(() => lines('reloaded').length > 0, 'a reload');
    child.kill('SIGTERM');
    assert.equal(await exit, 0);
    assert.deepEqual(lines('reload failed', 'uncaught exception'), []);
  });

  test('works when standard output and standard error are no longer read', async (t) => {
    const upstream = await startUpstream(t);
    const toml = (key: string) =>
      `${SERVER_TOML}[server.auth]\nkeys = ["${key}"]\n${providerToml(upstream)}`;
    const { port, path, child } = await start(t, toml('key-one'));
    child.stdout!.destroy();
    child.stderr!.destroy();
    writeFileSync(path, toml('key-two'));
    child.kill('SIGPIPE');
    child.kill('SIGHUP');
    await eventually(async () => (await statusOf(port, 'key-two')) === 200, 'the new key');
    writeFileSync(path, '[broken');
    child.kill('SIGHUP');
    for (let round = 0; round < 5; round += 1) assert.equal(await statusOf(port, 'key-two'), 200);
    assert.equal(await statusOf(port, 'key-one'), 401);
  });
});

const HARMLESS = ['SIGHUP', 'SIGUSR1', 'SIGUSR2', 'SIGPIPE'] as const;

/** Starts a process in which SIGUSR1 opens a debugger's port. */
async function startWithoutHandler(t: TestContext) {
  const script = 'setInterval(() => {}, 60_000); console.log("runs")';
  const child = spawn(process.execPath, ['--inspect-port=0', '-e', script], {
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  t.after(() => child.kill('SIGKILL'));
  await once(child.stdout, 'data');
  return child;
}

const SLOW_LISTEN = `--import=${join(ROOT, 'test', 'support', 'slow-listen.mjs')}`;

describe('SIGHUP, SIGUSR1, SIGUSR2 and SIGPIPE do no harm', { concurrency: 4 }, () => {
  test('while it serves: a stream goes on, and no debugger listens', async (t) => {
    const { upstream, finish } = await startHeldUpstream(t);
    const { port, child, stderr, exit, hangUp } = await start(
      t,
      SERVER_TOML + providerToml(upstream),
    );
    const stream = openChat(port);
    await eventually(() => stream.text() === CHUNK, 'the first event');
    assert.equal(tcpSocketsOf(child.pid!).listening, 1);
    const other = await startWithoutHandler(t);
    for (const signal of [...HARMLESS, ...HARMLESS]) child.kill(signal);
    // Sent later: when its debugger listens, the gateway's debugger would listen, too.
    other.kill('SIGUSR1');
    await eventually(
      () => tcpSocketsOf(other.pid!).listening === 1,
      'the debugger of the other process',
    );
    assert.equal((await hangUp())['message'], 'reloaded');
    assert.equal(tcpSocketsOf(child.pid!).listening, 1);
    finish();
    assert.equal(await stream.ended, CHUNK + completionEvents());
    assert.doesNotMatch(stderr(), /debugger|inspector/i);
    child.kill('SIGTERM');
    assert.equal(await exit, 0);
  });

  test('before it listens, and SIGHUP then reloads already', async (t) => {
    const upstream = await startUpstream(t);
    const folder = emptyFolder(t, { 'settings.toml': SERVER_TOML });
    const path = join(folder, 'settings.toml');
    const reloaded = join(folder, 'reloaded');
    const program = startProgram(t, ['--config', path], {
      env: { NODE_OPTIONS: SLOW_LISTEN, LISTEN_ONCE: reloaded },
    });
    const { child, lines, stderr } = program;
    await eventually(() => stderr().includes('about to listen'), 'the start');
    writeFileSync(path, SERVER_TOML + providerToml(upstream));
    for (const signal of HARMLESS) child.kill(signal);
    await eventually(() => lines('reloaded').length === 1, `the reload: ${stderr()}`);
    writeFileSync(reloaded, '');
    await eventually(() => lines('started').length === 1, `the start: ${stderr()}`);
    assert.deepEqual(lines('started')[0]!['providers'], ['p']);
    assert.doesNotMatch(stderr(), /debugger|inspector/i);
    const port = Number(/^listening .*:(\d+)\/v1/m.exec(stderr())?.[1]);
    assert.equal(await statusOf(port, 'any'), 200);
  });

  test('before it listens SIGTERM ends it with 0', async (t) => {
    const env = { NODE_OPTIONS: SLOW_LISTEN, LISTEN_ONCE: '/nothing/here' };
    const { child, exit, lines, stderr } = startProgram(t, [], { env });
    await eventually(() => stderr().includes('about to listen'), 'the start');
    child.kill('SIGTERM');
    assert.equal(await exit, 0);
    const messages = lines().map(({ message }) => message);
    assert.deepEqual(messages, ['draining', 'stopped']);
    assert.equal(stderr(), 'about to listen\n');
  });

  test('in a drain: requests are finished, and nothing is reloaded', async (t) => {
    const { upstream, finish } = await startHeldUpstream(t);
    const { port, child, lines, exit } = await start(t, SERVER_TOML + providerToml(upstream));
    const chat = openChat(port, chatBody());
    await eventually(() => upstream.requests.length === 1, 'the request');
    child.kill('SIGTERM');
    await eventually(() => lines('draining').length === 1, 'the drain');
    for (const signal of HARMLESS) child.kill(signal);
    await eventually(() => lines('reload ignored').length === 1, 'the line');
    finish();
    assert.equal((await chat.response).statusCode, 200);
    assert.equal(await exit, 0);
    assert.deepEqual(lines('reloaded'), []);
  });
});

describe('drain_delay', { concurrency: 4 }, () => {
  test('keeps the port open while /health and /ready answer 503', async (t) => {
    const upstream = await startUpstream(t);
    const toml = `${SERVER_TOML}drain_delay = 3600\n[admin]\nport = 0\n${providerToml(upstream)}`;
    const { port, child, lines, exit } = await start(t, toml);
    const adminUrl = String(lines('started')[0]!['admin_url']);
    assert.equal((await fetch(`${adminUrl}ready`)).status, 200);
    assert.equal((await fetch(`http://127.0.0.1:${port}/ready`)).status, 401);
    child.kill('SIGTERM');
    await eventually(() => lines('draining').length === 1, 'the drain');
    const health = await fetch(`http://127.0.0.1:${port}/health`);
    assert.equal(health.status, 503);
    assert.equal(((await health.json()) as { status: string }).status, 'draining');
    const ready = await fetch(`${adminUrl}ready`);
    assert.deepEqual([ready.status, await ready.json()], [503, { status: 'draining' }]);
    const chat = openChat(port, chatBody());
    const { statusCode, headers } = await chat.response;
    assert.deepEqual([statusCode, headers.connection], [200, 'close']);
    assert.deepEqual(JSON.parse(await chat.ended), completion());
    // A further signal ends the process at once.
    child.kill('SIGINT');
    assert.equal(await exit, 1);
    assert.equal(lines('stopped')[0]?.['cut'], 0);
  });

  test('ends with the port closed and the process over, and a reload can set it', async (t) => {
    const admin = '[admin]\nport = 0\n';
    const { path, port, child, lines, exit, hangUp } = await start(t, SERVER_TOML + admin);
    // Neither an idle connection nor an open page may delay the end.
    const feed = await fetch(`${String(lines('started')[0]!['admin_url'])}events`);
    const idle = connect(port, '127.0.0.1');
    await once(idle, 'connect');
    writeFileSync(path, `${SERVER_TOML}drain_delay = 2\n${admin}`);
    await hangUp();
    const startMs = performance.now();
    child.kill('SIGTERM');
    assert.equal(await exit, 0);
    assert.ok(performance.now() - startMs >= 1990, 'not before');
    await feed.text().catch(() => {});
    assert.equal(lines('stopped').length, 1);
    await assert.rejects(statusOf(port, 'any'));
  });
});
