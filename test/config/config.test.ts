/**
 * Accepted, refused and doubtful settings, from any source. The rows of settings.txt come first.
 */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { inspect } from 'node:util';

import { warningsOf as startWarningsOf } from '../../src/cli/startup-report.ts';
import { BUILT_IN_PROVIDERS } from '../../src/config/built-in-providers.ts';
import { loadConfig, type Config } from '../../src/config/config.ts';
import { readSettings } from '../../src/config/read-settings.ts';
import type { Rows, Setting } from '../../src/config/setting-kinds.ts';
import { SETTINGS } from '../../src/config/settings-table.ts';
import { Secret } from '../../src/lib/secret.ts';
import { createRedactor } from '../../src/lib/secrets.ts';
import { withExampleFiles } from '../support/certificate.ts';
import { problemsIn } from '../support/problems.ts';
import { emptyFolder, ROOT } from '../support/process.ts';

type Env = Record<string, string | undefined>;
type More = Omit<Parameters<typeof loadConfig>[0], 'toml' | 'env'>;

const load = (toml: string, env: Env = {}, more: More = {}) => loadConfig({ toml, env, ...more });
const problemsOf = (toml: string, env?: Env, more?: More) =>
  problemsIn(() => load(toml, env, more));

/** Checks that each text matches its pattern, in order. `…` matches any part of a text. */
function assertTexts(actual: readonly string[], expected: readonly string[]): void {
  assert.equal(actual.length, expected.length, actual.join('\n'));
  for (const [index, pattern] of expected.entries()) {
    const escaped = pattern.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&').replaceAll('…', '.*');
    assert.match(actual[index]!, new RegExp(`^${escaped}$`, 's'));
  }
}

const IS_DER =
  'is in DER, and not in PEM; convert it with openssl x509 -inform DER, or a key with openssl pkey';

const reveal = (secrets: readonly Secret[]) => secrets.map((secret) => secret.reveal());
/** Returns each registered provider with its keys. */
const keysOf = ({ providers }: Config) =>
  providers.registered.map(({ id, apiKeys }) => `${id}=${reveal(apiKeys).join()}`);
const MINE = '[providers.mine]\nbase_url = "http://h/v1"\n';

/** Returns the parts of a store's URL. */
function storeOf({ rateLimit: { store } }: Config): string {
  const { host, port, database, isTls, username = '-', password } = store!;
  const scheme = isTls ? 'rediss' : 'redis';
  return [host, port, database, scheme, username, password?.reveal() ?? '-'].join(' ');
}

/**
 * Sections with a title and rows `SETTING; SETTING | VARIABLE=VALUE; … => outcome`. `«A¦B»` makes
 * two rows, with A and with B. `«»` in the outcome repeats the value, unless the outcome has its
 * own `«C¦D»`. `‹9›` stands for nine letters x.
 */
