/** The two transports to the providers: which one is used, and what both do behind a proxy and over TLS. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { before, describe, test, type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { TLSSocket } from 'node:tls';

import { Cancellation } from '../src/lib/cancellation.ts';
import { readAll } from '../src/lib/byte-source.ts';
import { createTransport } from '../src/upstream/transport.ts';
import { createCertificate, NO_OPENSSL } from './support/certificate.ts';
import { idle, useManualTimers } from './support/clock.ts';
import { assertError } from './support/errors.ts';
import { startBlackHole, startFaultProxy } from './support/fault-proxy.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  providerToml,
  startGateway,
} from './support/gateway.ts';
import { startHttpProxy } from './support/http-proxy.ts';
import { buildOnce, emptyFolder, runProgram, startServing } from './support/process.ts';
import { rawResponse, startRawUpstream } from './support/raw-upstream.ts';
import { eventually, openChat } from './support/streams.ts';
import { sweep } from './support/sweep.ts';
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
import { OVER_FETCH } from './support/transport.ts';
import { ONE_WORKER } from './support/workers.ts';

before(buildOnce);

/** The texts of the startup line. */
const UNDICI = `undici ${process.versions['undici']} (the agent under fetch)`;
const FETCH = 'fetch (as configured)';

type TransportName = 'auto' | 'fetch';

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
  const lines = (name: string) =>
    program
      .stdout()
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line) as Record<string, unknown>)
      .filter(({ message }) => message === name);
  /** The access lines, once there are so many. */
  const accessLines = async (count: number) => {
    await eventually(() => lines('request').length >= count, `${count} lines in the log`);
    assert.equal(lines('request').length, count);
    return lines('request');
  };
  return {
    ...program,
    lines,
    accessLines,
    transport: /^upstream +(.*)$/m.exec(program.stderr())?.[1],
  };
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
    const [{ cause: told } = {}] = line['tries'] as Record<string, unknown>[];
    assert.match(String(told), cause);
  }
}

/**
 * A request is repeated if its connection was reused, and not if it was the first on it. fetch does not
 * tell the two apart: with it, no request is repeated.
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
  upstream.script = answer;
  assert.equal((await ask(port)).status, 200);
  // The connection is there now, and good for one request.
  upstream.script = (_, response) => {
    upstream.script = answer;
    response.socket?.destroy();
  };
  assert.equal((await ask(port)).status, transport === 'auto' ? 200 : 502);
  assert.equal(upstream.requests.length, transport === 'auto' ? 5 : 4);
}

/** The environment that runs this code before the program's own first line. */
const preload = (code: string) => ({
  NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(code)}`,
});

describe('the start', { concurrency: 2 }, () => {
  const unset = { GATEWAY_UPSTREAM: '' };
  const ways: readonly [what: string, settings: Settings, transport: string][] = [
    ['no setting', { env: unset }, UNDICI],
    ['GATEWAY_UPSTREAM=auto', { env: { GATEWAY_UPSTREAM: 'auto' } }, UNDICI],
    ['GATEWAY_UPSTREAM=fetch', { env: { GATEWAY_UPSTREAM: 'fetch' } }, FETCH],
    ['upstream = "fetch" in the file', { server: 'upstream = "fetch"', env: unset }, FETCH],
  ];
  for (const [what, settings, transport] of ways) {
    test(`with ${what} says that upstream is "${transport}", and logs nothing else`, async (t) => {
      const program = await start(t, settings);
      assert.equal(program.transport, transport);
      assert.equal(program.stderr().match(/^upstream /gm)?.length, 1);
      await eventually(() => program.stdout().includes('\n'), 'the line');
      const [line, ...more] = program.lines('started');
      assert.deepEqual([line?.['transport'], more], [transport, []]);
      assert.equal(program.stdout().split('\n').length, 2);
      const limitations = program.stderr().match(/^warning +fetch /gm)?.length ?? 0;
      assert.equal(limitations, transport === FETCH ? 2 : 0);
    });
  }

  test('makes no request to the gateway itself', async (t) => {
    const env = { GATEWAY_UPSTREAM: 'auto', GATEWAY_LOG_LEVEL: 'debug' };
    const { port, accessLines } = await start(t, { env });
    await (await fetch(`http://127.0.0.1:${port}/health?mine`)).text();
    assert.equal((await accessLines(1)).length, 1);
  });
});

