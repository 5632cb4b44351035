/** The two lanes to the providers: which one is taken, and what both do behind a proxy and over TLS. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { connect, createServer, type AddressInfo } from 'node:net';
import { before, describe, test, type TestContext } from 'node:test';
import type { TLSSocket } from 'node:tls';

import { Cancellation } from '../src/lib/cancellation.ts';
import { readAll } from '../src/lib/chunk-buffer.ts';
import { createTransport, type Transport } from '../src/upstream/transport.ts';
import { createCertificate, NO_OPENSSL } from './support/certificate.ts';
import { startStopwatch } from './support/clock.ts';
import { assertError } from './support/errors.ts';
import { startBlackHole, startFaultProxy } from './support/fault-proxy.ts';
import { chatBody, CLIENT_TOKEN, PROVIDER_KEY } from './support/gateway.ts';
import { startHttpProxy } from './support/http-proxy.ts';
import { buildOnce, emptyFolder, runProgram, startServing } from './support/process.ts';
import { rawResponse, startRawUpstream } from './support/raw-upstream.ts';
import { eventually, openChat } from './support/streams.ts';
import {
  completion,
  completionEvents,
  NOBODY_LISTENS,
  sendEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
  type Script,
} from './support/upstream.ts';

before(buildOnce);

/** How the gateway calls its lanes. */
const ENGINE = `undici ${process.versions['undici']}, fetch's engine`;
const FETCH = 'fetch, as the settings ask';
const FAILED_CHECK = 'fetch, its agent failed the check';

interface Settings {
  readonly baseUrl?: string;
  readonly server?: string;
  readonly env?: Readonly<Record<string, string>>;
}

/** The program with one provider `p`. */
async function start(t: TestContext, { baseUrl, server = '', env = {} }: Settings) {
  const provider = `[providers.p]\nbase_url = "${baseUrl}"\napi_key = "${PROVIDER_KEY}"\n`;
  const cwd = emptyFolder(t, {
    'gateway.toml': `[server]\nhost = "127.0.0.1"\nport = 0\n${server}\n${baseUrl ? provider : ''}`,
  });
  const program = await startServing(t, [], { cwd, env });
  const lines = () => program.stdout().split('\n').slice(0, -1);
  /** The access lines, once there are so many. */
  const accessLines = async (count: number) => {
    await eventually(() => lines().length >= count, `${count} lines in the log`);
    assert.equal(lines().length, count);
    return lines().map((line) => JSON.parse(line) as Record<string, unknown>);
  };
  return { ...program, accessLines, lane: /^upstream +(.*)$/m.exec(program.stderr())?.[1] };
}

async function ask(port: number, stream = false) {
  const { response, ended } = openChat(port, chatBody({ stream }));
  const { statusCode: status = 0, headers } = await response;
  return { status, headers, text: await ended };
}

const answer: Script = ({ body }, response) =>
  body.includes('"stream":true')
    ? sendEvents(response, completionEvents())
    : sendJson(response, completion());
const breakOff: Script = (_, response) => response.socket?.destroy();

/** A complete answer and a stream arrive whole. */
async function assertAnswers(port: number): Promise<void> {
  const complete = await ask(port);
  assert.equal(complete.status, 200, complete.text);
  assert.deepEqual(JSON.parse(complete.text), completion());
  const stream = await ask(port, true);
  assert.equal(stream.status, 200, stream.text);
  assert.equal(stream.text, completionEvents());
}

type Running = Awaited<ReturnType<typeof start>>;

/** The client learns that its provider is not usable and no more; the log says `cause`. */
async function assertUnusable(
  { port, accessLines }: Running,
  cause: RegExp,
  message: string | RegExp = 'Provider error: the provider is unreachable',
): Promise<void> {
  for (const stream of [false, true]) {
    const reply = await ask(port, stream);
    assertError(reply, {
      httpStatus: 502,
      type: 'provider_error',
      code: 'PROVIDER_ERROR',
      message,
      provider: 'p',
      headers: { 'x-gateway-provider': 'p' },
    });
    const told = reply.text + JSON.stringify(reply.headers);
    assert.doesNotMatch(told, /invalid\b|\d+\.\d+\.\d+\.\d+|proxy|certificate/i);
  }
  for (const line of await accessLines(2)) {
    assert.deepEqual([line['status'], line['outcome']], [502, 'upstream_error']);
    assert.match(String(line['cause']), cause);
  }
}

