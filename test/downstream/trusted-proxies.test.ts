import assert from 'node:assert/strict';
import { Socket } from 'node:net';
import { test, type TestContext } from 'node:test';

import type { Call } from '../../src/downstream/call.ts';
import { createRemoteAddress } from '../../src/downstream/trusted-proxies.ts';
import { sendRaw } from '../support/raw.ts';
import { responseClosed, startHttpServer } from '../support/http-server.ts';
import { eventually } from '../support/streams.ts';

/**
 * Starts a server that answers with its client's address. Returns a function to send it a request.
 */
async function start(t: TestContext, trustedProxies: readonly string[], host = '127.0.0.1') {
  const remoteAddress = createRemoteAddress(trustedProxies);
  const handle = async (call: Call) => {
    await call.reply.send(200, {}, remoteAddress(call) ?? 'not known');
    await responseClosed(call);
  };
  const port = await startHttpServer(t, handle, host);
  return async (...forwarded: readonly string[]) => {
    const headers = forwarded.map((value) => `X-Forwarded-For: ${value}\r\n`);
    const request = `GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n${headers.join('')}\r\n`;
    return (await sendRaw(port, request)).body;
  };
}

test("without a trusted proxy the address is the connection's", async (t) => {
  for (const proxies of [[], ['10.0.0.0/8', '::1']]) {
    const ask = await start(t, proxies);
    assert.equal(await ask(), '127.0.0.1');
    assert.equal(await ask('192.0.2.1'), '127.0.0.1');
  }
});

test("behind trusted proxies the address is the rightmost that is no proxy's", async (t) => {
  const ask = await start(t, ['127.0.0.0/8', '10.0.0.0/8', '2001:db8:1::/48']);
  const cases: [address: string, ...forwarded: string[]][] = [
    ['192.0.2.1', '192.0.2.1'],
    ['192.0.2.1', '198.51.100.7, 192.0.2.1'],
    ['192.0.2.1', '192.0.2.1, 10.1.2.3,10.255.255.255'],
    ['192.0.2.1', '192.0.2.1,2001:db8:1:ffff::1'],
    ['2001:db8:2::1', '10.0.0.1, 2001:db8:2::1, 10.0.0.2'],
    ['11.0.0.1', '11.0.0.1'],
    // A repeated header's lines form a single list.
    ['192.0.2.1', '198.51.100.7', '192.0.2.1', '10.1.2.3'],
    ['192.0.2.1', '192.0.2.1:4711, 10.0.0.1:80'],
    ['2001:db8::7', '[2001:db8::7]:4711'],
    ['2001:db8::7', '[2001:db8::7], [2001:db8:1::1]'],
    ['192.0.2.1', '::ffff:192.0.2.1, ::ffff:10.0.0.1'],
    // If all addresses are proxies, the first is the client.
    ['10.0.0.7', '10.0.0.7, 10.0.0.8'],
    ['127.0.0.1'],
    // A text that is no address ends the search at the address to its right.
    ['10.0.0.9', '192.0.2.1, unknown, 10.0.0.9'],
    ['10.0.0.9', '192.0.2.1,,10.0.0.9'],
    [`fe80::1%${'z'.repeat(56)}`, `fe80::1%${'z'.repeat(56)}`],
  ];
  const notAddresses = ['', ' , ', '192.0.2.256', '192.0.2.1:', '192.0.2.1:80:80', '[192.0.2.1'];
  const others = ['192.0.2.1, unknown', 'for=192.0.2.1', '192.0.2.1 forged=1', '192.0.2.1\xff'];
  const long = ['a'.repeat(12_000), `fe80::1%${'z'.repeat(57)}`];
  for (const text of [...notAddresses, ...others, ...long]) cases.push(['127.0.0.1', text]);
  for (const [address, ...forwarded] of cases) {
    assert.equal(await ask(...forwarded), address, forwarded.join(' | ').slice(0, 50));
  }
});

test('at most 50 proxies of X-Forwarded-For are passed', async (t) => {
  const ask = await start(t, ['127.0.0.1', '10.0.0.0/8']);
  const proxies = (count: number) => `192.0.2.1${',10.0.0.1'.repeat(count)}`;
  assert.equal(await ask(proxies(49)), '192.0.2.1');
  assert.equal(await ask(proxies(50)), '10.0.0.1');
  assert.equal(await ask(proxies(1700)), '10.0.0.1');
});

test('an IPv4 client of a dual-stack socket has an IPv4 address', async (t) => {
  const plain = await start(t, [], '::').catch(() => undefined);
  if (!plain) return t.skip('no IPv6 here');
  assert.equal(await plain(), '127.0.0.1');
  const behind = await start(t, ['127.0.0.0/8'], '::');
  assert.equal(await behind('192.0.2.1'), '192.0.2.1');
  const mapped = await start(t, ['::ffff:127.0.0.0/104'], '::');
  assert.equal(await mapped('192.0.2.1'), '192.0.2.1');
});

test('the address of a client that has left is still known', async (t) => {
  const remoteAddress = createRemoteAddress([]);
  const client = new Socket();
  let address: string | undefined;
  const port = await startHttpServer(t, async (call) => {
    // A reset, because a half-closed connection's client may still read.
    client.resetAndDestroy();
    await new Promise<void>((left) => call.cancellation.onCancel(left));
    address = remoteAddress(call);
  });
  client.connect(port, '127.0.0.1').write('GET / HTTP/1.1\r\nhost: a\r\n\r\n');
  await eventually(() => address !== undefined, 'the client has left');
  assert.equal(address, '127.0.0.1');
});
