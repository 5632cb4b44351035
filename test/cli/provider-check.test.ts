import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { before, describe, test, type TestContext } from 'node:test';

import { checkHere } from '../support/check.ts';
import { CLIENT_TOKEN, providerToml, PROVIDER_KEY } from '../support/gateway.ts';
import { listen } from '../support/listen.ts';
import { buildOnce, emptyFolder, runProgram } from '../support/process.ts';
import { startRawUpstream } from '../support/raw-upstream.ts';
import { createGate } from '../support/streams.ts';
import { NOBODY_LISTENS, sendJson, startUpstream, type Script } from '../support/upstream.ts';

before(buildOnce);

const OTHER_KEY = 'sk-other-0123456789';
const KEYS = [PROVIDER_KEY, OTHER_KEY, CLIENT_TOKEN];

type Checked = Awaited<ReturnType<typeof checkHere>>;

function assertNoKey(text: string): void {
  for (const key of KEYS) assert.ok(!text.includes(key), key);
}

/** Runs the program with this file. */
async function checkInProgram(t: TestContext, toml: string, args = ['--check']): Promise<Checked> {
  const cwd = emptyFolder(t, { 'gateway.toml': toml });
  const { code, stdout, stderr } = await runProgram(t, args, { cwd });
  assertNoKey(stdout);
  assert.equal(stderr, '');
  return { code: Number(code), stdout };
}

/** Runs the check in this process. */
async function check(t: TestContext, toml: string, args = ['--check']): Promise<Checked> {
  const path = join(emptyFolder(t, { 'gateway.toml': toml }), 'gateway.toml');
  const checked = await checkHere([...args, '--config', path]);
  assertNoKey(checked.stdout);
  return checked;
}

/** Returns the lines of the table, after the last empty line. */
function tableIn({ stdout }: Checked): string[] {
  return stdout.slice(stdout.lastIndexOf('\n\n') + 2, -1).split('\n');
}

const publicList =
  (count: number): Script =>
  (_, response) =>
    sendJson(response, { data: Array.from({ length: count }, (_item, id) => ({ id: `m${id}` })) });

/** Answers only requests with a key. */
const list =
  (count: number): Script =>
  (request, response) =>
    (request.headers.authorization ? publicList(count) : refuse(401))(request, response);

const refuse =
  (status: number, words = 'no'): Script =>
  ({ headers }, response) =>
    sendJson(response, { error: { message: `${words}: ${headers.authorization}` } }, { status });

const html: Script = (_, response) =>
  response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>x</title>');

/** A provider's script, the exit code, and the table's line after the provider's name. */
type Answer = readonly [what: string, Script, exitCode: 0 | 3, result: string, More?];
interface More {
  readonly path?: string;
  readonly lines?: string;
}

const NO_LIST_HINT = 'is base_url right? A provider without a list needs models = ["…"]';

const NOT_TRIED = '; the list is public, so the key was not tested';

const redirect: Script = (_, response) => response.writeHead(308, { location: '/x' }).end();
const endless: Script = (_, response) => response.writeHead(200).write('{"data":[');
const TWO_MODELS = { lines: 'models = ["a", "b"]' };
const UI = { path: '/ui' };

const ANSWERS: readonly Answer[] = [
  ['has 87 models', list(87), 0, '200  87 models'],
  ['has 1 model', list(1), 0, '200  1 model'],
  ['has 2 models for everybody', publicList(2), 0, `200  2 models${NOT_TRIED}`],
  ['answers 401', refuse(401), 3, '401  key refused'],
  ['answers 402', refuse(402), 3, '402  the key has no money'],
  ['answers 403', refuse(403), 3, '403  key refused'],
  ['answers 400', refuse(400), 3, '400  Bad Request; is the key right?'],
  ['answers 400, and names the key', refuse(400, 'API key not valid'), 3, '401  key refused'],
  ['answers 404 without /v1', refuse(404), 3, '404  is /v1 missing in base_url?', { path: '' }],
  ['answers 404 at a base_url with /v1', refuse(404), 3, `404  ${NO_LIST_HINT}`],
  ['is HTML without /v1', html, 3, '200  not a model list; is /v1 missing in base_url?', UI],
  ['is HTML at a base_url with /v1', html, 3, `200  not a model list; ${NO_LIST_HINT}`],
  ['answers 503', refuse(503), 3, '503  Service Unavailable'],
  ['answers 429', refuse(429), 3, '429  Too Many Requests'],
  ['redirects', redirect, 3, '308  Permanent Redirect'],
  ['never answers', () => {}, 3, 'timeout: no answer in 5 s'],
  ['never ends its answer', endless, 3, 'timeout: no answer in 5 s'],
  ['has none', refuse(404), 0, '404  no model list; the settings list 2 models', TWO_MODELS],
  ['has none, and refuses the key', refuse(401), 3, '401  key refused', TWO_MODELS],
];

