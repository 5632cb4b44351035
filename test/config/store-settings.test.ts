import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { loadConfig, type Config } from '../../src/config/config.ts';
import { compareSettings } from '../../src/config/reload.ts';
import { Secret } from '../../src/lib/secret.ts';
import { createRedactor } from '../../src/lib/secrets.ts';
import { problemsIn } from '../support/problems.ts';

type Env = Record<string, string>;

const LIMIT = 'enabled = true\nrequests_per_second = 1\n';
const PREFIX = 'inference-gateway';
const PASSWORD = 'canary-0123456789';

/** TOML with a limit, this store and these further lines of `[rate_limit]`. */
function withStore(url: string, lines = LIMIT): string {
  return `[rate_limit]\n${lines}store = '${url}'\n`;
}

function load(toml: string, env: Env = {}): Config {
  return loadConfig({ toml, env });
}

const problemsOf = (toml: string, env?: Env) => problemsIn(() => load(toml, env));

describe('the URL of the store', () => {
  const none = {
    port: 6379,
    isTls: false,
    username: undefined,
    password: undefined,
    database: 0,
    prefix: PREFIX,
  };
  const accepted: Record<string, object> = {
    'redis://h': { host: 'h' },
    'redis://h/': { host: 'h' },
    'rediss://h': { host: 'h', isTls: true },
    'redis://redis_1.Example:1': { host: 'redis_1.Example', port: 1 },
    'redis://10.0.0.7:65535/15': { host: '10.0.0.7', port: 65_535, database: 15 },
    'redis://[::1]': { host: '::1' },
    'rediss://[2001:db8::1]:7000/1': { host: '2001:db8::1', port: 7000, isTls: true, database: 1 },
    'redis://:pw@h': { host: 'h', password: new Secret('pw') },
    'redis://alice:pw@h:1/2': {
      host: 'h',
      port: 1,
      username: 'alice',
      password: new Secret('pw'),
      database: 2,
    },
    'redis://a%3Ab:p%40%2F%3f%23%25%c3%a4@h': {
      host: 'h',
      username: 'a:b',
      password: new Secret('p@/?#%\u00e4'),
    },
    'redis://:a:b+=$!@[::1]/3': { host: '::1', password: new Secret('a:b+=$!'), database: 3 },
  };
  for (const [url, settings] of Object.entries(accepted)) {
    test(`${url} is accepted`, () => {
      const { store } = load(withStore(url)).rateLimit;
      const { password, ...rest } = { ...none, ...settings } as NonNullable<typeof store>;
      const { password: actual, ...others } = store!;
      assert.deepEqual(others, rest);
      assert.equal(actual?.reveal(), password?.reveal());
    });
  }

  const wrong = [
    ['', 'h', 'h:6379', 'http://h', 'redis:h', 'redis:/h', 'REDIS://h', ' redis://h'],
    ['redis://', 'redis:///0', 'redis://:6379', 'redis://:pw@', 'redis://:pw@:1'],
    ['redis://[]', 'redis://[::1', 'redis://::1', 'redis://[1.2.3.4]', 'redis://[h]'],
    ['redis://h h', 'redis://h\\', 'redis://h%41', 'redis://h,i', 'redis://{h}'],
    ['redis://h:', 'redis://h:x', 'redis://h:1:2'],
    ['redis://h/x', 'redis://h/-1', 'redis://h/0/', 'redis://h//', 'redis://h/1.0'],
    ['redis://h?', 'redis://h/0?db=1', 'redis://h#', 'redis://:p?@h'],
    ['redis://pw@h', 'redis://alice:@h', 'redis://:@h', 'redis://@h'],
    ['redis://:p@w@h', 'redis://:p%@h', 'redis://:p%4@h', 'redis://:p w@h'],
    ['redis://:p\u00e4@h', 'redis://:{}@h', 'redis://:"@h'],
    ['redis://:%ff@h', 'redis://%c3:p@h'],
    ['redis://:p/w@h'],
  ];
  const refused: [urls: readonly string[], problem: RegExp][] = [
    [wrong.flat(), /: expected redis:\/\/ or rediss:\/\/, then .*host.* percent-encoded: /],
    [['redis://h:0', 'redis://h:65536'], /a port/],
    [[`redis://:${'x'.repeat(4096)}@h`], /longer than 4096 characters/],
  ];
  for (const [urls, problem] of refused) {
    for (const url of urls) {
      test(`${url.slice(0, 40)} is refused`, () => {
        const problems = problemsOf(withStore(url));
        assert.equal(problems.length, 1, problems.join('\n'));
        assert.match(problems[0]!, /^rate_limit\.store: /);
        assert.match(problems[0]!, problem);
      });
    }
  }

  test('may come from variables, and an unset one stops the start', () => {
    const { store } = load(withStore('${URL}'), { URL: 'redis://h:1' }).rateLimit;
    assert.deepEqual([store?.host, store?.port], ['h', 1]);
    const parts = load(withStore('redis://:${PW}@${HOST}'), { PW: 'pw', HOST: 'h' }).rateLimit;
    assert.deepEqual([parts.store?.password?.reveal(), parts.store?.host], ['pw', 'h']);
    assert.deepEqual(problemsOf(withStore('redis://:${PW}@h')), [
      'rate_limit.store: environment variable PW is not set',
    ]);
    for (const written of ['redis://:${PW:-x}@h', 'redis://:${PW@h']) {
      assert.equal(problemsOf(withStore(written), { PW: 'pw' }).length, 1, written);
    }
  });
});

