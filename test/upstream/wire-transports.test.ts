/**
 * The two transports to the providers: the choice between them, and both behind a proxy and over
 * TLS.
 */

import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { before, describe, test, type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { TLSSocket } from 'node:tls';

import { Cancellation } from '../../src/lib/cancellation.ts';
import { readAll } from '../../src/lib/memory/byte-source.ts';
import {
  type ConnectionUse,
  fixedHeaders,
} from '../../src/upstream/connections/upstream-request.ts';
import { createTransport } from '../../src/upstream/connections/transport.ts';
import { createCertificate, NO_OPENSSL } from '../support/certificate.ts';
import { idle, moveStopwatch, useManualTimers } from '../support/clock.ts';
import { assertError } from '../support/errors.ts';
import { startBlackHole, startFaultProxy } from '../support/fault-proxy.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  providerToml,
  startGateway,
} from '../support/gateway.ts';
import { startHttpProxy } from '../support/http-proxy.ts';
import { buildOnce, emptyFolder, runProgram, startServing, parseLog } from '../support/process.ts';
import { rawResponse, startRawUpstream } from '../support/raw-upstream.ts';
import { createGate, eventually, openChat } from '../support/streams.ts';
import { sweep } from '../support/sweep.ts';
import {
  answerWell,
  completion,
  completionEvents,
  NOBODY_LISTENS,
  sendJson,
  startUpstream,
  type FakeUpstream,
  type Script,
} from '../support/upstream.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { listen } from '../support/listen.ts';

before(buildOnce);

/** The transport's name in the startup line. */
const OWN = 'own connections';
const FETCH = 'fetch (as configured)';
const fixed = fixedHeaders('http://p', {});

type TransportName = 'auto' | 'fetch';

interface Settings {
  /** Provider `p`'s address. */
  readonly baseUrl?: string;
  /** Other providers' addresses, by id. */
  readonly others?: Readonly<Record<string, string>>;
  readonly server?: string;
  /** Lines in the section of provider `tls`. */
  readonly tls?: string;
  readonly env?: Readonly<Record<string, string>>;
}

/** Starts the program with these providers. */
async function start(t: TestContext, settings: Settings) {
  const { baseUrl, others = {}, server = '', env = {}, tls = '' } = settings;
  const providers = Object.entries({ ...(baseUrl && { p: baseUrl }), ...others });
  const sections = providers.map(([id, url]) =>
    providerToml({ baseUrl: url }, id, id === 'tls' ? tls : ''),
  );
  const cwd = emptyFolder(t, {
    'gateway.toml': `[server]\nhost = "127.0.0.1"\nport = 0\n${server}\n${sections.join('')}`,
  });
  const program = await startServing(t, [], { cwd, env });
  const lines = (name: string) => parseLog(program.stdout(), name);
  const transport = /^upstream +(.*)$/m.exec(program.stderr())?.[1];
  return { ...program, lines, transport };
}

async function ask(port: number, stream = false, provider = 'p') {
  const { response, ended } = openChat(port, chatBody({ model: `${provider}/m`, stream }));
  const { statusCode: status = 0, headers } = await response;
  return { status, headers, text: await ended };
}

const breakOff: Script = (_, response) => response.socket?.destroy();

/** Checks for a whole complete answer and a whole stream. */
async function assertAnswers(port: number, provider = 'p'): Promise<void> {
  const complete = await ask(port, false, provider);
  assert.equal(complete.status, 200, complete.text);
  assert.deepEqual(JSON.parse(complete.text), completion());
  const stream = await ask(port, true, provider);
  assert.equal(stream.status, 200, stream.text);
  assert.equal(stream.text, completionEvents());
}

type Running = Awaited<ReturnType<typeof start>>;

const UNREACHABLE = 'Provider error: the provider is unreachable';