describe('--check asks a provider for its model list, and if it', { concurrency: 4 }, () => {
  for (const [what, script, exitCode, result, { path = '/v1', lines = '' } = {}] of ANSWERS) {
    test(`${what}, prints "${result}" and exits ${exitCode}`, async (t) => {
      const upstream = await startUpstream(t, script);
      const baseUrl = upstream.baseUrl.replace(/\/v1$/, path);
      const finished = await check(t, providerToml({ ...upstream, baseUrl }, 'mine', lines));
      assert.deepEqual(tableIn(finished), [`mine  ${result}`]);
      assert.equal(finished.code, exitCode);
      const [{ method, url, headers } = assert.fail(), withoutKey, ...more] = upstream.requests;
      assert.deepEqual([method, url, more.length], ['GET', `${path}/models`, 0]);
      assert.equal(headers.authorization, `Bearer ${PROVIDER_KEY}`);
      // A list is requested again without a key, to find out whether it is public.
      const isAskedTwice = /^200 {2}\d/.test(result);
      assert.equal(withoutKey !== undefined, isAskedTwice);
      if (withoutKey) assert.doesNotMatch(JSON.stringify(withoutKey.headers), /authorization/);
    });
  }

  test('refuses connections, or does not speak HTTP, prints the cause and exits 3', async (t) => {
    const { baseUrl } = await startRawUpstream(t, ({ socket }) => socket.end('SSH-2.0-x\r\n'));
    const refused = await checkInProgram(t, providerToml({ baseUrl: NOBODY_LISTENS }, 'mine'));
    assert.match(tableIn(refused)[0]!, /^mine {2}unreachable: ECONNREFUSED: \S/);
    const other = await check(t, providerToml({ baseUrl }, 'mine'));
    assert.match(tableIn(other)[0]!, /^mine {2}no usable answer: \S/);
    assert.deepEqual([refused.code, other.code], [3, 3]);
  });

  test('speaks no TLS, or another, prints the cause without text of OpenSSL', async (t) => {
    // A fatal alert, 40: handshake_failure (RFC 8446 6).
    const answers = ['HTTP/1.1 400 Bad Request\r\n\r\n', Buffer.from([0x15, 3, 3, 0, 2, 2, 40])];
    const [ofPlain = '', ofOther = ''] = await Promise.all(
      answers.map(async (answer) => {
        const server = createServer((socket) => socket.once('data', () => socket.end(answer)));
        const { baseUrl } = await listen(t, server);
        const https = { baseUrl: baseUrl.replace('http:', 'https:') };
        return tableIn(await check(t, providerToml(https, 'mine')))[0]!;
      }),
    );
    const told = 'the server does not speak TLS; its URL may need http:// in place of https://';
    assert.match(ofPlain, /^mine {2}unreachable: ERR_SSL_\w+: /);
    assert.ok(ofPlain.endsWith(told), ofPlain);
    assert.match(ofOther, /^mine {2}unreachable: ERR_SSL_[\w/]+: [\w/ ]*handshake failure$/);
  });
});

