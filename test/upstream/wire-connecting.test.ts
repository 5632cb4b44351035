/**
 * Connecting to providers: name lookups, several addresses, and connections lost while being made.
 */

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer as createHttpServer, type RequestListener } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import { connect, createServer, type Socket } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream';
import { before, describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { createCertificate, NO_OPENSSL } from '../support/certificate.ts';
import { startBlackHole } from '../support/fault-proxy.ts';
import { chatBody, providerToml } from '../support/gateway.ts';
import { listen } from '../support/listen.ts';
import { buildOnce, emptyFolder, startProgram, startServing } from '../support/process.ts';
import { rawResponse } from '../support/raw-upstream.ts';
import { eventually, openChat } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { answerWell, completion, sendJson, startUpstream } from '../support/upstream.ts';

before(buildOnce);

/** The duration of a successful lookup. */
const LOOKUP_MS = 50;
/**
 * Preload: `dns.lookup` runs two lookups at a time, as libuv does. `good.test` is 127.0.0.1, and so
 * is `once.test` at its first lookup. All other lookups fail after 4 s.
 */
const NAME_SERVER = `
  import dns from 'node:dns';
  const queue = [];
  let running = 0, asked = 0;
  const system = dns.lookup;
  const next = () => {
    if (running === 2 || queue.length === 0) return;
    running += 1;
    const { name, callback } = queue.shift();
    const isGood = name === 'good.test' || (name === 'once.test' && asked++ === 0);
    const end = () => {
      running -= 1;
      if (isGood) callback(null, [{ address: '127.0.0.1', family: 4 }]);
      else callback(Object.assign(new Error('getaddrinfo EAI_AGAIN'), { code: 'EAI_AGAIN' }));
      next();
    };
    setTimeout(end, isGood ? ${LOOKUP_MS} : 4000).unref();
  };
  dns.lookup = (name, options, callback) => {
    if (!name.endsWith('.test')) return system(name, options, callback);
    queue.push({ name, callback });
    next();
  };`;

/**
 * Preload: `both.test` has two addresses: the first may be silent, the second refuses. `full.test.`
 * has the same addresses, and the first answers.
 */
const TWO_ADDRESSES = `
  import dns from 'node:dns';
  const system = dns.lookup;
  const both = [1, 2].map((last) => ({ address: '127.0.0.' + last, family: 4 }));
  dns.lookup = (name, options, callback) =>
    /^(?:both\\.test|full\\.test\\.)$/.test(name) ? callback(null, both) : system(name, options, callback);`;
/**
 * Longer than Node's default for an address, and shorter than the second before Linux repeats a
 * SYN.
 */
const SILENT_MS = 700;

const preload = (code: string) => ({
  NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(code)}`,
});

const NO_IPV6 =
  !Object.values(networkInterfaces()).some((all) =>
    all?.some(({ address }) => address === '::1'),
  ) && 'this machine has no IPv6';

async function ask(port: number, model: string) {
  const { response, ended } = openChat(port, chatBody({ model }));
  const { statusCode: status } = await response;
  return { status, text: await ended };
}

for (const transport of ['auto', 'fetch']) {
  describe(`reaching providers, upstream = ${transport}`, { concurrency: 2 }, () => {
    async function start(t: TestContext, toml: string, code: string) {
      const text = `[server]\nhost = "127.0.0.1"\nport = 0\n${toml}`;
      const cwd = emptyFolder(t, { 'gateway.toml': text });
      return startServing(t, [], { cwd, env: { GATEWAY_UPSTREAM: transport, ...preload(code) } });
    }

    test('an unresolved name does not keep a request from the next provider', async (t) => {
      const upstream = await startUpstream(t, answerWell);
      const at = (host: string) => ({ baseUrl: upstream.baseUrl.replace('127.0.0.1', host) });
      const dead = providerToml(at('dead.test'), 'dead', 'timeout = 1');
      const good = providerToml(at('good.test'), 'good');
      const aliases = '[aliases]\nboth = ["dead/m", "good/m"]\n';
      const { port } = await start(t, aliases + dead + good, NAME_SERVER);
      const replies = await Promise.all(Array.from({ length: 10 }, () => ask(port, 'both')));
      for (const { status, text } of replies) assert.equal(status, 200, text);
      assert.equal(upstream.requests.length, 10);
    });

    test('during a long lookup, the last addresses of the name are used', async (t) => {
      const upstream = await startUpstream(t, (request, response) => {
        response.setHeader('connection', 'close');
        return answerWell(request, response);
      });
      const baseUrl = upstream.baseUrl.replace('127.0.0.1', 'once.test');
      const { port } = await start(t, providerToml({ baseUrl }), NAME_SERVER);
      for (let round = 0; round < 3; round += 1) {
        const { status, text } = await ask(port, 'p/m');
        assert.equal(status, 200, text);
      }
      assert.equal(upstream.requests.length, 3);
    });

    test('an address that accepts only after most of a second is used', async (t) => {
      const hole = await startBlackHole(t, rawResponse(JSON.stringify(completion())));
      const provider = providerToml({ baseUrl: hole.baseUrl.replace('127.0.0.1', 'both.test') });
      const { port } = await start(t, provider, TWO_ADDRESSES);
      const asked = ask(port, 'p/m');
      await sleep(SILENT_MS);
      hole.open();
      const { status, text } = await asked;
      assert.equal(status, 200, text);
    });
  });
}

for (const transport of ['auto', 'fetch']) {
  const skip = NO_IPV6 || NO_OPENSSL;
  test(`an IPv6 address is reached and verified, upstream = ${transport}`, { skip }, async (t) => {
    const { path, ...certificate } = createCertificate(t, ['IP:::1']);
    const { path: otherPath, ...other } = createCertificate(t, ['IP:::2']);
    const certificates = join(emptyFolder(t), 'all.pem');
    writeFileSync(certificates, readFileSync(path, 'utf8') + readFileSync(otherPath, 'utf8'));
    const answer: RequestListener = (_, response) => sendJson(response, completion());
    const servers = {
      plain: createHttpServer(answer),
      tls: createTlsServer(certificate, answer),
      wrong: createTlsServer(other, answer),
    };
    let toml = '[server]\nhost = "127.0.0.1"\nport = 0\n';
    for (const [id, server] of Object.entries(servers)) {
      const { baseUrl } = await listen(t, server, '::1');
      const url = id === 'plain' ? baseUrl : baseUrl.replace('http:', 'https:');
      toml += providerToml({ baseUrl: url }, id, 'retries = 0');
    }
    const env = { GATEWAY_UPSTREAM: transport, NODE_EXTRA_CA_CERTS: certificates };
    const cwd = emptyFolder(t, { 'gateway.toml': toml });
    const { lines, port } = await startServing(t, [], { cwd, env });
    for (const [id, expected] of Object.entries({ plain: 200, tls: 200, wrong: 502 })) {
      const { status, text } = await ask(port, `${id}/m`);
      assert.equal(status, expected, `${id}: ${text}`);
    }
    await eventually(() => lines('request').length === 3, 'the lines of the requests');
    assert.match(JSON.stringify(lines('request')[2]), /ERR_TLS_CERT_ALTNAME_INVALID/);
    for (let at = 0; at < 2; at += 1) await ask(port, 'wrong/m');
    await eventually(() => lines('incident').length > 0, 'the incident');
    const [{ kind, provider, what } = {}] = lines('incident');
    assert.deepEqual(
      [kind, provider, what],
      ['certificate', 'wrong', 'its certificate is not accepted'],
    );
  });
}

/**
 * Starts a provider behind TLS, with a listener in front. Until `pass`, the listener holds
 * connections in `waiting`, in order.
 */
async function startBehindTls(t: TestContext) {
  const certificate = createCertificate(t, ['DNS:localhost', 'IP:127.0.0.1']);
  const upstream = await startUpstream(t, answerWell, certificate);
  const { port } = new URL(upstream.baseUrl);
  const waiting: Socket[] = [];
  let onConnection = (near: Socket): unknown => waiting.push(near);
  const front = await listen(
    t,
    createServer((near) => onConnection(near)),
  );
  const pass = (near: Socket) => {
    const far = connect(Number(port), '127.0.0.1');
    pipeline(near, far, near, () => {});
  };
  return {
    upstream,
    waiting,
    pass,
    passAll: () => {
      onConnection = pass;
    },
    baseUrl: front.baseUrl.replace('http:', 'https:'),
    env: { NODE_EXTRA_CA_CERTS: certificate.path },
  };
}

describe('an end in the middle of a TLS handshake', { skip: NO_OPENSSL }, () => {
  for (const transport of ['auto', 'fetch']) {
    test(`a client that leaves sends no prompt, upstream = ${transport}`, async (t) => {
      const { upstream, waiting, pass, passAll, baseUrl, env } = await startBehindTls(t);
      const cwd = emptyFolder(t, {
        'gateway.toml': `[server]\nhost = "127.0.0.1"\nport = 0\n${providerToml({ baseUrl })}`,
      });
      const options = { cwd, env: { ...env, GATEWAY_UPSTREAM: transport } };
      const { lines, port } = await startServing(t, [], options);
      const { leave } = openChat(port, chatBody({ model: 'p/m', user: 'gone' }));
      await eventually(() => waiting.length === 1, 'the connection to the provider');
      leave();
      await eventually(() => lines('request').length === 1, 'the end of the request');
      passAll();
      pass(waiting[0]!);
      assert.equal((await ask(port, 'p/m')).status, 200);
      // Any connection may be used, but the departed client's prompt was not sent.
      assert.deepEqual(
        upstream.requests.map(({ body }) => body.includes('gone')),
        [false],
      );
    });
  }

  const ends: Record<string, (near: Socket) => unknown> = {
    reset: (near) => near.resetAndDestroy(),
    closed: (near) => near.end(),
  };
  for (const [how, end] of Object.entries(ends)) {
    test(
      `a handshake that is ${how} is repeated as a retry alone`,
      { skip: OVER_FETCH },
      async (t) => {
        const { upstream, waiting, passAll, baseUrl, env } = await startBehindTls(t);
        const provider = providerToml({ baseUrl }, 'p', 'retries = 0');
        const cwd = emptyFolder(t, {
          'gateway.toml': `[server]\nhost = "127.0.0.1"\nport = 0\n${provider}`,
        });
        const { lines, port } = await startServing(t, [], { cwd, env });
        const asked = ask(port, 'p/m');
        await eventually(() => waiting.length === 1, 'the connection to the provider');
        passAll();
        waiting[0]!.once('data', () => end(waiting[0]!));
        const { status, text } = await asked;
        assert.equal(status, 502, text);
        assert.equal(upstream.requests.length, 0);
        await eventually(() => lines('request').length === 1, 'the line of the request');
        const [{ tries = [] } = {}] = lines('request') as { tries?: { cause?: string }[] }[];
        assert.deepEqual([tries.length, /ECONNRESET/.test(tries[0]!.cause!)], [1, true]);
      },
    );
  }
});

test(
  'SNI has the full name without its final dot',
  { skip: OVER_FETCH || NO_OPENSSL },
  async (t) => {
    const { path, ...certificate } = createCertificate(t, ['DNS:full.test']);
    const names: string[] = [];
    const SNICallback = (name: string, callback: (error: null) => void) => {
      names.push(name);
      callback(null);
    };
    const server = createTlsServer({ ...certificate, SNICallback }, (_, response) =>
      sendJson(response, completion()),
    );
    const { port: providerPort } = await listen(t, server);
    const provider = providerToml({ baseUrl: `https://full.test.:${providerPort}/v1` });
    const cwd = emptyFolder(t, {
      'gateway.toml': `[server]\nhost = "127.0.0.1"\nport = 0\n${provider}`,
    });
    const env = { NODE_EXTRA_CA_CERTS: path, ...preload(TWO_ADDRESSES) };
    const { port } = await startServing(t, [], { cwd, env });
    const { status, text } = await ask(port, 'p/m');
    assert.equal(status, 200, text);
    assert.deepEqual(names, ['full.test']);
  },
);

