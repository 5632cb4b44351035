/** Where settings come from besides the text of gateway.toml: files, variables; and what is refused or warned of there. */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { inspect } from 'node:util';

import { warningsOf as startWarningsOf } from '../src/cli/startup-report.ts';
import { ConfigError, loadConfig, type Config } from '../src/config/config.ts';
import { readSettings } from '../src/config/read-settings.ts';
import { emptyFolder } from './support/process.ts';

type Env = Record<string, string | undefined>;

/** What is wrong with these settings; empty if they load. */
function problemsOf(read: () => unknown): readonly string[] {
  try {
    read();
  } catch (error) {
    assert.ok(error instanceof ConfigError, inspect(error));
    return error.problems;
  }
  return [];
}

function load(toml: string, env: Env = {}, directory = ''): Config {
  return loadConfig({ toml, env, directory });
}

function warningsOf(toml: string, env: Env = {}): readonly string[] {
  return load(toml, env).warnings;
}

const keyOf = ({ providers }: Config) => providers.registered[0]!.apiKeys[0]!.reveal();
const MINE = '[providers.mine]\nbase_url = "http://h/v1"\n';

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
      assert.equal(keyOf(load(withKey(path!), {}, folder)), key);
    }
  });

  test('takes away one line end only', (t) => {
    const folder = emptyFolder(t, { model: 'a\n\n' });
    const toml = `${MINE}api_key = "k"\ndefault_model = "\${file:model}"`;
    assert.equal(load(toml, {}, folder).providers.registered[0]!.defaultModel, 'a\n');
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
    const { server, providers } = load(toml, {}, folder);
    assert.deepEqual([server.port, server.cors], [8081, true]);
    const { baseUrl, apiKeys, headers } = providers.registered[0]!;
    assert.equal(baseUrl, 'http://h:1/v1');
    assert.deepEqual(
      apiKeys.map((key) => key.reveal()),
      ['org-1', 'xorg-1y'],
    );
    assert.equal(headers['x-org']!.reveal(), 'org-1');
  });

  test('is not expanded again', (t) => {
    const folder = emptyFolder(t, { key: '${K}${file:key}' });
    assert.equal(keyOf(load(withKey('key'), { K: 'k' }, folder)), '${K}${file:key}');
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
      const problems = problemsOf(() => load(withKey(name!), {}, folder));
      assert.deepEqual(problems, [`providers.mine.api_key: ${join(folder, name!)}: ${reason}`]);
    }
    const model = `${MINE}api_key = "k"\ndefault_model = "\${file:full}"`;
    const { defaultModel } = load(model, {}, folder).providers.registered[0]!;
    assert.equal(defaultModel!.length, 65_536);
  });

  // fstat() reports 0 bytes for it, and it has several hundred KiB.
  const endless = '/proc/self/smaps';
  test('stops the start if more can be read than the size of the file', (t) => {
    if (!existsSync(endless)) return t.skip('needs Linux');
    assert.deepEqual(
      problemsOf(() => load(withKey(endless))),
      [`providers.mine.api_key: ${endless}: is larger than 64 KiB`],
    );
  });

  test('is read in full if the size of the file is reported as 0', (t) => {
    if (!existsSync(endless)) return t.skip('needs Linux');
    const toml = `${MINE}api_key = "k"\ndefault_model = "\${file:/proc/self/comm}"`;
    assert.match(load(toml).providers.registered[0]!.defaultModel!, /^\S+$/);
  });

  test('stops the start if a variable in its path is not set', () => {
    assert.deepEqual(
      problemsOf(() => load(withKey('${NOT_THERE}/key'))),
      ['providers.mine.api_key: environment variable NOT_THERE is not set'],
    );
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
    const problems = problemsOf(() => load(toml, {}, folder));
    assert.equal(problems.length, 2);
    assert.ok(!problems.join().includes('hunter2'), problems.join());
    const { resolved } = load(withKey('key'), {}, folder);
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
          const { warnings } = load(toml.replace('REF', reference), env, directory);
          told.push(...warnings);
        };
        told.push(...problemsOf(read));
        const text = told.join('\n');
        assert.ok(text.includes(shown.replaceAll('REF', reference)), text);
        assert.ok(!text.includes('hunter2'), text);
      }
    });
  }

  test('in the path of a file', () => {
    const toml = `${MINE}api_key = "\${file:\${KEY}/x}"`;
    assert.deepEqual(
      problemsOf(() => load(toml, { KEY: 'hunter2-hunter2' })),
      ['providers.mine.api_key: ${KEY}/x: no such file'],
    );
  });

  test('a text without a reference is shown', () => {
    const toml = '[server]\ntimeout = "x"\n[providers]\nprimary = "opnai"';
    const problems = problemsOf(() => load(toml)).join('\n');
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

  const refused =
    'connection keep-alive proxy-authorization proxy-connection te trailer transfer-encoding upgrade host content-length content-encoding expect authorization content-type accept accept-encoding x-request-id traceparent tracestate';
  for (const name of refused.split(' ')) {
    test(`cannot be ${name}, in any case`, () => {
      for (const written of [name, name.toUpperCase()]) {
        assert.deepEqual(
          problemsOf(() => load(withHeaders(`${written} = "x"`))),
          [`providers.mine.headers: "${written}" is set by the gateway itself`],
        );
      }
    });
  }

  test('have names that are tokens, each once', () => {
    for (const name of ['', 'a b', 'a:', 'a\\n', '\u00e9', 'a"']) {
      const problems = problemsOf(() => load(withHeaders(`'${name}' = "x"`)));
      assert.match(problems[0]!, /^providers\.mine\.headers: ".*" is no name of a header$|^line/);
    }
    assert.deepEqual(
      problemsOf(() => load(withHeaders('X-A = "1", x-a = "2"'))),
      ['providers.mine.headers: "x-a" is there twice; case makes no difference'],
    );
    assert.deepEqual(
      problemsOf(() => load(withHeaders('__proto__ = "1", constructor = "2"'))),
      [],
    );
  });

  test('have values of visible ASCII, spaces and tabs; no problem shows one', () => {
    for (const value of ['hunter\\n2', 'hunter\\r2', 'hunter\\u00002', 'hunt\u00e9r']) {
      const problems = problemsOf(() => load(withHeaders(`X-A = "${value}"`)));
      assert.deepEqual(problems, [
        'providers.mine.headers: the value of "X-A" must be visible ASCII, spaces and tabs',
      ]);
    }
    assert.deepEqual(
      problemsOf(() => load(withHeaders('X-A = "a\\tb c"'))),
      [],
    );
  });

  test('have values of 4096 characters at most; no problem shows one', () => {
    const toml = withHeaders('X-A = "${A}"');
    assert.deepEqual(
      problemsOf(() => load(toml, { A: 'x'.repeat(4096) })),
      [],
    );
    assert.deepEqual(
      problemsOf(() => load(toml, { A: 'x'.repeat(4097) })),
      ['providers.mine.headers: the value of "X-A" is longer than 4096 characters'],
    );
  });

  test('are refused unless they are a table of strings', () => {
    for (const value of ['"x"', '[]', '{ a = 1 }', '{ a = ["x"] }']) {
      const problems = problemsOf(() => load(`${MINE}api_key = "k"\nheaders = ${value}`));
      assert.equal(problems.length, 1);
      assert.match(
        problems[0]!,
        /^providers\.mine\.headers: found .*, expected a table of strings/,
      );
    }
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
    assert.deepEqual(
      alice!.keys.map((key) => key.reveal()),
      ['a-1', 'a-2', 'a-1'],
    );
    assert.deepEqual(alice!.models, ['fast', 'openai/*', '*']);
    assert.deepEqual(alice!.limit, { requestsPerSecond: 2, burstCapacity: 100 });
    assert.deepEqual([bob!.name, bob!.models], ['b.o-b@x_y', undefined]);
  });

  const wrong: [what: string, toml: string, problem: string][] = [
    ['no key', '[clients.a]', 'clients.a.key: key or keys is required'],
    ['no keys', '[clients.a]\nkeys = []', 'clients.a.key: key or keys is required'],
    [
      'an unset variable as key',
      '[clients.a]\nkey = "${NOPE}"',
      'clients.a.key: environment variable NOPE is not set',
    ],
    [
      'a key that no header can carry',
      '[clients.a]\nkeys = ["x y"]',
      'clients.a.keys: a key must be visible ASCII characters without spaces',
    ],
    [
      'the key of another client',
      '[clients.a]\nkey = "k"\n[clients.b]\nkeys = ["k"]',
      'clients.b.keys: another client or [server.auth] has it too',
    ],
    [
      'a key of [server.auth]',
      '[server.auth]\nkeys = ["k"]\n[clients.a]\nkey = "k"',
      'clients.a.key: another client or [server.auth] has it too',
    ],
    [
      'server.auth.enabled = false beside it',
      '[server.auth]\nenabled = false\n[clients.a]\nkey = "k"',
      'clients: clients have no effect while server.auth.enabled is false',
    ],
    [
      'a value instead of a table',
      '[clients]\na = "k"',
      'clients.a: found a string, expected a table',
    ],
    [
      'a misspelt setting',
      '[clients.a]\nkey = "k"\nmodel = []',
      'clients.a.model: unknown key; did you mean "models"?',
    ],
    [
      'a name with a space',
      '[clients."a b"]\nkey = "k"',
      'clients.a b: the name of a client is 1 to 64 letters, digits, ".", "_", "@" or "-"',
    ],
    ...['', 'a*b', '**', '*a', 'a**'].map((model): [string, string, string] => [
      `the model ${JSON.stringify(model)}`,
      `[clients.a]\nkey = "k"\nmodels = ["${model}"]`,
      `clients.a.models: "${model}": expected a name, in which "*" may only be the end`,
    ]),
  ];
  for (const [what, toml, problem] of wrong) {
    test(`are refused with ${what}`, () => {
      const problems = problemsOf(() => load(toml));
      const expected = what === 'a value instead of a table' ? 2 : 1;
      assert.equal(problems.length, expected, problems.join('\n'));
      assert.equal(problems[0], problem);
    });
  }

  test('show no key in the resolved settings', () => {
    const { resolved } = load('[clients.a]\nkey = "hunter2"\nkeys = ["hunter3"]');
    const shown = [resolved.get('clients.a.key'), resolved.get('clients.a.keys')];
    assert.equal(JSON.stringify(shown), '["[secret]","[secret]"]');
  });
});