describe('--check', { concurrency: 4 }, () => {
  test('asks all providers at once, and prints a table in the order of the settings', async (t) => {
    const both = createGate();
    let waiting = 0;
    const script: Script = async (request, response) => {
      waiting += 1;
      if (waiting === 2) both.open();
      await both.opened;
      await list(2)(request, response);
    };
    const [first, second] = await Promise.all([startUpstream(t, script), startUpstream(t, script)]);
    const toml = providerToml(first, 'a-long-name') + providerToml(second, 'b');
    const finished = await check(t, toml);
    assert.deepEqual(tableIn(finished), [
      'a-long-name  200  2 models', //
      'b            200  2 models',
    ]);
    assert.equal(finished.code, 0);
    assert.match(finished.stdout, /^settings +\S+gateway\.toml\n/);
    assert.match(finished.stdout, /^registered b$/m);
  });

  test('tries each key of a provider, and names a refused key by its position', async (t) => {
    const upstream = await startUpstream(t, async (request, response) => {
      const isRefused = request.headers.authorization === `Bearer ${OTHER_KEY}`;
      await (isRefused ? refuse(401) : list(3))(request, response);
    });
    const toml = `[providers.mine]
base_url = "${upstream.baseUrl}"
api_keys = ["${PROVIDER_KEY}", "${OTHER_KEY}"]
`;
    const finished = await check(t, toml);
    assert.deepEqual(tableIn(finished), [
      'mine key 1  200  3 models',
      'mine key 2  401  key refused',
    ]);
    assert.equal(finished.code, 3);
    const { checks } = JSON.parse((await check(t, toml, ['--check', '--json'])).stdout) as {
      checks: unknown;
    };
    assert.deepEqual(checks, [
      { provider: 'mine', key: 1, ok: true, status: 200, models: 3, message: '3 models' },
      { provider: 'mine', key: 2, ok: false, status: 401, message: 'key refused' },
    ]);
  });

  test("warns of models in the settings that no provider's list has, and exits 0", async (t) => {
    const lists: Script = (request, response) => {
      if (!request.headers.authorization) return refuse(401)(request, response);
      const isOther = request.headers.authorization === `Bearer ${OTHER_KEY}`;
      return sendJson(response, { data: [{ id: isOther ? 'of-other' : 'here' }] });
    };
    const [mine, byHand] = [await startUpstream(t, lists), await startUpstream(t, lists)];
    const toml = `[aliases]
fast = ["mine/gone", "mine/here"]
other = "mine/of-other"
listed = ["by-hand/x", "by-hand/y"]
[providers.mine]
base_url = "${mine.baseUrl}"
api_keys = ["${PROVIDER_KEY}", "${OTHER_KEY}"]
default_model = "lost"
hide_models = ["mine/here", "he*", "of-other", "*gone"]
model_details."mine/here".context_length = 7
model_details.here.context_length = 7
${providerToml(byHand, 'by-hand', 'models = ["y"]')}`;
    const expected = [
      'aliases.fast: mine does not list the model "gone"',
      'providers.mine.default_model: mine does not list the model "lost"',
      'providers.mine.model_details: mine does not list the model "mine/here"',
      'providers.mine.hide_models: mine does not list the model "mine/here"',
      'providers.mine.hide_models: mine does not list the model "*gone"',
      'aliases.listed: by-hand does not list the model "x"',
    ];
    const finished = await check(t, toml);
    assert.deepEqual(
      tableIn(finished).slice(3),
      expected.map((text) => `warning    ${text}`),
    );
    assert.equal(finished.code, 0);
    const asJson = await check(t, toml, ['--check', '--json']);
    const { warnings, checks } = JSON.parse(asJson.stdout) as {
      warnings: string[];
      checks: object[];
    };
    assert.deepEqual(warnings.slice(-expected.length), expected);
    assert.deepEqual(checks[2], {
      provider: 'by-hand',
      ok: true,
      status: 200,
      models: 1,
      message: '1 model',
    });
  });

  test('hides keys value by value, even if a key is a word of the output', async (t) => {
    const keys = ['settings', 'provider', '": [200, "', '"checks":'];
    for (const key of keys) {
      const { baseUrl } = await startUpstream(t, list(1));
      const toml = `[providers.mine]
base_url = "${baseUrl}"
headers = { x-org = '${key}' }
api_key = '${key.replaceAll(' ', '')}'
default_model = '${key}'
[providers.mine.model_details.'${key.replaceAll(' ', '')}']
context_length = 1
`;
      const asJson = await check(t, toml, ['--check', '--json']);
      const document = JSON.parse(asJson.stdout) as {
        settings: Record<string, unknown>;
        checks: unknown;
        registered: unknown;
      };
      assert.deepEqual(document.registered, ['mine']);
      assert.deepEqual(document.checks, [
        { provider: 'mine', ok: true, status: 200, models: 1, message: '1 model' },
      ]);
      assert.equal(document.settings['providers.mine.default_model'], '[secret]');
      assert.deepEqual(document.settings['providers.mine.model_details'], {
        '[secret]': { context_length: 1 },
      });
      const asText = await check(t, toml);
      assert.match(asText.stdout, /^providers\.mine\.default_model = "\[secret\]"$/m);
      assert.equal(tableIn(asText)[0], 'mine  200  1 model');
    }
  });

  test('shows names that begin as a key does, each client with its settings', async (t) => {
    const upstream = await startUpstream(t, list(1));
    const client = (name: string) => `[clients.${name}]\nkey = "${name}-1b2c3d4e5f60718293"\n`;
    const toml = `${providerToml(upstream, 'internal')}api_keys = ["internal-key-000000"]
${client('engineering')}${client('engineer')}`;
    const { stdout } = await check(t, toml, ['--check', '--json']);
    const { registered, settings } = JSON.parse(stdout) as {
      registered: unknown;
      settings: Record<string, unknown>;
    };
    assert.deepEqual(registered, ['internal']);
    assert.equal(settings['clients.engineering.key'], '[secret]');
    assert.equal(settings['clients.engineer.key'], '[secret]');
    assert.equal(settings['providers.internal.base_url'], upstream.baseUrl);
    const asText = await check(t, toml);
    assert.match(asText.stdout, /^registered internal$/m);
    assert.match(asText.stdout, /^clients\.engineering\.key = "\[secret\]"$/m);
    assert.match(tableIn(asText).join('\n'), /^internal key 1 {2}200/);
  });

  test('without a registered provider prints a message and exits 3', async (t) => {
    const toml = '[providers.groq]\nenabled = false\n';
    const finished = await check(t, toml);
    const result = 'providers  none: set a key, for example OPENAI_API_KEY';
    assert.deepEqual([finished.code, tableIn(finished)], [3, [result]]);
    const asJson = await check(t, toml, ['--check', '--json']);
    const { ok, registered } = JSON.parse(asJson.stdout) as Record<string, unknown>;
    assert.deepEqual([asJson.code, ok, registered], [3, false, []]);
    const offline = await check(t, toml, ['--check=offline']);
    assert.deepEqual([offline.code, tableIn(offline)], [3, [result]]);
    const both = await check(t, toml, ['--check=offline', '--json']);
    assert.deepEqual([both.code, (JSON.parse(both.stdout) as { ok: boolean }).ok], [3, false]);
  });

  test('=offline asks no provider, prints no table and exits 0', async (t) => {
    const upstream = await startUpstream(t, refuse(401));
    const toml = providerToml(upstream, 'mine');
    const finished = await check(t, toml, ['--check=offline']);
    assert.equal(finished.code, 0);
    assert.match(finished.stdout, /^registered mine$/m);
    assert.doesNotMatch(finished.stdout, /\n\n/);
    const asJson = await check(t, toml, ['--json', '--check=offline']);
    const { ok, registered, ...others } = JSON.parse(asJson.stdout) as Record<string, unknown>;
    assert.deepEqual([asJson.code, ok, registered], [0, true, ['mine']]);
    assert.ok(!('checks' in others));
    assert.equal(upstream.requests.length, 0);
  });

  test('--json prints one document with settings, skipped providers and results', async (t) => {
    const upstream = await startUpstream(t, refuse(404));
    const toml = `[server]
timeout = 7
[server.auth]
keys = ["${CLIENT_TOKEN}"]
[providers.groq]
enabled = false
[aliases]
gone = "xai/m"
${providerToml(upstream, 'mine')}`;
    const { code, stdout } = await check(t, toml, ['--check', '--json']);
    assert.equal(code, 3);
    const document = JSON.parse(stdout) as {
      settings: Record<string, unknown>;
      skipped: unknown[];
      warnings: string[];
      file: string;
    };
    const { settings, skipped, warnings, file, ...others } = document;
    assert.deepEqual(others, {
      ok: false,
      problems: [],
      registered: ['mine'],
      checks: [{ provider: 'mine', ok: false, status: 404, message: NO_LIST_HINT }],
    });
    assert.equal(settings['server.timeout'], 7);
    assert.equal(settings['server.auth.keys'], '[secret]');
    assert.deepEqual(skipped[0], { provider: 'groq', reason: 'enabled = false' });
    assert.match(warnings[0]!, /aliases\.gone/);
    assert.match(file, /^\/.*\/gateway\.toml$/);
  });

  test('--json has null for the file without a file, or with GATEWAY_CONFIG_TOML', async (t) => {
    const environments: Record<string, string>[] = [{}, { GATEWAY_CONFIG_TOML: 'server.port = 1' }];
    for (const env of environments) {
      const { stdout } = await runProgram(t, ['--check=offline', '--json'], { env });
      assert.equal((JSON.parse(stdout) as { file: unknown }).file, null);
    }
  });

  test('--json prints wrong settings as one document too, and exits 78', async (t) => {
    for (const args of ['--check --json', '--check=offline --json']) {
      const toml = '[server]\nprot = 1\ntimeout = 0\n';
      const { code, stdout } = await checkInProgram(t, toml, args.split(' '));
      const { problems, ...others } = JSON.parse(stdout) as { problems: string[] };
      assert.deepEqual([code, problems.length, others], [78, 2, { ok: false }]);
      assert.match(problems.join('\n'), /server\.prot: unknown key/);
    }
  });

  test('of --demo asks the demo provider', async (t) => {
    const finished = await checkInProgram(t, '', ['--check', '--demo']);
    assert.deepEqual([finished.code, tableIn(finished)], [0, [`demo  200  1 model${NOT_TRIED}`]]);
  });
});
