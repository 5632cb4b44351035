/** Hosts by their names and addresses alone. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  isLoopback,
  isOwnHost,
  isPrivate,
  serverNameOf,
  withoutBrackets,
} from '../../src/lib/loopback.ts';

const wordsOf = (text: string) => text.trim().split(/\s+/);

const LOOPBACK = wordsOf(`
  localhost LOCALHOST a.localhost my-app.b.localhost 127.0.0.1 127.1 127 127.255.255.254
  ::1 [::1] ::ffff:127.0.0.1 [::FFFF:127.0.0.1] 0:0:0:0:0:0:0:1
`);
const PRIVATE = wordsOf(`
  db gateway-1 nas.local printer.LOCAL host.internal 0.0.0.0 10.0.0.1 172.16.0.1 172.31.255.255
  192.168.1.1 169.254.169.254 100.64.0.1 100.127.255.255 fe80::1 [febf::1] fc00::1 [fd12::1]
  ::ffff:10.0.0.1
`);
const PUBLIC = wordsOf(`
  example.com localhost.example.com a.localhost.com notlocalhost.com 127.0.0.1.example.com
  128.0.0.1 11.0.0.1 172.15.255.255 172.32.0.1 192.169.0.1 100.63.255.255 100.128.0.1 169.255.0.1
  1.1.1.1 ::2 [2001:db8::1] fec0::1 internal.example.com
`);

test('loopback is localhost with its subdomains, 127.0.0.0/8 and ::1', () => {
  assert.deepEqual([...LOOPBACK, ...PRIVATE, ...PUBLIC].filter(isLoopback), LOOPBACK);
});

test('a private host is loopback, in a private network, or has no public name', () => {
  const hosts = [...LOOPBACK, ...PRIVATE, ...PUBLIC];
  assert.deepEqual(hosts.filter(isPrivate), [...LOOPBACK, ...PRIVATE]);
});

test('the name for TLS is a name without its last dot, and empty for an address', () => {
  const names: Record<string, string> = {
    'example.com': 'example.com',
    'example.com.': 'example.com',
    localhost: 'localhost',
    '192.0.2.1': '',
    '::1': '',
  };
  for (const [host, name] of Object.entries(names)) assert.equal(serverNameOf(host), name, host);
});

test('an IPv6 address in a URL loses its brackets', () => {
  assert.equal(withoutBrackets('[::1]'), '::1');
  for (const host of ['::1', 'a', '[a', 'a]', '']) assert.equal(withoutBrackets(host), host);
});

test('a host of its own is an address, localhost, the configured host, or none', () => {
  const own = [undefined, '', 'localhost', 'LOCALHOST:80', '192.0.2.1', '192.0.2.1:80', '[::1]'];
  const configured = ['gateway.example', 'Gateway.Example:8080', '[2001:db8::1]:80', 'localhost:'];
  const others = [
    'example.com',
    'a.localhost',
    'gateway.example.com',
    '::1',
    '[::1',
    '[a]',
    ':80x',
  ];
  const hosts = [...own, ...configured, ...others];
  assert.deepEqual(
    hosts.filter((host) => isOwnHost(host, 'GATEWAY.example')),
    [...own, ...configured],
  );
});
