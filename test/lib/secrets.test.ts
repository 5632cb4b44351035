/** The filter that hides keys in logs and messages, checked against one regular expression. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Secret } from '../../src/lib/secret.ts';
import { createRedactor } from '../../src/lib/secrets.ts';
import { createRandom } from '../support/random.ts';

const PREFIXES = ['abcdefgh', 'abcdefghij', 'team-key-0001', 'team-key-0001-b'];
const KEYS = [...PREFIXES, 'ABCDEFGHxyz+1', 'q"uo\\ted"key'];
const WHOLE_ONLY = ['https://my.app', 'team-key-org'];
const SHAPES = ['\\bsk-[\\w*.-]{6,}', '\\bBearer\\s+[\\w*.~+/=-]+', '\\b(?:api_?)?key=[^\\s&"]+'];

function createReference(): (text: string) => string {
  const forms = [
    ...KEYS.map((text) => ({ text, isKey: true })),
    ...WHOLE_ONLY.map((text) => ({ text, isKey: false })),
  ].flatMap(({ text, isKey }) =>
    [text, JSON.stringify(text).slice(1, -1)].map((form) => ({ form, isKey })),
  );
  const escape = (text: string) => text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
  const begins = (form: string, other: string) =>
    other !== form && other.toLowerCase().startsWith(form.toLowerCase());
  const whole = forms
    .toSorted((a, b) => b.form.length - a.form.length)
    .map(({ form }) => {
      // The rest of a longer key may have been cut off.
      const mayBeCutOff = forms.some((other) => other.isKey && begins(form, other.form));
      return mayBeCutOff ? `${escape(form)}(?:\\S*$)?` : escape(form);
    });
  const cutOff = forms
    .filter(({ isKey }) => isKey)
    .map(({ form }) => `${escape(form.slice(0, 8))}\\S*$`);
  const all = new RegExp([...whole, ...cutOff, ...SHAPES].join('|'), 'gi');
  return (text) => text.replace(all, '[secret]');
}

test('a redactor replaces the same texts as one expression of all secrets and shapes', () => {
  const redact = createRedactor([
    ...KEYS.map((text) => new Secret(text)),
    ...WHOLE_ONLY.map((text) => new Secret(text, { isKey: false })),
  ]);
  const reference = createReference();
  const random = createRandom(Number(process.env['TEST_SEED'] ?? 4711));
  const shapes = ['sk-0123456789', 'Bearer ', 'key=', 'api_key='];
  const words = [...KEYS, ...WHOLE_ONLY, ...shapes, 'ſ', 'İ', 'ab', '"', '.'];
  let replaced = 0;
  for (let round = 0; round < 20_000; round += 1) {
    const parts = Array.from({ length: random.integer(1, 6) }, () => {
      const word = random.pick(words);
      const cut = random.oneIn(3) ? word.slice(0, Math.ceil(random.next() * word.length)) : word;
      const spell = random.pick([
        String,
        String,
        (one: string) => one.toUpperCase(),
        JSON.stringify,
      ]);
      return spell(cut) + random.pick(['', '', ' ', '\n', '-', '/']);
    });
    const text = parts.join('');
    const expected = reference(text);
    if (expected !== text) replaced += 1;
    assert.equal(redact(text), expected, JSON.stringify(text));
    assert.equal(redact.mayChange(text) || expected === text, true, JSON.stringify(text));
  }
  assert.ok(replaced > 10_000, `${replaced} texts with a secret`);
});

test('a key with a masked middle is hidden, but not a word with the same beginning', () => {
  const redact = createRedactor([new Secret('gsk_abcdefghijklmnopqrstuvwxyz')]);
  for (const masked of ['gsk_abcd****wxyz', 'gsk_abcdef**', 'gsk_abcd...wxyz', 'gsk_abcd…wxyz']) {
    assert.equal(redact(`wrong key ${masked} here`), 'wrong key [secret] here');
  }
  assert.equal(redact('gsk_abcd-other here'), 'gsk_abcd-other here');
});

test('a thousand keys with the same beginning are recognised', () => {
  const keys = Array.from({ length: 1000 }, (_, at) => `sk_team_${at}_${'x'.repeat(at % 7)}`);
  const redact = createRedactor(keys.map((key) => new Secret(key)));
  for (const key of keys) assert.equal(redact(`a ${key} b`), 'a [secret] b');
  assert.equal(redact('a sk_team_none b'), 'a sk_team_none b');
  assert.equal(redact('a sk_team_cut-off'), 'a [secret]');
});

test('a key is hidden with any of its characters in percent-encoding', () => {
  const keys = [
    'team/key+of=us:1',
    'plain-key_0001',
    'q"uo\\ted"key',
    'clé-secrète-01',
    'key of spaces',
    'İstanbul-key-01',
  ];
  const redact = createRedactor([...keys, 'gsk_abcdefghijk'].map((key) => new Secret(key)));
  const random = createRandom(Number(process.env['TEST_SEED'] ?? 4711));
  const encode = (text: string, spell: (hex: string) => string) =>
    spell(Buffer.from(text).toString('hex')).replace(/../g, '%$&');
  for (const key of keys) {
    const spellings = [encodeURIComponent(key), encode(key, (hex) => hex.toUpperCase())];
    for (let round = 0; round < 200; round += 1) {
      const spell = (one: string) =>
        random.oneIn(2) ? encode(one, (hex) => random.pick([hex, hex.toUpperCase()])) : one;
      spellings.push(Array.from(key, spell).join(''));
    }
    for (const spelling of spellings) {
      assert.equal(redact(`/v1?k=1%26a=${spelling}&b`), '/v1?k=1%26a=[secret]&b', spelling);
      assert.equal(redact.mayChange(`${spelling} 100%`), true, spelling);
    }
    // A key whose end was cut off.
    assert.equal(redact(`100% ${encode(key, String).slice(0, -4)}`), '100% [secret]', key);
  }
  const added = 'one/more+word/01';
  assert.equal(redact(`${encodeURIComponent(added)} %`), `${encodeURIComponent(added)} %`);
  redact.add([new Secret(added)]);
  assert.equal(redact(`${encodeURIComponent(added)} %`), '[secret] %');
  const words = '100% of disk-usage, a monkey=x is no%20task-force';
  assert.equal(redact(words), words);
});

test('a key that looks percent-encoded is hidden as it stands and encoded', () => {
  const key = 'team%2Fkey%41-01';
  const redact = createRedactor([new Secret(key)]);
  for (const text of [key, encodeURIComponent(key), key.replace('-', '%2D'), 'team/keyA-01']) {
    assert.equal(redact(`a ${text} b`), 'a [secret] b', text);
  }
});

test('a text shaped like a key is hidden in percent-encoding too', () => {
  const redact = createRedactor([]);
  for (const [text, hidden] of [
    ['x%20sk-proj-0123%20y', 'x%20[secret]%20y'],
    ['%22Bearer%20abc.def%3D%22', '%22[secret]%22'],
    ['Bearer abc%2F1 y', '[secret] y'],
    ['%26api_key%3Dabc y', '%26[secret] y'],
    ['%3Fkey=abc&z', '%3F[secret]&z'],
    ['x?key=abc%20def&z', 'x?[secret]&z'],
  ] as const) {
    assert.equal(redact(text), hidden, text);
    assert.equal(redact.mayChange(text), true, text);
  }
});

test('the beginning of a key stays where a setting shows it, but nothing beyond', () => {
  const keys = [
    'engineering-1b2c3d4e5f60',
    'internal/key/000000',
    'team-key-0001',
    'q"uo\\ted"key',
  ];
  const settings = [
    ['clients.engineering.models', ['internal/*']],
    ['clients.team-key-0001-x.expires', undefined],
    ['aliases.q"uo\\ted', 'internal/large'],
  ];
  const secrets = keys.map((key) => new Secret(key));
  const redact = createRedactor(secrets, settings);
  for (const shown of [
    'engineering',
    'ENGINEERING',
    'clients.engineering.burst',
    'internal/large',
    'v1/internal%2Flarge',
    'engineering/internal/large',
    'q"uo\\ted/x',
  ]) {
    assert.equal(redact(shown), shown);
  }
  for (const [text, hidden] of [
    ['engineering-', '[secret]'],
    ['of engineering-1b2c"', 'of [secret]'],
    ['engineering%2D1b', '[secret]'],
    ['engineering/engineering-1b2c', 'engineering/[secret]'],
    ['engineering-1b2c3d4e5f60 is engineering', '[secret] is engineering'],
    ['engineer****f60', '[secret]'],
    ['internal/k', '[secret]'],
    ['q"uo\\ted"k', '[secret]'],
    ['q\\"uo\\\\ted\\"k', '[secret]'],
    // A setting with a whole key shows no part of the key.
    ['team-key-00', '[secret]'],
    ['team-key-0001-x', '[secret]-x'],
  ] as const) {
    assert.equal(redact(text), hidden, text);
  }
  redact.add(secrets);
  assert.equal(redact('engineering'), 'engineering', 'settings that are gone are logged once');
  redact.add(secrets);
  assert.equal(redact('engineering'), '[secret]');
});

test('a key that begins another is hidden with what may be left of the other', () => {
  const redact = createRedactor(['team-key', 'team-key-0001'].map((key) => new Secret(key)));
  assert.equal(redact('a team-key-00'), 'a [secret]');
  assert.equal(redact('a team-key-0001/b'), 'a [secret]/b');
  assert.equal(redact('a team-key-0... b'), 'a [secret] b');
  assert.equal(redact('a team-key, b'), 'a [secret], b');
});

test('a setting with 64 characters of a key shows none of them', () => {
  const key = `engineering-${'x'.repeat(100)}`;
  const named = (length: number) => [[`clients.${key.slice(0, length)}.key`, '[secret]']];
  assert.equal(createRedactor([new Secret(key)], named(63))(key.slice(0, 63)), key.slice(0, 63));
  assert.equal(createRedactor([new Secret(key)], named(64))(key.slice(0, 64)), '[secret]');
});

/** Returns the milliseconds of processor time, the least of several runs. */
function cpuMs(run: () => unknown): number {
  const times = Array.from({ length: 5 }, () => {
    const start = process.cpuUsage();
    run();
    const { user, system } = process.cpuUsage(start);
    return (user + system) / 1000;
  });
  return Math.min(...times);
}

