import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { openFeed } from '../support/feed.ts';
import {
  copyFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  writeFileSync,
} from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { before, describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { VERSION } from '../../src/lib/version.ts';
import { assertError } from '../support/errors.ts';
import { chatBody, providerToml, rawChat, startGateway } from '../support/gateway.ts';
import { startHeldUpstream } from '../support/held-stream.ts';
import {
  assertStops,
  buildOnce,
  CAN_DENY_NET,
  emptyFolder,
  NO_PERMISSION_MODEL,
  parseLog,
  permitOnly,
  ROOT,
  runProgram,
  SERVER,
  startCommand,
  startServing,
  untilServing,
  type ProgramOptions,
} from '../support/process.ts';
import { isRefused, openRaw } from '../support/raw.ts';
import { TRANSPORT_ENV } from '../support/transport.ts';
import { createGate, dataOf, eventually, openChat } from '../support/streams.ts';
import { LEFT_TO_SWEEPS } from '../support/sweep.ts';
import {
  CHUNK,
  completion,
  completionEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
} from '../support/upstream.ts';

before(buildOnce);

/** Runs a gateway's command, and waits until it listens. */
async function start(t: TestContext, command: readonly string[], options: ProgramOptions = {}) {
  const serving = await untilServing(startCommand(t, command, options));
  const kill = (signal: NodeJS.Signals) => serving.child.kill(signal);
  return { ...serving, pid: serving.child.pid!, kill };
}

/**
 * Creates a folder with settings, with provider `p` if there is an upstream. Returns the arguments
 * to use them.
 */
function settingsFor(t: TestContext, upstream: FakeUpstream | undefined, more = '') {
  const provider = upstream ? providerToml(upstream) : '';
  const toml = `[server]\nhost = "127.0.0.1"\nport = 0\n${more}${provider}`;
  const folder = emptyFolder(t, { 'settings.toml': toml });
  const config = join(realpathSync(folder), 'settings.toml');
  return { folder, config, args: [SERVER, '--config', config] };
}

/** Reads the number of dropped lines from the metrics. */
async function droppedLines(adminUrl: unknown): Promise<number> {
  const metrics = await (await fetch(new URL('/metrics', String(adminUrl)))).text();
  return Number(/^gateway_log_lines_dropped_total (\d+)$/m.exec(metrics)?.[1]);
}

const UNREAD = 1000;

/**
 * Starts a gateway whose log is not read, and fills the pipe with more requests than the system
 * buffers.
 */
async function startUnread(t: TestContext, [script, ...args]: readonly string[]) {
  const program = await startServing(t, args, { script: script! });
  await eventually(() => program.lines('started').length === 1, 'the start');
  program.child.stdout!.pause();
  const socket = connect(program.port, '127.0.0.1');
  const x = 'x'.repeat(128);
  const one = `GET /${'x'.repeat(600)} HTTP/1.1\r\nhost: a\r\nx-request-id: ${x}\r\n\r\n`;
  socket.write(one.repeat(UNREAD - 1) + one.replace('host: a', 'host: a\r\nconnection: close'));
  await once(socket.resume(), 'end');
  return program;
}

const quote = (words: readonly string[]) => words.map((word) => `'${word}'`).join(' ');

/** Sends a request refused at once, which is over before a drain. */
async function assertRefused(port: number): Promise<void> {
  const { response, ended } = openChat(port, {});
  assert.equal((await response).statusCode, 400);
  await ended;
}

async function assertServes(port: number): Promise<void> {
  const complete = openChat(port, chatBody());
  assert.equal((await complete.response).statusCode, 200);
  assert.deepEqual(JSON.parse(await complete.ended), completion());
}

describe('the process', { concurrency: 4 }, () => {
  test('goes on when the reader of its log ends after the first line', async (t) => {
    const upstream = await startUpstream(t);
    const { args } = settingsFor(t, upstream, '[admin]\nport = 0\n');
    const command = quote([process.execPath, ...args]);
    const { port, stdout, lines } = await start(t, ['sh', '-c', `${command} | head -n 1`]);
    for (let round = 0; round < 5; round += 1) await assertServes(port);
    await eventually(() => stdout().includes('\n'), 'the one line');
    const [{ admin_url: adminUrl } = {}] = lines('started');
    const formerly = await droppedLines(adminUrl);
    for (let round = 0; round < 5; round += 1) await assertServes(port);
    assert.equal(stdout().trimEnd().split('\n').length, 1);
    await eventually(
      async () => (await droppedLines(adminUrl)) >= formerly + 5,
      'the lines that are lost are counted',
    );
  });

  const hasPrlimit = spawnSync('prlimit', ['--version']).status === 0;
  const skipFull = !hasPrlimit && 'prlimit is not there';
  test(
    'counts the log lines that a full disk loses, and reports them when there is room',
    { skip: skipFull },
    async (t) => {
      const { args, folder } = settingsFor(t, undefined, '[admin]\nport = 0\n');
      const log = join(folder, 'log');
      // The file cannot grow beyond 8 KiB, so a line is written in part, and later lines not at
      // all.
      const command = `ulimit -S -f 16; exec ${quote([process.execPath, ...args])} >> '${log}'`;
      const { pid, port } = await start(t, ['sh', '-c', command]);
      const text = () => readFileSync(log, 'utf8');
      await eventually(() => text().includes('started'), 'the first line');
      const [{ admin_url: adminUrl } = {}] = parseLog(text(), 'started');
      const count = 40;
      for (let round = 0; round < count; round += 1) await assertRefused(port);
      const complete = text().split('\n').length - 1;
      await eventually(
        async () => (await droppedLines(adminUrl)) === 1 + count - complete,
        `all lines but ${complete} are lost`,
      );
      assert.ok(complete < count);
      const { length } = text();
      assert.equal(spawnSync('prlimit', [`--pid=${pid}`, '--fsize=unlimited:']).status, 0);
      await assertRefused(port);
      // The partial line ends, and the next lines are whole.
      const more = () => text().slice(length + 1);
      const dropped = () => parseLog(more(), 'log lines were dropped');
      await eventually(() => dropped().length > 0, 'the report');
      assert.equal(text()[length], '\n');
      assert.deepEqual([dropped().length, dropped()[0]!['lines']], [1, 1 + count - complete]);
      assert.equal(parseLog(more(), 'request').length, 1);
      assert.doesNotMatch(more(), /\n\n/);
    },
  );

  test('counts every line that it loses to /dev/full', async (t) => {
    const { args } = settingsFor(t, undefined, '[admin]\nport = 0\n');
    const command = `exec ${quote([process.execPath, ...args])} > /dev/full`;
    const { port, exit, kill, stderr } = await start(t, ['sh', '-c', command]);
    for (let round = 0; round < 5; round += 1) await assertRefused(port);
    const adminUrl = /^admin +(.*)$/m.exec(stderr())?.[1];
    await eventually(async () => (await droppedLines(adminUrl)) === 6, 'the start, five requests');
    kill('SIGTERM');
    assert.equal(await exit, 0);
    assert.match(stderr(), /^inference-gateway: 8 log lines were lost$/m);
  });

  test('waits at its end until the log is read', async (t) => {
    const upstream = await startUpstream(t);
    const { args } = settingsFor(t, upstream);
    const { child, exit, lines, port, stderr } = await startUnread(t, args);
    child.kill('SIGTERM');
    await eventually(async () => isRefused(port), 'the port is closed');
    child.stdout!.resume();
    assert.equal(await exit, 0);
    assert.equal(lines('request').length, UNREAD);
    for (const name of ['draining', 'stopped']) assert.equal(lines(name).length, 1);
    assert.doesNotMatch(stderr(), /lost/);
  });

  test('ends in spite of an unread log, and reports how many lines are lost', async (t) => {
    const upstream = await startUpstream(t);
    const { args } = settingsFor(t, upstream);
    const { child, exit, stdout, stderr } = await startUnread(t, args);
    const exited = once(child, 'exit');
    child.kill('SIGTERM');
    assert.deepEqual(await exited, [0, null]);
    child.stdout!.resume();
    await exit;
    const lost = Number(/^inference-gateway: (\d+) log lines were lost$/m.exec(stderr())?.[1]);
    const written = stdout().split('\n').length - 1;
    assert.ok(written < UNREAD, `${written}`);
    // Lines written together count as lost even if some were read.
    assert.ok(lost + written >= UNREAD + 3, `${lost} lost, ${written} written`);
  });

  test('without file descriptors blames no provider, and recovers later', async (t) => {
    const [upstream, other] = [await startUpstream(t), await startUpstream(t)];
    const folder = emptyFolder(t, {
      'settings.toml': [
        '[server]\nhost = "127.0.0.1"\nport = 0\n[admin]\nport = 0\n[providers]\nfallback = ["q"]',
        // No list is fetched, because its idle connection could be used.
        providerToml(upstream, 'p', 'models = ["m"]\nretries = 0'),
        providerToml(other, 'q', 'models = ["m"]\nretries = 0\ndefault_model = "m"'),
      ].join('\n'),
    });
    const settings = join(folder, 'settings.toml');
    const command = quote([process.execPath, SERVER, '--config', settings]);
    const limited = ['sh', '-c', `ulimit -n 64; exec ${command}`];
    const { pid, port, lines } = await start(t, limited, { env: TRANSPORT_ENV });
    await eventually(() => lines('started').length > 0, 'it has started');
    const [{ admin_url: adminUrl } = {}] = lines('started');
    const adminPort = Number(new URL(String(adminUrl)).port);
    const feed = await openFeed(t, adminPort);
    // Connected now, while there are descriptors.
    const scraper = openRaw(t, adminPort);
    const scrape = (path: string) =>
      scraper.socket.write(`GET ${path} HTTP/1.1\r\nhost: localhost\r\n\r\n`);
    scrape('/ready');
    await eventually(() => scraper.text().includes('"ready"'), 'the scraper is connected');

    const sockets: Socket[] = [];
    t.after(() => sockets.forEach((socket) => socket.destroy()));
    const open = () => {
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => {});
      sockets.push(socket);
      return socket;
    };
    const askers = Array.from({ length: 5 }, open);
    for (const asker of askers) {
      asker.write('GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n');
      await once(asker, 'data');
    }
    const openFiles = () => readdirSync(`/proc/${pid}/fd`).length;
    const usual = openFiles();
    const idle = Array.from({ length: 100 }, open);
    await eventually(() => idle.some(({ closed }) => closed), 'no more can be accepted');
    const answers = await Promise.all(
      askers.map(async (asker) => {
        asker.write(rawChat(chatBody()));
        const [bytes] = (await once(asker, 'data')) as [Buffer];
        return bytes.toString();
      }),
    );
    for (const answer of answers) {
      assert.match(answer, /^HTTP\/1\.1 500 /);
      const body = JSON.parse(answer.slice(answer.indexOf('\r\n\r\n'))) as unknown;
      const error = { type: 'internal_error', message: 'Internal server error' };
      assert.deepEqual(body, { error: { ...error, code: 'INTERNAL_ERROR' } });
    }
    await eventually(() => lines('request').length >= 5, 'they are logged');
    for (const { outcome, tries } of lines('request')) {
      const [{ cause } = {}] = tries as Record<string, unknown>[];
      assert.match(
        `${String(outcome)} ${String(cause)}`,
        /^internal_error EMFILE: open files of the process \(ulimit -n\)$/,
      );
    }
    const kindsOf = ({ incidents }: { incidents: Record<string, { kind: string }> }) =>
      Object.values(incidents).map(({ kind }) => kind);
    const state = await feed.next('state', (one) => kindsOf(one).includes('descriptors'));
    assert.deepEqual(kindsOf(state), ['descriptors']);
    const [{ causes }] = Object.values(state.incidents) as [{ causes: string[] }];
    assert.match(causes[0]!, /^EMFILE: /);
    scrape('/metrics');
    const descriptors = /^process_open_fds (\d+)\n[^]*^process_max_fds 64$/m;
    await eventually(() => descriptors.test(scraper.text()), 'the metrics');
    const openDescriptors = Number(descriptors.exec(scraper.text())![1]);
    assert.ok(openDescriptors >= 63, `${openDescriptors}`);
    for (const { failed } of state.providers) assert.ok(!failed, String(failed));
    await eventually(() => lines('incident').length > 0, 'the line that it has begun');
    const told = lines('incident').map(({ level, kind }) => [level, kind]);
    assert.deepEqual(told, [['warn', 'descriptors']]);

    for (const socket of idle) socket.destroy();
    // The gateway turns clients away until it has noticed.
    await eventually(() => openFiles() <= usual, 'they are closed');
    await assertServes(port);
    assert.equal(upstream.requests.length, 1);
    assert.equal(other.requests.length, 0);
    assert.deepEqual(lines('breaker opened'), []);
    await feed.next('state', (one) => kindsOf(one).length === 0);
    await eventually(() => lines('incident ended').length === 1, 'the line that it is over');
    // Five requests at two providers each.
    const failures = Number(lines('incident ended')[0]!['failures']);
    assert.ok(failures >= 10, `${failures}`);
    assert.match(
      await (await fetch(new URL('/metrics', String(adminUrl)))).text(),
      /^gateway_incidents_total\{kind="descriptors"\} 1$/m,
    );
  });

  test('logs one line about its start', async (t) => {
    const upstream = await startUpstream(t);
    const { args, config } = settingsFor(t, upstream, '[admin]\nport = 0\n');
    const withFile = await start(t, [process.execPath, ...args]);
    const folder = realpathSync(emptyFolder(t));
    const env = { GATEWAY_HOST: '127.0.0.1', GATEWAY_PORT: '0', GATEWAY_UPSTREAM: 'fetch' };
    const without = await start(t, program([SERVER]), { cwd: folder, env });
    const lineOf = async ({ lines, port }: typeof withFile) => {
      await eventually(() => lines().length > 0, 'the line');
      const [{ time, url, ...line } = {}, ...more] = lines('started');
      assert.ok(time);
      assert.deepEqual([url, more], [`http://127.0.0.1:${port}/v1`, []]);
      return line;
    };
    const told = (name: string) => new RegExp(`^${name} +(.*)$`, 'm').exec(withFile.stderr())?.[1];
    assert.match(told('admin')!, /^http:\/\/127\.0\.0\.1:[1-9]\d*\/$/);
    const shared = { level: 'info', message: 'started', version: VERSION, node: process.version };
    assert.deepEqual(await lineOf(withFile), {
      ...shared,
      host: '127.0.0.1',
      admin_url: told('admin'),
      providers: ['p'],
      settings: config,
      settings_found: true,
      transport: told('upstream'),
    });
    assert.deepEqual(await lineOf(without), {
      ...shared,
      host: '127.0.0.1',
      providers: [],
      settings: join(folder, 'gateway.toml'),
      settings_found: false,
      transport: 'fetch (GATEWAY_UPSTREAM)',
    });
  });

  test('logs how many requests a drain finds, finishes and cuts', async (t) => {
    const { opened, open: finish } = createGate();
    const upstream = await startUpstream(t, async ({ body }, response) => {
      if (body.includes('"model":"slow"')) return;
      await opened;
      sendJson(response, completion());
    });
    const { args } = settingsFor(t, upstream, 'shutdown_timeout = 2\n');
    const running = await start(t, program(args));
    await assertRefused(running.port);
    const finished = [1, 2].map(() => openChat(running.port, chatBody()));
    const cut = openChat(running.port, chatBody({ model: 'p/slow' }));
    await eventually(() => upstream.requests.length === 3, 'the requests');
    running.kill('SIGTERM');
    await eventually(() => running.stdout().includes('draining'), 'the drain');
    await eventually(async () => isRefused(running.port), 'the port is closed');
    finish();
    for (const { response } of finished) assert.equal((await response).statusCode, 200);
    assert.equal((await cut.response).statusCode, 500);
    assert.equal(await running.exit, 0, running.stderr());
    const facts = ['draining', 'stopped'].map((name) => {
      const [{ time, ...line } = {}] = running.lines(name);
      assert.ok(time);
      return line;
    });
    assert.deepEqual(facts, [
      { level: 'info', message: 'draining', reason: 'SIGTERM', in_flight: 3 },
      { level: 'info', message: 'stopped', finished: 2, cut: 1 },
    ]);
  });

  test('names an address that it cannot have, and exits 1', async (t) => {
    const { port } = new URL((await startUpstream(t)).baseUrl);
    const nowhere = 'host = "no-such-host.invalid"';
    const admin = '[admin]\nkeys = ["key-of-the-operator"]\n';
    const unresolved = (section: string) =>
      new RegExp(
        `^inference-gateway: \\[${section}\\] host: getaddrinfo \\w+ no-such-host\\.invalid\n$`,
      );
    const rows: [toml: string, problem: RegExp][] = [
      [
        `[admin]\nport = ${port}`,
        new RegExp(
          `^inference-gateway: \\[admin\\] port: .*address already in use \\S+:${port}; ` +
            'choose another port with GATEWAY_ADMIN_PORT\n$',
        ),
      ],
      [nowhere, unresolved('server')],
      [`${admin}port = 0\n${nowhere}`, unresolved('admin')],
    ];
    for (const [toml, problem] of rows) {
      const host = toml === nowhere ? '' : 'host = "127.0.0.1"\n';
      const cwd = emptyFolder(t, { 'gateway.toml': `[server]\nport = 0\n${host}${toml}\n` });
      const { code, stdout, stderr } = await runProgram(t, [], { cwd });
      assert.deepEqual([code, stdout], [1, '']);
      assert.match(stderr, problem);
    }
  });

  test('needs no home, no temporary folder and nothing that it can write to', async (t) => {
    const upstream = await startUpstream(t);
    const { args } = settingsFor(t, upstream);
    const env = {
      HOME: '/nonexistent',
      TMPDIR: '/nonexistent',
      XDG_CONFIG_HOME: '/nonexistent',
    };
    // /proc refuses writes even to root, whom no permission bits stop.
    const running = await start(t, program(args), { cwd: '/proc/self', env });
    await assertServes(running.port);
    await assertStops(running);
  });

  const skip = NO_PERMISSION_MODEL;
  test(
    'runs with permission to read itself and its settings, and no other',
    { skip },
    async (t) => {
      const upstream = await startUpstream(t);
      const { folder, config } = settingsFor(t, upstream);
      const program = join(realpathSync(folder), 'program');
      mkdirSync(program);
      const script = join(program, 'server.js');
      copyFileSync(SERVER, script);
      const permissions = permitOnly([script, config]);
      const command = [process.execPath, ...permissions, script, '--config', config];
      const running = await start(t, command);
      await assertServes(running.port);
      const stream = openChat(running.port, chatBody({ stream: true }));
      // A completion instead of the stream is enough, because only an answer is needed.
      assert.equal((await stream.response).statusCode, 501);
      await assertStops(running);
      assert.doesNotMatch(running.stderr(), /ERR_ACCESS_DENIED|\n\s+at /);
    },
  );

  test('without permission to read ./gateway.toml does not start', { skip }, async (t) => {
    const folder = realpathSync(emptyFolder(t));
    const path = join(folder, 'gateway.toml');
    const run = (more: readonly string[], args: readonly string[] = []) =>
      spawnSync(
        process.execPath,
        [...permitOnly([SERVER], false), ...more, SERVER, '--check=offline', ...args],
        { cwd: folder, encoding: 'utf8' },
      );
    const allow = `--allow-fs-read=${path}`;
    // An allowed file that does not exist counts as not found.
    const absent = run([allow]);
    // Without settings there is no provider.
    assert.equal(absent.status, 3, absent.stderr);
    assert.ok(absent.stdout.startsWith(`settings   no ${path}; `), absent.stdout);
    for (const args of [[], ['--config', 'gateway.toml']]) {
      const { status, stdout, stderr } = run([], args);
      assert.deepEqual([status, stdout], [78, '']);
      assert.ok(stderr.includes(`inference-gateway: ${path}: `), stderr);
      assert.ok(stderr.includes(allow), stderr);
      assert.doesNotMatch(stderr, /\n\s+at /);
      writeFileSync(path, '[server]\nhost = "127.0.0.1"\n');
    }
    assert.match(run([allow]).stdout, /^server\.host = "127\.0\.0\.1"$/m);
  });

  const hasNoNet = skip || (!CAN_DENY_NET && 'this Node cannot deny the network');
  test(
    'without permission to use the network prints one line and exits 1',
    { skip: hasNoNet },
    async (t) => {
      const folder = realpathSync(emptyFolder(t));
      const command = permitOnly([SERVER, folder], false);
      for (const args of [['--port', '0'], ['--demo']]) {
        const options = { cwd: folder, encoding: 'utf8' } as const;
        const result = spawnSync(process.execPath, [...command, SERVER, ...args], options);
        assert.equal(result.status, 1);
        assert.equal(result.stdout, '');
        assert.match(result.stderr, /^inference-gateway: .*--allow-net.*\n$/);
      }
    },
  );

  const namespaces = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc'];
  const mayUnshare = spawnSync(namespaces[0]!, [...namespaces.slice(1), 'true']).status === 0;
  const skipPid = !mayUnshare && 'unshare is not there or not permitted';
  test(
    'as process 1 obeys SIGTERM and finishes requests in flight',
    { skip: skipPid },
    async (t) => {
      const { upstream, finish } = await startHeldUpstream(t);
      const { args } = settingsFor(t, upstream);
      const running = await start(t, [...namespaces, process.execPath, ...args]);
      const children = readFileSync(`/proc/${running.pid}/task/${running.pid}/children`, 'utf8');
      const pid = Number(children.trim());
      const names = /^NSpid:\s+(.*)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
      assert.equal(names?.split(/\s+/).at(-1), '1');

      const { response, ended } = openChat(running.port, chatBody());
      await eventually(() => upstream.requests.length === 1, 'the request');
      process.kill(pid, 'SIGTERM');
      await eventually(() => running.stdout().includes('draining'), 'the drain');
      finish();
      assert.equal((await response).statusCode, 200);
      assert.deepEqual(JSON.parse(await ended), completion());
      assert.equal(await running.exit, 0, running.stderr());
    },
  );

  for (const isDraining of [false, true]) {
    const when = isDraining ? ' in a drain' : '';
    test(`logs an uncaught exception${when}, finishes its requests and exits 1`, async (t) => {
      const { upstream, finish } = await startHeldUpstream(t);
      const { args } = settingsFor(t, upstream);
      const preload = join(ROOT, 'test', 'support', 'uncaught.mjs');
      const running = await start(t, [process.execPath, '--import', preload, ...args]);
      const { response, ended } = openChat(running.port, chatBody());
      await eventually(() => upstream.requests.length === 1, 'the request');
      if (isDraining) running.kill('SIGTERM');
      if (isDraining) await eventually(() => running.stdout().includes('draining'), 'the drain');
      running.kill('SIGUSR2');
      await eventually(() => running.stdout().includes('thrown by a test'), 'the exception');
      finish();
      assert.equal((await response).statusCode, 200);
      assert.deepEqual(JSON.parse(await ended), completion());
      assert.equal(await running.exit, 1);
      const lines = running.stdout().trimEnd().split('\n');
      const entries = lines.map((line) => JSON.parse(line) as Record<string, string>);
      const errors = entries.filter(({ level }) => level === 'error');
      assert.equal(errors.length, 1, running.stdout());
      assert.match(errors[0]!['cause'] ?? '', /thrown by a test/);
    });
  }
});

