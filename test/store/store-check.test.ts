/**
 * The line about the store in `--check`: a real Redis or Valkey, and servers that answer wrongly.
 */

import assert from 'node:assert/strict';
import { createServer, type Socket } from 'node:net';
import { before, describe, test, type TestContext } from 'node:test';

import { startFakeRedis } from '../support/fake-redis.ts';
import { providerToml } from '../support/gateway.ts';
import { listen } from '../support/listen.ts';
import { buildOnce, emptyFolder, freePort, runProgram, type Finished } from '../support/process.ts';
import { isRedisMissing, startRedis, type RedisServer } from '../support/redis-server.ts';
import { PASSWORD, PATIENT_MS, programWaiting } from '../support/replicas.ts';
import { sendJson, startUpstream, type Script } from '../support/upstream.ts';

before(buildOnce);

interface CheckOptions {
  readonly args?: readonly string[];
  readonly script?: string;
  readonly env?: Record<string, string>;
}

/** Runs the program with this store, and a working provider. */
async function check(
  t: TestContext,
  url: string,
  { args = ['--check'], ...options }: CheckOptions = {},
): Promise<Finished> {
  const limit = 'enabled = true\nrequests_per_second = 1\n';
  const provider = providerToml(await startUpstream(t, listOne), 'mine');
  const toml = `[rate_limit]\n${limit}store = "${url}"\n${provider}`;
  const cwd = emptyFolder(t, { 'gateway.toml': toml });
  const finished = await runProgram(t, args, { cwd, ...options });
  assert.ok(!(finished.stdout + finished.stderr).includes(PASSWORD), finished.stdout);
  return finished;
}

/** Returns the result in the store's line. */
function resultIn({ stdout }: Finished): string {
  const [, result = assert.fail(stdout)] = /^rate_limit\.store {2}(.+)$/m.exec(stdout) ?? [];
  return result;
}

const ANSWERS = /^answers$/;
const listOne: Script = (_, response) => sendJson(response, { data: [{ id: 'm' }] });

/**
 * A Redis, its state, and the expected line. The exit code is 0 if the store answers, or else 3.
 */
interface State {
  readonly args?: readonly string[];
  readonly enter?: (redis: RedisServer) => unknown;
  readonly userinfo?: string;
  readonly database?: number;
}
const NO_SCRIPTS = {
  args: ['--user', 'gateway', 'on', `>${PASSWORD}`, '~*', '+@all', '-@scripting'],
  userinfo: `gateway:${PASSWORD}@`,
};
const READ_ONLY: State = {
  enter: async (redis) => redis.command('REPLICAOF', '127.0.0.1', String(await freePort())),
};
const REFUSED = /^connect ECONNREFUSED 127\.0\.0\.1:\d+$/;
const STATES: readonly (readonly [name: string, result: RegExp, State])[] = [
  ['that works', ANSWERS, {}],
  ['in another database', ANSWERS, { database: 3 }],
  ['that has another password', /^AUTH: WRONGPASS$/, { userinfo: `:not-the-${PASSWORD}@` }],
  ['that needs a password', /^EVAL: NOAUTH /, { userinfo: '' }],
  ['without such a database', /^SELECT: ERR DB index is out of range$/, { database: 99 }],
  ['that permits the user no scripts', /^EVAL: NOPERM /, NO_SCRIPTS],
  ['that is a read-only replica', /^EVAL: .*(?:READONLY|read only)/, READ_ONLY],
  ['that is full', /^EVAL: .*OOM/, { enter: (redis) => redis.fill() }],
  ['that is not there', REFUSED, { enter: (redis) => redis.kill() }],
  ['that is frozen', /^no answer in \d+ ms$/, { enter: (redis) => redis.freeze() }],
];