/** Checks that the client only learns of an unusable provider, and that the log has the cause. */
async function assertUnusable(
  { port, lines }: Running,
  cause: RegExp,
  { provider = 'p', message = UNREACHABLE }: { provider?: string; message?: string | RegExp } = {},
): Promise<void> {
  const earlier = lines('request').length;
  for (const stream of [false, true]) {
    const reply = await ask(port, stream, provider);
    assertError(reply, {
      httpStatus: 502,
      type: 'provider_error',
      code: 'PROVIDER_ERROR',
      message,
      provider,
      headers: { 'x-gateway-provider': provider },
    });
    const told = reply.text + JSON.stringify(reply.headers);
    assert.doesNotMatch(told, /invalid\b|\d+\.\d+\.\d+\.\d+|proxy|certificate/i);
  }
  await eventually(() => lines('request').length === earlier + 2, 'the lines in the log');
  for (const line of lines('request').slice(earlier)) {
    assert.deepEqual([line['status'], line['outcome']], [502, 'upstream_error']);
    const [{ cause: told } = {}] = line['tries'] as Record<string, unknown>[];
    assert.match(String(told), cause);
  }
}

/**
 * Checks that a request is repeated if its connection was reused, but not if it was the
 * connection's first. fetch does not show the difference, so no request is repeated over fetch.
 */
async function assertRepeatsOnlyReused(
  port: number,
  upstream: FakeUpstream,
  transport: TransportName,
): Promise<void> {
  upstream.script = breakOff;
  for (let round = 0; round < 2; round += 1) {
    assert.equal((await ask(port)).status, 502);
    assert.equal(upstream.requests.length, round + 1);
  }
  upstream.script = answerWell;
  assert.equal((await ask(port)).status, 200);
  // A kept connection breaks at its next request.
  upstream.script = (_, response) => {
    upstream.script = answerWell;
    response.socket?.destroy();
  };
  assert.equal((await ask(port)).status, transport === 'auto' ? 200 : 502);
  assert.equal(upstream.requests.length, transport === 'auto' ? 5 : 4);
}

