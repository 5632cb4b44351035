/** Settings: what is accepted, refused and warned of, wherever it comes from. The rows of settings.txt come first. */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { inspect } from 'node:util';

import { warningsOf as startWarningsOf } from '../../src/cli/startup-report.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf } from '../../src/config/built-in-providers.ts';
import { loadConfig, type Config, type Flags } from '../../src/config/config.ts';
import { readSettings } from '../../src/config/read-settings.ts';
import { Secret } from '../../src/lib/secret.ts';
import { problemsIn } from '../support/problems.ts';
import { emptyFolder, ROOT } from '../support/process.ts';

type Env = Record<string, string | undefined>;

interface More {
  readonly flags?: Flags;
  readonly directory?: string;
}

function load(toml: string, env: Env = {}, more: More = {}): Config {
  return loadConfig({ toml, env, ...more });
}

const problemsOf = (toml: string, env?: Env, more?: More) =>
  problemsIn(() => load(toml, env, more));

/** Checks that there is one text for each pattern, in order; the whole text, or `…` stands for any part of it. */
function assertTexts(actual: readonly string[], expected: readonly (RegExp | string)[]): void {
  assert.equal(actual.length, expected.length, actual.join('\n'));
  for (const [index, pattern] of expected.entries()) {
    const escaped = String(pattern).replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
    const whole = new RegExp(`^${escaped.replaceAll('…', '.*')}$`, 's');
    assert.match(actual[index]!, typeof pattern === 'string' ? whole : pattern);
  }
}

/** One provider `z` with these lines in its section, and whatever else it needs. */
function provider(lines: string): string {
  const needed = { base_url: 'https://z/v1', api_key: 'k' };
  const missing = Object.entries(needed).filter(([key]) => !lines.includes(`${key} =`));
  return `[providers.z]\n${missing.map(([key, value]) => `${key} = "${value}"\n`).join('')}${lines}`;
}

const keysOf = ({ providers }: Config): Record<string, string> =>
  Object.fromEntries(providers.registered.map((p) => [p.id, p.apiKeys[0]!.reveal()]));

const reveal = (secrets: readonly Secret[]) => secrets.map((secret) => secret.reveal());

const keyOf = ({ providers }: Config) => providers.registered[0]!.apiKeys[0]!.reveal();
const MINE = '[providers.mine]\nbase_url = "http://h/v1"\n';

/**
 * Sections, each with a title and rows `SETTING; SETTING | VARIABLE=VALUE; … => what comes of it`. `«A¦B»` makes a row two:
 * one with A, one with B, each of which `«»` stands for in what comes of it.
 */
