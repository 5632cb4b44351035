import assert from 'node:assert/strict';
import { describe, mock, test } from 'node:test';

import { formatText } from '../../src/request/text-log.ts';
import { createLogger, redactFacts, type LogFacts, type LogLevel } from '../../src/lib/log.ts';
import { Secret } from '../../src/lib/secret.ts';
import { createRedactor, escapeControlCharacters, type Redactor } from '../../src/lib/secrets.ts';
import { chatBody } from '../support/gateway.ts';
import { withRandom } from '../support/random.ts';
import { linesOf } from '../support/streams.ts';
import { sendJson, type Script } from '../support/upstream.ts';
import { scenario } from '../support/scenario.ts';
import { sweep } from '../support/sweep.ts';

const ROUNDS = sweep(20_000, 3000);

const KEYS = [
  'sk-proj-canary-0123456789',
  'team-token-canary-98765',
  'team-token-canary-98765-and-more',
  'quo"te\\and-backslash-canary',
  'UPPER-Case-Canary-4711',
];

interface LineOptions {
  readonly format?: 'json' | 'text';
  readonly redact?: Redactor;
  readonly level?: LogLevel;
}

function lineOf(
  message: string,
  facts: LogFacts,
  { format = 'json', redact = createRedactor([]), level = 'info' }: LineOptions = {},
): string {
  const lines: string[] = [];
  const logger = createLogger({
    level: 'trace',
    format,
    toText: formatText,
    write: (line) => lines.push(line),
    redact,
  });
  const clock = mock.method(Date, 'now', () => Date.UTC(2026, 0, 2, 3, 4, 5, 6));
  logger.log(level, message, facts);
  clock.mock.restore();
  assert.equal(lines.length, 1);
  return lines[0]!;
}

const TRIES = [
  { provider: 'a', outcome: 'timeout', status: undefined, duration_ms: 50 },
  { provider: 'b', outcome: 'ok', status: 200, duration_ms: 7 },
];

