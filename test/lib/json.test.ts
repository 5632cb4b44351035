import assert from 'node:assert/strict';
import { isUtf8 } from 'node:buffer';
import { test } from 'node:test';

import {
  JsonScanner,
  type JsonValue,
  MAX_JSON_DEPTH,
  MAX_JSON_ELEMENTS,
  parseUntrustedJson,
} from '../../src/lib/json.ts';
import { parseModelRequest } from '../support/model-request.ts';
import { cutUp } from '../support/mutate.ts';
import { withRandom, type Random } from '../support/random.ts';

const SPACES = ['', '', '', ' ', '\n', '\t', '\r\n', '  '];
const SCALARS = [
  [`-${'1'.repeat(100)}.${'0'.repeat(100)}e-${'0'.repeat(100)}`, '1'.repeat(100)],
  ['0', '-0', '1', '-1.5', '1e400', '12345678901234567890', '1E-7', '0.0e+0'],
  ['true', 'false', 'null', '""', '"a"', '"\\""', '"\\\\"', '"\\u0041\\n\\/"', '"{[,:]}"'],
  [
    '"\u00e9\u{1F600}"',
    '"\u2028"',
    `"${'x'.repeat(50)}\\\\"`,
    `"${'\\"'.repeat(30)}"`,
    `"${'a long text '.repeat(9)}"`,
  ],
].flat();

function generate(random: Random, depth: number): string {
  const space = () => random.pick(SPACES);
  if (depth === 0 || random.oneIn(4)) return random.pick(SCALARS);
  const length = random.integer(0, 4);
  const isObject = random.oneIn(2);
  const items = Array.from({ length }, () => {
    const value = space() + generate(random, depth - 1) + space();
    return isObject
      ? `${space()}${random.pick(['"a"', '"\\u0062"', '""'])}${space()}:${value}`
      : value;
  });
  const inside = items.join(',') || space();
  return isObject ? `{${inside}}` : `[${inside}]`;
}

const TOKENS = ['//', '\u00a0', '\ufeff', ...'{}[]",:\\ \n0-+.eEtnu/x\u0001'.split('')];

/** Applies one accident: loses, doubles, replaces or inserts a byte, or cuts the rest off. */
function mutate(random: Random, text: string): string {
  const at = random.integer(0, text.length - 1);
  const [before, after] = [text.slice(0, at), text.slice(at)];
  const rest = [after.slice(1), after.slice(0, 1) + after, '', after, after.slice(1)];
  const token = random.pick(TOKENS);
  return before + random.pick(rest.map((one, kind) => (kind < 3 ? one : token + one)));
}

function isParsed(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Returns the offset of the first byte that no JSON text can have, or of the number or literal
 * around it. Returns the length if bytes are missing.
 */
function firstWrongByte(bytes: Buffer): number {
  const text = bytes.toString('latin1');
  const stringBody = /(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*/y; // oxlint-disable-line no-control-regex
  let at = 0;
  const take = (pattern: RegExp) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0] ?? '';
    at += found.length;
    return found;
  };
  const need = (pattern: RegExp) => {
    if (take(pattern) === '') throw new Error('wrong here');
  };
  const space = () => take(/[ \t\r\n]*/y);
  const string = () => {
    need(/"/y);
    take(stringBody);
    // In a broken escape, the wrong byte comes after the backslash.
    if (text[at] === '\\') {
      take(/\\(?:u[0-9a-fA-F]{0,3})?/y);
      throw new Error('wrong here');
    }
    need(/"/y);
  };
  const word = () => {
    const start = at;
    const found = take(/[-+.0-9Eaeflnrstu]*/y);
    if (isParsed(found)) return;
    at = start;
    throw new Error('wrong here');
  };
  const list = (end: RegExp, item: () => void) => {
    at += 1;
    space();
    if (take(end)) return;
    for (;;) {
      item();
      space();
      if (take(end)) return;
      need(/,/y);
      space();
    }
  };
  const value = (): void => {
    space();
    const next = text[at] ?? '';
    if (next === '"') string();
    else if (next === '[') list(/\]/y, value);
    else if (next === '{')
      list(/\}/y, () => {
        string();
        space();
        need(/:/y);
        value();
      });
    else word();
  };
  try {
    value();
    space();
    need(/$/y);
  } catch {
    // `at` is the wrong byte's place.
  }
  return at;
}