/** Sixteen times as much may take 64 times as long; quadratic time is 256 times as long. */
function assertLinear(timeOf: (count: number) => number, count: number, what: string): void {
  timeOf(count);
  const [less, more] = [timeOf(count), timeOf(16 * count)];
  assert.ok(more < 64 * Math.max(less, 0.3), `${what}: ${less} ms, then ${more} ms`);
}

test('the time to hide keys is linear in the text, whatever it repeats', () => {
  const key = 'gsk_abcd/efgh ijklmnop';
  const same = 'a'.repeat(40);
  const settings = [['clients.gsk_abcd.key', '[secret]']];
  const redactors = [
    createRedactor([key, same].map((text) => new Secret(text))),
    createRedactor(
      [key, same].map((text) => new Secret(text)),
      settings,
    ),
  ];
  const pieces = ['gsk_abcd', 'gsk_abcd/efgh', 'gsk_abcd ', 'a', 'gsk_abcd**', 'gsk%5Fabcd', '%C3'];
  const shapes = ['sk-', 'Bearer ', 'Bearer', 'key=', 'api_key= ', 'sk-abcdef '];
  for (const piece of [...pieces, ...shapes]) {
    for (const end of ['', ' x', '%20x']) {
      for (const redact of redactors) {
        const timeOf = (length: number) => {
          const text = piece.repeat(length / piece.length) + end;
          return cpuMs(() => redact(text));
        };
        assertLinear(timeOf, 6000, `${piece}${end}`);
      }
    }
  }
});

