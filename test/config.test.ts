import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';

import { ConfigError, loadConfig, type Config, type Flags } from '../src/config/config.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf } from '../src/config/built-in-providers.ts';
import { Secret } from '../src/lib/secrets.ts';
import { ROOT } from './support/process.ts';

type Env = Record<string, string | undefined>;

function load(toml: string, env: Env = {}, flags: Flags = {}): Config {
  return loadConfig({ toml, env, flags });
}

/** What is wrong with these settings; empty when they load. */
function problemsOf(toml: string, env: Env = {}, flags: Flags = {}): readonly string[] {
  try {
    load(toml, env, flags);
  } catch (error) {
    assert.ok(error instanceof ConfigError, inspect(error));
    return error.problems;
  }
  return [];
}

/** Checks that there is one problem for each pattern, in order. */
function assertProblems(actual: readonly string[], expected: readonly RegExp[]): void {
  assert.equal(actual.length, expected.length, actual.join('\n'));
  for (const [index, pattern] of expected.entries()) assert.match(actual[index]!, pattern);
}

/** One provider `z` with these lines in its section, and whatever else it needs. */
function provider(lines: string): string {
  const needed = { base_url: 'http://z/v1', api_key: 'k' };
  const missing = Object.entries(needed).filter(([key]) => !lines.includes(`${key} =`));
  return `[providers.z]\n${missing.map(([key, value]) => `${key} = "${value}"\n`).join('')}${lines}`;
}

function keysOf(config: Config): Record<string, string> {
  return Object.fromEntries(config.providers.registered.map((p) => [p.id, p.apiKeys[0]!.reveal()]));
}

describe('defaults', () => {
  test('without file and environment every setting has its documented default', () => {
    const { server, admin, logging, providers, aliases, rateLimit, warnings } = load('');
    assert.deepEqual(server, {
      port: 8080,
      host: '0.0.0.0',
      workers: 1,
      timeoutMs: 60_000,
      firstTokenTimeoutMs: Infinity,
      streamIdleTimeoutMs: 300_000,
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
  'server.cors',
  'server.auth.enabled',
  'logging.verbose',
  'logging.provider_messages',
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
    [
      ['server.workers'],
      ['0', '257', '1.5', '"1"', '"Auto"', '""', 'true', '[1]', '{}'],
      'an integer from 1 to 256, or "auto"',
    ],
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

  test('the message shows what was found', () => {
    assertProblems(problemsOf('[server]\nport = 99999\ntimeout = 0\nretries = "x"\ncors = 1.5'), [
      /^server\.port: found "?99999"?, expected/,
      /^server\.timeout: found "?0"?, expected/,
      /^server\.retries: found "x", expected/,
      /^server\.cors: found "?1\.5"?, expected/,
    ]);
  });

  test('an integer that no number can hold is refused', () => {
    for (const value of ['9007199254740993', '9223372036854775808']) {
      assertProblems(problemsOf(`[server]\ntimeout = ${value}`), [/^line 2, column /]);
    }
  });

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
        const pattern = `^${name.replaceAll('.', '\\.')}: found ${found}, expected a table`;
        assertProblems(problemsOf(`${name} = ${value}\n${z}`), [new RegExp(pattern)]);
      }
    });
  }

  test('primary and fallback cannot be providers', () => {
    assertProblems(problemsOf('[providers.primary]\napi_key = "k"\n[providers.fallback]'), [
      /^providers\.primary: found a table, expected a string/,
      /^providers\.fallback: found a table, expected an array of strings/,
    ]);
  });
});