/** An environment to run this code before the program. */
const preload = (code: string) => ({
  NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(code)}`,
});

const unset = { GATEWAY_UPSTREAM: '' };
const AUTO = { GATEWAY_UPSTREAM: 'auto', GATEWAY_LOG_LEVEL: 'debug' };
const STARTS: readonly [what: string, settings: Settings, transport: string][] = [
  ['no setting', { env: unset }, OWN],
  ['GATEWAY_UPSTREAM=auto', { env: AUTO }, OWN],
  ['GATEWAY_UPSTREAM=fetch', { env: { GATEWAY_UPSTREAM: 'fetch' } }, 'fetch (GATEWAY_UPSTREAM)'],
  ['upstream = "fetch" in the file', { server: 'upstream = "fetch"', env: unset }, FETCH],
];

describe('the start', { concurrency: 2 }, () => {
  for (const [what, settings, transport] of STARTS) {
    test(`with ${what} reports only upstream "${transport}", and answers`, async (t) => {
      const upstream = await startUpstream(t, answerWell);
      const program = await start(t, { baseUrl: upstream.baseUrl, ...settings });
      assert.equal(program.transport, transport);
      assert.equal(program.stderr().match(/^upstream /gm)?.length, 1);
      await eventually(() => program.stdout().includes('\n'), 'the line');
      const [line, ...more] = program.lines('started');
      assert.deepEqual([line?.['transport'], more], [transport, []]);
      assert.equal(program.stdout().split('\n').length, 2);
      const isFetch = transport.startsWith('fetch');
      const limitations = program.stderr().match(/^warning +fetch /gm)?.length ?? 0;
      assert.equal(limitations, isFetch ? 2 : 0);
      await assertAnswers(program.port);
      assert.equal('sec-fetch-mode' in upstream.requests.at(-1)!.headers, isFetch);
      // The gateway must not have sent requests to itself.
      await eventually(() => program.lines('request').length >= 2, 'the lines');
      assert.equal(program.lines('request').length, 2);
    });
  }
});

test("a gateway with own connections never loads fetch's client", async (t) => {
  const code = `process.on('exit', () => {
    const isLoaded = process.moduleLoadList.some((name) => name.endsWith('undici/undici'));
    process.stderr.write('loaded: ' + isLoaded);
  });`;
  for (const upstream of ['auto', 'fetch']) {
    const { baseUrl } = await startUpstream(t, answerWell);
    const env = { ...preload(code), GATEWAY_UPSTREAM: upstream };
    const program = await start(t, { baseUrl, env });
    await assertAnswers(program.port);
    program.child.kill('SIGTERM');
    await program.exit;
    assert.match(program.stderr(), new RegExp(`loaded: ${upstream === 'fetch'}$`));
  }
});

test(
  'a connection that is not made within ten seconds is a 504',
  { skip: OVER_FETCH },
  async (t) => {
    const timers = useManualTimers(t);
    const toml = providerToml(await startBlackHole(t));
    const gateway = await startGateway(t, { toml });
    let isAnswered = false;
    const reply = gateway.chat(chatBody()).finally(() => (isAnswered = true));
    // The ten seconds are ten ticks, one each second.
    await eventually(() => timers.running().includes(1000), 'the connection is being made');
    timers.advance(9999);
    await idle(100);
    assert.equal(isAnswered, false);
    timers.advance(1);
    const answered = await reply;
    const { code, message } = answered.json().error;
    assert.deepEqual([answered.status, code, message], [504, 'TIMEOUT', 'Request timed out']);
  },
);

/**
 * Returns a function that sends a request over its own transport, and returns its kind of
 * connection.
 */
async function startTransport(
  t: TestContext,
  name: TransportName,
  { baseUrl }: { baseUrl: string },
) {
  const transport = createTransport(name);
  t.after(() => transport.close());
  const { origin } = new URL(baseUrl);
  const send = async (reconnect = false) => {
    const request = { method: 'GET', origin, path: '/', fixed, headers: [], reconnect } as const;
    const use: ConnectionUse = {};
    const { body } = await transport.send(request, new Cancellation(), use);
    await readAll(body, 100);
    // A connection is idle from the next turn on.
    await nextTurn();
    await nextTurn();
    return use.connection;
  };
  const figures = () => transport.connectionFigures && { ...transport.connectionFigures };
  return { send, figures };
}

describe('the figures of connections to providers', { skip: OVER_FETCH }, () => {
  test('count open connections, new connections, and their reuse', async (t) => {
    const upstream = await startUpstream(t);
    const { send, figures } = await startTransport(t, 'auto', upstream);
    assert.deepEqual(figures(), { open: 0, made: 0, reused: 0 });
    assert.deepEqual([await send(), await send(), await send()], ['new', 'reused', 'reused']);
    assert.deepEqual(figures(), { open: 1, made: 1, reused: 2 });
    assert.deepEqual(await Promise.all([send(), send()]), ['reused', 'new']);
    assert.deepEqual(figures(), { open: 2, made: 2, reused: 3 });
    for (const socket of upstream.sockets) socket.destroy();
    await eventually(() => figures()?.open === 0, 'the connections are closed');
    assert.equal(await send(), 'new');
    assert.deepEqual(figures(), { open: 1, made: 3, reused: 3 });
    const overFetch = await startTransport(t, 'fetch', upstream);
    assert.deepEqual([await overFetch.send(), overFetch.figures()], [undefined, undefined]);
  });

  test('show that a crowd of 200 makes a connection each, and the next crowd none', async (t) => {
    let gate = createGate();
    const upstream = await startUpstream(t, async (_, response) => {
      await gate.opened;
      sendJson(response, {});
    });
    const { send, figures } = await startTransport(t, 'auto', upstream);
    for (const crowd of [1, 2]) {
      const sent = Array.from({ length: 200 }, () => send());
      await eventually(() => upstream.requests.length === crowd * 200, 'all are there at a time');
      gate.open();
      const used = new Set(await Promise.all(sent));
      assert.deepEqual([...used], [crowd === 1 ? 'new' : 'reused']);
      gate = createGate();
    }
    assert.deepEqual(figures(), { open: 200, made: 200, reused: 200 });
    gate.open();
    // The latest connection is taken first, so that the others may end from disuse.
    const idleBytes = [...upstream.sockets].map(({ bytesRead }) => bytesRead);
    for (let round = 0; round < 3; round += 1) assert.equal(await send(), 'reused');
    const used = [...upstream.sockets].filter(({ bytesRead }, at) => bytesRead > idleBytes[at]!);
    assert.equal(used.length, 1);
  });

  test('show that a fresh connection is not an idle one, and is kept afterwards', async (t) => {
    const { send, figures } = await startTransport(t, 'auto', await startUpstream(t));
    const used = [await send(), await send(true), await send()];
    assert.deepEqual(used, ['new', 'new', 'reused']);
    assert.equal(figures()?.open, 2);
  });

  test('show that an idle connection is kept for 90 s', async (t) => {
    const timers = useManualTimers(t);
    const moveOn = moveStopwatch(t);
    const pass = (ms: number) => {
      moveOn(ms);
      timers.advance(ms);
    };
    // Without `Keep-Alive`, which could shorten the time.
    const upstream = await startRawUpstream(t, ({ socket }) => socket.write(rawResponse('{}')));
    const { send, figures } = await startTransport(t, 'auto', upstream);
    for (const round of [1, 2]) {
      assert.equal(await send(), 'new');
      pass(85_000);
      assert.equal(await send(), 'reused');
      pass(95_000);
      await eventually(() => figures()?.open === 0, `it is closed, round ${round}`);
    }
    assert.equal(await send(), 'new');
    // The request comes before the examination of each second.
    moveOn(95_000);
    assert.equal(await send(), 'new');
  });
});

const SOMEWHERE = 'http://provider.invalid/v1';

const noProxies =
  !process.allowedNodeEnvironmentFlags.has('--use-env-proxy') &&
  `Node ${process.version} knows no NODE_USE_ENV_PROXY`;
const SOMEWHERE_TLS = 'https://provider.invalid/v1';

describe('behind a proxy', { concurrency: 2, skip: noProxies }, () => {
  /** Starts the program behind a proxy, with the providers `p` and `tls` on its other side. */
  const startBehind = async (t: TestContext, settings: Settings = {}) => {
    const upstream = await startUpstream(t, answerWell);
    const proxy = await startHttpProxy(t, upstream);
    const env = {
      GATEWAY_UPSTREAM: 'auto',
      NODE_USE_ENV_PROXY: '1',
      HTTP_PROXY: proxy.url,
      HTTPS_PROXY: proxy.url,
      NO_PROXY: 'example.com,127.0.0.1',
      ...settings.env,
    };
    const others = { tls: SOMEWHERE_TLS, near: upstream.baseUrl };
    const program = await start(t, { baseUrl: SOMEWHERE, others, ...settings, env });
    return { upstream, proxy, program, env };
  };

  test('answers come through it, unless their host is in NO_PROXY', async (t) => {
    const { upstream, proxy, program, env } = await startBehind(t);
    assert.equal(program.transport, 'fetch (NODE_USE_ENV_PROXY)');
    await assertAnswers(program.port, 'near');
    const itself = { GATEWAY_HOST: '127.0.0.1', GATEWAY_PORT: `${program.port}`, NO_PROXY: '' };
    const health = await runProgram(t, ['--healthcheck'], { env: { ...env, ...itself } });
    assert.equal(health.code, 0, health.stdout);
    assert.match(health.stdout, /"healthy"/);
    assert.deepEqual(proxy.asked, []);
    upstream.requests.length = 0;
    await assertAnswers(program.port);
    for (const asked of proxy.asked) {
      assert.match(
        asked,
        /^(?:CONNECT provider\.invalid:80|POST http:\/\/provider\.invalid\/v1\/chat\/completions)$/,
      );
    }
    assert.ok(proxy.asked.length > 0);
    const { url, headers } = upstream.requests[0]!;
    assert.deepEqual([url, headers.host], ['/v1/chat/completions', 'provider.invalid']);
    assert.equal(headers.authorization, `Bearer ${PROVIDER_KEY}`);
    assert.ok(!JSON.stringify(headers).includes(CLIENT_TOKEN));
  });

  const what = 'answers of a provider with TLS come through it, and it cannot read the requests';
  test(what, { skip: NO_OPENSSL }, async (t) => {
    const certificate = createCertificate(t, ['DNS:provider.invalid']);
    const upstream = await startUpstream(t, answerWell, certificate);
    const proxy = await startHttpProxy(t, upstream);
    const ca = { NODE_EXTRA_CA_CERTS: certificate.path, HTTPS_PROXY: proxy.url };
    const { program } = await startBehind(t, { env: ca });
    await assertAnswers(program.port, 'tls');
    assert.deepEqual(proxy.asked, ['CONNECT provider.invalid:443']);
  });

  test('a refused connection to it is a 502, and the log has the cause', async (t) => {
    const env = { HTTP_PROXY: NOBODY_LISTENS, HTTPS_PROXY: NOBODY_LISTENS };
    const { program } = await startBehind(t, { env });
    for (const provider of ['p', 'tls'])
      await assertUnusable(program, /ECONNREFUSED/, { provider });
  });

  test('its refusal is a 502 with a logged status', async (t) => {
    const { proxy, program } = await startBehind(t);
    proxy.refusal = 407;
    for (const provider of ['p', 'tls']) {
      await assertUnusable(program, /\b407\b/, { provider, message: /^Provider error: / });
    }
    proxy.refusal = 403;
    await assertUnusable(program, /\b403\b/, { provider: 'tls' });
    assert.equal(proxy.asked.at(-1), 'CONNECT provider.invalid:443');
  });

  // docs/limits.md: there fetch asks again and again until the time limit.
  const repeats = /^v2[24]\./.test(process.version) && 'fetch of Node 22 and 24 repeats it';
  test('a closed CONNECT is a 502, and is not repeated for ever', { skip: repeats }, async (t) => {
    const { upstream, proxy, program } = await startBehind(t);
    proxy.closes = true;
    const cause = /other side closed|Proxy Connection failed/;
    await assertUnusable(program, cause, { provider: 'tls' });
    const asked = proxy.asked.length;
    await idle(100);
    assert.equal(proxy.asked.length, asked);
    assert.ok(asked <= 4, `${asked} times`);
    assert.equal(upstream.requests.length, 0);
  });

  test('its silence is a 504, and SIGTERM still ends the gateway', async (t) => {
    const silent = await listen(
      t,
      createServer((socket) => socket.resume()),
    );
    const env = { HTTPS_PROXY: `http://127.0.0.1:${silent.port}` };
    const { program } = await startBehind(t, { server: 'timeout = 1', env });
    assert.equal((await ask(program.port, false, 'tls')).status, 504);
    program.child.kill('SIGTERM');
    await eventually(() => program.child.exitCode !== null, 'it ends');
    assert.equal(await program.exit, 0);
  });
});