test('a public beginning that many keys share is not compared with the keys of each length', () => {
  const text = 'sk-proj- '.repeat(5000);
  const timeOf = (count: number) => {
    const keys = Array.from({ length: count }, (_, at) => {
      return `sk-proj-${String(at).padStart(8, '0')}-${'x'.repeat(at)}`;
    });
    const redact = createRedactor(keys.map((key) => new Secret(key)));
    redact(text);
    return cpuMs(() => redact(text));
  };
  const [few, many] = [timeOf(2), timeOf(400)];
  assert.ok(many < 8 * Math.max(few, 1), `2 keys: ${few} ms, 400 keys: ${many} ms`);
});

test('the time to hide keys depends little on their number', () => {
  const text = `${'no key here, '.repeat(500)} sk-abcdefgh ${'gsk_0001 '.repeat(500)}%20 x`;
  const timeOf = (count: number) => {
    const keys = Array.from({ length: count }, (_, at) => {
      return `gsk_${String(at).padStart(4, '0')}-${'x'.repeat(at % 500)}`;
    });
    const redact = createRedactor(keys.map((key) => new Secret(key)));
    redact(text);
    return cpuMs(() => redact(text));
  };
  const [few, many] = [timeOf(50), timeOf(1600)];
  assert.ok(many < 8 * Math.max(few, 0.3), `50 keys: ${few} ms, 1600 keys: ${many} ms`);
});

test('a reload takes linear time for the clients in its settings', () => {
  const names = [(at: number) => `team-${at}`, (at: number) => `customer-${at}`];
  for (const nameOf of names) {
    const timeOf = (count: number) => {
      const clients = Array.from({ length: count }, (_, at) => nameOf(at));
      const secrets = clients.map((name, at) => new Secret(`${(at + 1e6) * 7919}-${name}-0123`));
      const same = clients.map((name) => new Secret(`${name}-0123456789abcdef`));
      const settings = clients.flatMap((name) =>
        ['key', 'models', 'burst'].map((key) => [`clients.${name}.${key}`, ['openai/*']]),
      );
      const redact = createRedactor([]);
      return cpuMs(() => redact.add([...secrets, ...same], settings));
    };
    assertLinear(timeOf, 125, nameOf(0));
  }
});