/** A request is repeated where its connection broke on being reused, and not where it was the first. */
async function assertRepeatsOnlyReused(port: number, upstream: FakeUpstream): Promise<void> {
  upstream.script = breakOff;
  for (let round = 0; round < 2; round += 1) {
    assert.equal((await ask(port)).status, 502);
    assert.equal(upstream.requests.length, round + 1);
  }
  upstream.script = answer;
  assert.equal((await ask(port)).status, 200);
  // The connection is there now, and good for one request.
  upstream.script = (_, response) => {
    upstream.script = answer;
    response.socket?.destroy();
  };
  assert.equal((await ask(port)).status, 200);
  assert.equal(upstream.requests.length, 5);
}

/** How many TCP connections there are to this port, on Linux. */
function connectionsTo(port: number): number {
  const hex = port.toString(16).toUpperCase().padStart(4, '0');
  const established = new RegExp(`^ *\\d+: \\w+:${hex} \\w+:\\w+ 01 `, 'gm');
  return readFileSync('/proc/net/tcp', 'utf8').match(established)?.length ?? 0;
}

describe('the start', { concurrency: 2 }, () => {
  const unset = { GATEWAY_UPSTREAM: '' };
  const ways: readonly [what: string, settings: Settings, lane: string][] = [
    ['no setting', { env: unset }, ENGINE],
    ['GATEWAY_UPSTREAM=auto', { env: { GATEWAY_UPSTREAM: 'auto' } }, ENGINE],
    ['GATEWAY_UPSTREAM=fetch', { env: { GATEWAY_UPSTREAM: 'fetch' } }, FETCH],
    ['upstream = "fetch" in the file', { server: 'upstream = "fetch"', env: unset }, FETCH],
  ];
  for (const [what, settings, lane] of ways) {
    test(`with ${what} says that upstream is "${lane}", and logs nothing`, async (t) => {
      const program = await start(t, settings);
      assert.equal(program.lane, lane);
      assert.equal(program.stderr().match(/^upstream /gm)?.length, 1);
      assert.equal(program.stdout(), '');
    });
  }

  test('asks its own /health once, which only the debug log shows', async (t) => {
    for (const [name, count] of [
      ['auto', 1],
      ['fetch', 0],
    ] as const) {
      const env = { GATEWAY_UPSTREAM: name, GATEWAY_LOG_LEVEL: 'debug' };
      const { port, accessLines } = await start(t, { env });
      await (await fetch(`http://127.0.0.1:${port}/health?mine`)).text();
      const lines = await accessLines(count + 1);
      const seen = lines.map(({ level, method, status }) => [level, method, status]);
      assert.deepEqual(
        seen,
        lines.map(() => ['debug', 'GET', 200]),
      );
    }
  });

  const noProc = !existsSync('/proc/net/tcp') && 'there is no /proc/net/tcp';
  test('leaves no connection to itself behind', { skip: noProc }, async (t) => {
    const { port } = await start(t, { env: { GATEWAY_UPSTREAM: 'auto' } });
    await eventually(() => connectionsTo(port) === 0, 'the connection of the check is closed');
    // One would be seen.
    const client = connect(port, '127.0.0.1');
    t.after(() => client.destroy());
    await eventually(() => connectionsTo(port) === 1, 'another connection');
  });
});