/** A server's answer to scripts. Undefined means a working store's answer. */
const WRONG: readonly (readonly [
  title: string,
  answer: (keys: string | undefined, socket: Socket) => unknown,
  result: RegExp,
])[] = [
  ['that does not answer', () => true, /^no answer in \d+ ms$/],
  [
    'that is a Redis Cluster of one server, although each key is there,',
    (keys, socket) =>
      Number(keys) >= 2 &&
      socket.write("-CROSSSLOT Keys in request don't hash to the same slot\r\n"),
    /^EVAL: CROSSSLOT /,
  ],
  [
    'that repeats the password and sends control characters, of which it shows neither,',
    (_, socket) => socket.write(`-ERR \u001b[31m ${PASSWORD}\r\n`),
    /^EVAL: ERR \\u001b\[31m \[secret\]$/,
  ],
];

describe('--check asks a Redis', { concurrency: 4 }, () => {
  for (const [name, result, state] of STATES) {
    const { args = [], enter, userinfo = `:${PASSWORD}@`, database = 0 } = state;
    const exitCode = result === ANSWERS ? 0 : 3;
    test(`${name}, prints ${result} and exits ${exitCode}`, async (t) => {
      if (isRedisMissing(t)) return;
      const script = await programWaiting(t, PATIENT_MS);
      const redis = await startRedis(t, { password: PASSWORD, args });
      await enter?.(redis);
      const address = `redis://${userinfo}127.0.0.1:${redis.port}/${database}`;
      const finished = await check(t, address, { script });
      assert.match(resultIn(finished), result);
      assert.deepEqual([finished.code, finished.stderr], [exitCode, '']);
    });
  }
});

describe('--check of a store', { concurrency: 4 }, () => {
  test('prints its line after the providers, or as JSON, and nothing with =offline', async (t) => {
    const { port, connections } = await startFakeRedis(t, () => false);
    const script = await programWaiting(t, PATIENT_MS);
    const url = `redis://127.0.0.1:${port}`;
    for (const args of [['--check=offline'], ['--check=offline', '--json']]) {
      const { code, stdout } = await check(t, url, { args });
      assert.equal(code, 0);
      assert.doesNotMatch(stdout, /^rate_limit\.store {2}|"store":/m);
    }
    assert.equal(connections(), 0);
    const { code, stdout } = await check(t, url, { script });
    assert.match(stdout, /\n\nmine {14}200 {2}1 model; .*\nrate_limit\.store {2}answers\n$/);
    assert.equal(code, 0);
    const rows = [
      [url, 0, true, ANSWERS],
      [`redis://127.0.0.1:${await freePort()}`, 3, false, /ECONNREFUSED/],
    ] as const;
    for (const [address, exitCode, isOk, message] of rows) {
      const finished = await check(t, address, { args: ['--check', '--json'], script });
      const { ok, store } = JSON.parse(finished.stdout) as {
        ok: boolean;
        store: { ok: boolean; message: string };
      };
      assert.deepEqual([finished.code, ok, store.ok], [exitCode, isOk, isOk]);
      assert.match(store.message, message);
    }
    const cwd = emptyFolder(t, { 'gateway.toml': '' });
    const without = await runProgram(t, ['--check', '--json'], { cwd });
    assert.ok(!('store' in (JSON.parse(without.stdout) as object)));
  });

  test('that speaks no TLS names the right scheme', async (t) => {
    const server = createServer((socket) => socket.once('data', () => socket.end('-ERR x\r\n')));
    const { port } = await listen(t, server);
    const finished = await check(t, `rediss://127.0.0.1:${port}`);
    const told = 'the server does not speak TLS; its URL may need redis:// in place of rediss://';
    assert.equal(resultIn(finished), told);
  });

  for (const [title, answer, result] of WRONG) {
    test(`${title} fails`, async (t) => {
      const { port } = await startFakeRedis(t, ([name, , keys], socket) =>
        name === 'EVAL' ? answer(keys, socket) : false,
      );
      const script = await programWaiting(t, PATIENT_MS);
      const finished = await check(t, `redis://:${PASSWORD}@127.0.0.1:${port}`, { script });
      assert.match(resultIn(finished), result);
      assert.equal(finished.code, 3);
    });
  }
});
