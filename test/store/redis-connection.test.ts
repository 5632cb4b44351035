/** The rate limit store against servers that answer slowly, wrongly or not at all. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import { Secret } from '../../src/lib/secret.ts';
import { ANSWER_MS } from '../../src/store/redis-connection.ts';
import { createCertificate, NO_OPENSSL } from '../support/certificate.ts';
import { stopClock, untilSteady, useManualTimers } from '../support/clock.ts';
import { status, startFakeRedis, startTlsRedis, type FakeRedis } from '../support/fake-redis.ts';
import { createMemoryProbe } from '../support/memory.ts';
import { emptyFolder, freePort, ROOT, runProgram } from '../support/process.ts';
import {
  AWAY,
  BACK,
  bucket,
  countTaken,
  createStore,
  refusesAtOnce,
  until,
  type TestStore,
} from '../support/redis-store.ts';
import { LEFT_TO_SWEEPS } from '../support/sweep.ts';

const ONE = [bucket('one', 1)];
const isProbe = (command: readonly string[]) => command.some((word) => word.includes(':probe:'));
const isTake = (command: readonly string[]) => command[0] === 'EVAL' && !isProbe(command);

/** Starts a connected store whose server gives this answer to each take and refund. */
async function startAnswering(
  t: TestContext,
  answer: string | ((socket: { write(text: string): unknown; destroy(): unknown }) => unknown),
  options: { answerMs?: number } = {},
): Promise<TestStore & { redis: FakeRedis }> {
  const redis = await startFakeRedis(t, (command, socket) => {
    if (!isTake(command)) return false;
    return typeof answer === 'string' ? socket.write(answer) : answer(socket);
  });
  const started = createStore(t, { port: redis.port }, options);
  await until(() => !started.store.isAway);
  return { ...started, redis };
}

const FAILURES: readonly [title: string, answer: string, cause: RegExp][] = [
  ['garbage', 'HTTP/1.1 400 Bad Request\r\n\r\n', /^the reply is not RESP$/],
  ['an integer', ':1\r\n', /^the reply is not RESP$/],
  ['a bulk string', '$2\r\nOK\r\n', /^the reply is not RESP$/],
  ['an endless reply', `+${'x'.repeat(100_000)}`, /^the reply is too long$/],
  ['another answer of the script', status('2 500'), /^unexpected reply from the script$/],
  ['no answer of the script', status(''), /^unexpected reply from the script$/],
  ['two replies for one command', status('OK').repeat(2), /^unexpected reply without a command$/],
  ['LOADING', '-LOADING Redis is loading\r\n', /^EVAL: LOADING Redis is loading$/],
  ['OOM', '-OOM command not allowed\r\n', /^EVAL: OOM command not allowed$/],
];

for (const [title, answer, cause] of FAILURES) {
  test(`${title}: the store is away, and its connection is closed`, async (t) => {
    const { store, lines, redis } = await startAnswering(t, answer);
    const [first] = [...redis.sockets];
    const taken = await store.take(ONE);
    assert.equal(taken, title.startsWith('two replies') ? 'taken' : undefined);
    await until(() => lines.length > 0);
    assert.equal(lines[0]!.message, AWAY);
    assert.match(lines[0]!.facts!['cause'] as string, cause);
    await until(() => !redis.sockets.has(first!));
    // The store comes back, because the next connection works.
    await until(() => !store.isAway);
    assert.deepEqual(
      lines.map(({ message }) => message),
      [AWAY, BACK],
    );
  });
}

test('a connection that closes inside a reply makes the store away', async (t) => {
  let commands = 0;
  const { store, lines, fallbacks } = await startAnswering(t, (socket) => {
    commands += 1;
    if (commands === 1) socket.write('+O');
    if (commands === 3) setTimeout(() => socket.destroy(), 5);
  });
  assert.equal(await countTaken(store, ONE, 3), 0);
  assert.equal(fallbacks(), 3);
  assert.match(lines[0]!.facts!['cause'] as string, /^the connection was closed$|ECONNRESET/);
});

test('replies belong to commands in their order, in any pieces', async (t) => {
  let held = '';
  let count = 0;
  const { store } = await startAnswering(t, async (socket) => {
    count += 1;
    held += status(`1 ${count * 1000}`);
    if (count < 20) return;
    for (const byte of held.slice(0, 50)) {
      socket.write(byte);
      await sleep(1);
    }
    socket.write(held.slice(50));
  });
  const taken = await Promise.all(Array.from({ length: 20 }, () => store.take(ONE)));
  assert.deepEqual(
    taken,
    taken.map((_, index) => ({ refusedBy: ONE[0], waitMs: index + 1 })),
  );
});

