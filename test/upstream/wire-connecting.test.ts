/** How the program reaches its providers: name lookups, several addresses, and ends of connections that are being made. */

import assert from 'node:assert/strict';
import { before, describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { startBlackHole } from '../support/fault-proxy.ts';
import { chatBody, providerToml } from '../support/gateway.ts';
import { buildOnce, emptyFolder, startProgram, startServing } from '../support/process.ts';
import { rawResponse } from '../support/raw-upstream.ts';
import { eventually, openChat } from '../support/streams.ts';
import { answerWell, completion, startUpstream } from '../support/upstream.ts';

before(buildOnce);

/**
 * Runs in the program before it: `dns.lookup` works on two names at a time, as libuv does. `good.test` is 127.0.0.1,
 * `once.test` is so for the first lookup alone. Every other lookup fails after 4 s.
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
    setTimeout(end, isGood ? 1 : 4000).unref();
  };
  dns.lookup = (name, options, callback) => {
    if (!name.endsWith('.test')) return system(name, options, callback);
    queue.push({ name, callback });
    next();
  };`;

/** Runs in the program before it: `both.test` has an address that may be silent, and one that refuses. */
const TWO_ADDRESSES = `
  import dns from 'node:dns';
  const system = dns.lookup;
  const both = [1, 2].map((last) => ({ address: '127.0.0.' + last, family: 4 }));
  dns.lookup = (name, options, callback) =>
    name === 'both.test' ? callback(null, both) : system(name, options, callback);`;
/** Longer than Node gives an address by default, and less than the second after which Linux sends a SYN again. */
const SILENT_MS = 700;

const preload = (code: string) => ({
  NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(code)}`,
});

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

    test('a name that is not resolved keeps no request from the next provider', async (t) => {
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

    test('while a lookup takes long, the last addresses of the name are used', async (t) => {
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

    test('an address of several that accepts a connection only after a second is used', async (t) => {
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

test('an address of the store that accepts a connection only after a second is used', async (t) => {
  const hole = await startBlackHole(t, '+OK\r\n');
  const store = `redis://both.test:${hole.port}`;
  const cwd = emptyFolder(t, { 'gateway.toml': `[rate_limit]\nstore = "${store}"\n` });
  const program = startProgram(t, ['--check'], { cwd, env: preload(TWO_ADDRESSES) });
  await eventually(() => program.stdout().includes('rate_limit.store'), 'the settings');
  await sleep(SILENT_MS);
  hole.open();
  await program.exit;
  assert.match(program.stdout(), /^rate_limit\.store +answers$/m);
});