describe('the logger', () => {
  test('writes an array of facts as JSON, without unknown facts', () => {
    assert.deepEqual(JSON.parse(lineOf('request', { tries: TRIES, after: true })), {
      time: '2026-01-02T03:04:05.006Z',
      level: 'info',
      message: 'request',
      tries: [
        { provider: 'a', outcome: 'timeout', duration_ms: 50 },
        { provider: 'b', outcome: 'ok', status: 200, duration_ms: 7 },
      ],
      after: true,
    });
    assert.match(lineOf('request', {}), /"message":"request"\}\n$/);
    assert.match(lineOf('request', { none: undefined, tries: [] }), /"request","tries":\[\]\}\n$/);
  });

  test('writes an array of facts as text, and quotes ambiguous values', () => {
    const tries = [...TRIES, { provider: 'c', cause: 'a], model=x' }, { model: 'x,y' }];
    assert.equal(
      lineOf('try', { tries, after: true }, { format: 'text' }),
      '03:04:05.006 INFO  try tries=[provider=a outcome=timeout duration_ms=50, ' +
        'provider=b outcome=ok status=200 duration_ms=7, provider=c cause="a], model=x", ' +
        'model="x,y"] after=true\n',
    );
  });

  test('keeps an array on one line, escapes control characters and cuts long values', () => {
    const evils = ['a\nb\r\u001b[2J\u2028c\u2029\u0085\u009bd\0', 'a\u2028b', 'a\u2029b'];
    for (const format of ['json', 'text'] as const) {
      for (const evil of evils) {
        for (const line of [
          lineOf('try', { tries: [{ cause: evil }] }, { format }),
          lineOf(evil, { fact: evil }, { format }),
        ]) {
          // oxlint-disable-next-line no-control-regex
          assert.match(line, /^[^\u0000-\u001f\u2028\u2029]*\n$/);
          // oxlint-disable-next-line no-control-regex
          if (format === 'text') assert.match(line, /^[^\u007f-\u009f]*$/);
        }
      }
      const tries = Array.from({ length: 9999 }, () => ({ n: 1 }));
      assert.ok(lineOf('try', { tries }, { format }).length < 1000);
      assert.ok(lineOf('try', { text: 'x'.repeat(100_000) }, { format }).length < 11_000);
    }
  });

  test('quotes a text value that looks like another field', () => {
    const forged = 'p/m outcome=ok status=200';
    const values = { model: forged, quoted: 'a"b', path: 'C:\\x', none: '', plain: 'p/m-1:free,x' };
    const line = lineOf('try', values, { format: 'text' });
    assert.equal(
      line.slice(line.indexOf('model=')),
      `model="${forged}" quoted="a\\"b" path="C:\\\\x" none="" plain=p/m-1:free,x\n`,
    );
  });

  const requestFacts = {
    request_id: 'id-1',
    method: 'POST',
    path: '/v1/chat/completions',
    remote: '10.0.0.1',
    client: 'alice',
    status: 200,
    provider: 'acme',
    model: 'fast',
    upstream_model: 'm-1',
    duration_ms: 1234,
    first_byte_ms: 120,
    bytes: 5,
    outcome: 'ok',
    prompt_tokens: 12,
    completion_tokens: 345,
  };

  test('writes a request on a terminal as one line', () => {
    assert.equal(
      lineOf('request', requestFacts, { format: 'text' }),
      '03:04:05.006 ok             200  alice  fast → acme/m-1  120 ms, 1.2 s  12+345 tokens\n',
    );
    const line = lineOf('request', { ...requestFacts, model: 'a\nb' }, { format: 'text' });
    assert.match(line, /alice {2}a\\u000ab → acme\/m-1 /);
    const health = { method: 'GET', path: '/v1/models', duration_ms: 3, first_byte_ms: 3 };
    assert.equal(
      lineOf('request', { ...health, status: 200, outcome: 'ok' }, { format: 'text' }),
      '03:04:05.006 ok             200  GET /v1/models  3 ms\n',
    );
    assert.match(
      lineOf('request', { ...requestFacts, waited_ms: 7, cost: 0.0042 }, { format: 'text' }),
      / {2}12\+345 tokens {2}waited_ms=7 {2}cost=0\.0042\n$/,
    );
    const headers = { 'x-session-id': 'chat-42', 'x-a': 'b x-c=d' };
    assert.equal(
      lineOf('request', { ...health, status: 200, outcome: 'ok', headers }, { format: 'text' }),
      '03:04:05.006 ok             200  GET /v1/models  3 ms  x-session-id=chat-42  x-a="b x-c=d"\n',
    );
  });

  test('writes a failed request on a terminal with a line for each attempt, and its ids', () => {
    const tries = [
      { provider: 'a', model: 'm', outcome: 'timeout', duration_ms: 5000, cause: 'no event' },
      { provider: 'acme', model: 'm-1', key: 2, outcome: 'upstream_error', status: 502 },
    ];
    const failed = { status: 502, outcome: 'upstream_error', reason: 'API error: 502', tries };
    assert.equal(
      lineOf('request', { ...requestFacts, ...failed }, { format: 'text', level: 'warn' }),
      '03:04:05.006 upstream_error 502  alice  fast → acme/m-1  120 ms, 1.2 s  12+345 tokens\n' +
        '  a/m timeout 5.0 s cause="no event"\n' +
        '  acme/m-1 upstream_error key=2 status=502\n' +
        '  reason="API error: 502" remote=10.0.0.1 request_id=id-1\n',
    );
  });

  test('writes the lines of its level and above, each with its own time', (t) => {
    const times = [1_000, 1_001, 1_999, 2_000, 1_500, 61_010];
    const written: string[] = [];
    const logger = createLogger({
      level: 'info',
      format: 'json',
      toText: formatText,
      write: (line) => written.push((JSON.parse(line) as { time: string }).time),
      redact: createRedactor([]),
    });
    t.mock.method(Date, 'now', () => times[written.length]!);
    for (const _ of times) {
      logger.log('info', 'a line');
      logger.log('debug', 'not written');
    }
    const expected = times.map((time) => new Date(time).toISOString());
    assert.deepEqual(written, expected);
    const levels = (['error', 'info', 'debug', 'trace'] as const).map((one) =>
      logger.isEnabled(one),
    );
    assert.deepEqual(levels, [true, true, false, false]);
  });
});