test('every reply is waited for 50 ms, and all takes fall back together', async (t) => {
  const timers = useManualTimers(t);
  const redis = await startFakeRedis(t, () => true);
  const { store } = createStore(t, { port: redis.port }, { answerMs: ANSWER_MS });
  await until(() => redis.commands.length > 0);
  assert.deepEqual(timers.running(1000), [50]);
  assert.ok(await refusesAtOnce(store));
  store.close();
  const other = await startAnswering(t, status('OK'), { answerMs: 300 });
  const taken = other.store.take(ONE);
  assert.deepEqual(timers.running(1000), [300]);
  assert.equal(await taken, 'taken');
  assert.deepEqual(timers.running(1000), []);
  assert.deepEqual(other.lines, []);
});

test('the oldest command decides, even if others are answered', async (t) => {
  let commands = 0;
  // The last command is never answered, so the store always waits.
  const { store, lines } = await startAnswering(
    t,
    (socket) => {
      commands += 1;
      if (commands <= 5) socket.write(status('OK'));
    },
    { answerMs: 400 },
  );
  assert.equal(await countTaken(store, ONE, 5), 5);
  const silent = store.take(ONE);
  // Younger commands do not extend the wait.
  const younger = setInterval(() => void store.take(ONE), 50);
  assert.equal(await silent, undefined);
  clearInterval(younger);
  assert.deepEqual(lines[0]!.facts, { cause: 'no answer in 400 ms' });
});

for (const [what, answer, expected] of [
  ['takes', 'OK 1 3 8', 'taken'],
  ['refuses', '1 500000 1 3 8', 500],
] as const) {
  test(`a store that ${what} reports the lack of each bucket`, async (t) => {
    const { store } = await startAnswering(t, status(answer));
    const lacks: string[] = [];
    const lacking = (name: string, periodSeconds: number) => ({
      ...bucket(name, 10),
      periodSeconds,
      onLack: (tokens: number) => lacks.push(`${name} ${tokens}`),
    });
    const buckets = [lacking('burst', 1), lacking('minute', 60), lacking('day', 86_400)];
    const taken = await store.take(buckets);
    assert.deepEqual(typeof taken === 'object' ? taken.waitMs : taken, expected);
    assert.deepEqual(lacks, ['burst 1', 'minute 3', 'day 8']);
  });
}

test('a store that cannot be reached is retried after growing pauses', async (t) => {
  const timers = useManualTimers(t);
  const port = await freePort();
  const { store, lines, isAway } = createStore(t, { port });
  for (const pauseMs of [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]) {
    // During an attempt to connect, its limit of 10 s runs.
    await until(() => timers.running(10_000).length === 1 && timers.running(5000).length === 1);
    const [delayMs] = timers.running(5000);
    assert.ok(delayMs! >= pauseMs / 2 && delayMs! <= pauseMs, `${delayMs} for ${pauseMs}`);
    assert.ok(await refusesAtOnce(store));
    timers.advance(delayMs!);
  }
  assert.equal(lines.length, 1);
  assert.equal(isAway(), true);
  assert.match(lines[0]!.facts!['cause'] as string, /ECONNREFUSED/);
});

test('a store that fails with each request is retried after growing pauses', async (t) => {
  const timers = useManualTimers(t);
  const clock = stopClock(t);
  const { store, redis } = await startAnswering(t, '-WRONGTYPE no\r\n');
  const assertPause = (pauseMs: number) => {
    const [delayMs] = timers.running(5000);
    assert.ok(delayMs! >= pauseMs / 2 && delayMs! <= pauseMs, `${delayMs} for ${pauseMs}`);
    timers.advance(delayMs!);
  };
  for (const [upMs, pauseMs] of [
    [0, 100],
    [0, 200],
    [0, 400],
    [5001, 100],
    [0, 200],
  ] as const) {
    await until(() => !store.isAway);
    clock.nowMs += upMs;
    assert.equal(await store.take(ONE), undefined);
    assertPause(pauseMs);
  }
  await until(() => !store.isAway);
  for (const socket of redis.sockets) socket.destroy();
  await until(() => store.isAway);
  assertPause(100);
});