const SECTIONS = readFileSync(`${ROOT}/test/config/settings.txt`, 'utf8').split(/^# /m).slice(1);

/** The rows that a row with `«A¦B»` stands for. */
function expandRow(row: string): string[] {
  const [, before = '', values, after = ''] = /^(.*?)«(.*?)»(.*)$/.exec(row) ?? [];
  return (
    values?.split('¦').map((value) => before + value + after.replace('«»', () => value)) ?? [row]
  );
}

/** The settings of a row as TOML. A provider `z` in it has what every provider needs. */
function tomlOf(settings: string): string {
  const lines = settings.split('; ');
  if (settings.includes('providers.z.')) {
    for (const needed of ['base_url = "https://z"', 'api_key = "k"']) {
      const [key = ''] = needed.split('=');
      if (!settings.includes(`z.${key}`)) lines.unshift(`providers.z.${needed}`);
    }
  }
  return lines.join('\n');
}

function checkRow(settings: string, variables: string, outcome: string): void {
  const env = Object.fromEntries(
    (variables === '' ? [] : variables.split('; ')).map((variable) => {
      const at = variable.indexOf('=');
      return [variable.slice(0, at), variable.slice(at + 1)];
    }),
  );
  const toml = tomlOf(settings);
  const [, kind, texts = ''] = /^(refused|warned): (.*)/.exec(outcome) ?? [];
  const problems = problemsOf(toml, env);
  assertTexts(problems, kind === 'refused' ? texts.split(' // ') : []);
  assert.doesNotMatch(problems.join(), /hunt/);
  if (kind === 'refused') return;
  const { warnings, resolved } = load(toml, env);
  assertTexts(warnings, kind === 'warned' ? texts.split(' // ') : []);
  assert.doesNotMatch(warnings.join(), /hunt/);
  const [, name = '', value] = /^(\S+) = (.*)/.exec(outcome) ?? [];
  if (value !== undefined) assert.equal(JSON.stringify(resolved.get(name)), value);
  else assert.ok(kind !== undefined || outcome === 'accepted', outcome);
}

for (const [title, ...rows] of SECTIONS.map((section) => section.trim().split('\n'))) {
  describe(title, () => {
    for (const row of rows.flatMap(expandRow)) {
      test(row, () => {
        const [, settings = '', variables = '', outcome] =
          /^(.*?) ?(?:\| (.*))? => (.*)$/.exec(row) ?? assert.fail('no row');
        checkRow(settings, variables, outcome!);
      });
    }
  });
}

test('settings cannot change the prototype of objects', () => {
  problemsOf('[__proto__]\npolluted = 1');
  assert.ok(!('polluted' in {}));
});

describe('defaults', () => {
  test('without file and environment every setting has its documented default', () => {
    const { server, admin, logging, providers, aliases, rateLimit, warnings } = load('');
    assert.deepEqual(server, {
      port: 8080,
      host: '0.0.0.0',
      reusePort: false,
      timeoutMs: 60_000,
      firstTokenTimeoutMs: Infinity,
      streamIdleTimeoutMs: 300_000,
      streamKeepaliveMs: 0,
      emptyAnswers: 'pass',
      shutdownTimeoutMs: 25_000,
      drainDelayMs: 0,
      maxConcurrentRequests: 0,
      retries: 0,
      maxBodyBytes: 33_554_432,
      maxBufferedBytes: 67_108_864,
      memoryBytes: Infinity,
      cors: false,
      upstream: 'auto',
      trustedProxies: [],
      auth: { enabled: true, keys: [] },
    });
    assert.equal(admin, undefined);
    assert.deepEqual(logging, {
      level: 'info',
      format: 'auto',
      verbose: false,
      providerMessages: true,
    });
    assert.deepEqual(
      [providers.registered, providers.primary, providers.fallback],
      [[], undefined, []],
    );
    assert.equal(aliases.size, 0);
    assert.deepEqual(rateLimit, {
      enabled: false,
      global: { requestsPerSecond: 0, burstCapacity: 100 },
      providers: new Map(),
      store: undefined,
    });
    assert.deepEqual(warnings, []);
  });

  test('a provider has the timeout and the retries of the server unless it names its own', () => {
    const toml = `[server]\ntimeout = 7\nretries = 2\n${provider('')}\n[providers.y]\nbase_url = "http://y"\napi_key = "k"\ntimeout = 9\nretries = 0`;
    const { registered } = load(toml).providers;
    assert.deepEqual(
      registered.map(({ id, timeoutMs, retries }) => [id, timeoutMs, retries]),
      [
        ['z', 7000, 2],
        ['y', 9000, 0],
      ],
    );
  });

  test('a limit for one provider has the documented defaults too', () => {
    const { rateLimit } = load('[rate_limit.providers.openai]');
    assert.deepEqual(rateLimit.providers.get('openai'), {
      requestsPerSecond: 0,
      burstCapacity: 100,
    });
  });
});

/** Setting, what is allowed for it, values that are refused. `z` stands for a provider's id. */
const INTEGERS: [name: string, min: number, max: number][] = [
  ['server.port', 0, 65_535],
  ['server.timeout', 1, 2_147_483],
  ['server.first_token_timeout', 1, 2_147_483],
  ['server.stream_idle_timeout', 0, 2_147_483],
  ['server.stream_keepalive', 0, 2_147_483],
  ['server.shutdown_timeout', 0, 2_147_483],
  ['server.retries', 0, 10],
  ['server.max_body_bytes', 1, 268_435_456],
  ['server.max_buffered_bytes', 1_048_576, 1_099_511_627_776],
  ['admin.port', 0, 65_535],
  ['providers.z.timeout', 1, 2_147_483],
  ['providers.z.retries', 0, 10],
  ['rate_limit.requests_per_second', 0, 1_000_000],
  ['rate_limit.burst_capacity', 1, 1_000_000],
  ['rate_limit.providers.z.requests_per_second', 0, 1_000_000],
  ['rate_limit.providers.z.burst_capacity', 1, 1_000_000],
];
const BOOLEANS = [
  'server.reuse_port',
  'server.cors',
  'server.auth.enabled',
  'logging.verbose',
  'logging.provider_messages',
  'providers.z.key_affinity',
  'providers.z.stream_usage',
  'rate_limit.enabled',
];
const STRINGS = ['providers.primary', 'providers.z.default_model'];
const LISTS = [
  'server.auth.keys',
  'server.trusted_proxies',
  'admin.keys',
  'providers.fallback',
  'providers.z.models',
];

/** A file in which this setting has this value, and a provider `z` is complete. */
function setting(name: string, value: string): string {
  return `providers.z.base_url = "http://z"\nproviders.z.api_key = "k"\n${name} = ${value}\n`;
}

describe('types and ranges', () => {
  const wrong: [names: readonly string[], values: readonly string[], expected: string][] = [
    [BOOLEANS, ['1', '"true"', '[]', '{}', '1979-05-27'], 'true or false'],
    [[...BOOLEANS, 'providers.z.enabled'], ['0.5'], 'true or false'],
    [
      ['server.host', 'admin.host', 'rate_limit.prefix'],
      ['""', '1', 'true', '["x"]', '{}'],
      'a string that is not empty',
    ],
    [['rate_limit.store'], ['1', 'true', '["x"]', '{}'], 'a string'],
    [STRINGS, ['1', 'true', '["x"]', '{}', 'nan', '1979-05-27'], 'a string'],
    [LISTS, ['"x"', '1', '[1]', '["x", 1]', '{}', '[["x"]]'], 'an array of strings'],
    [['logging.format'], ['"xml"', '"JSON"', '""', '1', 'true', '["json"]'], 'one of auto, json'],
    [['logging.level'], ['"loud"', '"INFO"', '""', '1', 'true', '["info"]'], 'one of error, warn'],
  ];
  const rows = [
    ...INTEGERS.map(([name, min, max]): (typeof wrong)[number] => {
      const values = [min - 1, max + 1, -1e9, '1e400', '1.5', 'nan', 'inf', '-inf'].map(String);
      const types = ['"1"', 'true', '[1]', '{}', '1979-05-27T07:32:00Z'];
      return [[name], [...values, ...types], `an integer from ${min} to ${max}`];
    }),
    ...wrong,
  ];
  for (const [names, values, expected] of rows) {
    for (const name of names) {
      test(`${name} is refused unless it is ${expected}`, () => {
        for (const value of values) {
          const problems = problemsOf(setting(name, value));
          assert.equal(problems.length, 1, `${value}: ${problems.join('\n')}`);
          assert.ok(problems[0]!.startsWith(`${name}: found `), problems[0]!);
          assert.ok(problems[0]!.includes(`, expected ${expected}`), problems[0]!);
        }
      });
    }
  }

  for (const [name, min, max] of INTEGERS) {
    test(`${name} may be ${min} and ${max}`, () => {
      for (const value of [min, max]) {
        const { resolved } = load(setting(name, String(value)));
        assert.equal(resolved.get(name), value);
      }
    });
  }

  const tables = ['server', 'server.auth', 'admin', 'logging', 'providers', 'providers.openai'];
  for (const name of [
    ...tables,
    'aliases',
    'rate_limit',
    'rate_limit.providers',
    'rate_limit.providers.z',
  ]) {
    test(`${name} is refused unless it is a table`, () => {
      const z = name === 'providers' ? '' : 'providers.z.base_url = "http://z"\n';
      for (const [value, found] of [
        ['1', 'a number'],
        ['[]', 'an array'],
      ]) {
        const expected = `${name}: found ${found}, expected a table: [${name}…]`;
        assertTexts(problemsOf(`${name} = ${value}\n${z}`), [expected]);
      }
    });
  }
});

describe('all problems', () => {
  test('of file, environment and command line come at once', () => {
    const toml = `nothing = 1
[server]
port = 99999
hots = "x"
[server.auth]
keys = ["\${UNSET_TOKEN}"]
[logging]
level = "loud"
[providers]
primary = "nobody"
[providers.mine]
api_key = "k"
[aliases]
a = "no-slash"
[rate_limit]
burst_capacity = 0
`;
    const env = { GATEWAY_TIMEOUT: '0', GATEWAY_CORS: 'yes', GATEWAY_RATE_LIMIT_RPS: '-1' };
    const names = problemsOf(toml, env, { flags: { port: 'http' } }).map(
      (text) => text.split(':')[0]!,
    );
    const expected = [
      'server.port --port GATEWAY_TIMEOUT GATEWAY_CORS server.auth.keys server.hots',
      'logging.level providers.mine.base_url providers.primary aliases.a',
      'GATEWAY_RATE_LIMIT_RPS rate_limit.burst_capacity nothing',
    ];
    assert.deepEqual(names.toSorted(), expected.join(' ').split(' ').toSorted());
  });
});

describe('a syntax error', () => {
  test('shows the names of keys and nothing of their values', () => {
    for (const name of ['token', 'base_url', 'api_key']) {
      const [problem = ''] = problemsOf(`[providers.x]\n${name} = "hunter2-hunter2`);
      assert.ok(problem.includes(`${name} = ....`), problem);
      assert.ok(!problem.includes('hunter2'), problem);
    }
  });

  const broken: [toml: string, line: number, column: number, shown: string][] = [
    ['[server]\nport = = 1', 2, 8, 'port = '],
    ['[server]\r\nport = = 1\r\n', 2, 8, 'port = '],
    ['[server\nport = 1', 1, 8, '[server'],
    ['[server]\nport = 1\nport = 2', 3, 1, 'port = '],
    ['[server]\nhost = ${HOST}', 2, 8, 'host = '],
  ];
  for (const [toml, line, column, shown] of broken) {
    test(`in ${JSON.stringify(toml)} is told with line ${line}, column ${column} and the line`, () => {
      const [problem = ''] = problemsOf(toml);
      const lines = problem.split('\n');
      assert.match(lines[0]!, new RegExp(`^line ${line}, column ${column}: \\w`));
      assert.ok(lines[1]!.startsWith(`  ${shown}`), problem);
      assert.equal(lines[1]!.length, 2 + toml.split(/\r?\n/)[line - 1]!.length);
      assert.equal(lines[2], `  ${' '.repeat(column - 1)}^`);
      assert.equal(lines.length, 3);
    });
  }

  const hints: [toml: string, hint: RegExp | undefined][] = [
    ['[providers.openai]\napi_key = ${X}', /; text needs quotes/],
    ['[server]\nhost = localhost', /; text needs quotes/],
    ['[server]\nhost = 127.0.0.1', /; text needs quotes/],
    ['[server]\nhost = "x', undefined],
    ['[server]\nport 80', undefined],
  ];
  for (const [toml, hint] of hints) {
    test(`in ${JSON.stringify(toml)} is told ${hint ? `with a hint: ${hint.source}` : 'without a hint'}`, () => {
      const [line = ''] = problemsOf(toml)[0]!.split('\n');
      if (hint) assert.match(line, hint);
      else assert.doesNotMatch(line, /quotes/);
    });
  }

  const keys = ['sk-proj-AbCdEf_123456', 'hunter2', 'a!b@c#d$e%f', 'p4ss:w0rd;x', 'dGVz+dA==x'];
  const leaks: Record<string, (key: string) => string> = {
    'a key in YAML': (key) => `api_key: ${key}`,
    'an unquoted key': (key) => `[providers.openai]\napi_key = ${key}`,
    'a key without its closing quote': (key) => `[providers.openai]\napi_key = "${key}\n`,
    'words after a key': (key) => `[providers.openai]\napi_key = "${key}" x`,
    'a key set twice': (key) => `[providers.openai]\napi_key = "x"\napi_key = "${key}"`,
    'a key in one line with a provider': (key) => `providers.openai = { api_key = '${key}' x }`,
    'a broken list of keys': (key) => `[server.auth]\nkeys = ["${key}" "x"]`,
    'a broken list of keys on many lines': (key) =>
      `[server.auth]\nkeys = [\n "a",\n "${key}" =\n]`,
    'a broken text of many lines': (key) => `[providers.openai]\napi_key = """\n${key}\u0001`,
  };
  for (const [what, toml] of Object.entries(leaks)) {
    test(`never shows the key's value: ${what}`, () => {
      for (const key of keys) {
        const problems = problemsOf(toml(key));
        assert.equal(problems.length, 1);
        assert.match(problems[0]!, /^line \d, column \d+: /);
        assert.ok(!problems[0]!.includes(key), problems[0]!);
      }
    });
  }
});

describe('variables in texts', () => {
  for (const piece of [
    '$',
    '${',
    '${A',
    '${file:',
    '${file:a',
    '${file:${A}',
    '[',
    '{',
    '"',
    "'",
    '\\',
    '=',
    'a.',
    ' ',
    '\t',
    '${A}',
  ]) {
    test(`100,000 times ${JSON.stringify(piece)} takes no longer than its length`, () => {
      const time = (length: number) => {
        const text = piece.repeat(length);
        const quoted = `'''${text.replaceAll("'", '')}'''`;
        const start = process.cpuUsage();
        problemsOf(text);
        problemsOf(provider(`default_model = ${quoted}`), { A: 'x' });
        return process.cpuUsage(start).user / 1000;
      };
      time(1000);
      const short = time(10_000);
      const long = time(100_000);
      // Ten times the length; a hundred times the time would be a quadratic pattern.
      assert.ok(long < 60 * Math.max(short, 5), `${short} ms, ${long} ms`);
    });
  }
});

describe('keys of providers', () => {
  const ids = [...BUILT_IN_PROVIDERS.keys()];

  for (const id of ids) {
    const variable = id.startsWith('zed') ? 'ZED_API_KEY' : `${id.toUpperCase()}_API_KEY`;
    test(`${id} is registered by ${variable}, and by nothing else`, () => {
      const config = load('', { [variable]: 'k-1' });
      const sharers = ids.filter((other) => keyVariableOf(other) === variable);
      assert.deepEqual(keysOf(config), Object.fromEntries(sharers.map((other) => [other, 'k-1'])));
      assert.ok(sharers.includes(id));
      const { baseUrl } = config.providers.registered.find((one) => one.id === id)!;
      assert.equal(baseUrl, BUILT_IN_PROVIDERS.get(id)!.baseUrl);
      assert.match(baseUrl, /^https?:\/\/[^/]+\/.*[^/]$/);
      const { skipped } = config.providers;
      assert.deepEqual(
        skipped.map((one) => one.id),
        ids.filter((other) => !sharers.includes(other)),
      );
    });
  }

  test('a provider of one\u2019s own is registered by <ID>_API_KEY', () => {
    const toml = '[providers.my-server]\nbase_url = "http://x"';
    assert.deepEqual(keysOf(load(toml, { MY_SERVER_API_KEY: 'k' })), { 'my-server': 'k' });
  });

  const orders: [lines: string, env: Env, key: string | undefined][] = [
    ['api_key = "file"', { Z_API_KEY: 'env' }, 'file'],
    ['api_key = "${K}"', { K: 'expanded', Z_API_KEY: 'env' }, 'expanded'],
    ['api_key = ""', { Z_API_KEY: 'env' }, 'env'],
    ['api_key = "  "', { Z_API_KEY: 'env' }, 'env'],
    ['api_key = "${K}"', { K: '', Z_API_KEY: 'env' }, 'env'],
    ['api_key = ""', {}, undefined],
    ['api_key = ""', { Z_API_KEY: '' }, undefined],
    ['api_key = ""', { Z_API_KEY: ' \n' }, undefined],
    ['api_key = "file\\n"', {}, 'file'],
    ['api_key = "${K}"', { K: 'from-a-file\r\n' }, 'from-a-file'],
    ['api_key = ""', { Z_API_KEY: 'env\n' }, 'env'],
    ['api_key = "a-${K}-${K}"', { K: 'b' }, 'a-b-b'],
    ['api_key = "${K}"', { K: '${Z_API_KEY}', Z_API_KEY: 'env' }, '${Z_API_KEY}'],
    ['api_key = "${K}"', { Z_API_KEY: 'env' }, 'env'],
    ['api_key = "${K}"', {}, undefined],
    ['api_key = "${K}"\napi_keys = ["${K}"]', {}, undefined],
    ['api_key = "${K}"\napi_keys = ["${K}", "b"]', {}, 'b'],
    ['enabled = true\napi_key = "own"', {}, 'own'],
    ['enabled = false', { Z_API_KEY: 'env' }, undefined],
    ['enabled = false\napi_key = "not valid"', {}, undefined],
  ];
  for (const [lines, env, key] of orders) {
    const outcome = key === undefined ? 'is not registered' : `uses the key ${key}`;
    test(`${JSON.stringify(lines)} with ${JSON.stringify(env)} ${outcome}`, () => {
      const config = load(provider(lines), env);
      assert.deepEqual(keysOf(config), key === undefined ? {} : { z: key });
      assert.equal(
        config.providers.skipped.some(({ id, isConfigured }) => id === 'z' && isConfigured),
        key === undefined,
      );
    });
  }

  test('zed_coding has no variable of its own', () => {
    const own = { ZED_CODING_API_KEY: 'other' };
    assert.deepEqual(keysOf(load('', own)), {});
    assert.deepEqual(
      keysOf(load('[providers.zed]\nenabled = false', { ZED_API_KEY: 'z', ...own })),
      {
        zed_coding: 'z',
      },
    );
  });

  test('enabled = false wins over a key in the environment', () => {
    const config = load('[providers.openai]\nenabled = false', { OPENAI_API_KEY: 'k' });
    assert.deepEqual(config.providers.registered, []);
    assert.match(config.providers.skipped.find(({ id }) => id === 'openai')!.reason, /enabled/);
  });

  const unusable = [
    'hunter\n2',
    'hunter 2',
    'hunter\t2',
    'hunt\u00e9r2',
    'hunter\0',
    'hunter\u20282',
    'hunter\x7f',
  ];
  for (const key of unusable) {
    test(`a key like ${JSON.stringify(key)} is refused, and not shown`, () => {
      const places: [toml: string, env: Env, name: RegExp][] = [
        ['[providers.openai]\napi_key = "${K}"', { K: key }, /^providers\.openai\.api_key: /],
        ['', { OPENAI_API_KEY: key }, /^OPENAI_API_KEY: /],
        ['[server.auth]\nkeys = ["${K}"]', { K: key }, /^server\.auth\.keys: /],
        ['[admin]\nport = 9090\nkeys = ["${K}"]', { K: key }, /^admin\.keys: /],
      ];
      for (const [toml, env, name] of places) {
        const problems = problemsOf(toml, env);
        assertTexts(problems, [name]);
        assert.ok(!problems[0]!.includes('hunt'), problems[0]!);
      }
    });
  }

  test('a key may have 4096 characters; a longer one is refused, and not shown', () => {
    const places: [toml: string, name: RegExp][] = [
      ['[providers.openai]\napi_key = "${K}"', /^providers\.openai\.api_key: /],
      ['[providers.openai]\napi_keys = ["${K}"]', /^providers\.openai\.api_keys: /],
      ['[server.auth]\nkeys = ["${K}"]', /^server\.auth\.keys: /],
      ['[clients.a]\nkey = "${K}"', /^clients\.a\.key: /],
      ['[admin]\nport = 9090\nkeys = ["${K}"]', /^admin\.keys: /],
    ];
    for (const [toml, name] of places) {
      assertTexts(problemsOf(toml, { K: 'x'.repeat(4096) }), []);
      const problems = problemsOf(toml, { K: 'x'.repeat(4097) });
      assertTexts(problems, [name]);
      assert.match(problems[0]!, /: a key cannot be longer than 4096 characters$/);
    }
  });

  test('a variable is no key beside api_keys, but api_key is', () => {
    const toml = '[providers.openai]\napi_keys = ["a-key"]\n';
    const env = { OPENAI_API_KEY: 'key-of-the-variable' };
    const textsOf = ({ providers }: Config) =>
      providers.registered[0]!.apiKeys.map((key) => key.reveal());
    assert.deepEqual(textsOf(load(toml, env)), ['a-key']);
    assert.deepEqual(textsOf(load(`${toml}api_key = "own"`, env)), ['own', 'a-key']);
  });

  test('api_key is the first of the keys in api_keys', () => {
    const { registered } = load(provider('api_keys = ["b", "c"]\napi_key = "a"')).providers;
    assert.deepEqual(reveal(registered[0]!.apiKeys), ['a', 'b', 'c']);
  });
});

describe('[admin]', () => {
  const admin = (lines: string, server = '') => `[server]\n${server}\n[admin]\n${lines}\n`;

  test('has a port of its own and listens on loopback', () => {
    assert.deepEqual(load(admin('port = 9090')).admin, { port: 9090, host: '127.0.0.1', keys: [] });
    const { admin: settings } = load(admin('port = 9090\nhost = "0.0.0.0"\nkeys = ["${K}"]'), {
      K: 'hunter2',
    });
    assert.deepEqual([settings?.host, settings?.keys[0]?.reveal()], ['0.0.0.0', 'hunter2']);
  });
});

describe('providers of one\u2019s own', () => {
  for (const id of ['mine', '__proto__', 'constructor', 'toString']) {
    test(`${id} needs a base_url, and with one it is a provider like any other`, () => {
      assertTexts(problemsOf(`[providers.${id}]\napi_key = "k"`), [
        new RegExp(`^providers\\.${id}\\.base_url: required`),
      ]);
      const config = load(`[providers.${id}]\nbase_url = "http://x/v1"\napi_key = "k"`);
      assert.deepEqual(
        config.providers.registered.map((one) => [one.id, one.baseUrl]),
        [[id, 'http://x/v1']],
      );
      assert.ok(!('baseUrl' in {}));
    });
  }

  const accepted = [
    'http://h/chat/completions/v1',
    'http://h/v1/',
    'http://h/v1///',
    'HTTP://H/v1',
    'http://[::1]:1/v1',
    'https://h',
  ];
  const padded = [' http://h/v1', 'http://h/v1 ', 'http://h/v1\\n', 'http://h/v1/\\n', 'http:h/v1'];
  for (const url of [...accepted, ...padded]) {
    test(`base_url = ${JSON.stringify(url)} is refused or used as written`, () => {
      const toml = provider(`base_url = "${url}"`);
      if (problemsOf(toml).length > 0) {
        assert.ok(!accepted.includes(url));
        return;
      }
      const { baseUrl } = load(toml).providers.registered[0]!;
      const meant = new URL(url.replace('\\n', ''));
      const expected = `${meant.origin}${meant.pathname.replace(/\/+$/, '')}/models`;
      const asked = `${baseUrl}/models`;
      assert.ok(URL.canParse(asked), JSON.stringify(asked));
      assert.equal(new URL(asked).href, expected);
    });
  }
});

describe('aliases', () => {
  test('an alias may have any name and a model with slashes', () => {
    const toml = '[aliases]\n"a/b" = "z/m/n"\n__proto__ = "z/m"\n"" = "z/m"\n';
    const { aliases, warnings } = load(toml + provider(''));
    assert.deepEqual(
      [...aliases],
      [
        ['a/b', { targets: ['z/m/n'], balance: 'order' }],
        ['__proto__', { targets: ['z/m'], balance: 'order' }],
        ['', { targets: ['z/m'], balance: 'order' }],
      ],
    );
    assert.deepEqual(warnings, []);
  });
});

describe('environment and command line', () => {
  test('an empty variable counts as unset', () => {
    const names = ['PORT', 'HOST', 'TIMEOUT', 'CORS', 'LOG_LEVEL', 'RATE_LIMIT_RPS'];
    const env = Object.fromEntries(names.map((name) => [`GATEWAY_${name}`, '']));
    const toml = '[server]\nport = 1\nhost = "h"\ntimeout = 2\ncors = true';
    assert.deepEqual(load(toml, env), load(toml));
  });

  test('the command line wins over the environment, and that over the file', () => {
    const toml = '[server]\nport = 1\nhost = "a"';
    const env = { GATEWAY_PORT: '2', GATEWAY_HOST: 'b' };
    const read = ({ server }: Config) => [server.port, server.host];
    assert.deepEqual(read(load(toml)), [1, 'a']);
    assert.deepEqual(read(load(toml, env)), [2, 'b']);
    assert.deepEqual(read(load(toml, env, { flags: { port: '3', host: 'c' } })), [3, 'c']);
  });

  test('an empty host is refused wherever it comes from', () => {
    assertTexts(problemsOf('[server]\nhost = ""'), [/^server\.host: /]);
    assertTexts(problemsOf('', {}, { flags: { host: '' } }), [/^--host: /]);
  });
});

describe('text forms', () => {
  const lines = ['[server]', 'port = 1', '', '# a remark', '[logging]', 'level = "warn"', ''];
  const forms = { 'a byte order mark': `\uFEFF${lines.join('\n')}`, CRLF: lines.join('\r\n') };
  for (const [what, toml] of Object.entries(forms)) {
    test(`a file with ${what} reads like one without`, () => {
      assert.deepEqual(load(toml), load(lines.join('\n')));
    });
  }

  test('a file of a million characters in one line and one of many nested arrays end in an answer', () => {
    assert.equal(problemsOf(`# ${'x'.repeat(1e6)}`).length, 0);
    assert.equal(problemsOf(`x = ${'['.repeat(1e5)}`).length, 1);
  });
});

describe('${file:PATH}', () => {
  const withKey = (path: string) => `${MINE}api_key = "\${file:${path}}"`;

  test('becomes the text of the file without its last line end, relative to the settings file', (t) => {
    const folder = emptyFolder(t, { one: 'k-1\n', crlf: 'k-2\r\n', none: 'k-3' });
    for (const [path, key] of [
      ['one', 'k-1'],
      ['./crlf', 'k-2'],
      ['none', 'k-3'],
      [join(folder, 'one'), 'k-1'],
    ]) {
      assert.equal(keyOf(load(withKey(path!), {}, { directory: folder })), key);
    }
  });

  test('takes away one line end only', (t) => {
    const folder = emptyFolder(t, { model: 'a\n\n' });
    const toml = `${MINE}api_key = "k"\ndefault_model = "\${file:model}"`;
    assert.equal(
      load(toml, {}, { directory: folder }).providers.registered[0]!.defaultModel,
      'a\n',
    );
  });

  test('may have variables in its path, as for $CREDENTIALS_DIRECTORY', (t) => {
    const folder = emptyFolder(t, { openai: 'k-1\n' });
    const env = { CREDENTIALS_DIRECTORY: folder, NAME: 'openai' };
    for (const path of ['${CREDENTIALS_DIRECTORY}/openai', '${CREDENTIALS_DIRECTORY}/${NAME}']) {
      assert.equal(keyOf(load(withKey(path), env)), 'k-1');
    }
  });

  test('stands in any text, beside other text, and for numbers and booleans', (t) => {
    const folder = emptyFolder(t, { port: '8081\n', cors: 'true\n', host: 'h', org: 'org-1\n' });
    const toml = `[server]
port = "\${file:port}"
cors = "\${file:cors}"
[providers.mine]
base_url = "http://\${file:host}:1/v1"
api_keys = ["\${file:org}", "x\${file:org}y"]
headers = { X-Org = "\${file:org}" }
`;
    const { server, providers } = load(toml, {}, { directory: folder });
    assert.deepEqual([server.port, server.cors], [8081, true]);
    const { baseUrl, apiKeys, headers } = providers.registered[0]!;
    assert.equal(baseUrl, 'http://h:1/v1');
    assert.deepEqual(reveal(apiKeys), ['org-1', 'xorg-1y']);
    assert.equal(headers['x-org']!.reveal(), 'org-1');
  });

  test('is not expanded again', (t) => {
    const folder = emptyFolder(t, { key: '${K}${file:key}' });
    assert.equal(keyOf(load(withKey('key'), { K: 'k' }, { directory: folder })), '${K}${file:key}');
  });

  test('stops the start if the file is missing, empty, too large, not a file or not text', (t) => {
    const folder = emptyFolder(t, { empty: '', blank: ' \n\n', full: 'x'.repeat(65_536) });
    writeFileSync(join(folder, 'large'), 'x'.repeat(65_537));
    writeFileSync(join(folder, 'binary'), Buffer.from([0xff, 0xfe]));
    mkdirSync(join(folder, 'folder'));
    execFileSync('mkfifo', [join(folder, 'pipe')]);
    symlinkSync(join(folder, 'nowhere'), join(folder, 'link'));
    for (const [name, reason] of [
      ['missing', 'no such file'],
      ['link', 'no such file'],
      ['empty', 'is empty'],
      ['blank', 'is empty'],
      ['large', 'is larger than 64 KiB'],
      ['binary', 'is not UTF-8 text'],
      ['folder', 'is a directory, not a file'],
      ['', 'is a directory, not a file'],
      ['pipe', 'is not a file'],
    ]) {
      const problems = problemsOf(withKey(name!), {}, { directory: folder });
      assert.deepEqual(problems, [`providers.mine.api_key: ${join(folder, name!)}: ${reason}`]);
    }
    const model = `${MINE}api_key = "k"\ndefault_model = "\${file:full}"`;
    const { defaultModel } = load(model, {}, { directory: folder }).providers.registered[0]!;
    assert.equal(defaultModel!.length, 65_536);
  });

  // fstat() reports 0 bytes for it, and it has several hundred KiB.
  const endless = '/proc/self/smaps';
  test('stops the start if more can be read than the size of the file', (t) => {
    if (!existsSync(endless)) return t.skip('needs Linux');
    assert.deepEqual(problemsOf(withKey(endless)), [
      `providers.mine.api_key: ${endless}: is larger than 64 KiB`,
    ]);
  });

  test('is read in full if the size of the file is reported as 0', (t) => {
    if (!existsSync(endless)) return t.skip('needs Linux');
    const toml = `${MINE}api_key = "k"\ndefault_model = "\${file:/proc/self/comm}"`;
    assert.match(load(toml).providers.registered[0]!.defaultModel!, /^\S+$/);
  });

  test('stops the start if a variable in its path is not set', () => {
    assert.deepEqual(problemsOf(withKey('${NOT_THERE}/key')), [
      'providers.mine.api_key: environment variable NOT_THERE is not set',
    ]);
  });

  test('shows nothing of a file in problems and in the resolved settings of keys', (t) => {
    const folder = emptyFolder(t, { key: 'hunter2-hunter2\n' });
    const toml = `[server]
port = 99999
[server.auth]
keys = ["\${file:key}"]
[clients.a]
key = "\${file:key}"
`;
    const problems = problemsOf(toml, {}, { directory: folder });
    assert.equal(problems.length, 2);
    assert.ok(!problems.join().includes('hunter2'), problems.join());
    const { resolved } = load(withKey('key'), {}, { directory: folder });
    assert.equal(JSON.stringify(resolved.get('providers.mine.api_key')), '"[secret]"');
  });
});

describe('a reference to a key in the wrong setting is shown as it is written, without the key:', () => {
  const rows: [toml: string, shown: string][] = [
    ['[server]\ntimeout = "REF"', 'server.timeout: found "REF", expected an integer'],
    ['[server]\ncors = "xREF"', 'server.cors: found "xREF", expected true or false'],
    ['[logging]\nlevel = "REF"', 'logging.level: found "REF", expected one of'],
    ['[server]\ntrusted_proxies = ["REF"]', 'server.trusted_proxies: "REF" is neither'],
    ['[admin]\nport = 9090\nhost = "REF"', 'every client that can connect to REF could'],
    ['[clients.a]\nkey = "k"\nmodels = ["*REF"]', 'clients.a.models: "*REF": expected a name'],
    ['[providers]\nprimary = "REF"', 'providers.primary: no such provider "REF"'],
    ['[providers]\nfallback = ["REF"]', 'providers.fallback: no such provider "REF"'],
    ['[aliases]\na = "REF"', 'aliases.a: expected "<provider_id>/<model_name>"'],
    ['[aliases]\na = "REF/m"', 'aliases.a: provider "REF/m" is not registered'],
    ['[aliases]\na = ["openai/m", "REF/m"]', 'aliases.a: provider "REF/m" is not registered'],
  ];
  for (const [toml, shown] of rows) {
    test(toml.replaceAll('\n', ' '), (t) => {
      const directory = emptyFolder(t, { key: 'hunter2-hunter2\n' });
      for (const reference of ['${KEY}', '${file:key}']) {
        const told: string[] = [];
        const read = () => {
          const env = { KEY: 'hunter2-hunter2' };
          const { warnings } = load(toml.replace('REF', reference), env, { directory });
          told.push(...warnings);
        };
        told.push(...problemsIn(read));
        const text = told.join('\n');
        assert.ok(text.includes(shown.replaceAll('REF', reference)), text);
        assert.ok(!text.includes('hunter2'), text);
      }
    });
  }

  test('in the path of a file', () => {
    const toml = `${MINE}api_key = "\${file:\${KEY}/x}"`;
    assert.deepEqual(problemsOf(toml, { KEY: 'hunter2-hunter2' }), [
      'providers.mine.api_key: ${KEY}/x: no such file',
    ]);
  });

  test('a text without a reference is shown', () => {
    const toml = '[server]\ntimeout = "x"\n[providers]\nprimary = "opnai"';
    const problems = problemsOf(toml).join('\n');
    assert.match(problems, /found "x", expected an integer[^]*no such provider "opnai"/);
  });
});

describe('headers of a provider', () => {
  const withHeaders = (headers: string) => `${MINE}api_key = "k"\nheaders = { ${headers} }`;

  test('have lower-case names, and values that are masked in the resolved settings', () => {
    const config = load(withHeaders('X-One = "${A}", "x-two" = "b c"'), { A: 'a' });
    const { headers } = config.providers.registered[0]!;
    assert.deepEqual(
      Object.entries(headers).map(([name, value]) => [name, value.reveal()]),
      [
        ['x-one', 'a'],
        ['x-two', 'b c'],
      ],
    );
    assert.equal(JSON.stringify(config.resolved.get('providers.mine.headers')), '"[secret]"');
  });

  test('have values of 4096 characters at most; no problem shows one', () => {
    const toml = withHeaders('X-A = "${A}"');
    assert.deepEqual(problemsOf(toml, { A: 'x'.repeat(4096) }), []);
    assert.deepEqual(problemsOf(toml, { A: 'x'.repeat(4097) }), [
      'providers.mine.headers: the value of "X-A" is longer than 4096 characters',
    ]);
  });
});

describe('clients', () => {
  test('have keys, models and limits', () => {
    const toml = `[clients.alice]
key = "a-1"
keys = ["a-2", "a-1"]
models = ["fast", "openai/*", "*"]
requests_per_second = 2
[clients."b.o-b@x_y"]
keys = ["b-1"]
`;
    const [alice, bob] = load(toml).clients;
    assert.deepEqual(reveal(alice!.keys), ['a-1', 'a-2', 'a-1']);
    assert.deepEqual(alice!.models, ['fast', 'openai/*', '*']);
    assert.deepEqual(alice!.limit, {
      requestsPerSecond: 2,
      burstCapacity: 100,
      requestsPerMinute: 0,
      tokensPerMinute: 0,
      tokensPerDay: 0,
    });
    assert.deepEqual([bob!.name, bob!.models], ['b.o-b@x_y', undefined]);
  });
});

describe('lists in variables', () => {
  test('are split at commas, with spaces around each item removed', () => {
    const { server } = load('', { GATEWAY_AUTH_KEYS: 'a, b ,c' });
    assert.deepEqual(reveal(server.auth.keys), ['a', 'b', 'c']);
  });

  test('that have no items do not open the gateway to all', () => {
    for (const GATEWAY_AUTH_KEYS of [',', ' ', 'a,', 'a,,b']) {
      const problems = problemsOf('', { GATEWAY_AUTH_KEYS });
      const problem = 'GATEWAY_AUTH_KEYS: a key must be visible ASCII characters without spaces';
      assert.ok(problems.length > 0);
      assert.ok(
        problems.every((one) => one === problem),
        problems.join('\n'),
      );
    }
  });
});

describe('variables of built-in providers', () => {
  test('an id with an underscore has the same one in its variables', () => {
    const env = {
      ZED_API_KEY: 'k',
      ZED_CODING_BASE_URL: 'http://h/v1',
      ZED_CODING_DEFAULT_MODEL: 'm',
    };
    const zed = load('', env).providers.registered.find(({ id }) => id === 'zed_coding')!;
    assert.deepEqual([zed.baseUrl, zed.defaultModel], ['http://h/v1', 'm']);
  });

  test('a provider that is not built in has only <ID>_API_KEY', () => {
    const env = { MINE_API_KEY: 'k', MINE_BASE_URL: 'http://other/v1', MINE_DEFAULT_MODEL: 'm' };
    const { baseUrl, defaultModel } = load(MINE, env).providers.registered[0]!;
    assert.deepEqual([baseUrl, defaultModel], ['http://h/v1', undefined]);
  });
});

describe('without keys', () => {
  const proxied = /^every client of the proxies in trusted_proxies is served, with any token; set/;
  const reached = /^every client that can connect to 0\.0\.0\.0 is served, with any token; set/;
  const open = /^every client that can connect to 0\.0\.0\.0 is served, with no token; set/;
  const rows: [server: string, warnings: RegExp[]][] = [
    ['host = "127.0.0.1"', []],
    ['host = "localhost"', []],
    ['host = "0.0.0.0"', [reached]],
    ['host = "0.0.0.0"\nauth.enabled = false', [open]],
    ['host = "127.0.0.1"\ntrusted_proxies = ["10.0.0.1"]', [proxied]],
    ['host = "0.0.0.0"\ntrusted_proxies = ["10.0.0.1"]', [reached, proxied]],
  ];
  for (const [server, expected] of rows) {
    const whom = String(expected) || 'nothing';
    test(`and with ${JSON.stringify(server)} the start warns of ${whom}; with keys of nothing`, () => {
      const warn = (toml: string) => startWarningsOf(loadConfig({ toml, env: {} }));
      assertTexts(warn(`[server]\n${server}`), expected);
      // Without authentication nobody needs one of the keys.
      const withKeys = expected.includes(open) ? expected : [];
      assertTexts(warn(`[server]\n${server}\nauth.keys = ["key-0123456789"]`), withKeys);
    });
  }
});

describe('a GATEWAY_ variable that nothing reads', () => {
  test('is known if the file refers to it, also in the path of a file', (t) => {
    const folder = emptyFolder(t, { key: 'k' });
    const env = { GATEWAY_TEAM: 'mine', GATEWAY_FOLDER: folder };
    const toml = `[providers]\nprimary = "\${GATEWAY_TEAM}"\n${MINE}api_key = "\${file:\${GATEWAY_FOLDER}/key}"`;
    assert.deepEqual(load(toml, env).warnings, []);
  });
});

describe('readSettings', () => {
  const settings = (t: TestContext) => {
    const folder = emptyFolder(t, {
      'one.toml': '[server]\nport = 1001',
      'two.toml': '[server]\nport = "${file:port}"',
      port: '1002\n',
    });
    return { one: join(folder, 'one.toml'), two: join(folder, 'two.toml') };
  };

  test('reads the file of --config, else the text or the file that a variable names', (t) => {
    const { one, two } = settings(t);
    const portOf = (config: string | undefined, env: Env) =>
      readSettings({ config }, env).config.server.port;
    assert.equal(portOf(one, { GATEWAY_CONFIG: two }), 1001);
    assert.equal(portOf(undefined, { GATEWAY_CONFIG: two }), 1002);
    assert.equal(portOf(undefined, { GATEWAY_CONFIG_TOML: '[server]\nport = 1003' }), 1003);
    assert.equal(portOf(one, { GATEWAY_CONFIG: two, GATEWAY_CONFIG_TOML: 'no TOML' }), 1001);
  });

  test('refuses GATEWAY_CONFIG beside GATEWAY_CONFIG_TOML', (t) => {
    const env = { GATEWAY_CONFIG: settings(t).one, GATEWAY_CONFIG_TOML: '[server]' };
    assert.deepEqual(
      problemsIn(() => readSettings({}, env)),
      ['GATEWAY_CONFIG_TOML: GATEWAY_CONFIG is set too; unset one of them'],
    );
    assert.deepEqual(
      problemsIn(() => readSettings({}, { ...env, GATEWAY_CONFIG: '' })),
      [],
    );
  });

  test('blames GATEWAY_CONFIG_TOML for what is wrong in it, and says that it was read', () => {
    const read = (toml: string) => readSettings({}, { GATEWAY_CONFIG_TOML: toml });
    assert.match(
      problemsIn(() => read('[server]\nprot = 1'))[0]!,
      /^GATEWAY_CONFIG_TOML: server\.prot: unknown key/,
    );
    assert.match(
      problemsIn(() => read('[server'))[0]!,
      /^GATEWAY_CONFIG_TOML: line 1, column \d+: /,
    );
    assert.deepEqual(read('[server]').source, {
      text: 'GATEWAY_CONFIG_TOML',
      isFound: true,
      isEmpty: false,
    });
  });

  test('reads everything anew with each call', (t) => {
    const { two } = settings(t);
    const read = () => readSettings({ config: two }, {}).config.server.port;
    assert.equal(read(), 1002);
    writeFileSync(join(two, '..', 'port'), '1004');
    assert.equal(read(), 1004);
  });
});

describe('what looks like a reference and is none', () => {
  const BROKEN = [
    '${TEAM_TOKEN:-x}',
    '${A-B}',
    '${file:/run/x',
    '${FILE:/x}',
    '${}',
    '${1X}',
    'k-${',
  ];

  test('is warned of unless it is a key of callers, and not shown; a variable may have it in its value', () => {
    for (const text of BROKEN) {
      const warnings = load(`${MINE}api_key = '${text}'`).warnings;
      assert.deepEqual(warnings, [
        'providers.mine.api_key: "${" begins no reference here; the text is used as written',
      ]);
      assert.equal(keyOf(load(`${MINE}api_key = '\${K}'`, { K: text })), text);
      assert.deepEqual(load(`${MINE}api_key = '\${K}'`, { K: text }).warnings, []);
    }
  });
});

test('a key that a provider has twice is used once', () => {
  const toml = `${MINE}api_key = "a-key"\napi_keys = ["b-key", " a-key ", "b-key"]`;
  const { apiKeys } = load(toml).providers.registered[0]!;
  assert.deepEqual(reveal(apiKeys), ['a-key', 'b-key']);
});

test('a provider\u2019s id in place of a key is not hidden in texts', () => {
  const toml = `${MINE}api_key = "A-Long-Key"\n[providers.lmstudio]\napi_key = "LMStudio"`;
  const hidden = reveal(load(toml).secrets);
  assert.deepEqual(hidden, ['A-Long-Key']);
});

describe('a key', () => {
  test('does not become text by accident', () => {
    const key = 'canary-0123456789';
    const secret = new Secret(key);
    const texts = [
      String(secret),
      `${secret}`, // oxlint-disable-line typescript/restrict-template-expressions
      `x${String(secret)}`,
      JSON.stringify({ secret }),
      inspect(secret),
      inspect({ deep: [secret] }, { showHidden: true, depth: 9 }),
      Object.entries(secret).join(),
    ];
    for (const text of texts) assert.ok(!text.includes(key), text);
    assert.equal(secret.reveal(), key);
  });

  test('is in no part of the settings that could be printed, nor in any problem', () => {
    const key = 'canary-0123456789';
    const env = { OPENAI_API_KEY: key, K: key };
    const own = '[server.auth]\nkeys = ["${K}"]\n[admin]\nport = 9090\nkeys = ["${K}"]\n';
    const toml = `${own}[providers.z]\nbase_url = "http://z"\n`;
    const config = load(`${toml}api_key = "${key}"`, env);
    assert.equal(keysOf(config)['z'], key);
    const shown = [inspect(config, { depth: 9, showHidden: true }), JSON.stringify(config)];
    shown.push(inspect([...config.resolved]), ...config.warnings);

    const wrong = `[server]\nport = "x"\n[server.auth]\nkeys = "${key}"\nkey = "${key}"\n`;
    const more = `[providers.z]\nbase_url = "http://z"\napi_key = ["${key}"]\napi_kye = "${key}"\n`;
    const problems = problemsOf(`${wrong}${more}[providers.y]\napi_key = "${key}"`, env);
    assert.ok(problems.length >= 6, problems.join('\n'));
    for (const text of [...shown, ...problems]) assert.ok(!text.includes(key), text);
  });
});

describe('gateway.toml.example', () => {
  const example = readFileSync(`${ROOT}/gateway.toml.example`, 'utf8');
  const complete = example.replace(/^#(?=[\w["])/gm, '');
  const env = Object.fromEntries(
    [...example.matchAll(/\$\{(\w+)\}/g)].map(([, name = '']) => [name, `value-of-${name}`]),
  );

  test('says the defaults as it stands', () => {
    assert.deepEqual(load(example), load(''));
  });

  test('loads without a warning when every setting in it is turned on', () => {
    assert.ok(Object.keys(env).length > 2);
    const limits = { GATEWAY_RATE_LIMIT_ENABLED: 'true' };
    const config = load(complete, { ...env, ...limits, ANTHROPIC_API_KEY: 'k' });
    assert.deepEqual(config.warnings, []);
    const ids = config.providers.registered.map(({ id }) => id);
    for (const id of ['openai', 'ollama', 'vllm', 'lmstudio']) assert.ok(ids.includes(id), id);
  });
});
