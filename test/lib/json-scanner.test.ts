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
import { isWholeData } from '../../src/upstream/event-inspector.ts';
import { parseChatRequest } from '../support/chat-request.ts';
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

/** One small accident: a byte lost, doubled, replaced, put in, or the rest cut off. */
function mutate(random: Random, text: string): string {
  const at = random.integer(0, text.length - 1);
  const other = random.pick([
    '//',
    '\u00a0',
    '\ufeff',
    ...'{}[]",:\\ \n0-+.eEtnu/x\u0001'.split(''),
  ]);
  const accidents = [
    () => text.slice(0, at) + text.slice(at + 1),
    () => text.slice(0, at + 1) + text.slice(at),
    () => text.slice(0, at) + other + text.slice(at + 1),
    () => text.slice(0, at) + other + text.slice(at),
    () => text.slice(0, at),
  ];
  return random.pick(accidents)();
}

function isParsed(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** The offset of the first byte with which no JSON text can go on, or of the number or literal it is in; the length if more is missing. */
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
    // Inside a broken escape the wrong byte is later than its backslash.
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
    // `at` is where it stopped.
  }
  return at;
}

function scan(text: string): void {
  const json = new JsonScanner(() => {});
  json.push(Buffer.from(text));
  const fault = json.finish();
  if (fault) throw fault;
}

/** Builds what `JSON.parse` does from the values that are reported: each comes after those inside it. */
class Builder {
  readonly #bytes: Buffer;
  /** By depth: the values that no container has taken yet. */
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
    // Deeper values are not reported, and on the last level have no name.
    if (depth === 4 || (depth === 3 && kind === 'object')) return value;
    if (kind === 'array') {
      assert.ok(inside.every(([name]) => name === ''));
      return inside.map(([, item]) => item);
    }
    return kind === 'object' ? Object.fromEntries(inside) : value;
  }
}