const skip = LEFT_TO_SWEEPS;
test('takes over many outages leave nothing in memory', { skip }, async (t) => {
  const timers = useManualTimers(t);
  const { store, redis } = await startAnswering(t, () => {}, { answerMs: 1 });
  const passOutage = async () => {
    const pending = Array.from({ length: 1000 }, () => store.take(ONE));
    while (!store.isAway) {
      await nextTurn();
      timers.advance(1);
    }
    assert.equal((await Promise.all(pending)).find(Boolean), undefined);
    for (let i = 0; i < 2000; i += 1) await store.take(ONE);
    timers.advance(timers.running(5000)[0]!);
    await until(() => !store.isAway);
    redis.commands.length = 0;
  };
  const measure = createMemoryProbe();
  const heldAfterTen = async () => {
    for (let i = 0; i < 10; i += 1) await passOutage();
    return measure();
  };
  const held = [await heldAfterTen(), await heldAfterTen(), await heldAfterTen()] as const;
  // V8 may keep or free some megabytes once, but a leak grows each time.
  const grown = Math.min(held[1] - held[0], held[2] - held[1]);
  // 30 bytes each for 30,000 takes.
  assert.ok(grown < 900_000, `grown by ${grown} bytes, ${held.join(' ')}`);
});

test('a TLS handshake that never ends delays a start by 2 s, and ends after 10 s', async (t) => {
  const timers = useManualTimers(t);
  const redis = await startFakeRedis(t, () => true);
  const { lines, started } = createStore(t, { port: redis.port, isTls: true });
  await until(() => redis.connections() === 1);
  assert.deepEqual(new Set(timers.running()), new Set([10_000, 2000]));
  timers.advance(2000);
  await started;
  assert.equal(lines.length, 0);
  timers.advance(8000);
  assert.deepEqual(lines[0]!.facts, { cause: 'no TLS connection in time' });
  await until(() => redis.sockets.size === 0);
});

/** A host, the name in its certificate, and a process's output if it trusts the certificate. */
const CERTIFICATES: readonly [host: string, name: string, result: RegExp][] = [
  ['localhost', 'DNS:localhost', /^taken$/],
  ['127.0.0.1', 'IP:127.0.0.1', /^taken$/],
  ['localhost', 'DNS:other.test', /^Hostname\/IP does not match/],
  ['127.0.0.1', 'DNS:localhost', /^Hostname\/IP does not match/],
];

test("TLS requires a trusted certificate with the host's name", async (t) => {
  if (NO_OPENSSL) return t.skip(NO_OPENSSL);
  const certificates = CERTIFICATES.map(([, name]) => createCertificate(t, [name]));
  const ports = await Promise.all(certificates.map((one) => startTlsRedis(t, one)));
  const stores = CERTIFICATES.map(([host], index) => `${host}:${ports[index]}`);
  const folder = emptyFolder(t, { 'ca.pem': certificates.map(({ cert }) => cert).join('\n') });
  const run = async (env: Record<string, string>) => {
    const script = join(ROOT, 'test/support/redis-store-process.ts');
    const options = { script, cwd: ROOT, env: { NODE_OPTIONS: '--import=tsx', ...env } };
    const { code, stdout, stderr } = await runProgram(t, stores, options);
    assert.equal(code, 0, stderr);
    return stdout.split('\n');
  };
  const [trusting, others] = await Promise.all([
    run({ NODE_EXTRA_CA_CERTS: `${folder}/ca.pem` }),
    run({}),
  ]);
  for (const [index, [host, name, result]] of CERTIFICATES.entries()) {
    assert.match(trusting[index]!, result, `${host} with ${name}`);
    assert.match(others[index]!, /^self-signed certificate/);
  }
});

test('the log shows no part of the password if the server repeats it', async (t) => {
  for (const text of ['unknown command `AUTH`, with args: `p4s`', 'wrong: p4sswo']) {
    const redis = await startFakeRedis(
      t,
      ([name], socket) => name === 'AUTH' && socket.write(`-ERR ${text}\r\n`),
    );
    const password = new Secret('p4ssword');
    const { lines } = createStore(t, { port: redis.port, password });
    await until(() => lines.length > 0);
    assert.deepEqual(lines[0]!.facts, { cause: 'AUTH: ERR' });
    assert.deepEqual(redis.commands[0], ['AUTH', 'p4ssword']);
  }
});

test('at most 2,048 commands wait for replies, and further takes fall back at once', async (t) => {
  const { store, redis, lines } = await startAnswering(t, () => {});
  for (let i = 0; i < 2048; i += 1) void store.take(ONE);
  assert.ok(await refusesAtOnce(store));
  store.charge(-1, ONE);
  await until(() => redis.commands.filter(isTake).length >= 2048);
  assert.equal(await untilSteady(() => redis.commands.filter(isTake).length), 2048);
  assert.equal(lines.length, 0);
  assert.equal(store.isAway, false);
});