test(
  'a connection that is not made within ten seconds is a 504',
  { skip: OVER_FETCH },
  async (t) => {
    const timers = useManualTimers(t);
    const { port } = await startBlackHole(t);
    const toml = providerToml({ baseUrl: `http://127.0.0.1:${port}/v1` });
    const gateway = await startGateway(t, { toml });
    let isAnswered = false;
    const reply = gateway.chat(chatBody()).finally(() => (isAnswered = true));
    await eventually(() => timers.running().length > 0, 'the connection is being made');
    timers.advance(9999);
    await idle(100);
    assert.equal(isAnswered, false);
    timers.advance(1);
    const answered = await reply;
    assert.deepEqual([answered.status, answered.json().error.code], [504, 'TIMEOUT']);
  },
);

/** How a Node could differ from those that CI runs, and what the startup line says then. */
const OTHER_NODES: Readonly<Record<string, { code: string; reason: string }>> = {
  "without undici's symbol": {
    code: `
      void globalThis.Headers;
      const original = Symbol.for;
      Symbol.for = (key) => (key.startsWith('undici.globalDispatcher') ? Symbol(key) : original(key));`,
    reason: "undici's agent was not found",
  },
  'with undici 5': { code: withUndici('5.29.0'), reason: 'undici 5.29.0 is not tested' },
  'with undici 60': { code: withUndici('60.0.0'), reason: 'undici 60.0.0 is not tested' },
};

function withUndici(version: string): string {
  return `Object.defineProperty(process.versions, 'undici', { value: '${version}' });`;
}

describe('the figures of connections to providers', { skip: OVER_FETCH }, () => {
  test('count those that are open, those that were made, and their reuse', async (t) => {
    const upstream = await startUpstream(t, (_, response) => sendJson(response, {}));
    const transport = createTransport('auto');
    t.after(() => transport.close());
    const figures = () => ({ ...transport.connectionFigures });
    assert.deepEqual(figures(), { open: 0, made: 0, reused: 0 });
    const origin = new URL(upstream.baseUrl).origin;
    const send = async () => {
      const request = { method: 'GET', origin, path: '/', headers: [] } as const;
      const { body, connection } = await transport.send(request, new Cancellation());
      await readAll(body, 100);
      // undici returns a connection to its pool one turn after the answer.
      await nextTurn();
      return connection;
    };
    assert.deepEqual([await send(), await send(), await send()], ['new', 'reused', 'reused']);
    assert.deepEqual(figures(), { open: 1, made: 1, reused: 2 });
    assert.deepEqual(await Promise.all([send(), send()]), ['reused', 'new']);
    assert.deepEqual(figures(), { open: 2, made: 2, reused: 3 });
    for (const socket of upstream.sockets) socket.destroy();
    await eventually(() => figures().open === 0, 'the connections are closed');
    assert.equal(await send(), 'new');
    assert.deepEqual(figures(), { open: 1, made: 3, reused: 3 });
  });

  test('tell that a fresh connection is none of the idle ones, and is not kept', async (t) => {
    const upstream = await startUpstream(t, (_, response) => sendJson(response, {}));
    const transport = createTransport('auto');
    t.after(() => transport.close());
    const origin = new URL(upstream.baseUrl).origin;
    const used: unknown[] = [];
    for (const isFresh of [false, true, true, false]) {
      const request = { method: 'GET', origin, path: '/', headers: [], isFresh } as const;
      const { body, connection } = await transport.send(request, new Cancellation());
      await readAll(body, 100);
      await nextTurn();
      used.push(connection);
    }
    assert.deepEqual(used, ['new', 'new', 'new', 'reused']);
    await eventually(() => transport.connectionFigures?.open === 1, 'only the first is kept');
  });

  test('tell that an idle connection is kept for 90 s', async (t) => {
    const timers = useManualTimers(t);
    // Without `Keep-Alive`, by which a provider may shorten it.
    const upstream = await startRawUpstream(t, ({ socket }) => socket.write(rawResponse('{}')));
    const transport = createTransport('auto');
    t.after(() => transport.close());
    const { origin } = new URL(upstream.baseUrl);
    const send = async () => {
      const request = { method: 'GET', origin, path: '/', headers: [] } as const;
      const { body, connection } = await transport.send(request, new Cancellation());
      await readAll(body, 100);
      await nextTurn();
      return connection;
    };
    assert.equal(await send(), 'new');
    timers.advance(85_000);
    assert.equal(await send(), 'reused');
    timers.advance(95_000);
    assert.equal(await send(), 'new');
  });

  test('are not known over fetch', async (t) => {
    const upstream = await startUpstream(t, (_, response) => sendJson(response, {}));
    const transport = createTransport('fetch');
    const { origin } = new URL(upstream.baseUrl);
    const request = { method: 'GET', origin, path: '/', headers: [] } as const;
    const { body, connection } = await transport.send(request, new Cancellation());
    await readAll(body, 100);
    assert.deepEqual([connection, transport.connectionFigures], [undefined, undefined]);
  });
});