const TRANSPORTS = ['auto', 'fetch'] as const;
for (const transport of TRANSPORTS.slice(0, sweep(2, 1))) {
  describe(`over TLS, GATEWAY_UPSTREAM=${transport}`, { concurrency: 2, skip: NO_OPENSSL }, () => {
    /**
     * Starts trusted providers with TLS, one with this machine's names and another with wrong
     * names, and an untrusted provider.
     */
    const startTls = async (t: TestContext, script: Script = answerWell) => {
      const certificate = createCertificate(t, ['DNS:localhost', 'IP:127.0.0.1']);
      const misnamed = createCertificate(t, ['DNS:other.invalid', 'IP:127.0.0.9']);
      const untrusted = createCertificate(t, ['IP:127.0.0.1']);
      const folder = emptyFolder(t, { 'ca.pem': [certificate.cert, misnamed.cert].join('\n') });
      const [p, wrong, self] = await Promise.all([
        startUpstream(t, script, certificate),
        startUpstream(t, script, misnamed),
        startUpstream(t, script, untrusted),
      ]);
      const env = {
        GATEWAY_UPSTREAM: transport,
        NODE_EXTRA_CA_CERTS: `${folder}/ca.pem`,
      };
      const others = {
        wrong: wrong.baseUrl,
        self: self.baseUrl,
        named: p.baseUrl.replace('127.0.0.1', 'localhost'),
      };
      return { p, wrong, self, settings: { baseUrl: p.baseUrl, others, env } };
    };

    test('an untrusted or misnamed certificate is a 502, and nothing is sent', async (t) => {
      const { wrong, self, settings } = await startTls(t);
      const program = await start(t, settings);
      await assertUnusable(program, /SELF_SIGNED_CERT/, { provider: 'self' });
      await assertUnusable(program, /ERR_TLS_CERT_ALTNAME_INVALID/, { provider: 'wrong' });
      assert.deepEqual([wrong.requests.length, self.requests.length], [0, 0]);
    });

    test('an address and a name have a connection each, and a body of 1 MiB arrives', async (t) => {
      const { p, settings } = await startTls(t);
      const { port } = await start(t, settings);
      for (const [index, provider] of ['p', 'named'].entries()) {
        await assertAnswers(port, provider);
        const sockets = [...p.sockets];
        assert.equal(sockets.length, index + 1);
        await assertAnswers(port, provider);
        assert.deepEqual([...p.sockets], sockets);
        assert.equal(p.requests.length, 4 * (index + 1));
      }
      const body = chatBody({ pad: 'x'.repeat(1_048_576) });
      const { response, ended } = openChat(port, body);
      assert.equal((await response).statusCode, 200, await ended);
      const received = JSON.parse(p.requests.at(-1)!.body.toString()) as object;
      assert.deepEqual(received, { ...body, model: 'm' });
    });

    const notOurs = transport === 'fetch' && 'fetch keeps sessions as it likes';
    test(
      'a second connection resumes the TLS session, unless the handshake failed',
      { skip: notOurs },
      async (t) => {
        const resumed: boolean[] = [];
        const { p, settings } = await startTls(t, (request, response) => {
          resumed.push((response.socket as TLSSocket).isSessionReused());
          response.setHeader('connection', 'close');
          return answerWell(request, response);
        });
        const proxy = await startFaultProxy(t, Number(new URL(p.baseUrl).port));
        const baseUrl = proxy.baseUrl.replace('http:', 'https:');
        const { port } = await start(t, { ...settings, baseUrl });
        await assertAnswers(port);
        proxy.fault = { onConnect: 'close' };
        assert.equal((await ask(port)).status, 502);
        proxy.fault = {};
        await assertAnswers(port);
        assert.deepEqual(resumed, [false, true, false, true]);
      },
    );

    test('each of 100 connections at a time resumes the session', { skip: notOurs }, async (t) => {
      const resumed: boolean[] = [];
      const gate = createGate();
      const { p, settings } = await startTls(t, async (request, response) => {
        resumed.push((response.socket as TLSSocket).isSessionReused());
        if (resumed.length > 1) await gate.opened;
        return answerWell(request, response);
      });
      const { port } = await start(t, settings);
      assert.equal((await ask(port)).status, 200);
      const crowd = Array.from({ length: 100 }, () => ask(port));
      await eventually(() => p.requests.length === 101, 'all are there at a time');
      gate.open();
      for (const { status } of await Promise.all(crowd)) assert.equal(status, 200);
      // The first request uses the open connection.
      assert.deepEqual(resumed, [false, false, ...Array<boolean>(99).fill(true)]);
      assert.equal(p.sockets.size, 100);
    });

    test('a request whose connection breaks is repeated only if it was reused', async (t) => {
      const { p, settings } = await startTls(t);
      const { port } = await start(t, settings);
      await assertRepeatsOnlyReused(port, p, transport);
    });
  });
}