describe('unknown keys', () => {
  const nearest: [toml: string, problem: RegExp][] = [
    ['[sever]', /^sever: unknown key; did you mean "server"\?$/],
    ['[server]\nprot = 1', /^server\.prot: unknown key; did you mean "port"\?$/],
    ['[server]\nPort = 1', /^server\.Port: unknown key; did you mean "port"\?$/],
    ['[server]\ntime_out = 1', /^server\.time_out: unknown key; did you mean "timeout"\?$/],
    ['[server.auth]\nkey = []', /^server\.auth\.key: unknown key; did you mean "keys"\?$/],
    ['[server.aut]', /^server\.aut: unknown key; did you mean "auth"\?$/],
    ['[logging]\nlevle = "x"', /^logging\.levle: unknown key; did you mean "level"\?$/],
    [provider('apikey = "x"'), /^providers\.z\.apikey: unknown key; did you mean "api_key"\?$/],
    ['[providers]\nfalback = []', /^providers\.falback: unknown key; did you mean "fallback"\?$/],
    ['[rate_limits]', /^rate_limits: unknown key; did you mean "rate_limit"\?$/],
    ['[rate_limit]\nburst = 1', /^rate_limit\.burst: unknown key; .*"?burst_capacity"?/],
    [
      '[rate_limit.providers.openai]\nrequests_per_secnd = 1',
      /^rate_limit\.providers\.openai\.requests_per_secnd: unknown key; did you mean "requests_per_second"\?$/,
    ],
    ['[server]\nzzzzzzzz = 1', /^server\.zzzzzzzz: unknown key; known: .*\bport, .*\bhost, /],
    ['__proto__ = 1', /^__proto__: unknown key/],
    ['[__proto__]\npolluted = 1', /^__proto__: unknown key/],
    ['[server.constructor]', /^server\.constructor: unknown key/],
    [provider('hasOwnProperty = 1'), /^providers\.z\.hasOwnProperty: unknown key/],
  ];
  for (const [toml, problem] of nearest) {
    test(`${JSON.stringify(toml)} is refused and the nearest known key named`, () => {
      assertProblems(problemsOf(toml), [problem]);
      assert.ok(!('polluted' in {}));
    });
  }

  const ids: [toml: string, problem: RegExp][] = [
    ['[providers]\nprimary = "opnai"', /^providers\.primary: .*"opnai"; did you mean "openai"\?$/],
    ['[providers]\nfallback = ["grok"]', /^providers\.fallback: .*"grok"; did you mean "groq"\?$/],
    [
      '[rate_limit.providers.mistal]',
      /^rate_limit\.providers\.mistal: .*did you mean "mistral"\?$/,
    ],
    ['[providers.opnai]', /^providers\.opnai\.base_url: required: .*did you mean "openai"\?$/],
  ];
  for (const [toml, problem] of ids) {
    test(`${JSON.stringify(toml)} names a provider that does not exist, and the nearest is named`, () => {
      assertProblems(problemsOf(toml), [problem]);
    });
  }
});