for (const [what, { code, reason }] of Object.entries(OTHER_NODES)) {
  test(`a Node ${what}: the gateway starts on fetch, says why, and answers`, async (t) => {
    const upstream = await startUpstream(t, answer);
    const env = { GATEWAY_UPSTREAM: 'auto', ...preload(code) };
    const program = await start(t, { baseUrl: upstream.baseUrl, env });
    assert.equal(program.transport, `fetch (${reason})`);
    assert.match(program.stderr(), /^warning +fetch .*300 s/m);
    await assertAnswers(program.port);
    assert.ok('sec-fetch-mode' in upstream.requests[0]!.headers);
  });
}

const SOMEWHERE = 'http://provider.invalid/v1';

test('a connection that a proxy has closed before it was made is not made again and again', async (t) => {
  const transport = createTransport('fetch');
  t.after(() => transport.close());
  void globalThis.Headers;
  const slots = globalThis as unknown as Record<symbol, object>;
  const [shared] = ['2', '1'].flatMap(
    (slot) => slots[Symbol.for(`undici.globalDispatcher.${slot}`)] ?? [],
  );
  const { constructor } = shared!;
  const Agent = constructor as new (options: object) => { destroy(): Promise<void> };
  let connects = 0;
  const connect = (_: object, callback: (error: Error) => void) => {
    connects += 1;
    const error = Object.assign(new Error('other side closed'), { code: 'UND_ERR_SOCKET' });
    setTimeout(callback, 1, error);
  };
  const dispatcher = new Agent({ connect });
  t.after(() => dispatcher.destroy());
  const asked = fetch(SOMEWHERE, { dispatcher } as RequestInit);
  asked.catch(() => {});
  await eventually(() => connects > 0, 'a connection');
  await idle(100);
  assert.equal(connects, 1);
  await assert.rejects(asked);
});

const noProxies =
  !process.allowedNodeEnvironmentFlags.has('--use-env-proxy') &&
  `Node ${process.version} knows no NODE_USE_ENV_PROXY`;
const SOMEWHERE_TLS = 'https://provider.invalid/v1';

