/** The filter that keeps keys out of logs and messages, against one regular expression that says what it has to do. */

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

test('a redactor replaces what one expression of all secrets and shapes would replace', () => {
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

test('a key whose middle is masked is hidden, and a word that only begins like it is not', () => {
  const redact = createRedactor([new Secret('gsk_abcdefghijklmnopqrstuvwxyz')]);
  for (const masked of ['gsk_abcd****wxyz', 'gsk_abcdef**', 'gsk_abcd...wxyz', 'gsk_abcd…wxyz']) {
    assert.equal(redact(`wrong key ${masked} here`), 'wrong key [secret] here');
  }
  assert.equal(redact('gsk_abcd-other here'), 'gsk_abcd-other here');
});

test('a thousand keys with the same beginning are told apart', () => {
  const keys = Array.from({ length: 1000 }, (_, at) => `sk_team_${at}_${'x'.repeat(at % 7)}`);
  const redact = createRedactor(keys.map((key) => new Secret(key)));
  for (const key of keys) assert.equal(redact(`a ${key} b`), 'a [secret] b');
  assert.equal(redact('a sk_team_none b'), 'a sk_team_none b');
  assert.equal(redact('a sk_team_cut-off'), 'a [secret]');
});
