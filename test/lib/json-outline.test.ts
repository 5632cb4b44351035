/** The outline of long JSON, compared with a parse. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { JsonOutline, LEFT_OUT, MAX_ITEMS, readJson } from '../../src/lib/json-outline.ts';
import { MAX_PARSED_CHARACTERS } from '../../src/lib/json.ts';
import { cutUp } from '../support/mutate.ts';
import { type Random, withRandom } from '../support/random.ts';

function outline(...pieces: readonly Buffer[]): unknown {
  const json = new JsonOutline();
  for (const piece of pieces) json.push(piece);
  return plain(json.finish());
}
const outlineOf = (text: string) => outline(Buffer.from(text));

/** Returns a value whose objects have a prototype, so that `deepEqual` takes it. */
function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, plain(one)]));
}

/** How many arrays and objects enclose a value that only shows that its container is not empty. */
const SHOWN_DEPTH = 7;

/** Returns the outline of a small value, by its description. */
function reduced(value: unknown, depth = 0): unknown {
  const isShown = depth === SHOWN_DEPTH;
  if (typeof value !== 'object' || value === null) {
    return isShown && typeof value === 'string' && value !== '' ? LEFT_OUT : value;
  }
  if (isShown) return Array.isArray(value) ? [] : {};
  const isLast = depth + 1 === SHOWN_DEPTH;
  if (Array.isArray(value)) {
    const isOuter = (one: unknown) => typeof one === 'object' && one !== null;
    const kept = value.filter((one, index) => index === 0 || (!isLast && isOuter(one)));
    return kept.map((one) => reduced(one, depth + 1));
  }
  const members = Object.entries(value).slice(0, isLast ? 1 : Infinity);
  return Object.fromEntries(
    members.map(([name, one]) => [isLast ? '' : name, reduced(one, depth + 1)]),
  );
}

function generate(random: Random, depth = 0): unknown {
  if (depth > 0 && (depth === 9 || random.oneIn(4))) {
    return random.pick([null, true, false, 0, -1.5, 1e300, 'a', '', 'é "\\\n', 'x'.repeat(300)]);
  }
  const length = random.integer(0, 4);
  const items = Array.from({ length }, () => generate(random, depth + 1));
  if (random.oneIn(3)) return items;
  return Object.fromEntries(
    items.map((item, index) => [`${random.pick(['a', 'b'])}${index}`, item]),
  );
}

test('an outline has the shape of its JSON, however the text is cut up', () =>
  withRandom((random) => {
    for (let round = 0; round < 500; round += 1) {
      const value = generate(random);
      const text = JSON.stringify(value, null, random.pick([undefined, 1]));
      assert.deepEqual(outline(...cutUp(random, Buffer.from(text))), reduced(value), text);
    }
  }));

test('a text that is not JSON has no outline', () => {
  for (const text of ['', '{', '{"a":1}}', 'data: {}', '{"a":"\n"}']) {
    assert.equal(outlineOf(text), undefined, text);
  }
  const json = new JsonOutline();
  json.push(Buffer.from('{"a":'));
  assert.equal(json.hasError, false);
  json.push(Buffer.from('}'));
  assert.equal(json.hasError, true);
});

test('the beginning of a long text is kept, up to its last whole character', () => {
  const at = (text: string) => (outlineOf(JSON.stringify({ a: text })) as { a: string }).a;
  assert.equal(at('x'.repeat(8192)), 'x'.repeat(8192));
  assert.equal(at('x'.repeat(9000)), 'x'.repeat(8192));
  assert.equal(at(`${'x'.repeat(8190)}\n\n`), `${'x'.repeat(8190)}\n`);
  assert.equal(at(`${'x'.repeat(8191)}\n`), 'x'.repeat(8191));
  assert.equal(at('"'.repeat(9000)), '"'.repeat(4096));
  const escaped = `{"a":"${'\\u00e9'.repeat(9000)}"}`;
  assert.deepEqual(outlineOf(escaped), { a: 'é'.repeat(1365) });
  const bytes = Buffer.from(JSON.stringify({ a: 'é'.repeat(10_000) }));
  const single = Array.from(bytes, (_, index) => bytes.subarray(index, index + 1));
  assert.deepEqual(outline(...single), { a: 'é'.repeat(4096) });
});

test('no more texts are kept than fit, but each shows that it is not empty', () => {
  const members = Array.from({ length: 12 }, (_, index) => [`m${index}`, 'x'.repeat(9000)]);
  const value = { ...Object.fromEntries(members), code: 'boom', blank: '' } as object;
  const texts = Object.values(outlineOf(JSON.stringify(value)) as object) as string[];
  assert.deepEqual(
    texts.map(({ length }) => length),
    [...Array<number>(8).fill(8192), ...Array<number>(4).fill(LEFT_OUT.length), 4, 0],
  );
});

test('items are bounded, and leave room for the members behind them', () => {
  const many = <T>(length: number, item: T) => Array<T>(length).fill(item);
  const usage = { prompt_tokens: 1, details: { audio_tokens: 0, cached_tokens: 2 } };
  const choices = many(3 * MAX_ITEMS, { index: 0, logprobs: { content: many(5, { a: 1 }) } });
  const long = outlineOf(JSON.stringify({ choices, usage })) as { choices: []; usage: object };
  assert.equal(long.choices.length, MAX_ITEMS);
  assert.deepEqual(long.usage, usage);
  const members = Object.fromEntries(many(MAX_ITEMS + 5, 0).map((_, index) => [`m${index}`, 1]));
  assert.equal(Object.keys(outlineOf(JSON.stringify(members)) as object).length, MAX_ITEMS);
  const wide = { a: many(900, { m: 1, n: 2, o: 3, p: 4, q: 5 }), usage: { details: { deep: 1 } } };
  const kept = outlineOf(JSON.stringify(wide)) as { a: object[]; usage: object };
  assert.deepEqual([Object.keys(kept.a[0]!).length, Object.keys(kept.a[899]!).length], [5, 1]);
  assert.deepEqual(kept.usage, wide.usage);
  const embeddings = many(3, { embedding: many(5000, 0.5), index: 7 });
  assert.deepEqual(outlineOf(JSON.stringify({ data: embeddings })), {
    data: many(3, { embedding: [0.5], index: 7 }),
  });
});

test('numbers are read up to the length that JavaScript writes', () => {
  for (const number of ['9007199254740991', '-1.2345678901234567e-300', '0', '503']) {
    assert.equal(outlineOf(number), Number(number));
  }
  assert.equal(outlineOf('1'.repeat(30)), Infinity);
});

test('a member __proto__ is a member, and the last of equal names counts', () => {
  const read = readJson(`{"__proto__":{"a":1},"b":1,"b":2${' '.repeat(MAX_PARSED_CHARACTERS)}}`);
  assert.equal(Object.getPrototypeOf(read), null);
  assert.deepEqual(Object.keys(read as object), ['__proto__', 'b']);
  assert.equal((read as { b: number }).b, 2);
});

test('JSON is parsed up to the longest text, and is read as an outline above', () => {
  const padded = (length: number) => `\ufeff[1,2]${' '.repeat(length - 6)}`;
  assert.deepEqual(readJson(padded(MAX_PARSED_CHARACTERS)), [1, 2]);
  assert.deepEqual(readJson(padded(MAX_PARSED_CHARACTERS + 1)), [1]);
  assert.equal(readJson(`{${' '.repeat(MAX_PARSED_CHARACTERS)}`), undefined);
});