describe('lists in variables', () => {
  test('are split at commas, with spaces around each item removed', () => {
    const { server } = load('', { GATEWAY_AUTH_KEYS: 'a, b ,c' });
    assert.deepEqual(
      server.auth.keys.map((key) => key.reveal()),
      ['a', 'b', 'c'],
    );
    assert.deepEqual(load('', { GATEWAY_FALLBACK: 'openai, groq' }).providers.fallback, [
      'openai',
      'groq',
    ]);
  });

  test('that have no items do not open the gateway to all', () => {
    for (const GATEWAY_AUTH_KEYS of [',', ' ', 'a,', 'a,,b']) {
      const problems = problemsOf(() => load('', { GATEWAY_AUTH_KEYS }));
      const problem = 'GATEWAY_AUTH_KEYS: a key must be visible ASCII characters without spaces';
      assert.ok(problems.length > 0);
      assert.ok(
        problems.every((one) => one === problem),
        problems.join('\n'),
      );
    }
  });

  test('are blamed by their own name', () => {
    for (const [env, problem] of [
      [
        { GATEWAY_PRIMARY: 'opnai' },
        /^GATEWAY_PRIMARY: no such provider "opnai"; did you mean "openai"\?$/,
      ],
      [{ GATEWAY_FALLBACK: 'groq,opnai' }, /^GATEWAY_FALLBACK: no such provider "opnai"/],
    ] as const) {
      const problems = problemsOf(() => load('', env));
      assert.equal(problems.length, 1);
      assert.match(problems[0]!, problem);
    }
  });
});