/** Starts a gateway with a stream in flight. `finish` lets the provider send the rest. */
async function startStream(
  t: TestContext,
  command: (args: readonly string[]) => readonly string[],
) {
  const { upstream, finish } = await startHeldUpstream(t);
  const { args } = settingsFor(t, upstream, 'shutdown_timeout = 15\n');
  const scripts = { start: `exec ${quote(program(args))}` };
  const home = emptyFolder(t, { 'package.json': JSON.stringify({ scripts }) });
  const running = await start(t, command(args), { cwd: home, env: { HOME: home } });
  const stream = openChat(running.port);
  await eventually(() => stream.text() === CHUNK, 'the first event');
  return { ...running, stream, finish };
}

const program = (args: readonly string[]) => [process.execPath, ...args];
const drains = (stdout: string) => stdout.split('"draining"').length - 1;

describe('a signal', { concurrency: 4 }, () => {
  const commands: Record<string, typeof program> = {
    'the program': program,
    'npm run': () => ['npm', 'run', '-s', 'start'],
    npx: (args) => ['npx', '--offline', '-c', `exec ${quote(program(args))}`],
  };
  for (const [name, command] of Object.entries(commands)) {
    // Only in the sweeps, because npm takes seconds to start.
    const skip = command !== program && LEFT_TO_SWEEPS;
    test(`Ctrl-C on ${name} lets a stream end whole, and exits 0`, { skip }, async (t) => {
      const { pid, stdout, stderr, exit, stream, finish } = await startStream(t, command);
      // A terminal signals the whole group, and npm signals its child once more. With pauses,
      // because the kernel merges pending signals.
      for (let count = 0; count < 5; count += 1) {
        process.kill(-pid, 'SIGINT');
        await sleep(10);
      }
      await eventually(() => drains(stdout()) > 0, 'the drain');
      finish();
      assert.equal(await stream.ended, CHUNK + completionEvents());
      assert.equal(await exit, 0, stderr());
      assert.equal(drains(stdout()), 1);
    });
  }

  const second: [signals: readonly NodeJS.Signals[], pauseMs: number][] = [
    [['SIGINT', 'SIGTERM'], 0],
    [['SIGTERM', 'SIGTERM'], 1100],
  ];
  for (const [[first, next], pauseMs] of second) {
    test(`${next} ${pauseMs} ms after ${first} ends the process and logs the cut`, async (t) => {
      const { kill, stdout, lines, exit, stream } = await startStream(t, program);
      kill(first!);
      await eventually(() => drains(stdout()) > 0, 'the drain');
      await sleep(pauseMs);
      kill(next!);
      assert.equal(await exit, 1);
      const [event] = dataOf((await stream.ended).slice(CHUNK.length));
      assert.match(String(event), /"The gateway is shutting down"/);
      const [request] = lines('request');
      assert.deepEqual([request?.['outcome'], request?.['status']], ['internal_error', 200]);
      const [stopped] = lines('stopped');
      assert.deepEqual([stopped?.['finished'], stopped?.['cut']], [0, 1]);
    });
  }
});