const SECTIONS = readFileSync(`${ROOT}/test/config/settings.txt`, 'utf8').split(/^# /m).slice(1);

/** Replaces a row with `«A¦B»` by its rows. */
function expandRow(row: string): string[] {
  const [, before = '', values, after = ''] = /^(.*?)«(.*?)»(.*)$/.exec(row) ?? [];
  const [, own] = /«(.+)»/.exec(after) ?? [];
  return (
    values
      ?.split('¦')
      .map(
        (value, at) => before + value + after.replace(/«.*»/, () => own?.split('¦')[at] ?? value),
      ) ?? [row]
  );
}

/** Returns a row's settings as TOML. A provider `z` gets every provider's necessary settings. */
function tomlOf(settings: string): string {
  const lines = settings.split('; ');
  if (settings.includes('providers.z.')) {
    for (const needed of ['base_url = "https://z"', 'api_key = "k"']) {
      const [key = ''] = needed.split(' ');
      if (!settings.includes(`z.${key}`)) lines.unshift(`providers.z.${needed}`);
    }
  }
  return lines.join('\n');
}

function checkRow(t: TestContext, row: string): void {
  const long = row.replace(/‹(\d+)›/g, (_, count: string) => 'x'.repeat(Number(count)));
  const [, settings = '', variables = '', outcome = ''] =
    /^(.*?) ?(?:\| (.*))? => (.*)$/.exec(long) ?? assert.fail('no row');
  const env = Object.fromEntries(
    (variables === '' ? [] : variables.split('; ')).map((variable) => {
      const at = variable.indexOf('=');
      return [variable.slice(0, at), variable.slice(at + 1)];
    }),
  );
  const isInFolder = settings.includes('${file:');
  const more = isInFolder ? { directory: emptyFolder(t, { key: 'hunter2-hunter2\n' }) } : {};
  const toml = tomlOf(settings);
  const [, kind, text = ''] = /^(refused|warned|keys|store): (.*)/.exec(outcome) ?? [];
  const texts = text.split(' // ');
  const problems = problemsOf(toml, env, more);
  assertTexts(problems, kind === 'refused' ? texts : []);
  assert.doesNotMatch(problems.join(), /hunt/);
  if (kind === 'refused') return;
  const config = load(toml, env, more);
  if (kind === 'keys') return assert.equal(keysOf(config).join(' ') || 'none', text);
  if (kind === 'store') return assert.equal(storeOf(config), text);
  assertTexts(config.warnings, kind === 'warned' ? texts : []);
  assert.doesNotMatch(config.warnings.join(), /hunt/);
  const [, name = '', value] = /^(\S+) = (.*)/.exec(outcome) ?? [];
  if (value !== undefined)
    assert.equal(JSON.stringify(config.resolved.get(name)) ?? 'undefined', value);
  else assert.ok(kind !== undefined || outcome === 'accepted', outcome);
}

for (const [title, ...rows] of SECTIONS.map((section) => section.trim().split('\n'))) {
  describe(title, () => {
    for (const row of rows.flatMap(expandRow)) test(row, (t) => checkRow(t, row));
  });
}

const ROWS = Object.entries<Rows>(SETTINGS).flatMap(([section, rows]) =>
  Object.entries(rows).map(([key, row]) => ({
    name: `${section}.${key}`.replace(/<\w+>/, 'z'),
    row,
  })),
);

/** Returns a file with this setting, and a complete provider and client `z`. */
function setting(name: string, value: string): string {
  const needed = ['providers.z.base_url = "http://z"', 'providers.z.api_key = "k"'];
  if (name.startsWith('clients.z.') && !name.includes('.key')) needed.push('clients.z.key = "k"');
  return [...needed.filter((line) => !line.startsWith(`${name} `)), `${name} = ${value}\n`].join(
    '\n',
  );
}

/** Returns the expected value in the message's words, and refused values. */
function refusedFor({ type, min = 0, max = 0, choices, default: fallback, expected }: Setting) {
  const others = ['true', '["x"]', '{}', '1979-05-27'];
  if (type === 'texts' && choices) return [expected, '"x"', '1', '[1]', ...others];
  if (choices) return [`one of ${choices.join(', ')}`, '"x"', '"INFO"', '""', '1', ...others];
  if (type === 'boolean') return ['true or false', '0.5', '1', '"true"', '[]', '{}', '1979-05-27'];
  if (type === 'text') {
    if (fallback === undefined) return [expected, '1', 'nan', ...others];
    return [expected, '""', '" "', '1', 'nan', ...others];
  }
  if (type === 'texts')
    return ['an array of strings', '"x"', '1', '[1]', '["x", 1]', '{}', '[["x"]]'];
  if (type === 'date') return [expected, '1', 'nan', '"x"', 'true', '["x"]', '{}', '07:32:00'];
  if (type !== 'integer' && type !== 'seconds') return undefined;
  const numbers = [min - 1, max + 1, -1e9, '1e400', '1.5', 'nan', 'inf', '-inf'].map(String);
  return [`an integer from ${min} to ${max}`, ...numbers, '"1"', '{}', 'true', '[1]', '1979-05-27'];
}

/** Returns two values of a setting. A variable may have the second. */
function twoValues({ type, min = 0, max = 0, choices }: Setting): readonly [unknown, unknown] {
  const [one, two] = choices ?? ['z', 'openai'];
  if (type === 'boolean') return [false, true];
  if (type === 'texts') return [[one], [one, two]];
  return type === 'text' ? [one, two] : [min, max];
}

describe('the table of settings:', () => {
  for (const { name, row } of ROWS) {
    const [expected, ...values] = refusedFor(row) ?? [];
    if (expected === undefined) continue;
    test(`${name} is refused unless it is ${expected}`, () => {
      for (const value of values) {
        const [problem = '', ...others] = problemsOf(setting(name, value));
        assert.ok(problem.startsWith(`${name}: found `), `${value}: ${problem}`);
        assert.ok(problem.includes(`, expected ${expected}`), `${value}: ${problem}`);
        const isRequired = others.every((other) => /required/.test(other));
        assert.ok(isRequired, others.join());
      }
    });
  }

  test('an integer may have the least and the greatest value of its row', () => {
    for (const { name, row } of ROWS) {
      if (row.type !== 'integer' && row.type !== 'seconds') continue;
      for (const value of [row.min, row.max]) {
        assert.equal(load(setting(name, String(value))).resolved.get(name), value, name);
      }
    }
  });

  test('without a file and an environment every setting has its default', () => {
    const { resolved, warnings, ...config } = load('');
    for (const { name, row } of ROWS) {
      if (name.includes('.z') || row.default === undefined) continue;
      if (name.startsWith('admin.')) assert.equal(config.admin, undefined);
      else assert.deepEqual(resolved.get(name), row.default, name);
    }
    assert.deepEqual(warnings, []);
    assert.deepEqual(config.providers.registered, []);
    const { timeoutMs, firstTokenTimeoutMs, auth } = config.server;
    assert.deepEqual([timeoutMs, firstTokenTimeoutMs, auth.keys], [60_000, Infinity, []]);
    assert.deepEqual([config.aliases.size, config.rateLimit.providers.size], [0, 0]);
  });

  test('a variable overrides the file, and an empty variable counts as unset', (t) => {
    runOn(t, '24.0.0', 'linux');
    const env = { Z_API_KEY: 'k', OPENAI_API_KEY: 'k' };
    for (const { name, row } of ROWS) {
      if (!row.env) continue;
      const [inFile, inVariable] = twoValues(row);
      const toml = `${setting(name, JSON.stringify(inFile))}\n`;
      const valueFor = (text: string) => {
        const { resolved, values } = load(toml, { ...env, [row.env!]: text });
        assert.equal(values.plain().get(name)!.origin, text === '' ? undefined : row.env);
        return resolved.get(name);
      };
      assert.deepEqual(valueFor(''), row.secret ? '[secret]' : inFile, row.env);
      assert.deepEqual(valueFor(String(inVariable)), row.secret ? '[secret]' : inVariable, row.env);
    }
    const { keys } = load('', { GATEWAY_AUTH_KEYS: 'a, b ,c' }).server.auth;
    assert.deepEqual(reveal(keys), ['a', 'b', 'c']);
  });

  test('the documented variables are read', () => {
    const documented =
      'PORT HOST LOG_LEVEL CORS RATE_LIMIT_ENABLED RATE_LIMIT_RPS RATE_LIMIT_BURST';
    const more = 'TIMEOUT ADMIN_PORT UPSTREAM REUSE_PORT AUTH_KEYS PRIMARY FALLBACK';
    const expected = `${documented} ${more}`.split(' ').map((name) => `GATEWAY_${name}`);
    assert.deepEqual(ROWS.flatMap(({ row }) => row.env ?? []).toSorted(), expected.toSorted());
  });

  test('a section is refused unless it is a table', () => {
    const sections = ROWS.map(({ name }) => name.slice(0, name.lastIndexOf('.')));
    const more = ['providers.openai', 'rate_limit.providers'];
    for (const name of new Set([...sections.filter((one) => one !== 'providers.z'), ...more])) {
      const z = /^(?:providers|clients)/.test(name) ? '' : 'providers.z.base_url = "http://z"\n';
      for (const [value, found] of [
        ['1', 'a number'],
        ['[]', 'an array'],
      ]) {
        const [first = ''] = problemsOf(`${name} = ${value}\n${z}`);
        assert.equal(first.replace(/\[.*/, ''), `${name}: found ${found}, expected a table: `);
      }
    }
  });
});

test('a key that has expired, or will within a week, is warned of', () => {
  const toml = [-24, 1, 167, 169, 9999].map((hours) => {
    const expires = new Date(Date.now() + hours * 3_600_000).toISOString();
    return `[clients.in-${hours}-hours]\nkey = "key-${hours}-canary"\nexpires = ${expires}\n`;
  });
  const config = load(`${toml.join('')}[clients.always]\nkey = "key-always-canary"\n`);
  const moments = config.clients.map(({ expiryTime = 0 }) => new Date(expiryTime).toISOString());
  assert.deepEqual(config.warnings, []);
  assert.deepEqual(startWarningsOf(config), [
    `clients.in--24-hours.expires: the client's key expired at ${moments[0]}`,
    `clients.in-1-hours.expires: the client's key expires at ${moments[1]}`,
    `clients.in-167-hours.expires: the client's key expires at ${moments[2]}`,
  ]);
});

test('settings cannot change the prototype of objects', () => {
  problemsOf('[__proto__]\npolluted = 1');
  load('[providers.__proto__]\nbase_url = "http://x/v1"\napi_key = "k"');
  assert.ok(!('polluted' in {}) && !('baseUrl' in {}));
});

test('all problems of file, environment and command line are reported at once', () => {
  const toml = `nothing = 1
[server]
port = 99999
hots = "x"
auth.keys = ["\${UNSET_TOKEN}"]
[logging]
level = "loud"
[providers]
primary = "nobody"
mine.api_key = "k"
[aliases]
a = "no-slash"
[rate_limit]
burst_capacity = 0
`;
  const env = { GATEWAY_TIMEOUT: '0', GATEWAY_CORS: 'yes', GATEWAY_RATE_LIMIT_RPS: '-1' };
  const problems = problemsOf(toml, env, { flags: { port: 'http', host: '' } });
  const expected = [
    'server.port --port --host GATEWAY_TIMEOUT GATEWAY_CORS server.auth.keys server.hots',
    'logging.level providers.mine.base_url providers.primary aliases.a',
    'GATEWAY_RATE_LIMIT_RPS rate_limit.burst_capacity nothing',
  ];
  const names = problems.map((text) => text.split(':')[0]!);
  assert.deepEqual(names.toSorted(), expected.join(' ').split(' ').toSorted());
});

test('the command line overrides the environment', () => {
  const env = { GATEWAY_PORT: '2', GATEWAY_HOST: 'b' };
  const { port, host } = load('server.port = 1', env, { flags: { port: '3', host: 'c' } }).server;
  assert.deepEqual([port, host], [3, 'c']);
});

/** Makes `process` look like this Node on this system, until the test ends. */
function runOn(t: TestContext, version: string, platform: string): void {
  const values = { platform, versions: { ...process.versions, node: version } };
  for (const [name, value] of Object.entries(values)) {
    const former = Object.getOwnPropertyDescriptor(process, name)!;
    t.after(() => Object.defineProperty(process, name, former));
    Object.defineProperty(process, name, { value, configurable: true });
  }
}

test('a proxy in the environment selects fetch, and is warned of if Node ignores it', (t) => {
  const ignored = 'providers are reached without this proxy; ';
  const toSet = `${ignored}set NODE_USE_ENV_PROXY=1 to use it`;
  const tooOld = (version: string) =>
    `${ignored}Node 22.21 or newer with NODE_USE_ENV_PROXY=1 would use it, ` +
    `but this is Node ${version}`;
  const asked = { NODE_USE_ENV_PROXY: '1' };
  const url = 'http://user:hunter2@proxy:3128';
  for (const [version, env, expected] of [
    ['24.0.0', {}, toSet],
    ['22.21.0', { NODE_USE_ENV_PROXY: '0' }, toSet],
    ['24.0.0', asked, undefined],
    ['24.5.0', { NODE_OPTIONS: '--use-env-proxy' }, undefined],
    ['22.20.0', asked, tooOld('22.20.0')],
    ['20.20.2', {}, tooOld('20.20.2')],
  ] as const) {
    runOn(t, version, 'linux');
    for (const name of ['HTTPS_PROXY', 'https_proxy', 'HTTP_PROXY', 'http_proxy']) {
      const warnings = expected === undefined ? [] : [`${name}: ${expected}`];
      const behind = load('', { ...env, [name]: url });
      assert.deepEqual(behind.warnings, warnings, version);
      assert.equal(behind.server.upstream, expected === undefined ? 'fetch' : 'auto');
      const without = load('', { ...env, [name]: '' });
      assert.deepEqual([without.warnings, without.server.upstream], [[], 'auto']);
    }
  }
});

test("brackets around a listener's IPv6 address are left out", () => {
  const toml = '[server]\nhost = "[::]"\n[admin]\nport = 0\nhost = "[::1]"';
  const { server, admin } = load(toml);
  assert.deepEqual([server.host, admin!.host], ['::', '::1']);
  assert.equal(load('', { GATEWAY_HOST: '[::1]' }).server.host, '::1');
});

test('reuse_port is refused below Node 22.12, and on systems other than Linux', (t) => {
  for (const [version, platform, isRefused] of [
    ['22.12.0', 'linux', false],
    ['24.0.0', 'linux', false],
    ['22.11.9', 'linux', true],
    ['20.19.0', 'linux', true],
    ['24.0.0', 'darwin', true],
  ] as const) {
    const found = `Node ${version} on ${platform}`;
    const expected = `server.reuse_port: needs Linux and Node 22.12 or newer; this is ${found}`;
    runOn(t, version, platform);
    assert.deepEqual(problemsOf('[server]\nreuse_port = true'), isRefused ? [expected] : []);
    assert.deepEqual(problemsOf(''), []);
  }
});

describe('a syntax error', () => {
  const broken: [toml: string, line: number, column: number, shown: string][] = [
    ['[server]\nport = = 1', 2, 8, 'port = '],
    ['[server]\r\nport = = 1\r\n', 2, 8, 'port = '],
    ['[server\nport = 1', 1, 8, '[server'],
    ['[server]\nport = 1\nport = 2', 3, 1, 'port = '],
    ['[server]\nhost = ${HOST}', 2, 8, 'host = '],
    ['[providers.x]\ntoken = "hunter2-hunter2', 2, 9, 'token = ....'],
    ['[providers.x]\nbase_url = "hunter2-hunter2', 2, 12, 'base_url = ....'],
  ];
  for (const [toml, line, column, shown] of broken) {
    test(`in ${JSON.stringify(toml)} is reported at line ${line}, column ${column}`, () => {
      const [problem = ''] = problemsOf(toml);
      const lines = problem.split('\n');
      assert.match(lines[0]!, new RegExp(`^line ${line}, column ${column}: \\w`));
      assert.ok(lines[1]!.startsWith(`  ${shown}`), problem);
      assert.equal(lines[1]!.length, 2 + toml.split(/\r?\n/)[line - 1]!.length);
      assert.deepEqual(lines.slice(2), [`  ${' '.repeat(column - 1)}^`]);
      assert.doesNotMatch(problem, /hunter2/);
    });
  }

  const hints: [toml: string, hint: string][] = [
    ['[providers.openai]\napi_key = sk-abc', '; a string needs quotes'],
    ['[providers.openai]\napi_keys = ["x", sk-abc]', '; a string needs quotes'],
    ['[providers.openai]\ndefault_model = 4o-mini # x', '; a string needs quotes'],
    ['server.host = 127.0.0.1', '; a string needs quotes'],
    ['logging.level = info', '; a string needs quotes'],
    ['aliases.a = { targets = ["z/m"], balance = order }', '; a string needs quotes'],
    ['server.cors = falseTrue', '; a string needs quotes'],
    ['server.cors = True', '; true and false are written in lower case'],
    ['server:\n  port: 8080', '; this looks like YAML, but the settings are TOML: …'],
    ['# x\n---\nserver:\n  port: 8080', '; this looks like YAML, but…'],
    ['- server', '; this looks like YAML, but…'],
    ['[providers.openai]\napi_key: sk-abc', '; this looks like YAML, but…'],
    [
      '\n{\n  "server": { "port": 8080 }\n}',
      '; this looks like JSON, but the settings are TOML: …',
    ],
    ['[{"server": {}}]', '; this looks like JSON, but…'],
    ['[server', ''],
    ['port = = 1', ''],
    ['server.port =', ''],
    ['server.port = 1 host = "x"', ''],
    ['server.host = "x', '; a string ends on its line, with the quote at its beginning'],
    ['server.host = "x\'\n', '; a string ends on its line, with the quote at its beginning'],
    ['server.host = \'x"\n', '; a string ends on its line, with the quote at its beginning'],
    ['server.host = "x\u0001"', ''],
    ['server.host = “x”', '; quotes are straight: " or \''],
    ['server.max_body_bytes = 2M', '; a number has no unit, because sizes are in bytes …'],
    ['server.timeout = 30s', '; a number has no unit, because …'],
    ['[aliases]\nclaude-* = "z/*"', '; a name with other characters than letters, … needs quotes'],
    ['[aliases]\na/b = "z/*"', '; a name with other characters than letters, … needs quotes'],
    ['[clients.a b]', ''],
    ['server.host = "x" y', ''],
    ['api_key sk-abc', ''],
  ];
  test('that is a frequent mistake gets a hint at the right spelling', () => {
    for (const [toml, hint] of hints) {
      const [problem = ''] = problemsOf(toml);
      const told = /;.*/.exec(problem.split('\n')[0]!)?.[0] ?? '';
      assertTexts([told], [hint]);
    }
  });

  const leaks = [
    'api_key: KEY',
    '[providers.openai]\napi_key = KEY',
    '[providers.openai]\napi_key = "KEY\n',
    '[providers.openai]\napi_key = "KEY" x',
    '[providers.openai]\napi_key = "x"\napi_key = "KEY"',
    "providers.openai = { api_key = 'KEY' x }",
    '[server.auth]\nkeys = ["KEY" "x"]',
    '[server.auth]\nkeys = [\n "a",\n "KEY" =\n]',
    '[providers.openai]\napi_key = """\nKEY\u0001',
  ];
  test('never shows a key, whatever is broken', () => {
    const keys = 'sk-proj-AbCdEf_123456 hunter2 a!b@c#d$e%f p4ss:w0rd;x dGVz+dA==x'.split(' ');
    for (const toml of leaks) {
      for (const key of keys) {
        const problems = problemsOf(toml.replace('KEY', () => key));
        assert.equal(problems.length, 1);
        assert.match(problems[0]!, /^line \d, column \d+: /);
        assert.ok(!problems[0]!.includes(key), problems[0]!);
      }
    }
  });
});

const PIECES = '$|${|${A|${file:|${file:a|${file:${A}|[|{|"|\'|\\|=|a.| |\t|${A}';
for (const piece of PIECES.split('|')) {
  test(`100,000 times ${JSON.stringify(piece)} takes linear time`, () => {
    const time = (length: number) => {
      const text = piece.repeat(length);
      const start = process.cpuUsage();
      problemsOf(text);
      problemsOf(`${MINE}default_model = '''${text.replaceAll("'", '')}'''`, { A: 'x' });
      return process.cpuUsage(start).user / 1000;
    };
    time(1000);
    const short = time(10_000);
    const long = time(100_000);
    // Ten times the length. A quadratic pattern would take a hundred times as long.
    assert.ok(long < 60 * Math.max(short, 5), `${short} ms, ${long} ms`);
  });
}

test('of 30,000 unknown keys ten get a suggestion', () => {
  const keys = Array.from({ length: 30_000 }, (_, at) => `prot_${at} = 1`);
  const problems = problemsOf(`[server]\n${keys.join('\n')}`);
  assert.equal(problems.length, 30_000);
  assert.equal(problems.filter((text) => !text.endsWith(': unknown key')).length, 10);
});

test('a built-in provider is registered by <ID>_API_KEY, and by nothing else', () => {
  const ids = [...BUILT_IN_PROVIDERS.keys()];
  for (const id of ids) {
    const sharers = id.startsWith('zed') ? ['zed', 'zed_coding'] : [id];
    const config = load('', { [`${sharers[0]!.toUpperCase()}_API_KEY`]: 'k-1' });
    assert.deepEqual(
      keysOf(config),
      sharers.map((one) => `${one}=k-1`),
    );
    const { baseUrl } = config.providers.registered.find((one) => one.id === id)!;
    assert.equal(baseUrl, BUILT_IN_PROVIDERS.get(id)!.baseUrl);
    assert.match(baseUrl, /^https?:\/\/[^/]+\/.*[^/]$/);
    const skipped = config.providers.skipped.map((one) => one.id);
    assert.deepEqual(
      skipped,
      ids.filter((other) => !sharers.includes(other)),
    );
  }
});

test('a file with a byte order mark or CRLF reads like any other', () => {
  const lines = ['[server]', 'port = 1', '', '# a remark', '[logging]', 'level = "warn"', ''];
  for (const toml of [`\uFEFF${lines.join('\n')}`, lines.join('\r\n')])
    assert.deepEqual(load(toml), load(lines.join('\n')));
  assert.equal(problemsOf(`# ${'x'.repeat(1e6)}`).length, 0);
  assert.equal(problemsOf(`x = ${'['.repeat(1e5)}`).length, 1);
});

test('a wrong variable is named without the settings file', () => {
  const env = {
    GATEWAY_WORKERS: '2',
    OTEL_EXPORTER_OTLP_ENDPOINT: 'ftp://h',
    OTEL_EXPORTER_OTLP_HEADERS: 'a=%0A,b',
  };
  const problems = problemsOf('telemetry.traces = true', env, { path: '/etc/gateway.toml' });
  assertTexts(problems, [
    'GATEWAY_WORKERS: was removed; …',
    'OTEL_EXPORTER_OTLP_HEADERS: item 2 is not …',
    'OTEL_EXPORTER_OTLP_HEADERS: the value of "a" …',
    'OTEL_EXPORTER_OTLP_ENDPOINT: expected …',
  ]);
});

describe('${file:PATH}', () => {
  const withKey = (path: string) => `${MINE}api_key = "\${file:${path}}"`;
  const keyOf = (toml: string, env: Env = {}, more: More = {}) =>
    load(toml, env, more).providers.registered[0]!.apiKeys[0]!.reveal();
  const modelOf = (path: string, more: More = {}) => {
    const toml = `${MINE}api_key = "k"\ndefault_model = "\${file:${path}}"`;
    return load(toml, {}, more).providers.registered[0]!.defaultModel!;
  };

  test('becomes the text of the file without its last line end', (t) => {
    const files = {
      one: 'k-1\n',
      crlf: 'k-2\r\n',
      none: 'k-3',
      model: 'a\n\n',
      raw: '${K}${file:raw}',
    };
    const directory = emptyFolder(t, files);
    for (const [path, key] of [
      ['one', 'k-1'],
      ['./crlf', 'k-2'],
      ['none', 'k-3'],
      [join(directory, 'one'), 'k-1'],
      // The file's text is not expanded again.
      ['raw', '${K}${file:raw}'],
    ]) {
      assert.equal(keyOf(withKey(path!), { K: 'k' }, { directory }), key);
    }
    assert.equal(modelOf('model', { directory }), 'a\n');
    // The way to use systemd's credentials.
    const env = { CREDENTIALS_DIRECTORY: directory, NAME: 'one' };
    for (const path of ['${CREDENTIALS_DIRECTORY}/one', '${CREDENTIALS_DIRECTORY}/${NAME}'])
      assert.equal(keyOf(withKey(path), env), 'k-1');
  });

  test('may be part of any text, and the value of numbers and booleans', (t) => {
    const directory = emptyFolder(t, { port: '8081\n', cors: 'true\n', host: 'h', org: 'org-1\n' });
    const toml = `[server]
port = "\${file:port}"
cors = "\${file:cors}"
[providers.mine]
base_url = "http://\${file:host}:1/v1"
api_keys = ["\${file:org}", "x\${file:org}y"]
headers = { X-Org = "\${file:org}", "x-two" = "b c" }
`;
    const { server, providers, resolved } = load(toml, {}, { directory });
    assert.deepEqual([server.port, server.cors], [8081, true]);
    const { baseUrl, apiKeys, headers } = providers.registered[0]!;
    assert.equal(baseUrl, 'http://h:1/v1');
    assert.deepEqual(reveal(apiKeys), ['org-1', 'xorg-1y']);
    assert.deepEqual(Object.keys(headers), ['x-org', 'x-two']);
    assert.deepEqual(reveal(Object.values(headers)), ['org-1', 'b c']);
    for (const key of ['headers', 'api_keys'])
      assert.equal(resolved.get(`providers.mine.${key}`), '[secret]');
  });

  test('stops the start if the file is missing, empty, too large or not text', (t) => {
    const folder = emptyFolder(t, { empty: '', blank: ' \n\n', full: 'x'.repeat(65_536) });
    writeFileSync(join(folder, 'large'), 'x'.repeat(65_537));
    writeFileSync(join(folder, 'binary'), Buffer.from([0xff, 0xfe]));
    writeFileSync(join(folder, 'der'), Buffer.from([0x30, 0x82]));
    mkdirSync(join(folder, 'folder'));
    execFileSync('mkfifo', [join(folder, 'pipe')]);
    symlinkSync(join(folder, 'nowhere'), join(folder, 'link'));
    const reasons: Record<string, readonly string[]> = {
      'no such file': ['missing', 'link'],
      'is empty': ['empty', 'blank'],
      'is larger than 64 KiB': ['large'],
      'is not UTF-8 text': ['binary'],
      [IS_DER]: ['der'],
      'is not a file': ['folder', '', 'pipe'],
    };
    for (const [reason, names] of Object.entries(reasons)) {
      for (const name of names) {
        const problems = problemsOf(withKey(name), {}, { directory: folder });
        assert.deepEqual(problems, [`providers.mine.api_key: ${join(folder, name)}: ${reason}`]);
      }
    }
    assert.equal(modelOf('full', { directory: folder }).length, 65_536);
    assert.deepEqual(problemsOf(withKey('${NOT_THERE}/key')), [
      'providers.mine.api_key: environment variable NOT_THERE is not set',
    ]);
  });

  // fstat() reports 0 bytes for both. The first has several hundred KiB.
  const [endless, short] = ['/proc/self/smaps', '/proc/self/comm'];
  test('is read in full, or found too large, if the file reports 0 bytes', (t) => {
    if (!existsSync(endless)) return t.skip('needs Linux');
    const problem = `providers.mine.api_key: ${endless}: is larger than 64 KiB`;
    assert.deepEqual(problemsOf(withKey(endless)), [problem]);
    assert.match(modelOf(short), /^\S+$/);
  });

  test('shows nothing of a file in problems and in the resolved settings of keys', (t) => {
    const directory = emptyFolder(t, { key: 'hunter2-hunter2\n' });
    const twice = 'server.auth.keys = ["${file:key}"]\nclients.a.key = "${file:key}"\n';
    const problems = problemsOf(`server.port = 99999\n${twice}`, {}, { directory });
    assert.equal(problems.length, 2);
    assert.ok(!problems.join().includes('hunter2'), problems.join());
    const { resolved } = load(withKey('key'), {}, { directory });
    assert.equal(resolved.get('providers.mine.api_key'), '[secret]');
  });
});

describe('without keys', () => {
  const proxied = 'any client behind trusted_proxies is served, with any token; set…';
  const reached = 'any client that can reach 0.0.0.0 is served, with any token; set…';
  const open = 'any client that can reach 0.0.0.0 is served, with no token; set…';
  const rows: [server: string, warnings: string[]][] = [
    ['host = "127.0.0.1"', []],
    ['host = "localhost"', []],
    ['host = "0.0.0.0"', [reached]],
    ['host = "0.0.0.0"\n[clients.a]\nkey = "key-0123456789"', []],
    ['host = "0.0.0.0"\nauth.enabled = false', [open]],
    ['host = "127.0.0.1"\ntrusted_proxies = ["10.0.0.1"]', [proxied]],
    ['host = "0.0.0.0"\ntrusted_proxies = ["10.0.0.1"]', [reached, proxied]],
  ];
  test('the start warns of the clients that are served, and of keys without effect', () => {
    for (const [server, expected] of rows) {
      const warn = (toml: string) => startWarningsOf(load(toml));
      assertTexts(warn(`[server]\n${server}`), expected);
      // Without authentication, keys have no effect.
      const withKeys = expected.includes(open) ? expected : [];
      const keys = 'auth.keys = ["key-of-the-server"]';
      assertTexts(warn(`[server]\n${keys}\n${server}`), withKeys);
    }
  });
});

describe('readSettings', () => {
  test('refuses a file that is not UTF-8', (t) => {
    const path = join(emptyFolder(t), 'gateway.toml');
    const texts = {
      utf16le: '\uFEFFserver.port = 1',
      latin1: '# h\u00f6r\nserver.port = 1',
    } as const;
    for (const [encoding, text] of Object.entries(texts)) {
      writeFileSync(path, text, encoding as BufferEncoding);
      const problems = problemsIn(() => readSettings({ config: path }, {}));
      assert.deepEqual(problems, [`${path}: is not UTF-8 text`]);
    }
    writeFileSync(path, '\uFEFF# h\u00f6r\nserver.port = 1');
    assert.equal(readSettings({ config: path }, {}).config.server.port, 1);
  });

  test('refuses a file of more than 1 MiB', (t) => {
    const path = join(emptyFolder(t), 'gateway.toml');
    for (const [bytes, problems] of [
      [1_048_576, []],
      [1_048_577, [`${path}: is larger than 1024 KiB`]],
    ] as const) {
      writeFileSync(path, '#'.repeat(bytes));
      assert.deepEqual(
        problemsIn(() => readSettings({ config: path }, {})),
        problems,
      );
    }
  });

  test('reads the file of --config, else the text or the file of a variable, each time', (t) => {
    const files = { port: '1002\n', 'two.toml': '[server]\nport = "${file:port}"' };
    const folder = emptyFolder(t, { ...files, 'one.toml': '[server]\nport = 1001' });
    const [one, two] = [join(folder, 'one.toml'), join(folder, 'two.toml')];
    const portOf = (config: string | undefined, env: Env) =>
      readSettings({ config }, env).config.server.port;
    assert.equal(portOf(one, { GATEWAY_CONFIG: two }), 1001);
    assert.equal(portOf(undefined, { GATEWAY_CONFIG: two }), 1002);
    assert.equal(portOf(undefined, { GATEWAY_CONFIG_TOML: '[server]\nport = 1003' }), 1003);
    for (const config of [one, undefined])
      assert.equal(portOf(config, { GATEWAY_CONFIG: one, GATEWAY_CONFIG_TOML: 'no TOML' }), 1001);
    writeFileSync(join(folder, 'port'), '1004');
    assert.equal(portOf(two, {}), 1004);
  });

  test('names GATEWAY_CONFIG_TOML in its problems', () => {
    const read = (toml: string) => readSettings({}, { GATEWAY_CONFIG_TOML: toml });
    const refused: [toml: string, problem: string][] = [
      ['[server]\nprot = 1', 'GATEWAY_CONFIG_TOML: server.prot: unknown key…'],
      ['[server', 'GATEWAY_CONFIG_TOML: line 1, column …'],
    ];
    for (const [toml, problem] of refused) {
      const problems = problemsIn(() => read(toml));
      assertTexts(problems, [problem]);
    }
    assert.deepEqual(read('[server]').source, { text: 'GATEWAY_CONFIG_TOML', isFound: true });
  });
});

describe('a key', () => {
  const key = 'canary-0123456789';

  test('does not become text by accident', () => {
    const secret = new Secret(key);
    const texts = [
      String(secret),
      `${secret}`, // oxlint-disable-line typescript/restrict-template-expressions
      JSON.stringify({ secret }),
      inspect({ deep: [secret] }, { showHidden: true, depth: 9 }),
      Object.entries(secret).join(),
    ];
    for (const text of texts) assert.ok(!text.includes(key), text);
    assert.equal(secret.reveal(), key);
  });

  test('is in no part of the settings that could be printed, nor in any problem', () => {
    const env = { OPENAI_API_KEY: key, K: key };
    const digest = 'c0'.repeat(32);
    const client = `[clients.a]\nkey_sha256 = "${digest}"\n`;
    const own = `[server.auth]\nkeys = ["\${K}"]\n[admin]\nport = 9090\nkeys = ["\${K}"]\n${client}`;
    const store = `[rate_limit]\nstore = "redis://u:${key}@h:1/2"\n`;
    const toml = `${own}${store}[providers.z]\nbase_url = "http://z"\n`;
    const config = load(`${toml}api_key = "${key}"`, env);
    assert.ok(keysOf(config).includes(`z=${key}`));
    const shown = [inspect(config, { depth: 9, showHidden: true }), JSON.stringify(config)];
    shown.push(inspect([...config.resolved]), ...config.warnings);

    const wrong = `[server]\nport = "x"\n[server.auth]\nkeys = "${key}"\nkey = "${key}"\n`;
    const more = `[providers.z]\nbase_url = "http://z"\napi_key = ["${key}"]\napi_kye = "${key}"\n`;
    const problems = problemsOf(`${wrong}${more}[providers.y]\napi_key = "${key}"`, env);
    assert.ok(problems.length >= 6, problems.join('\n'));
    for (const text of [...shown, ...problems]) {
      assert.ok(!text.includes(key) && !text.includes(digest), text);
    }
  });

  test("is hidden in texts, but a provider's id in its place is not", () => {
    const toml = `${MINE}api_key = "A-Long-Key"\n[providers.lmstudio]\napi_key = "LMStudio"`;
    assert.deepEqual(reveal(load(toml).secrets), ['A-Long-Key']);
  });

  test('whose variable is not set is hidden nowhere, so warnings name the variable', () => {
    const toml = `${MINE}api_keys = ["\${ACME_API_KEY}", "$ACME_API_KEY", "a-\${ACME_API_KEY}"]`;
    const { secrets, warnings } = load(toml);
    assert.deepEqual(reveal(secrets), ['$ACME_API_KEY', 'a-${ACME_API_KEY}']);
    assert.equal(createRedactor(secrets)(warnings.join('\n')), warnings.join('\n'));
  });

  test('of a store is hidden in texts, and so is its whole URL', () => {
    const url = `redis://u:${key.replace('-', '%2D')}@h:1/2`;
    const redact = createRedactor(load(`rate_limit.store = "${url}"`).secrets);
    assert.equal(redact(`x ${key} y ${url} z`), 'x [secret] y [secret] z');
    // Another URL with the same beginning is no secret.
    assert.equal(redact('redis://other'), 'redis://other');
  });
});

test('each TOML block of the documents is accepted', (t) => {
  const documents = ['README.md', ...readdirSync(`${ROOT}/docs`).map((name) => `docs/${name}`)];
  const blocks = documents
    .filter((path) => path.endsWith('.md'))
    .flatMap((path) =>
      [...readFileSync(`${ROOT}/${path}`, 'utf8').matchAll(/^```toml\n([^]*?)^```$/gm)].map(
        ([, toml = '']) => ({ path, toml }),
      ),
    );
  assert.ok(blocks.length > 10, `${blocks.length}`);
  for (const { path, toml } of blocks) {
    let variables = 0;
    // A variable or a file gets a value of its own, because two keys cannot be the same.
    const filled = toml.replaceAll(/\$\{[^}]+\}/g, () => `value-${(variables += 1)}-0123456789`);
    assert.deepEqual(
      problemsIn(() => loadConfig({ ...withExampleFiles(t, filled), env: {} })),
      [],
      `${path}:\n${toml}`,
    );
  }
});