describe('redaction of a log line', () => {
  const redact = createRedactor(KEYS.map((key) => new Secret(key)));
  /** Redacts each value by itself, because no line passes unchecked. */
  const thorough = Object.assign((text: string) => redact(text), { mayChange: () => true });
  const assertSame = (message: string, facts: LogFacts) => {
    const line = lineOf(message, facts, { redact });
    assert.equal(line, lineOf(message, facts, { redact: thorough }));
    assert.deepEqual(redactFacts(facts, redact), redactFacts(facts, thorough));
    return line;
  };

  const hostile: readonly LogFacts[] = [
    { cause: `before ${KEYS[0]} after` },
    { tries: [{ cause: 'none' }, { cause: `x${KEYS[1]}` }] },
    // A key beginning with another key.
    { cause: KEYS[2] },
    { cause: KEYS[1]!.toUpperCase() },
    { cause: KEYS[4]!.toLowerCase() },
    { cause: KEYS[3] },
    { cause: JSON.stringify(KEYS[3]) },
    // A key's beginning at a value's end.
    { cause: KEYS[1]!.slice(0, 11), more: 'x' },
    { tries: [{ cause: KEYS[1]!.slice(0, 8) }, { more: 'x' }] },
    // Key-like texts.
    { cause: 'Incorrect API key: sk-abcdef123', more: 'x' },
    { cause: 'sk-abcdef123' },
    { cause: 'a\nsk-abcdef123' },
    { cause: 'a\nkey=abc' },
    { cause: 'a\tbearer\tabc' },
    { cause: `\u2028${KEYS[1]}\u2029` },
  ];
  test('hides keys and texts shaped like keys, in any place and spelling', () => {
    for (const facts of hostile) {
      const line = assertSame('a message', facts);
      assert.match(line, /\[secret\]/);
      assert.doesNotMatch(line, /canary|CANARY|abc|98765/);
      const [text] = Object.values(facts);
      if (typeof text === 'string') assert.match(assertSame(text, { fact: 1 }), /\[secret\]/);
    }
  });

  test('equals the redaction of each value, also for keys in pieces', async () => {
    await withRandom((random) => {
      const words = [
        'sk-',
        'Bearer ',
        'key=',
        'api_key=',
        '"',
        '\\',
        '\n',
        ' ',
        'x',
        '\u2028',
        '&',
      ];
      const text = () => {
        let made = '';
        for (let count = random.integer(0, 5); count > 0; count -= 1) {
          const key = random.pick(KEYS);
          const from = random.oneIn(3) ? random.integer(0, key.length) : 0;
          const part = key.slice(from, from + random.integer(0, key.length));
          const forms = [random.pick(words), part, key, part.toUpperCase(), JSON.stringify(part)];
          made += random.pick(forms);
        }
        return made;
      };
      for (let round = 0; round < ROUNDS; round += 1) {
        const tries = [{ cause: text() }, { cause: text(), status: 200 }];
        assertSame(text(), { first: text(), second: text(), status: 1, tries });
      }
    });
  });

  test('does not join two values into a key', () => {
    const key = KEYS[1]!;
    const facts = { a: key.slice(0, 5), b: key.slice(5), c: 'sk-', d: 'abcdef' };
    assert.doesNotMatch(assertSame('a message', facts), /secret/);
  });
});

describe('the value of a fixed header', () => {
  const VALUE = 'https://my.app';
  const redact = createRedactor([
    new Secret(VALUE, { isKey: false }),
    new Secret('short', { isKey: false }),
  ]);

  test('is hidden where the whole value occurs', () => {
    assert.equal(redact(`from ${VALUE}, again ${VALUE}`), 'from [secret], again [secret]');
    assert.ok(redact.mayChange(VALUE));
    const quoted = createRedactor([new Secret('canary "4711"', { isKey: false })]);
    assert.equal(quoted(JSON.stringify({ value: 'canary "4711"' })), '{"value":"[secret]"}');
  });

  test('is not hidden if only its beginning occurs', () => {
    for (const text of ['see https://example.com/docs', 'see https://my.ap', 'a short text']) {
      assert.equal(redact(text), text);
    }
  });

  test('may have 4096 characters', () => {
    const secrets = ['a', 'b', 'c'].map((one) => new Secret(one.repeat(4096)));
    const long = new Secret('"'.repeat(4096), { isKey: false });
    assert.equal(createRedactor([...secrets, long])(long.reveal()), '[secret]');
  });
});

test('a fixed header and a key of [admin] are hidden in answers and the log', async (t) => {
  const [value, key] = ['https://my.app', 'admin-canary-4711'];
  const message = `${value} and ${key} are not known; see https://docs.example/errors`;
  const script: Script = (_, response) =>
    sendJson(response, { error: { message } }, { status: 400 });
  const lines = `headers = { HTTP-Referer = "${value}" }`;
  const more = `[admin]\nport = 0\nkeys = ["${key}"]`;
  const { gateway } = await scenario(t, { providers: { p: { script, lines } }, more });
  const { text } = await gateway.chat(chatBody());
  assert.match(
    text,
    /\[secret\] and \[secret\] are not known; see https:\/\/docs\.example\/errors"/,
  );
  await linesOf(gateway);
  assert.doesNotMatch(gateway.log.join(''), /canary-4711|my\.app/);
});

test('half a surrogate pair is replaced, also if the limit cuts the pair', () => {
  const pair = '\u{1f600}';
  assert.equal(escapeControlCharacters(`a\ud800b${pair}`, 100), `a\ufffdb${pair}`);
  assert.equal(escapeControlCharacters(`a${pair}`, 2), 'a\ufffd');
  for (const [format, maxCharacters] of [
    ['json', 10_000],
    ['text', 500],
  ] as const) {
    // The space makes the text format quote the value.
    const cut = ` ${'a'.repeat(maxCharacters - 2)}`;
    const line = lineOf('event', { half: 'b\udc00', cut: cut + pair }, { format });
    assert.match(line, /b\ufffd/);
    assert.ok(line.includes(`${cut}\ufffd`));
    assert.doesNotMatch(line, /\\ud[89a-f]/);
    assert.ok(line.isWellFormed());
  }
});

test('characters that change the direction of text are escaped', () => {
  const text = 'a\u202eb\u2066c\u200fd';
  assert.equal(escapeControlCharacters(text, 100), 'a\\u202eb\\u2066c\\u200fd');
  assert.equal(escapeControlCharacters('\u05d0 \u200d', 100), '\u05d0 \u200d');
});
