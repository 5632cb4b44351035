/** The client with the most memory. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Call } from '../../src/downstream/call.ts';
import { findMemoryHolder, heldBytesByClient } from '../../src/downstream/memory-holder.ts';

const MEBIBYTE = 1_048_576;

/** A call from this client or address, holding this many MiB. */
function call(client: string | undefined, peerAddress: string | undefined, mebibytes: number) {
  const fields = { history: { client }, peerAddress, rawHeaders: ['X-Forwarded-For', '192.0.2.7'] };
  return { ...fields, reservedBytes: mebibytes * MEBIBYTE } as unknown as Call;
}

const find = (calls: Call[], proxies: string[] = []) =>
  findMemoryHolder(calls, proxies, 64 * MEBIBYTE);

test('the holder is the client whose requests together hold most', () => {
  const calls = [call('web', '10.0.0.1', 9), call('ci', '10.0.0.2', 5), call('ci', '10.0.0.3', 5)];
  assert.equal(find(calls), 'ci holds 10.0 of 64.0 MiB');
});

test('without a name the holder is an address, behind a trusted proxy the client\u2019s', () => {
  const calls = [call(undefined, '10.0.0.1', 2), call(undefined, undefined, 1)];
  assert.equal(find(calls), '10.0.0.1 holds 2.0 of 64.0 MiB');
  assert.match(find(calls, ['10.0.0.0/8'])!, /^192\.0\.2\.7 holds 2\.0 of/);
  assert.match(find(calls.slice(1))!, /^a client that has left holds 1\.0 of/);
});

test('nobody is the holder if no request holds anything', () => {
  assert.equal(find([]), undefined);
  assert.equal(find([call('web', '10.0.0.1', 0)]), undefined);
});

test('the bytes of each client are added, and those of clients without a name', () => {
  const calls = [call('ci', '10.0.0.2', 5), call('ci', '10.0.0.3', 1)];
  const others = [call(undefined, '10.0.0.1', 2), call(undefined, '10.0.0.4', 1)];
  const held = new Map([
    ['ci', 6 * MEBIBYTE],
    [undefined, 3 * MEBIBYTE],
  ]);
  assert.deepEqual(heldBytesByClient([...calls, ...others]), held);
});
