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
  const literals = forms
    .toSorted((a, b) => b.form.length - a.form.length)
    .map(({ form, isKey }) => {
      const [beginning, rest] = [escape(form.slice(0, 8)), escape(form.slice(8))];
      return isKey ? `${beginning}(?:${rest}|\\S*$)` : beginning + rest;
    });
  const all = new RegExp([...literals, ...SHAPES].join('|'), 'gi');
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

test('a text shaped like a key is hidden in percent-encoding too', () => {
  const redact = createRedactor([]);
  for (const [text, hidden] of [
    ['x%20sk-proj-0123%20y', 'x%20[secret]%20y'],
    ['%22Bearer%20abc.def%3D%22', '%22[secret]'],
    ['Bearer abc%2F1 y', '[secret] y'],
    ['%26api_key%3Dabc y', '%26[secret] y'],
    ['%3Fkey=abc&z', '%3F[secret]&z'],
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