function scan(text: string): void {
  const json = new JsonScanner(() => {});
  json.push(Buffer.from(text));
  const fault = json.finish();
  if (fault) throw fault;
}

/** Returns whether a text of any number of elements is JSON. */
function isScanned(text: string): boolean {
  const json = new JsonScanner(() => {}, { elements: Infinity });
  json.push(Buffer.from(text));
  return json.finish() === undefined;
}

/**
 * Builds the value of `JSON.parse` from reported values. Each value comes after the values inside
 * it.
 */
class Builder {
  readonly #bytes: Buffer;
  /** By depth, the values not yet taken by a container. */
  readonly #values: [name: string, value: unknown][][] = [];

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get value(): unknown {
    return this.#values[0]?.[0]?.[1];
  }

  add(value: JsonValue): void {
    (this.#values[value.depth] ??= []).push([value.name, this.#build(value)]);
  }

  #build({ kind, depth, start, end, text }: JsonValue): unknown {
    const inside = this.#values[depth + 1] ?? [];
    this.#values[depth + 1] = [];
    const value: unknown = JSON.parse(this.#bytes.toString('utf8', start, end));
    if (kind === 'string' && depth < 4) assert.equal(text, end - start <= 66 ? value : '');
    else assert.equal(text, '');
    // Deeper values are not reported, and the deepest reported values have no name.
    if (depth === 4 || (depth === 3 && kind === 'object')) return value;
    if (kind === 'array') {
      assert.ok(inside.every(([name]) => name === ''));
      return inside.map(([, item]) => item);
    }
    return kind === 'object' ? Object.fromEntries(inside) : value;
  }
}

/** Returns a refusal's message; empty without a refusal. */
function refusalOf(run: () => unknown): string {
  try {
    run();
    return '';
  } catch (error) {
    return (error as Error).message;
  }
}

const refusalOfChat = (...chunks: Buffer[]) => refusalOf(() => parseModelRequest(...chunks));
const refusalOfText = (text: string) => refusalOfChat(Buffer.from(text));

test('a body is refused exactly where JSON.parse refuses it, in any chunks', () =>
  withRandom((random) => {
    let [valid, broken] = [0, 0];
    while (valid < 2000 || broken < 2000) {
      let text = generate(random, 4);
      for (let left = random.integer(0, 2); left > 0; left -= 1) text = mutate(random, text || ' ');
      const bytes = Buffer.from(text);
      if (!isUtf8(bytes)) continue;
      const refusal = refusalOfChat(...cutUp(random, bytes));
      const about = `${JSON.stringify(text)} -> ${refusal}`;
      assert.equal(refusal.includes('not valid JSON'), !isParsed(text), about);
      assert.equal(refusal, refusalOfChat(bytes), about);
      assert.equal(isScanned(text), isParsed(text), text);
      if (isParsed(text)) {
        valid += 1;
        continue;
      }
      broken += 1;
      const at = Number(/\(at byte (\d+)\)$/.exec(refusal)?.[1]);
      assert.equal(at, firstWrongByte(bytes), about);
    }
  }));

test('values down to the fourth level are reported with name, place and text', () =>
  withRandom((random) => {
    for (let count = 0; count < 2000; count += 1) {
      const text = generate(random, 6);
      const bytes = Buffer.from(text);
      const root = new Builder(bytes);
      const json = new JsonScanner((value) => root.add(value));
      for (const chunk of cutUp(random, bytes)) json.push(chunk);
      assert.equal(json.finish(), undefined);
      assert.deepEqual(root.value, JSON.parse(text), text);
    }
  }));

test('a character may be split between chunks, but half a character is refused', () => {
  const NOT_UTF8 = 'Invalid request: request body is not valid UTF-8';
  const before = Buffer.from('{"model":"m","messages":[{"role":"user","content":"x');
  const after = Buffer.from('"}]}');
  for (const character of ['\u00e9', '\u20ac', '\u{1F600}', '\u07ff', '\uffff', '\u{10FFFF}']) {
    const encoded = Buffer.from(character);
    const bytes = Buffer.concat([before, encoded, encoded, after]);
    for (let at = 1; at < bytes.length; at += 1) {
      const cuts = [bytes.subarray(0, at), bytes.subarray(at, at + 1), bytes.subarray(at + 1)];
      assert.equal(refusalOfChat(...cuts), '');
    }
    for (let length = 1; length < encoded.length; length += 1) {
      const half = Buffer.concat([before, encoded.subarray(0, length)]);
      assert.equal(refusalOfChat(half, after), NOT_UTF8);
      assert.equal(refusalOfChat(Buffer.concat([half, after])), NOT_UTF8);
    }
  }
  assert.equal(refusalOfChat(Buffer.from('"\u00e9"').subarray(0, 2)), NOT_UTF8);
});

const MESSAGES = '"messages":[{"role":"user","content":"x"}]';

test('the model value is found wherever it is, and however its name is spelled', () => {
  // `?` stands for the value.
  const table: [text: string, written?: string, model?: string][] = [
    [`{"model":?,${MESSAGES}}`],
    [`{ "mod\\u0065l" :\n? , ${MESSAGES}}`, '"p\\/m"', 'p/m'],
    [`{"x":{"model":"no"},"y":[{"model":"no"}],"model":?,${MESSAGES}}`],
    [`{${MESSAGES},"model":?}`, '"\u{1F600}\\""', '\u{1F600}"'],
    [`{"x":"\\"model\\":\\"no\\"","model":?,${MESSAGES}}`],
    [`{"x":"${'\\\\'.repeat(40)}","model":?,${MESSAGES}}`],
  ];
  for (const [text, written = '"p/m"', model = 'p/m'] of table) {
    const chat = parseModelRequest(Buffer.from(text.replace('?', written)));
    assert.equal(chat.model, model, text);
    const changed = Buffer.concat(chat.bodyWith('other', false)).toString();
    assert.equal(changed, text.replace('?', '"other"'));
  }
});

test('names are recognised even with every letter escaped', () => {
  const escaped = (text: string) =>
    text.replace(/[a-z]/g, (letter) => `\\u00${letter.charCodeAt(0).toString(16)}`);
  const names = escaped('{"model":"m","stream":!,"messages":[{"role":"assistant","content":?}]}');
  const body = Buffer.from(names.replace('!', 'true').replace('?', 'null'));
  const { model, stream } = parseModelRequest(body);
  assert.deepEqual({ model, stream }, { model: 'm', stream: true });
});

test('a top-level model or stream must be written in lower case', () => {
  const others = ['MODEL', 'Model', 'modeL', 'm\\u004fdel', 'STREAM', 'sTream'];
  const longS = ['\u017ftream', '\\u017ftream', '\\u017FTREAM', '\u017f\\u0074ream'];
  const REFUSED = /"model" and "stream" must be written in lower case$/;
  for (const name of [...others, ...longS]) {
    assert.match(refusalOfText(`{"model":"a",${MESSAGES},"${name}":true}`), REFUSED, name);
    assert.match(refusalOfText(`{"${name}":true,"model":"a",${MESSAGES}}`), REFUSED, name);
  }
  for (const name of ['models', 'MODELS', 'model ', 'model_', '\u00c5\u00bftream', '\u017f']) {
    const text = `{"model":"a",${MESSAGES},"${name}":["b"],"x":{"MODEL":1,"STREAM":2}}`;
    assert.equal(refusalOfText(text), '', text);
  }
});

test('only its own members decide on a request, and its first fault is named', () => {
  const user = '{"role":"user","content":"x"}';
  const model = (bytes: number) => `"model":"${'m'.repeat(bytes - 2)}",${MESSAGES}`;
  const table: [members: string, fault?: RegExp][] = [
    [`"model":"m","x":[{"role":1,"content":[1]},3],"y":{"a":{"b":[1]}},"messages":[${user}]`],
    ['"model":"m","messages":[{"x":[1],"role":"user","content":[{"type":"text"}]}]'],
    [
      '"model":"m","messages":[{"role":"user","content":[{},1]}]',
      /"messages\[0\]\.content" must be a string or/,
    ],
    [`"model":"m","messages":[${user},{"content":"x"}]`, /"messages\[1\]\.role" must be a string$/],
    ['"model":"m","messages":[{"role":1},{"role":"user"}]', /"messages\[0\]\.role" must be a str/],
    ['"model":"m","x":[{},{}],"messages":[]', /"messages" must be a non-empty array$/],
    ['"model":"m","messages":[],"MODEL":1', /"messages" must be a non-empty array$/],
    [`"x":{"model":"no"},${MESSAGES}`, /"model" must be a non-empty string$/],
    [model(2_097_152)],
    [model(2_097_153), /"model" is too long$/],
    [`"stream":true,${model(4096)}`],
    [`"stream":true,${model(4097)}`, /"model" is too long$/],
  ];
  for (const [members, fault = /^$/] of table) {
    assert.match(refusalOfText(`{${members}}`), fault, members.slice(0, 100));
  }
});

test('elements and numbers are accepted up to their bounds', () => {
  const refusal = (text: string) => refusalOf(() => scan(text));
  // Each list has this many elements, itself included.
  const lists: Record<string, (elements: number) => string> = {
    'plain items': (elements) => `[${'1,'.repeat(elements - 2)}1]`,
    'empty objects': (elements) => `[${'{},'.repeat(elements - 2)}{}]`,
    'empty arrays': (elements) => `[${'[],'.repeat(elements - 2)}[]]`,
    members: (elements) => `{${'"a":1,'.repeat(elements - 2)}"a":1}`,
  };
  for (const [name, list] of Object.entries(lists)) {
    assert.equal(refusal(list(MAX_JSON_ELEMENTS)), '', name);
    assert.match(refusal(list(MAX_JSON_ELEMENTS + 1)), /500000 elements/, name);
    assert.ok(isScanned(list(MAX_JSON_ELEMENTS + 1)), name);
  }
  const LONG = /number or literal longer than 1024/;
  const digits = (count: number) => `[${'1'.repeat(count)}]`;
  assert.equal(refusal(digits(1024)), '');
  assert.match(refusal(digits(1025)), LONG);
  const json = new JsonScanner(() => {});
  for (const character of digits(2000)) json.push(Buffer.from(character));
  assert.match(String(json.error), LONG);
});

test('an exceeded bound ends the scan at once', () => {
  const deep = `${'['.repeat(MAX_JSON_DEPTH + 1)} this is not JSON`;
  assert.match(
    refusalOf(() => scan(deep)),
    /256 levels/,
  );
  const json = new JsonScanner(() => {});
  json.push(Buffer.from(deep));
  const { error } = json;
  json.push(Buffer.from(deep));
  assert.equal(json.error, error, 'nothing is read after an error');
});

test("a provider's text is not parsed if it is too long", () => {
  const long = (characters: number) => `"${'x'.repeat(characters - 2)}"`;
  assert.deepEqual(parseUntrustedJson('{"a":1}'), { a: 1 });
  assert.equal(parseUntrustedJson('{"a":1'), undefined);
  assert.ok(parseUntrustedJson(long(262_144)));
  assert.equal(parseUntrustedJson(long(262_145)), undefined);
  assert.ok(parseUntrustedJson(long(262_145), 300_000));
});