const TRANSPORTS = [
  ['auto', UNDICI],
  ['fetch', FETCH],
] as const;
for (const [transport, text] of TRANSPORTS.slice(0, sweep(2, 1))) {
  describe(
    `behind a proxy, GATEWAY_UPSTREAM=${transport}`,
    { concurrency: 2, skip: noProxies },
    () => {
      const throughProxy = (url: string, more: Record<string, string> = {}) => ({
        GATEWAY_UPSTREAM: transport,
        NODE_USE_ENV_PROXY: '1',
        HTTP_PROXY: url,
        HTTPS_PROXY: url,
        ...more,
      });

      test('a complete answer and a stream come through it, and the check at startup does not', async (t) => {
        const upstream = await startUpstream(t, answer);
        const proxy = await startHttpProxy(t, upstream);
        const program = await start(t, { baseUrl: SOMEWHERE, env: throughProxy(proxy.url) });
        assert.equal(program.transport, text);
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
          const env = throughProxy(proxy.url, {
            NODE_EXTRA_CA_CERTS: certificate.path,
            ...ONE_WORKER,
          });
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

      test('where it closes instead of a tunnel it is 502, and it is not asked without end', async (t) => {
        const upstream = await startUpstream(t, answer);
        const proxy = await startHttpProxy(t, upstream);
        proxy.closes = true;
        const program = await start(t, { baseUrl: SOMEWHERE_TLS, env: throughProxy(proxy.url) });
        await assertUnusable(program, /other side closed|Proxy Connection failed/);
        const asked = proxy.asked.length;
        await idle(100);
        assert.equal(proxy.asked.length, asked);
        assert.ok(asked <= 4, `${asked} times`);
      });

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
        const env = throughProxy(proxy.url, ONE_WORKER);
        const { port } = await start(t, { baseUrl: SOMEWHERE, env });
        await assertRepeatsOnlyReused(port, upstream, transport);
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
    },
  );

  describe(`over TLS, GATEWAY_UPSTREAM=${transport}`, { concurrency: 2, skip: NO_OPENSSL }, () => {
    test('a certificate that nobody vouches for is 502, and nothing is sent', async (t) => {
      const certificate = createCertificate(t, ['IP:127.0.0.1']);
      const upstream = await startUpstream(t, answer, certificate);
      const env = { GATEWAY_UPSTREAM: transport };
      const program = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertUnusable(program, /SELF_SIGNED_CERT/);
      assert.equal(upstream.requests.length, 0);
    });

    test('a certificate for another host is 502, and nothing is sent', async (t) => {
      const certificate = createCertificate(t, ['DNS:other.invalid', 'IP:127.0.0.9']);
      const upstream = await startUpstream(t, answer, certificate);
      const env = { GATEWAY_UPSTREAM: transport, NODE_EXTRA_CA_CERTS: certificate.path };
      const program = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertUnusable(program, /ERR_TLS_CERT_ALTNAME_INVALID/);
      assert.equal(upstream.requests.length, 0);
    });

    for (const host of ['127.0.0.1', 'localhost']) {
      test(`${host} with NODE_EXTRA_CA_CERTS is asked on one connection`, async (t) => {
        const certificate = createCertificate(t, ['DNS:localhost', 'IP:127.0.0.1']);
        const upstream = await startUpstream(t, answer, certificate);
        const env = {
          GATEWAY_UPSTREAM: transport,
          NODE_EXTRA_CA_CERTS: certificate.path,
          ...ONE_WORKER,
        };
        const baseUrl = upstream.baseUrl.replace('127.0.0.1', host);
        const { port } = await start(t, { baseUrl, env });
        await assertAnswers(port);
        const [first] = upstream.sockets;
        await assertAnswers(port);
        assert.deepEqual([...upstream.sockets], [first]);
        assert.equal(upstream.requests.length, 4);
      });
    }

    test('a body of 1 MiB arrives whole', async (t) => {
      const certificate = createCertificate(t, ['IP:127.0.0.1']);
      const upstream = await startUpstream(t, answer, certificate);
      const env = { GATEWAY_UPSTREAM: transport, NODE_EXTRA_CA_CERTS: certificate.path };
      const { port } = await start(t, { baseUrl: upstream.baseUrl, env });
      const body = chatBody({ pad: 'x'.repeat(1_048_576) });
      const { response, ended } = openChat(port, body);
      assert.equal((await response).statusCode, 200, await ended);
      const received = JSON.parse(upstream.requests[0]!.body.toString()) as object;
      assert.deepEqual(received, { ...body, model: 'm' });
    });

    const notOurs = transport === 'fetch' && 'fetch keeps sessions as it likes';
    test('a second connection resumes the session of the first', { skip: notOurs }, async (t) => {
      const certificate = createCertificate(t, ['IP:127.0.0.1']);
      const resumed: boolean[] = [];
      const closing: Script = (request, response) => {
        resumed.push((response.socket as TLSSocket).isSessionReused());
        response.setHeader('connection', 'close');
        return answer(request, response);
      };
      const upstream = await startUpstream(t, closing, certificate);
      const env = {
        GATEWAY_UPSTREAM: transport,
        NODE_EXTRA_CA_CERTS: certificate.path,
        ...ONE_WORKER,
      };
      const { port } = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertAnswers(port);
      assert.deepEqual(resumed, [false, true]);
    });

    test('a session is not resumed after a handshake that failed', { skip: notOurs }, async (t) => {
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
      const env = {
        GATEWAY_UPSTREAM: transport,
        NODE_EXTRA_CA_CERTS: certificate.path,
        ...ONE_WORKER,
      };
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
      const env = {
        GATEWAY_UPSTREAM: transport,
        NODE_EXTRA_CA_CERTS: certificate.path,
        ...ONE_WORKER,
      };
      const { port } = await start(t, { baseUrl: upstream.baseUrl, env });
      await assertRepeatsOnlyReused(port, upstream, transport);
    });
  });
}

for (const [transport] of TRANSPORTS.slice(0, sweep(2, 1))) {
  describe(`beside other code in the process (upstream = ${transport})`, { concurrency: 2 }, () => {
    const environment = (code: string) => ({ GATEWAY_UPSTREAM: transport, ...preload(code) });

    test('a connection of fetch that is older than the gateway does no harm', async (t) => {
      const upstream = await startUpstream(t, answer);
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

    test('an address that is silent beside one that refuses is 502, not a timeout', async (t) => {
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