const skip = OVER_FETCH;
test(
  'the line of a try has its connection and the time of the name lookup',
  { skip },
  async (t) => {
    const upstream = await startUpstream(t, answerWell);
    const at = (host: string) => ({ baseUrl: upstream.baseUrl.replace('127.0.0.1', host) });
    const dead = providerToml(at('dead.test'), 'dead', 'timeout = 1');
    const settings = `[server]\nhost = "127.0.0.1"\nport = 0\n[logging]\nlevel = "debug"\n`;
    const cwd = emptyFolder(t, {
      'gateway.toml': `${settings}${providerToml(at('good.test'))}${dead}`,
    });
    const { lines, port } = await startServing(t, [], { cwd, env: preload(NAME_SERVER) });
    const tell = async (model: string) => {
      const earlier = lines('try').length;
      const { status } = await ask(port, model);
      await eventually(() => lines('try').length > earlier, 'the line of the try');
      return [status, ...lines('try').slice(earlier)] as const;
    };
    const [made, first] = await tell('p/m');
    assert.deepEqual([made, first!['connection']], [200, 'new']);
    assert.ok(Number(first!['lookup_ms']) >= LOOKUP_MS - 1, JSON.stringify(first));
    assert.ok(
      Number(first!['connect_ms']) >= Number(first!['lookup_ms']) - 1,
      JSON.stringify(first),
    );
    const [kept, second] = await tell('p/m');
    const { connection, lookup_ms, connect_ms } = second!;
    assert.deepEqual(
      [kept, connection, lookup_ms, connect_ms],
      [200, 'reused', undefined, undefined],
    );
    upstream.script = (_, response) => response.socket?.destroy();
    const [lost, stale, fresh] = await tell('p/m');
    assert.deepEqual([lost, stale!['connection'], fresh!['connection']], [502, 'reused', 'new']);
    const [unresolved, last] = await tell('dead/m');
    assert.deepEqual([unresolved, last!['connection']], [504, undefined]);
    assert.equal(
      last!['cause'],
      'no complete answer in 1000 ms: lookup of dead.test has not finished',
    );
  },
);