describe('the password of the store', () => {
  const url = `redis://u:${PASSWORD.replace('-', '%2D')}@h:1/2`;

  test('is in no problem', () => {
    for (const wrong of [
      url.replace('redis:', 'http:'),
      url.replace('h:1', ''),
      url.replace(':1', ':0'),
      `${url}x`,
      `${url}?`,
      url.replace('%2D', '%2X'),
      url.replace('%2D', '%ff'),
      `redis://${PASSWORD}@h`,
    ]) {
      const problems = problemsOf(withStore(wrong));
      assert.equal(problems.length, 1, wrong);
      assert.doesNotMatch(problems[0]!, /0123456789/);
    }
    const list = problemsOf(`[rate_limit]\nstore = ["${url}"]\n`);
    assert.deepEqual(list, ['rate_limit.store: found an array, expected a string']);
  });

  test('is not in the settings that are printed, nor is the rest of the URL', () => {
    const config = load(withStore(url));
    assert.equal(JSON.stringify(config.resolved.get('rate_limit.store')), '"[secret]"');
    assert.equal(config.resolved.get('rate_limit.prefix'), PREFIX);
    assert.doesNotMatch(JSON.stringify(config), /0123456789/);
  });

  test('is hidden in texts, and so is the URL as it is written', () => {
    const redact = createRedactor(load(withStore(url)).secrets);
    assert.equal(redact(`x ${PASSWORD} y`), 'x [secret] y');
    assert.equal(redact(`x ${url} y`), 'x [secret] y');
    // Another URL that begins alike is no secret.
    assert.equal(redact('redis://other'), 'redis://other');
  });
});

test('the prefix is 1 to 64 visible ASCII characters without braces', () => {
  for (const prefix of ['a', 'x'.repeat(64), 'team-a:gateway/1']) {
    const toml = withStore('redis://h', `${LIMIT}prefix = "${prefix}"\n`);
    assert.equal(load(toml).rateLimit.store?.prefix, prefix);
  }
  for (const prefix of ['x'.repeat(65), 'a b', '{a', 'a}', '\u00e4', 'a\\n']) {
    assert.deepEqual(problemsOf(`[rate_limit]\nprefix = "${prefix}"\n`), [
      'rate_limit.prefix: expected 1 to 64 visible ASCII characters without spaces and braces',
    ]);
  }
});

describe('a store', () => {
  test('stays as it was after a reload, and the log names what differs', () => {
    const running = load(withStore('redis://:one@h'));
    const next = load(`${withStore('redis://:two@h')}prefix = "other"\nburst_capacity = 5\n`);
    const { config, changed, needRestart } = compareSettings(running, next);
    assert.deepEqual(needRestart.toSorted(), ['rate_limit.prefix', 'rate_limit.store']);
    assert.deepEqual(changed, ['rate_limit.burst_capacity']);
    assert.equal(config.rateLimit.store?.password?.reveal(), 'one');
    assert.equal(config.rateLimit.store.prefix, running.rateLimit.store?.prefix);
    assert.equal(config.rateLimit.global.burstCapacity, 5);
  });
});
