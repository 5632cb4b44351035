/** Authentication by token, and the models that a client may name. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';

import type { Tenant } from '../../src/config/config.ts';
import type { GatewayError } from '../../src/lib/errors.ts';
import { Secret } from '../../src/lib/secret.ts';
import { createAuthenticator, mayName } from '../../src/policy/authentication.ts';
import { stopClock } from '../support/clock.ts';

const secrets = (...keys: string[]) => keys.map((key) => new Secret(key));
const tenant = (name: string, ...keys: string[]) => {
  const digests = keys.map((key) => createHash('sha256').update(key).digest('hex'));
  return { name, keyDigests: secrets(...digests) } as unknown as Tenant;
};
const ALICE = tenant('alice', 'alice-1', 'alice-2');
const BOB = tenant('bob', 'bob-1');

interface Given {
  readonly enabled?: boolean;
  readonly keys?: readonly string[];
  readonly clients?: readonly Tenant[];
}

/** Returns a function for the client's name, `accepted` without a name, or the failed check. */
function authenticator({ enabled = true, keys = [], clients = [] }: Given) {
  const authenticate = createAuthenticator({ enabled, keys: secrets(...keys) }, clients);
  return (authorization?: string) => {
    try {
      return authenticate(authorization)?.name ?? 'accepted';
    } catch (error) {
      const { kind, message, details } = error as GatewayError;
      assert.deepEqual([kind, message], ['authentication', 'Invalid authentication']);
      return details.check;
    }
  };
}

test('each key of the server and of a client is accepted, and any other token refused', () => {
  const check = authenticator({ keys: ['key-1', 'key-2'], clients: [ALICE, BOB] });
  const results: Record<string, string> = {
    'Bearer key-1': 'accepted',
    'Bearer key-2': 'accepted',
    'Bearer alice-1': 'alice',
    'Bearer alice-2': 'alice',
    'Bearer bob-1': 'bob',
    'Bearer bob-2': 'unknown_token',
    'Bearer key-1 ': 'unknown_token',
    'Bearer KEY-1': 'unknown_token',
    'Bearer key': 'unknown_token',
  };
  for (const [header, result] of Object.entries(results)) {
    assert.equal(check(header), result, header);
  }
  const ofClients = authenticator({ clients: [BOB] });
  assert.equal(ofClients('Bearer bob-1'), 'bob');
  assert.equal(ofClients('Bearer x'), 'unknown_token');
});

test("a client's key is refused from the moment when it expires", (t) => {
  const clock = stopClock(t);
  const expiryTime = Date.now() + 1000;
  const check = authenticator({ clients: [{ ...ALICE, expiryTime }, BOB] });
  clock.nowMs += 999;
  assert.deepEqual([check('Bearer alice-1'), check('Bearer bob-1')], ['alice', 'bob']);
  clock.nowMs += 1;
  const tokens = ['Bearer alice-1', 'Bearer alice-2', 'Bearer alice-3', 'Bearer bob-1'];
  assert.deepEqual(
    tokens.map((token) => check(token)),
    ['expired_token', 'expired_token', 'unknown_token', 'bob'],
  );
});

test('the scheme is Bearer in any letter case, then spaces, and a token with or without', () => {
  const check = authenticator({ keys: ['my api key'] });
  for (const header of ['Bearer my api key', 'bearer my api key', 'BEARER   my api key']) {
    assert.equal(check(header), 'accepted', header);
  }
  const others = ['', 'Bearer', 'Bearer ', 'Basic my api key', 'Bearer\tmy api key', 'my api key'];
  for (const header of [undefined, ...others]) {
    assert.equal(check(header), 'no_token', String(header));
  }
});

test('without keys any token is accepted, and if disabled also a request without', () => {
  const withoutKeys = authenticator({});
  assert.equal(withoutKeys('Bearer x'), 'accepted');
  assert.equal(withoutKeys(), 'no_token');
  assert.equal(withoutKeys('Basic x'), 'no_token');
  const disabled = authenticator({ enabled: false, keys: ['key'], clients: [BOB] });
  for (const header of [undefined, 'Bearer x', 'Bearer bob-1']) {
    assert.equal(disabled(header), 'accepted');
  }
});

test('a client may name the models in its list, where a * stands for any text', () => {
  const models = ['p/m', 'q/gpt-*', 'a*b'];
  const allowed = ['p/m', 'q/gpt-', 'q/gpt-4', 'a*b', 'axb'];
  const refused = ['p/m2', 'p/', 'P/m', ' p/m', 'p/m ', 'q/gpt', 'q/GPT-4', 'axbc', ''];
  assert.deepEqual(
    [...allowed, ...refused].filter((name) => mayName({ models }, name)),
    allowed,
  );
  assert.equal(mayName({ models: ['*'] }, 'x'), true);
  assert.equal(mayName({ models: [] }, 'x'), false);
  assert.equal(mayName({ models: undefined }, 'x'), true);
  assert.equal(mayName(undefined, 'x'), true);
});