describe('the check of the engine', { concurrency: true }, () => {
  function create(t: TestContext, setting: 'auto' | 'fetch' = 'auto'): Transport {
    const upstream = createTransport(setting);
    t.after(() => upstream.close());
    return upstream;
  }

  /** Whether a request through it succeeds, and whether it was fetch that sent it. */
  async function usesFetch(t: TestContext, upstream: Transport): Promise<boolean> {
    const provider = await startUpstream(t);
    const { origin } = new URL(provider.baseUrl);
    const request = {
      method: 'POST',
      origin,
      path: '/v1/chat/completions',
      headers: { 'content-type': 'application/json' },
      body: [Buffer.from('{}')],
    } as const;
    const reply = await upstream.send(request, new Cancellation());
    assert.equal(reply.status, 200);
    const bytes = await readAll(reply.body, 10_000);
    assert.deepEqual(JSON.parse(String(bytes)), completion());
    return 'sec-fetch-mode' in provider.requests[0]!.headers;
  }

  test('keeps it where /health answers 200 with a body, and leaves no connection', async (t) => {
    const server = await startUpstream(t, (_, response) => {
      response.end('{"status":"healthy"}');
    });
    const upstream = create(t);
    await upstream.check(new URL(server.baseUrl).origin);
    assert.equal(upstream.description, ENGINE);
    const asked = server.requests.map(({ method, url }) => `${method} ${url}`);
    assert.deepEqual(asked, ['GET /health']);
    await eventually(() => server.sockets.size === 0, 'its connection is closed');
    assert.equal(await usesFetch(t, upstream), false);
  });

  test('is not made where the settings ask for fetch', async (t) => {
    const server = await startUpstream(t);
    const upstream = create(t, 'fetch');
    await upstream.check(new URL(server.baseUrl).origin);
    assert.equal(upstream.description, FETCH);
    assert.equal(server.requests.length, 0);
    assert.equal(await usesFetch(t, upstream), true);
  });

  const whole = rawResponse('{"status":"healthy"}');
  const bad: Record<string, string | undefined> = {
    'answers 503': rawResponse('{"status":"draining"}', { status: '503 No' }),
    'answers without a body': rawResponse(''),
    'answers with far more than that': rawResponse('x'.repeat(1_000_000)),
    'answers what is not HTTP': 'hello\r\n\r\n',
    'closes without an answer': '',
    'cuts the body': whole.slice(0, -1),
    'answers nothing at all': undefined,
    'stops inside the body': whole.slice(0, -1),
  };
  for (const [what, bytes] of Object.entries(bad)) {
    test(`turns to fetch where /health ${what}`, async (t) => {
      const stays = bytes === undefined || what.startsWith('stops');
      const server = await startRawUpstream(t, ({ socket }) => {
        if (bytes) socket.write(bytes);
        if (!stays) socket.end();
      });
      const upstream = create(t);
      const elapsedMs = startStopwatch(t);
      await upstream.check(`http://127.0.0.1:${server.port}`);
      assert.ok(elapsedMs() < 4000, `${elapsedMs()} ms`);
      assert.equal(upstream.description, FAILED_CHECK);
      assert.equal(server.requests.length, 1);
      await eventually(() => server.sockets.size === 0, 'its connection is closed');
      assert.equal(await usesFetch(t, upstream), true);
    });
  }

  test('turns to fetch where nothing listens', async (t) => {
    const upstream = create(t);
    await upstream.check(NOBODY_LISTENS);
    assert.equal(upstream.description, FAILED_CHECK);
    assert.equal(await usesFetch(t, upstream), true);
  });
});

const noProxies =
  !process.allowedNodeEnvironmentFlags.has('--use-env-proxy') &&
  `Node ${process.version} knows no NODE_USE_ENV_PROXY`;
const SOMEWHERE = 'http://provider.invalid/v1';
const SOMEWHERE_TLS = 'https://provider.invalid/v1';