/**
 * Preload: the lookup of `gone.test` fails at once, and that of `late.test` takes 4 s. The first
 * lookup of `late.test` is quick. `never.test` is not answered.
 */
const BAD_NAMES = `
  import dns from 'node:dns';
  const system = dns.lookup;
  let asked = 0;
  dns.lookup = (hostname, options, callback) => {
    if (!hostname.endsWith('.test')) return system(hostname, options, callback);
    const error = Object.assign(new Error('getaddrinfo ENOTFOUND ' + hostname), {
      code: 'ENOTFOUND', syscall: 'getaddrinfo', hostname,
    });
    const [isGone, isFirst] = [hostname === 'gone.test', asked++ === 0];
    const end = () => callback(isGone ? error : null, [{ address: '127.0.0.1', family: 4 }]);
    if (hostname !== 'never.test') setTimeout(end, isGone || isFirst ? 0 : 4000);
  };`;

describe('a failing name lookup is the incident', { concurrency: true }, () => {
  async function start(t: TestContext, host: string, { transport = 'auto', timeout = 60 } = {}) {
    const upstream = await startUpstream(t, (request, response) => {
      response.setHeader('connection', 'close');
      return answerWell(request, response);
    });
    const baseUrl = upstream.baseUrl.replace('127.0.0.1', host);
    const provider = providerToml(
      { baseUrl },
      'p',
      `models = ["m"]\nretries = 0\ntimeout = ${timeout}`,
    );
    const cwd = emptyFolder(t, {
      'gateway.toml': `[server]\nhost = "127.0.0.1"\nport = 0\n[admin]\nport = 0\n${provider}`,
    });
    const env = { GATEWAY_UPSTREAM: transport, ...preload(BAD_NAMES) };
    return startServing(t, [], { cwd, env });
  }

  for (const transport of ['auto', 'fetch']) {
    test(`lookup_failed of an unknown name, upstream = ${transport}`, async (t) => {
      const { lines, port } = await start(t, 'gone.test', { transport });
      for (let at = 0; at < 3; at += 1) {
        const { status, text } = await ask(port, 'p/m');
        assert.equal(status, 502);
        assert.doesNotMatch(text, /gone|lookup/);
      }
      await eventually(() => lines('incident').length > 0, 'the incident');
      const [{ kind, cause } = {}] = lines('incident');
      assert.deepEqual(
        [kind, cause],
        ['lookup_failed', 'lookup of gone.test failed: ENOTFOUND'],
        JSON.stringify(lines('incident')),
      );
    });
  }

  for (const [timeout, told] of [
    [1, 'no complete answer in 1000 ms: lookup of never.test has not finished'],
    [20, 'lookup of never.test timed out'],
  ] as const) {
    test(`lookup_failed of a name without an answer, timeout = ${timeout}`, async (t) => {
      const { lines, port } = await start(t, 'never.test', { timeout });
      const replies = await Promise.all([1, 2, 3].map(() => ask(port, 'p/m')));
      for (const { status, text } of replies) {
        assert.equal(status, 504);
        assert.doesNotMatch(text, /never|lookup/);
      }
      await eventually(() => lines('incident').length > 0, 'the incident');
      const [{ kind, cause } = {}] = lines('incident');
      assert.deepEqual([kind, cause], ['lookup_failed', told]);
    });
  }

  test('lookup_slow of a name that takes 4 s, while its last addresses are used', async (t) => {
    const { lines, port } = await start(t, 'late.test');
    const told = () => lines('incident').find(({ kind }) => kind !== 'model_list');
    await eventually(async () => {
      assert.equal((await ask(port, 'p/m')).status, 200);
      return told() !== undefined;
    }, 'the incident');
    const { kind, provider, cause } = told()!;
    assert.deepEqual([kind, provider], ['lookup_slow', 'p']);
    assert.match(
      String(cause),
      /^lookup of late\.test takes up to 4\.\d s, its last addresses are in use$/,
    );
    assert.equal(lines('incident').length, 1);
  });
});

test('an address of the store that accepts only after most of a second is used', async (t) => {
  const hole = await startBlackHole(t, '+OK\r\n');
  const store = `redis://both.test:${hole.port}`;
  const cwd = emptyFolder(t, { 'gateway.toml': `[rate_limit]\nstore = "${store}"\n` });
  const program = startProgram(t, ['--check'], { cwd, env: preload(TWO_ADDRESSES) });
  await eventually(() => program.stdout().includes('rate_limit.store'), 'the settings');
  await sleep(SILENT_MS);
  hole.open();
  await program.exit;
  // On a busy machine the reply may exceed its 50 ms, but the connection was made.
  assert.match(program.stdout(), /^rate_limit\.store +(?:answers|no answer in 50 ms)$/m);
});