describe('variables of built-in providers', () => {
  test('<ID>_BASE_URL is checked, and blamed by its name without its value', () => {
    const env = { OPENAI_API_KEY: 'k', OPENAI_BASE_URL: 'http://user:hunter2@h/v1' };
    assert.deepEqual(
      problemsOf(() => load('', env)),
      ['OPENAI_BASE_URL: expected an http or https URL without user, query or fragment'],
    );
  });

  test('<ID>_BASE_URL of a provider that is not used is not read', () => {
    assert.deepEqual(load('', { OPENAI_BASE_URL: 'not a URL' }).warnings, []);
  });

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

describe('a base_url that is the address of the gateway itself', () => {
  const warning = "the gateway's own address: requests would come back to it";
  const rows: [url: string, server: string, isWarned: boolean][] = [
    ['http://localhost:8080/v1', '', true],
    ['http://127.0.0.1:8080/v1', '', true],
    ['http://[::1]:8080/v1', 'host = "::"', true],
    ['http://localhost:8081/v1', '', false],
    ['http://localhost:8081/v1', 'port = 8081', true],
    ['http://other:8080/v1', '', false],
    ['http://gateway.local:8080/v1', 'host = "gateway.local"', true],
    ['http://localhost:8080/v1', 'host = "192.0.2.1"', false],
    ['http://localhost/v1', 'port = 80', true],
    ['https://localhost/v1', 'port = 443', true],
  ];
  for (const [url, server, isWarned] of rows) {
    test(`${url} with ${JSON.stringify(server)} is ${isWarned ? '' : 'not '}warned of`, () => {
      const warnings = warningsOf(`[server]\n${server}`, {
        OPENAI_API_KEY: 'k',
        OPENAI_BASE_URL: url,
      });
      assert.deepEqual(warnings, isWarned ? [`OPENAI_BASE_URL: this is ${warning}`] : []);
    });
  }

  test('is warned of by the name of the setting if it is in the file', () => {
    const toml = '[providers.mine]\nbase_url = "http://localhost:8080/v1"\napi_key = "k"';
    assert.deepEqual(warningsOf(toml), [`providers.mine.base_url: this is ${warning}`]);
  });
});

describe('a key that travels in clear text', () => {
  const readable = [
    'http://api.example',
    'HTTP://LOCAL.EXAMPLE',
    'http://8.8.8.8',
    'http://172.32.0.1',
    'http://192.169.0.1',
    'http://100.128.0.1',
    'http://[2001:db8::1]',
  ];
  const unread = [
    'https://api.example',
    'http://localhost',
    'http://127.0.0.1',
    'http://[::1]',
    'http://0.0.0.0',
    'http://10.255.0.1',
    'http://172.31.255.255',
    'http://192.168.1.1',
    'http://100.127.0.1',
    'http://[fd00::1]',
    'http://[::ffff:10.0.0.1]',
    'http://vllm',
    'http://ollama.ai.svc.cluster.local',
    'http://host.docker.internal',
  ];
  for (const url of [...readable, ...unread]) {
    const isWarned = readable.includes(url);
    test(`to ${url} is ${isWarned ? '' : 'not '}warned of`, () => {
      const env = { OPENAI_API_KEY: 'k', OPENAI_BASE_URL: `${url}:99/v1` };
      const text = 'http:// beyond a private network: the key travels in clear text';
      assert.deepEqual(warningsOf('', env), isWarned ? [`OPENAI_BASE_URL: ${text}`] : []);
    });
  }
});

describe('without keys', () => {
  const proxied = /^every client of the proxies in trusted_proxies is served, with any token; set/;
  const reached = /^every client that can connect to 0\.0\.0\.0 is served, with any token; set/;
  const rows: [server: string, warnings: RegExp[]][] = [
    ['host = "127.0.0.1"', []],
    ['host = "0.0.0.0"', [reached]],
    ['host = "127.0.0.1"\ntrusted_proxies = ["10.0.0.1"]', [proxied]],
    ['host = "0.0.0.0"\ntrusted_proxies = ["10.0.0.1"]', [reached, proxied]],
  ];
  for (const [server, expected] of rows) {
    const whom = String(expected) || 'nothing';
    test(`and with ${JSON.stringify(server)} the start warns of ${whom}; with keys of nothing`, () => {
      const warn = (toml: string) => startWarningsOf(loadConfig({ toml, env: {} }));
      const warnings = warn(`[server]\n${server}`);
      assert.equal(warnings.length, expected.length);
      for (const [at, pattern] of expected.entries()) assert.match(warnings[at]!, pattern);
      assert.deepEqual(warn(`[server]\n${server}\nauth.keys = ["key-0123456789"]`), []);
    });
  }
});

describe('a GATEWAY_ variable that nothing reads', () => {
  test('is warned of with the nearest name, and without its value', () => {
    assert.deepEqual(warningsOf('', { GATEWAY_PROT: 'hunter2' }), [
      'GATEWAY_PROT: no setting has this variable; did you mean "GATEWAY_PORT"?',
    ]);
  });

  test('is known if the file refers to it, also in the path of a file', (t) => {
    const folder = emptyFolder(t, { key: 'k' });
    const env = { GATEWAY_TEAM: 'mine', GATEWAY_FOLDER: folder };
    const toml = `[providers]\nprimary = "\${GATEWAY_TEAM}"\n${MINE}api_key = "\${file:\${GATEWAY_FOLDER}/key}"`;
    assert.deepEqual(warningsOf(toml, env), []);
  });

  test('is known if it is the key of a provider', () => {
    const toml = '[providers.gateway_two]\nbase_url = "http://h/v1"';
    assert.deepEqual(warningsOf(toml, { GATEWAY_TWO_API_KEY: 'k' }), []);
  });

  test('is not warned of if Kubernetes sets it for a Service', () => {
    const env = {
      GATEWAY_SERVICE_HOST: '10.0.0.7',
      GATEWAY_SERVICE_PORT: '80',
      GATEWAY_SERVICE_PORT_HTTP: '80',
      GATEWAY_PORT_80_TCP: 'tcp://10.0.0.7:80',
      GATEWAY_PORT_80_TCP_ADDR: '10.0.0.7',
      GATEWAY_ADMIN_SERVICE_HOST: '10.0.0.8',
      GATEWAY_ADMIN_PORT: 'tcp://10.0.0.8:80',
    };
    assert.deepEqual(warningsOf('', env), []);
  });

  test('GATEWAY_PORT as Kubernetes sets it is refused with what to do', () => {
    const problems = problemsOf(() => load('', { GATEWAY_PORT: 'tcp://10.0.0.7:80' }));
    assert.equal(problems.length, 1);
    assert.match(
      problems[0]!,
      /^GATEWAY_PORT: found "tcp:.*Kubernetes.*Service named "gateway".*enableServiceLinks: false/,
    );
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
      problemsOf(() => readSettings({}, env)),
      ['GATEWAY_CONFIG_TOML: GATEWAY_CONFIG is set too; unset one of them'],
    );
    assert.deepEqual(
      problemsOf(() => readSettings({}, { ...env, GATEWAY_CONFIG: '' })),
      [],
    );
  });

  test('blames GATEWAY_CONFIG_TOML for what is wrong in it, and says that it was read', () => {
    const read = (toml: string) => readSettings({}, { GATEWAY_CONFIG_TOML: toml });
    assert.match(
      problemsOf(() => read('[server]\nprot = 1'))[0]!,
      /^GATEWAY_CONFIG_TOML: server\.prot: unknown key/,
    );
    assert.match(
      problemsOf(() => read('[server'))[0]!,
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

  test('is no key of callers, whether the file or a variable has it', () => {
    for (const text of BROKEN) {
      const expected = '"${" in a key: expected "${NAME}" or "${file:PATH}", and in the file';
      for (const [toml, setting] of [
        [`[server.auth]\nkeys = ['${text}']`, 'server.auth.keys'],
        [`[clients.a]\nkey = '${text}'`, 'clients.a.key'],
        [`[clients.a]\nkeys = ['${text}']`, 'clients.a.keys'],
        [`[admin]\nport = 0\nkeys = ['${text}']`, 'admin.keys'],
      ] as const) {
        assert.deepEqual(
          problemsOf(() => load(toml)),
          [`${setting}: ${expected}`],
        );
      }
      const env = { GATEWAY_AUTH_KEYS: text };
      assert.deepEqual(
        problemsOf(() => load('', env)),
        [`GATEWAY_AUTH_KEYS: ${expected}`],
      );
    }
  });

  test('is warned of elsewhere, and not shown; a variable may have it in its value', () => {
    for (const text of BROKEN) {
      const warnings = warningsOf(`${MINE}api_key = '${text}'`);
      assert.deepEqual(warnings, [
        'providers.mine.api_key: "${" begins no reference here; the text is used as written',
      ]);
      assert.equal(keyOf(load(`${MINE}api_key = '\${K}'`, { K: text })), text);
      assert.deepEqual(warningsOf(`${MINE}api_key = '\${K}'`, { K: text }), []);
    }
  });
});

test('a key that a provider has twice is used once', () => {
  const toml = `${MINE}api_key = "a-key"\napi_keys = ["b-key", " a-key ", "b-key"]`;
  const { apiKeys } = load(toml).providers.registered[0]!;
  assert.deepEqual(
    apiKeys.map((key) => key.reveal()),
    ['a-key', 'b-key'],
  );
});

test('a provider\u2019s id in place of a key is not hidden in texts', () => {
  const toml = `${MINE}api_key = "A-Long-Key"\n[providers.lmstudio]\napi_key = "LMStudio"`;
  const hidden = load(toml).secrets.map((secret) => secret.reveal());
  assert.deepEqual(hidden, ['A-Long-Key']);
});