for (const [lane, laneText] of [
  ['auto', ENGINE],
  ['fetch', FETCH],
] as const) {
  describe(`behind a proxy, GATEWAY_UPSTREAM=${lane}`, { concurrency: 2, skip: noProxies }, () => {
    const throughProxy = (url: string, more: Record<string, string> = {}) => ({
      GATEWAY_UPSTREAM: lane,
      NODE_USE_ENV_PROXY: '1',
      HTTP_PROXY: url,
      HTTPS_PROXY: url,
      ...more,
    });

    test('a complete answer and a stream come through it, and the check at startup does not', async (t) => {
      const upstream = await startUpstream(t, answer);
      const proxy = await startHttpProxy(t, upstream);
      const program = await start(t, { baseUrl: SOMEWHERE, env: throughProxy(proxy.url) });
      assert.equal(program.lane, laneText);
      assert.deepEqual(proxy.asked, []);
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

    test(
      'so they do from a provider with TLS, whose requests it cannot read',
      {
        skip: NO_OPENSSL,
      },
      async (t) => {
        const certificate = createCertificate(t, ['DNS:provider.invalid']);
        const upstream = await startUpstream(t, answer, certificate);
        const proxy = await startHttpProxy(t, upstream);
        const env = throughProxy(proxy.url, { NODE_EXTRA_CA_CERTS: certificate.path });
        const { port } = await start(t, { baseUrl: SOMEWHERE_TLS, env });
        await assertAnswers(port);
        assert.deepEqual(proxy.asked, ['CONNECT provider.invalid:443']);
      },
    );

    test('a host in NO_PROXY is asked without it', async (t) => {
      const upstream = await startUpstream(t, answer);
      const proxy = await startHttpProxy(t, upstream);
      const env = throughProxy(proxy.url, { NO_PROXY: 'example.com,127.0.0.1' });
      const { port } = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertAnswers(port);
      assert.deepEqual(proxy.asked, []);
    });

    for (const baseUrl of [SOMEWHERE, SOMEWHERE_TLS]) {
      const scheme = new URL(baseUrl).protocol;

      test(`where nothing listens, ${scheme} is 502, and the log says that it was refused`, async (t) => {
        const program = await start(t, { baseUrl, env: throughProxy(NOBODY_LISTENS) });
        await assertUnusable(program, /ECONNREFUSED/);
      });

      test(`where it wants a password, ${scheme} is 502, and the log says 407`, async (t) => {
        const upstream = await startUpstream(t, answer);
        const proxy = await startHttpProxy(t, upstream);
        proxy.refusal = 407;
        const program = await start(t, { baseUrl, env: throughProxy(proxy.url) });
        await assertUnusable(program, /\b407\b/, /^Provider error: /);
        assert.equal(upstream.requests.length, 0);
      });
    }

    test('where it refuses the tunnel it is 502, and the log says with which status', async (t) => {
      const upstream = await startUpstream(t, answer);
      const proxy = await startHttpProxy(t, upstream);
      proxy.refusal = 403;
      const program = await start(t, { baseUrl: SOMEWHERE_TLS, env: throughProxy(proxy.url) });
      await assertUnusable(program, /\b403\b/);
      assert.equal(upstream.requests.length, 0);
      assert.equal(proxy.asked.at(-1), 'CONNECT provider.invalid:443');
    });

    test('a request whose connection breaks is repeated only where that was reused', async (t) => {
      const upstream = await startUpstream(t, answer);
      const proxy = await startHttpProxy(t, upstream);
      const { port } = await start(t, { baseUrl: SOMEWHERE, env: throughProxy(proxy.url) });
      await assertRepeatsOnlyReused(port, upstream);
    });

    test('where it never answers, the request is 504 and SIGTERM still ends the gateway', async (t) => {
      const silent = createServer((socket) => socket.on('error', () => {}).resume());
      silent.listen(0, '127.0.0.1');
      await once(silent, 'listening');
      t.after(() => silent.close());
      const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
      const settings = { baseUrl: SOMEWHERE_TLS, server: 'timeout = 1' };
      const { port, child, exit } = await start(t, { ...settings, env: throughProxy(url) });
      assert.equal((await ask(port)).status, 504);
      child.kill('SIGTERM');
      await eventually(() => child.exitCode !== null, 'it ends');
      assert.equal(await exit, 0);
    });

    test('--healthcheck does not ask it', async (t) => {
      const upstream = await startUpstream(t);
      const proxy = await startHttpProxy(t, upstream);
      proxy.refusal = 403;
      const env = throughProxy(proxy.url);
      const { port } = await start(t, { env });
      const itself = { GATEWAY_HOST: '127.0.0.1', GATEWAY_PORT: `${port}` };
      const { code, stdout } = await runProgram(t, ['--healthcheck'], {
        env: { ...env, ...itself },
      });
      assert.equal(code, 0, stdout);
      assert.match(stdout, /"healthy"/);
      assert.deepEqual(proxy.asked, []);
    });
  });

  describe(`over TLS, GATEWAY_UPSTREAM=${lane}`, { concurrency: 2, skip: NO_OPENSSL }, () => {
    test('a certificate that nobody vouches for is 502, and nothing is sent', async (t) => {
      const certificate = createCertificate(t, ['IP:127.0.0.1']);
      const upstream = await startUpstream(t, answer, certificate);
      const env = { GATEWAY_UPSTREAM: lane };
      const program = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertUnusable(program, /SELF_SIGNED_CERT/);
      assert.equal(upstream.requests.length, 0);
    });

    test('a certificate for another host is 502, and nothing is sent', async (t) => {
      const certificate = createCertificate(t, ['DNS:other.invalid', 'IP:127.0.0.9']);
      const upstream = await startUpstream(t, answer, certificate);
      const env = { GATEWAY_UPSTREAM: lane, NODE_EXTRA_CA_CERTS: certificate.path };
      const program = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertUnusable(program, /ERR_TLS_CERT_ALTNAME_INVALID/);
      assert.equal(upstream.requests.length, 0);
    });

    for (const host of ['127.0.0.1', 'localhost']) {
      test(`${host} with NODE_EXTRA_CA_CERTS is asked on one connection`, async (t) => {
        const certificate = createCertificate(t, ['DNS:localhost', 'IP:127.0.0.1']);
        const upstream = await startUpstream(t, answer, certificate);
        const env = { GATEWAY_UPSTREAM: lane, NODE_EXTRA_CA_CERTS: certificate.path };
        const baseUrl = upstream.baseUrl.replace('127.0.0.1', host);
        const { port } = await start(t, { baseUrl, env });
        await assertAnswers(port);
        const [first] = upstream.sockets;
        await assertAnswers(port);
        assert.deepEqual([...upstream.sockets], [first]);
        assert.equal(upstream.requests.length, 4);
      });
    }

    test('a second connection resumes the session of the first', async (t) => {
      const certificate = createCertificate(t, ['IP:127.0.0.1']);
      const resumed: boolean[] = [];
      const closing: Script = (request, response) => {
        resumed.push((response.socket as TLSSocket).isSessionReused());
        response.setHeader('connection', 'close');
        return answer(request, response);
      };
      const upstream = await startUpstream(t, closing, certificate);
      const env = { GATEWAY_UPSTREAM: lane, NODE_EXTRA_CA_CERTS: certificate.path };
      const { port } = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertAnswers(port);
      assert.deepEqual(resumed, [false, true]);
    });

    test('a session is not resumed after a handshake that failed', async (t) => {
      const certificate = createCertificate(t, ['IP:127.0.0.1']);
      const resumed: boolean[] = [];
      const closing: Script = (request, response) => {
        resumed.push((response.socket as TLSSocket).isSessionReused());
        response.setHeader('connection', 'close');
        return answer(request, response);
      };
      const upstream = await startUpstream(t, closing, certificate);
      const proxy = await startFaultProxy(t, Number(new URL(upstream.baseUrl).port));
      const baseUrl = proxy.baseUrl.replace('http:', 'https:');
      const env = { GATEWAY_UPSTREAM: lane, NODE_EXTRA_CA_CERTS: certificate.path };
      const { port } = await start(t, { baseUrl, env });
      await assertAnswers(port);
      proxy.fault = { onConnect: 'close' };
      assert.equal((await ask(port)).status, 502);
      proxy.fault = {};
      await assertAnswers(port);
      assert.deepEqual(resumed, [false, true, false, true]);
    });

    test('a request whose connection breaks is repeated only where that was reused', async (t) => {
      const certificate = createCertificate(t, ['IP:127.0.0.1']);
      const upstream = await startUpstream(t, answer, certificate);
      const env = { GATEWAY_UPSTREAM: lane, NODE_EXTRA_CA_CERTS: certificate.path };
      const { port } = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertRepeatsOnlyReused(port, upstream);
    });
  });
}

for (const lane of ['auto', 'fetch']) {
  describe(`beside other code in the process (upstream = ${lane})`, { concurrency: 2 }, () => {
    /** Runs before the program's own first line. */
    const preload = (code: string) => ({
      GATEWAY_UPSTREAM: lane,
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(code)}`,
    });

    test('a connection of fetch that is older than the gateway does no harm', async (t) => {
      const upstream = await startUpstream(t, answer);
      const code = `
        const ask = async () => (await fetch(${JSON.stringify(upstream.baseUrl)})).text();
        await ask();
        setInterval(ask, 20).unref();`;
      const { port } = await start(t, { baseUrl: upstream.baseUrl, env: preload(code) });
      await assertAnswers(port);
      const already = upstream.requests.length;
      await eventually(() => upstream.requests.length > already + 2, 'more requests of the other');
      await assertAnswers(port);
    });

    test('an address that is silent beside one that refuses is 502, not a timeout', async (t) => {
      const { port: silentPort } = await startBlackHole(t);
      const code = `
        import dns from 'node:dns';
        const lookup = dns.lookup;
        const both = [1, 2].map((last) => ({ address: '127.0.0.' + last, family: 4 }));
        dns.lookup = (host, options, callback) =>
          host === 'both.test' ? callback(null, both) : lookup(host, options, callback);`;
      const baseUrl = `http://both.test:${silentPort}/v1`;
      await assertUnusable(await start(t, { baseUrl, env: preload(code) }), /./);
    });
  });
}