test('an exception in a handler is a 500, and the next request is served', async (t) => {
  const upstream = await startUpstream(t);
  let hits = 0;
  const gateway = await startGateway(t, {
    toml: providerToml(upstream),
    adjust: (config) => {
      // A setting throws when it is read, which no code expects.
      const aliases = new Map(config.aliases);
      aliases.get = () => {
        hits += 1;
        if (hits === 1) throw new Error('thrown by a test: canary');
        return undefined;
      };
      return { ...config, aliases };
    },
  });
  const shape = {
    type: 'internal_error',
    code: 'INTERNAL_ERROR',
    message: 'Internal server error',
  };
  assertError(await gateway.chat(chatBody()), { httpStatus: 500, ...shape });
  assert.equal((await gateway.chat(chatBody())).status, 200);
  const [first, second] = gateway.accessLines();
  assert.deepEqual([first?.['level'], first?.['outcome']], ['error', 'internal_error']);
  assert.match(String(first?.['cause']), /canary/);
  assert.equal(second?.['outcome'], 'ok');
});

test('no test and no script changes how Node behaves', () => {
  const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>;
  };
  assert.doesNotMatch(JSON.stringify(scripts), /NODE_OPTIONS|insecure-http-parser/);
  assert.doesNotMatch(readFileSync(SERVER, 'utf8'), /env\.NODE_OPTIONS|env\[["']NODE_OPTIONS/);
});