for (const transport of TRANSPORTS.slice(0, sweep(2, 1))) {
  describe(`beside other code in the process (upstream = ${transport})`, { concurrency: 2 }, () => {
    const environment = (code: string) => ({ GATEWAY_UPSTREAM: transport, ...preload(code) });

    test('a connection of fetch that is older than the gateway does no harm', async (t) => {
      const upstream = await startUpstream(t, answerWell);
      const code = `
        const ask = async () => (await fetch(${JSON.stringify(upstream.baseUrl)})).text();
        await ask();
        setInterval(ask, 20).unref();`;
      const { port } = await start(t, { baseUrl: upstream.baseUrl, env: environment(code) });
      await assertAnswers(port);
      const already = upstream.requests.length;
      await eventually(() => upstream.requests.length > already + 2, 'more requests of the other');
      await assertAnswers(port);
    });

    test('a silent address beside an address that refuses is a 502, not a timeout', async (t) => {
      const { port: silentPort } = await startBlackHole(t);
      const code = `
        import dns from 'node:dns';
        const lookup = dns.lookup;
        const both = [1, 2].map((last) => ({ address: '127.0.0.' + last, family: 4 }));
        dns.lookup = (host, options, callback) =>
          host === 'both.test' ? callback(null, both) : lookup(host, options, callback);`;
      const baseUrl = `http://both.test:${silentPort}/v1`;
      await assertUnusable(await start(t, { baseUrl, env: environment(code) }), /./);
    });
  });
}