function refusalOf(run: () => unknown): string | undefined {
  try {
    run();
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

test('a body is called invalid JSON exactly where JSON.parse refuses it, in whatever chunks it arrives', () =>
  withRandom((random) => {
    let valid = 0;
    let broken = 0;
    while (valid < 2000 || broken < 2000) {
      let text = generate(random, 4);
      for (let count = random.integer(0, 2); count > 0; count -= 1)
        text = mutate(random, text || ' ');
      const bytes = Buffer.from(text);
      if (!isUtf8(bytes)) continue;
      const refusal = refusalOf(() => parseChatRequest(...cutUp(random, bytes))) ?? '';
      const about = `${JSON.stringify(text)} -> ${refusal}`;
      assert.equal(refusal.includes('not valid JSON'), !isParsed(text), about);
      assert.equal(refusal, refusalOf(() => parseChatRequest(bytes)) ?? '', about);
      assert.equal(isWholeData(text), isParsed(text), text);
      if (isParsed(text)) {
        valid += 1;
        continue;
      }
      broken += 1;
      const at = Number(/\(at byte (\d+)\)$/.exec(refusal)?.[1]);
      assert.equal(at, firstWrongByte(bytes), about);
    }
  }));

test('every value down to the fourth level is reported, with its name, place and text, in whatever chunks it arrives', () =>
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

test('a character that is split between chunks is one character, and half of one is none', () => {
  const body = (text: string) => `{"model":"m","messages":[{"role":"user","content":"${text}"}]}`;
  for (const character of ['\u00e9', '\u20ac', '\u{1F600}', '\u07ff', '\uffff', '\u{10FFFF}']) {
    const bytes = Buffer.from(body(`x${character}${character}x`));
    for (let at = 1; at < bytes.length; at += 1) {
      const chunks = [bytes.subarray(0, at), bytes.subarray(at, at + 1), bytes.subarray(at + 1)];
      assert.equal(
        refusalOf(() => parseChatRequest(...chunks)),
        undefined,
      );
    }
    const [before, after] = bytes.toString('latin1').split('x') as [string, string];
    const encoded = Buffer.from(character);
    for (let length = 1; length < encoded.length; length += 1) {
      const half = Buffer.concat([Buffer.from(before), encoded.subarray(0, length)]);
      for (const chunks of [
        [half, Buffer.from(after)],
        [Buffer.concat([half, Buffer.from(after)])],
      ]) {
        assert.equal(
          refusalOf(() => parseChatRequest(...chunks)),
          'Invalid request: request body is not valid UTF-8',
        );
      }
    }
  }
  assert.equal(
    refusalOf(() => parseChatRequest(Buffer.from('"\u00e9"').subarray(0, 2))),
    'Invalid request: request body is not valid UTF-8',
  );
});

const MESSAGES = '"messages":[{"role":"user","content":"x"}]';

test('the model value is found wherever it is, and however its name is written', () => {
  const table: [text: string, model: string, other: string][] = [
    [`{"model":"p/m",${MESSAGES}}`, 'p/m', `{"model":"other",${MESSAGES}}`],
    [
      `{ "mod\\u0065l" :\n"p\\/m" , ${MESSAGES}}`,
      'p/m',
      `{ "mod\\u0065l" :\n"other" , ${MESSAGES}}`,
    ],
    [
      `{"x":{"model":"no"},"y":[{"model":"no"}],"model":"yes",${MESSAGES}}`,
      'yes',
      `{"x":{"model":"no"},"y":[{"model":"no"}],"model":"other",${MESSAGES}}`,
    ],
    [`{${MESSAGES},"model":"\u{1F600}\\""}`, '\u{1F600}"', `{${MESSAGES},"model":"other"}`],
    [
      `{"x":"\\"model\\":\\"no\\"","model":"yes",${MESSAGES}}`,
      'yes',
      `{"x":"\\"model\\":\\"no\\"","model":"other",${MESSAGES}}`,
    ],
    [
      `{"x":"${'\\\\'.repeat(40)}","model":"yes",${MESSAGES}}`,
      'yes',
      `{"x":"${'\\\\'.repeat(40)}","model":"other",${MESSAGES}}`,
    ],
  ];
  for (const [text, model, other] of table) {
    const chat = parseChatRequest(Buffer.from(text));
    assert.equal(chat.model, model, text);
    assert.equal(Buffer.concat(chat.bodyWith('other', false)).toString(), other);
  }
  const deeper = Buffer.from(`{"x":{"model":"no"},${MESSAGES}}`);
  assert.equal(
    refusalOf(() => parseChatRequest(deeper)),
    'Invalid request: "model" must be a non-empty string',
  );
});

test('a model of 2 MiB is read, a longer one is refused', () => {
  const refusal = (bytes: number) =>
    refusalOf(() =>
      parseChatRequest(Buffer.from(`{"model":"${'m'.repeat(bytes - 2)}",${MESSAGES}}`)),
    );
  assert.equal(refusal(2_097_152), undefined);
  assert.equal(refusal(2_097_153), 'Invalid request: "model" is too long');
});

test('names are recognised also with every letter escaped', () => {
  const escaped = (text: string) =>
    text.replace(/[a-z]/g, (letter) => `\\u00${letter.charCodeAt(0).toString(16)}`);
  const names = escaped('{"model":"m","stream":!,"messages":[{"role":"assistant","content":?}]}');
  const body = Buffer.from(names.replace('!', 'true').replace('?', 'null'));
  const { model, stream } = parseChatRequest(body);
  assert.deepEqual({ model, stream }, { model: 'm', stream: true });
});

test('a model or stream at the top in other than lower case is refused, deeper down it is not', () => {
  const other = [
    'MODEL',
    'Model',
    'modeL',
    'm\\u004fdel',
    'STREAM',
    'sTream',
    '\u017ftream',
    '\\u017ftream',
    '\\u017FTREAM',
    '\u017f\\u0074ream',
  ];
  for (const name of other) {
    for (const text of [
      `{"model":"a",${MESSAGES},"${name}":true}`,
      `{"${name}":true,"model":"a",${MESSAGES}}`,
    ]) {
      const refusal = refusalOf(() => parseChatRequest(Buffer.from(text)));
      assert.match(refusal ?? '', /"model" and "stream" must be written in lower case$/, text);
    }
  }
  for (const name of ['models', 'MODELS', 'model ', 'model_', '\u00c5\u00bftream', '\u017f']) {
    const text = `{"model":"a",${MESSAGES},"${name}":["b"],"x":{"MODEL":1,"STREAM":2}}`;
    const refusal = refusalOf(() => parseChatRequest(Buffer.from(text)));
    assert.equal(refusal, undefined, text);
  }
});

test('a message is checked by its own members alone, and its first fault is named', () => {
  const user = '{"role":"user","content":"x"}';
  const table: [members: string, fault?: RegExp][] = [
    [`"x":[{"role":1,"content":[1]},3],"y":{"a":{"b":[1]}},"messages":[${user}]`],
    ['"messages":[{"x":[1],"role":"user","content":[{"type":"text"}]}]'],
    [
      '"messages":[{"role":"user","content":[{},1]}]',
      /"messages\[0\]\.content" must be a string or/,
    ],
    [`"messages":[${user},{"content":"x"}]`, /"messages\[1\]\.role" must be a string$/],
    ['"messages":[{"role":1},{"role":"user"}]', /"messages\[0\]\.role" must be a string$/],
    ['"x":[{},{}],"messages":[]', /"messages" must be a non-empty array$/],
    ['"messages":[],"MODEL":1', /"messages" must be a non-empty array$/],
  ];
  for (const [members, fault = /^accepted$/] of table) {
    const body = Buffer.from(`{"model":"m",${members}}`);
    assert.match(refusalOf(() => parseChatRequest(body)) ?? 'accepted', fault, members);
  }
});

test('elements are accepted to the bound and refused beyond it', () => {
  // Each list holds as many elements as it is given, itself included.
  const lists: Record<string, (elements: number) => string> = {
    'plain items': (elements) => `[${'1,'.repeat(elements - 2)}1]`,
    'empty objects': (elements) => `[${'{},'.repeat(elements - 2)}{}]`,
    'empty arrays': (elements) => `[${'[],'.repeat(elements - 2)}[]]`,
    members: (elements) => `{${'"a":1,'.repeat(elements - 2)}"a":1}`,
  };
  for (const [name, list] of Object.entries(lists)) {
    const refusal = (elements: number) => refusalOf(() => scan(list(elements)));
    assert.equal(refusal(MAX_JSON_ELEMENTS), undefined, name);
    assert.match(refusal(MAX_JSON_ELEMENTS + 1) ?? '', /500000 elements/, name);
    assert.ok(isWholeData(list(MAX_JSON_ELEMENTS + 1)), name);
  }
});

test('the text of a provider is not parsed if it is too long', () => {
  assert.deepEqual(parseUntrustedJson('{"a":1}'), { a: 1 });
  assert.equal(parseUntrustedJson('{"a":1'), undefined);
  assert.ok(parseUntrustedJson(`"${'x'.repeat(262_142)}"`));
  assert.equal(parseUntrustedJson(`"${'x'.repeat(262_143)}"`), undefined);
  assert.ok(parseUntrustedJson(`"${'x'.repeat(262_143)}"`, 300_000));
});

test('the bounds are found before what comes after them is read', () => {
  const deep = `${'['.repeat(MAX_JSON_DEPTH + 1)} this is not JSON`;
  assert.match(refusalOf(() => scan(deep)) ?? '', /256 levels/);
  const json = new JsonScanner(() => {});
  json.push(Buffer.from(deep));
  const { fault } = json;
  json.push(Buffer.from(deep));
  assert.equal(json.fault, fault, 'nothing is read after a fault');
});

test('a number of 1024 characters is read, a longer one is refused, whole or in chunks', () => {
  const digits = (count: number) => `[${'1'.repeat(count)}]`;
  assert.equal(
    refusalOf(() => scan(digits(1024))),
    undefined,
  );
  assert.match(refusalOf(() => scan(digits(1025))) ?? '', /number or literal longer than 1024/);
  const json = new JsonScanner(() => {});
  for (const character of digits(2000)) json.push(Buffer.from(character));
  assert.match(String(json.fault), /number or literal longer than 1024/);
});