test('of a provider’s id of three letters, another with one of them is not called the nearest', () => {
  assertProblems(problemsOf('[providers.zzz]'), [
    /^providers\.zzz\.base_url: required: "zzz" is not a built-in provider; known: /,
  ]);
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
    const names = problemsOf(toml, env, { port: 'http' }).map((text) => text.split(':')[0]!);
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
    ['server:\n  port: 8080', /; this is not TOML/],
    ['---\nserver:\n  port: 8080', /; this is not TOML/],
    ['- server', /; this is not TOML/],
    ['{"server": {"port": 8080}}', /; this is not TOML/],
    ['{\n  "server": {}\n}', /; this is not TOML/],
    ['[server]\nport 80', undefined],
  ];
  for (const [toml, hint] of hints) {
    test(`in ${JSON.stringify(toml)} is told ${hint ? `with a hint: ${hint.source}` : 'without a hint'}`, () => {
      const [line = ''] = problemsOf(toml)[0]!.split('\n');
      if (hint) assert.match(line, hint);
      else assert.doesNotMatch(line, /quotes|not TOML/);
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
  const env = { A: 'one', B: 'two', NESTED: '${A}', EMPTY: '', _a1: 'three', DOLLAR: '$&$1' };
  const expansions: [text: string, expanded: string, unset: readonly string[]][] = [
    ['${A}', 'one', []],
    ['x${A}-${B}${A}y', 'xone-twooney', []],
    ['${NESTED}', '${A}', []],
    ['${DOLLAR}', '$&$1', []],
    ['x${EMPTY}', 'x', []],
    ['${_a1}', 'three', []],
    ['$A $${A} {A}', '$A $one {A}', []],
    ['${A', '${A', ['no reference']],
    ['${}${A-b}${ A}', '${}${A-b}${ A}', ['no reference']],
    ['${${A}}', '${one}', ['no reference']],
    ['$${A}{', '$one{', []],
    ['${NOPE}/${A}/${NADA}', '${NOPE}/one/${NADA}', ['NOPE', 'NADA']],
    ['${a}', '${a}', ['a']],
    ['${__proto__}', '${__proto__}', ['__proto__']],
    ['${constructor}${toString}', '${constructor}${toString}', ['constructor', 'toString']],
  ];
  for (const [text, expanded, unset] of expansions) {
    test(`${text} becomes ${expanded}`, () => {
      const config = load(provider(`default_model = '${text}'`), env);
      assert.equal(config.providers.registered[0]!.defaultModel, expanded);
      assert.equal(config.warnings.length, unset.length);
      for (const [index, name] of unset.entries()) {
        assert.match(config.warnings[index]!, /^providers\.z\.default_model: /);
        assert.ok(config.warnings[index]!.includes(` ${name} `), config.warnings[index]!);
      }
    });
  }

  test('are replaced in every setting that is a text', () => {
    const toml = `[server]
host = "\${H}"
[server.auth]
keys = ["\${K}", "lit\${K}"]
[providers]
primary = "\${Z}"
fallback = ["\${Z}"]
[providers.z]
base_url = "http://\${H}:1/v1"
api_key = "\${K}"
default_model = "\${M}"
models = ["\${M}", "x"]
[aliases]
a = "z/\${M}"
`;
    const { server, providers, aliases, warnings } = load(toml, {
      H: 'h',
      K: 'hunter-2',
      Z: 'z',
      M: 'm',
    });
    assert.equal(server.host, 'h');
    assert.deepEqual(
      server.auth.keys.map((key) => key.reveal()),
      ['hunter-2', 'lithunter-2'],
    );
    const { baseUrl, apiKeys, defaultModel, models } = providers.registered[0]!;
    assert.deepEqual(
      [baseUrl, apiKeys[0]!.reveal(), defaultModel, models],
      ['http://h:1/v1', 'hunter-2', 'm', ['m', 'x']],
    );
    assert.deepEqual([providers.primary, providers.fallback], ['z', ['z']]);
    assert.deepEqual([...aliases], [['a', ['z/m']]]);
    assert.deepEqual(warnings, []);
  });

  test('an unset variable in api_key stays as written, with a warning that names it', () => {
    const config = load('[providers.openai]\napi_key = "${NOT_THERE}"');
    assert.deepEqual(keysOf(config), { openai: '${NOT_THERE}' });
    assert.equal(config.warnings.length, 1);
    assert.match(config.warnings[0]!, /^providers\.openai\.api_key: .*\bNOT_THERE\b/);
  });

  test('an unset variable in the gateway\u2019s own keys stops the start', () => {
    assertProblems(problemsOf('[server.auth]\nkeys = ["good", "${NOT_THERE}"]'), [
      /^server\.auth\.keys: .*\bNOT_THERE\b/,
    ]);
  });

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
        assertProblems(problems, [name]);
        assert.ok(!problems[0]!.includes('hunt'), problems[0]!);
      }
    });
  }

  const quoted: [toml: string, env: Env, warning: RegExp][] = [
    ['', { OPENAI_API_KEY: '"hunter2"' }, /^OPENAI_API_KEY: .*quotation mark/],
    ['', { OPENAI_API_KEY: "'hunter2'" }, /^OPENAI_API_KEY: .*quotation mark/],
    [
      '[providers.openai]\napi_key = "${K}"',
      { K: '"hunter2"' },
      /^providers\.openai\.api_key: .*quotation mark/,
    ],
    ['[server.auth]\nkeys = ["${K}"]', { K: '"hunter2"' }, /^server\.auth\.keys: .*quotation mark/],
  ];
  for (const [toml, env, warning] of quoted) {
    test(`${JSON.stringify(toml)} with ${JSON.stringify(env)} warns of the quotes around the key`, () => {
      const { warnings } = load(toml, env);
      assert.equal(warnings.length, 1);
      assert.match(warnings[0]!, warning);
      assert.ok(!warnings[0]!.includes('hunter'), warnings[0]!);
    });
  }

  test('a key with a quotation mark inside or at one end is nothing to warn of', () => {
    for (const OPENAI_API_KEY of ['"', '"a', "a'", 'a"b', '"a\'']) {
      assert.deepEqual(load('', { OPENAI_API_KEY }).warnings, []);
    }
  });

  test('a caller\u2019s key of fewer than 8 characters is warned of, and not shown; of a provider\u2019s it is not', () => {
    const places: [toml: (key: string) => string, name: string][] = [
      [(key) => `[server.auth]\nkeys = ["${key}"]`, 'server.auth.keys'],
      [(key) => `[clients.a]\nkey = "${key}"`, 'clients.a.key'],
      [(key) => `[clients.a]\nkeys = ["${key}"]`, 'clients.a.keys'],
      [(key) => `[admin]\nport = 9090\nkeys = ["${key}"]`, 'admin.keys'],
    ];
    const warning = 'a key of fewer than 8 characters is not hidden in log lines and error texts';
    for (const [toml, name] of places) {
      assert.deepEqual(load(toml('hunter2')).warnings, [`${name}: ${warning}`]);
      assert.deepEqual(load(toml('hunter-2')).warnings, []);
    }
    const inVariable = load('', { GATEWAY_AUTH_KEYS: 'hunter2' });
    assert.deepEqual(inVariable.warnings, [`GATEWAY_AUTH_KEYS: ${warning}`]);
    assert.deepEqual(load(provider('api_key = "none"')).warnings, []);
  });

  test('a key may have 4096 characters; a longer one is refused, and not shown', () => {
    const places: [toml: string, name: RegExp][] = [
      ['[providers.openai]\napi_key = "${K}"', /^providers\.openai\.api_key: /],
      ['[providers.openai]\napi_keys = ["${K}"]', /^providers\.openai\.api_keys: /],
      ['[server.auth]\nkeys = ["${K}"]', /^server\.auth\.keys: /],
      ['[clients.a]\nkey = "${K}"', /^clients\.a\.key: /],
      ['[admin]\nport = 9090\nkeys = ["${K}"]', /^admin\.keys: /],
    ];
    for (const [toml, name] of places) {
      assertProblems(problemsOf(toml, { K: 'x'.repeat(4096) }), []);
      const problems = problemsOf(toml, { K: 'x'.repeat(4097) });
      assertProblems(problems, [name]);
      assert.match(problems[0]!, /: a key cannot be longer than 4096 characters$/);
    }
  });

  test('a wrong key is blamed on api_key or api_keys, whichever has it', () => {
    const places: [lines: string, name: string][] = [
      ['api_key = "a b"\napi_keys = ["good"]', 'api_key'],
      ['api_key = "good"\napi_keys = ["good", "a b"]', 'api_keys'],
      ['api_key = " "\napi_keys = ["", "a b"]', 'api_keys'],
    ];
    for (const [lines, name] of places) {
      assertProblems(problemsOf(provider(lines)), [
        new RegExp(`^providers\\.z\\.${name}: a key must be`),
      ]);
    }
    assertProblems(problemsOf(provider('api_keys = [""]\napi_key = ""'), { Z_API_KEY: 'a b' }), [
      /^Z_API_KEY: a key must be/,
    ]);
  });

  test('api_key is the first of the keys in api_keys', () => {
    const { registered } = load(provider('api_keys = ["b", "c"]\napi_key = "a"')).providers;
    assert.deepEqual(
      registered[0]!.apiKeys.map((key) => key.reveal()),
      ['a', 'b', 'c'],
    );
  });

  test('an empty key of the gateway\u2019s own is refused', () => {
    assertProblems(problemsOf('[server.auth]\nkeys = [""]'), [/^server\.auth\.keys: /]);
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

  test('without a port is off, and warns of keys that protect nothing', () => {
    const { admin: settings, warnings } = load(admin('host = "0.0.0.0"'));
    assert.deepEqual([settings, warnings], [undefined, []]);
    const withKeys = load(admin('keys = ["hunter-2"]'));
    assert.equal(withKeys.admin, undefined);
    assertProblems(withKeys.warnings, [/^admin\.port: not set: there is no admin listener$/]);
  });

  test('beyond loopback needs at least one key', () => {
    for (const host of ['0.0.0.0', '::', '192.0.2.1', 'gateway.example']) {
      for (const keys of ['', 'keys = []']) {
        assertProblems(problemsOf(admin(`port = 9090\nhost = "${host}"\n${keys}`)), [
          new RegExp(`^admin\\.keys: at least one is required: .*${host}.*host = "127.0.0.1"$`),
        ]);
      }
      assert.deepEqual(problemsOf(admin(`port = 9090\nhost = "${host}"\nkeys = ["k"]`)), []);
    }
    for (const host of ['127.0.0.1', 'localhost', '::1']) {
      assert.deepEqual(problemsOf(admin(`port = 9090\nhost = "${host}"`)), []);
    }
  });

  test('may not have the port of [server], wherever that comes from', () => {
    const problem = /^admin\.port: 9090 is the port of \[server\] too; choose another$/;
    assertProblems(problemsOf(admin('port = 9090', 'port = 9090')), [problem]);
    assertProblems(problemsOf(admin('port = 9090'), { GATEWAY_PORT: '9090' }), [problem]);
    assertProblems(problemsOf(admin('port = 9090'), {}, { port: '9090' }), [problem]);
    assertProblems(problemsOf(admin('port = 8080')), [/^admin\.port: 8080 is the port/]);
    // The system chooses two different ones.
    assert.deepEqual(problemsOf(admin('port = 0', 'port = 0')), []);
  });

  test('a key that is an unset variable, or has quotes around it, is told as in [server.auth]', () => {
    assertProblems(problemsOf(admin('port = 9090\nkeys = ["${NOT_THERE}"]')), [
      /^admin\.keys: .*\bNOT_THERE\b/,
    ]);
    assertProblems(load(admin(`port = 9090\nkeys = ["'hunter2'"]`)).warnings, [
      /^admin\.keys: .*quotation mark/,
    ]);
  });
});

describe('trusted proxies', () => {
  test('are addresses and ranges, IPv4 and IPv6', () => {
    const trusted = [
      '10.0.0.1',
      '10.0.0.0/8',
      '0.0.0.0/0',
      '::1',
      '2001:db8::/32',
      '::ffff:10.0.0.0/104',
    ];
    const { server } = load(`[server]\ntrusted_proxies = ${JSON.stringify(trusted)}`);
    assert.deepEqual(server.trustedProxies, trusted);
  });

  for (const wrong of [
    '',
    '10.0.0',
    '10.0.0.0/33',
    '10.0.0.0/',
    '10.0.0.0/8/8',
    '10.0.0.0/-1',
    '::/129',
    'proxy',
    '10.0.0.0/255.0.0.0',
  ]) {
    test(`${JSON.stringify(wrong)} is refused as a trusted proxy`, () => {
      const proxies = JSON.stringify(['10.0.0.1', wrong]);
      assertProblems(problemsOf(`[server]\ntrusted_proxies = ${proxies}`), [
        /^server\.trusted_proxies: ".*" is neither an address nor a range like 10\.0\.0\.0\/8$/,
      ]);
    });
  }
});

describe('providers of one\u2019s own', () => {
  for (const id of ['mine', '__proto__', 'constructor', 'toString']) {
    test(`${id} needs a base_url, and with one it is a provider like any other`, () => {
      assertProblems(problemsOf(`[providers.${id}]\napi_key = "k"`), [
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

  test('a base_url is required even if the provider is switched off', () => {
    assertProblems(problemsOf('[providers.mine]\nenabled = false'), [/base_url: required/]);
  });

  for (const id of ['a/b', '', 'sp ace', '\u00e9', 'x'.repeat(65)]) {
    test(`${JSON.stringify(id)} is no provider id`, () => {
      const toml = `[providers."${id}"]\nbase_url = "http://x"\napi_key = "k"`;
      assertProblems(problemsOf(toml), [/^providers.*: a provider id is /]);
    });
  }

  const refused = [
    ['', 'x', 'localhost:11434/v1', '//h/v1', '/v1', 'ftp://h/v1', 'file:///v1', 'http://'],
    ['http://user:hunter22@h/v1', 'http://user@h/v1', 'https://h/v1?key=hunter22', 'http://h/v1#x'],
    ['http://h:99999/v1', 'http://h h/v1', 'javascript:alert(1)', '${UNSET_URL}'],
  ].flat();
  for (const url of refused) {
    test(`base_url = ${JSON.stringify(url)} is refused`, () => {
      const problems = problemsOf(provider(`base_url = "${url}"`));
      assertProblems(problems, [/^providers\.z\.base_url: expected an http or https URL/]);
      assert.ok(!problems[0]!.includes('hunter22'), problems[0]!);
    });
  }

  for (const path of ['/v1/chat/completions', '/v1/chat/completions/', '/chat/completions']) {
    test(`base_url = "http://h${path}" is refused, because the gateway appends that`, () => {
      assertProblems(problemsOf(provider(`base_url = "http://h${path}"`)), [
        /^providers\.z\.base_url: leave out \/chat\/completions/,
      ]);
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
  for (const target of ['', 'x', '/x', 'x/', '/']) {
    test(`an alias for ${JSON.stringify(target)} is refused`, () => {
      assertProblems(problemsOf(`[aliases]\na = "${target}"`), [/^aliases\.a: expected "<prov/]);
    });
  }

  test('an alias may have any name and a model with slashes', () => {
    const toml = '[aliases]\n"a/b" = "z/m/n"\n__proto__ = "z/m"\n"" = "z/m"\n';
    const { aliases, warnings } = load(toml + provider(''));
    assert.deepEqual(
      [...aliases],
      [
        ['a/b', ['z/m/n']],
        ['__proto__', ['z/m']],
        ['', ['z/m']],
      ],
    );
    assert.deepEqual(warnings, []);
  });

  test('what leads to a provider that is not registered is warned of', () => {
    const toml =
      '[providers]\nprimary = "groq"\nfallback = ["xai"]\n[aliases]\na = "openai/x"\nb = "no/x"';
    const { warnings } = load(toml);
    for (const pattern of [
      /^aliases\.a: .*"openai"/,
      /^aliases\.b: .*"no"/,
      /^providers\.primary: .*"groq"/,
      /^providers\.fallback: .*"xai"/,
    ]) {
      assert.equal(warnings.filter((warning) => pattern.test(warning)).length, 1, `${pattern}`);
    }
    assert.equal(warnings.length, 4);
  });
});

describe('environment and command line', () => {
  const words: [variable: string, name: string, good: Record<string, unknown>, bad: string[]][] = [
    ['GATEWAY_PORT', 'port', { '0': 0, '8081': 8081 }, ['65536', '-1', '8080x', 'abc', '1.5', ' ']],
    [
      'GATEWAY_TIMEOUT',
      'timeout',
      { '1': 1, '301': 301 },
      ['0', '-1', '1e3', 'NaN', '1e12', '0x9'],
    ],
    [
      'GATEWAY_CORS',
      'cors',
      { true: true, '1': true, FALSE: false, '0': false },
      ['yes', '2', 'on'],
    ],
    ['GATEWAY_UPSTREAM', 'upstream', { auto: 'auto', fetch: 'fetch' }, ['undici', '1']],
  ];
  for (const [variable, name, good, bad] of words) {
    test(`${variable} is read like server.${name}, and refused like it`, () => {
      for (const [text, value] of Object.entries(good)) {
        assert.equal(load('', { [variable]: text }).resolved.get(`server.${name}`), value);
      }
      for (const text of [...bad, 'constructor', '__proto__']) {
        assertProblems(problemsOf('', { [variable]: text }), [
          new RegExp(`^${variable}: found .*, expected`),
        ]);
      }
    });
  }

  test('an empty variable counts as unset', () => {
    const names = ['PORT', 'HOST', 'TIMEOUT', 'CORS', 'LOG_LEVEL', 'RATE_LIMIT_RPS'];
    const env = Object.fromEntries(names.map((name) => [`GATEWAY_${name}`, '']));
    const toml = '[server]\nport = 1\nhost = "h"\ntimeout = 2\ncors = true';
    assert.deepEqual(load(toml, env), load(toml));
  });

  test('a wrong value in the file is a problem even if a variable overrides it', () => {
    assertProblems(problemsOf('[server]\nport = "x"', { GATEWAY_PORT: '1' }), [/^server\.port: /]);
  });

  test('the command line wins over the environment, and that over the file', () => {
    const toml = '[server]\nport = 1\nhost = "a"';
    const env = { GATEWAY_PORT: '2', GATEWAY_HOST: 'b' };
    const read = ({ server }: Config) => [server.port, server.host];
    assert.deepEqual(read(load(toml)), [1, 'a']);
    assert.deepEqual(read(load(toml, env)), [2, 'b']);
    assert.deepEqual(read(load(toml, env, { port: '3', host: 'c' })), [3, 'c']);
  });

  test('an empty host is refused wherever it comes from', () => {
    assertProblems(problemsOf('[server]\nhost = ""'), [/^server\.host: /]);
    assertProblems(problemsOf('', {}, { host: '' }), [/^--host: /]);
  });
});

describe('requests per second', () => {
  const rows: [toml: string, env: Env, isWarned: boolean][] = [
    ['', { GATEWAY_RATE_LIMIT_RPS: '5' }, true],
    ['[rate_limit]\nrequests_per_second = 5', {}, true],
    ['[rate_limit.providers.openai]\nrequests_per_second = 5', {}, true],
    ['', { GATEWAY_RATE_LIMIT_RPS: '0' }, false],
    ['', { GATEWAY_RATE_LIMIT_RPS: '5', GATEWAY_RATE_LIMIT_ENABLED: 'true' }, false],
    ['[rate_limit]\nenabled = true', { GATEWAY_RATE_LIMIT_RPS: '5' }, false],
  ];
  for (const [toml, env, isWarned] of rows) {
    const what = `${JSON.stringify(toml)} with ${JSON.stringify(env)}`;
    test(`${what} ${isWarned ? 'is warned of: the limit is not enabled' : 'needs no warning'}`, () => {
      const { warnings } = load(toml, env);
      assert.equal(warnings.length, isWarned ? 1 : 0);
      if (isWarned) assert.match(warnings[0]!, /no effect.*GATEWAY_RATE_LIMIT_ENABLED/);
    });
  }
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
