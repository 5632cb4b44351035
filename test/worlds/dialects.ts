/** How providers and clients spell: documented shapes, each with its meaning. */

import type { Random } from '../support/random.ts';
import type { ChatPlan, ErrorPlan } from './plan.ts';

/** An error's bytes, and their meaning. */
export interface Spelled {
  readonly text: string;
  readonly type: string;
  readonly error: ErrorPlan;
}

const JSON_TYPES = [
  'application/json',
  'application/json; charset=utf-8',
  'application/problem+json',
];
/** Messages of various lengths and characters, and the shown part. */
const MESSAGES: readonly ((
  random: Random,
) => Pick<ErrorPlan, 'message' | 'says'> & { text: string })[] = [
  () => plain('the model is busy'),
  () => plain('no such thing: <class "int">'),
  () => plain("don't do that"),
  () => plain('<400> InternalError.Algo: see <image>'),
  () => plain('too large: 9 > 8 & é'),
  () => ({ ...plain('long '.repeat(120).trim()), message: 'long '.repeat(100).trim() }),
  () => ({ text: 'two lines\r\n\u0007and a bell', says: 'two lines' }),
  () => ({ text: 'Incorrect key: key-of-a-1, key-of-b-1', says: 'Incorrect key: ' }),
  (random) => ({
    text: random.pick(['<!doctype html>no', 'a <html> page', 'x <BODY>', '<script>']),
  }),
];

function plain(text: string) {
  return { text, message: text };
}

/** A code is shown only if it is a word, but recognised anyway. */
const CODES = ['some_code', '1210', 'not a word', 'x.y-z'];
const isWord = (code: string) => /^\w[\w.-]*$/.test(code);

/** Errors of a 400 about the key. */
const REFUSED_KEYS: readonly object[] = [
  [{ error: { code: 400, message: 'no', details: [{ reason: 'API_KEY_INVALID' }] } }],
  { error: { message: 'API key expired. Please renew the API key.' } },
  { code: 'Some words', error: 'Incorrect API key provided: x***' },
  { error: { message: 'no', code: 'invalid_api_key', type: 'invalid_request_error' } },
];
const FLAGGED = 'Content violates usage guidelines. Team: t, Model: m';

/** Returns an HTTP error's body. */
export function spellStatus(status: number, random: Random): Spelled {
  const type = random.pick(JSON_TYPES);
  if (status === 400 && random.oneIn(4)) {
    const text = JSON.stringify(random.pick(REFUSED_KEYS));
    return { text, type, error: { status, refusesKey: true } };
  }
  if (status === 403 && random.oneIn(4)) {
    const text = JSON.stringify({ code: 'permission-denied', error: FLAGGED });
    const error = { status, message: FLAGGED, code: 'permission-denied', isFlagged: true };
    return { text, type, error };
  }
  const known =
    status === 400 ? ['context_length_exceeded', 'content_policy_violation', 'invalid_prompt'] : [];
  if (status === 429) known.push('insufficient_quota', 'rate_limit_exceeded');
  if (status === 404) known.push('model_not_found');
  const codes = known.map((one) => respell(one, random));
  const said = random.oneIn(6) ? { text: undefined } : random.pick(MESSAGES)(random);
  const { text: m, ...shown } = said as ReturnType<(typeof MESSAGES)[number]>;
  const code = random.oneIn(2) ? random.pick([...codes, ...CODES]) : undefined;
  const shownCode = code !== undefined && isWord(code) ? code : undefined;
  const whole = { status, ...shown, code: shownCode };
  const json = (body: object, error: ErrorPlan): Spelled => {
    const text = JSON.stringify(body);
    const spelled = { type, error: { ...error, isAboutModel: /model/i.test(text) } };
    if (random.oneIn(12)) return { ...spelled, text: `\ufeff${text}` };
    return { ...spelled, text: random.oneIn(8) ? errorEvent(text, random) : text };
  };
  const own = { message: m, code };
  const silent = { status, ...shown };
  const without = { status };
  const typed = { ...whole, type: 'some_error' };
  const named: (() => Spelled)[] = [
    () => json({ error: own }, whole),
    () => json({ error: { ...own, type: 'some_error' } }, typed),
    () => json([{ error: { ...own, status } }], whole),
    () => json({ errors: [own], success: false }, whole),
    () => ({ text: '<!doctype html><p>no</p>', type: 'text/html', error: without }),
    () => ({
      text: JSON.stringify({ error: own }),
      type: 'text/html; charset=utf-8',
      error: without,
    }),
    () => ({ text: `{"error":"${'x'.repeat(9)}`, type, error: without }),
    () => ({ text: 'gone </b> away', type: 'text/plain', error: without }),
    () => ({ text: '<!-- x --> gone', type: 'text/plain; charset=utf-8', error: without }),
  ];
  if (m === undefined) return random.pick(named)();
  const raw = random.pick([JSON.stringify({ error: { message: m } }), m]);
  const nothing = {
    message: 'Provider returned error',
    code,
    metadata: { raw, provider_name: 'P' },
  };
  const says = shown.message?.slice(0, 300) ?? shown.says;
  const told = says === undefined ? undefined : { status, code: shownCode, says };
  named.push(
    () => json({ object: 'error', ...own, error: m }, whole),
    () => json({ detail: [{ loc: ['body'], msg: m }] }, silent),
    () => json({ error: 'Bad Request', detail: m }, silent),
    () => json({ Message: m }, silent),
    // Found too late: the search for a message is bounded.
    () =>
      json(
        { errors: [...Array.from({ length: 500 }, () => ({})), { message: 'far behind' }] },
        without,
      ),
    () => json({ error_description: m }, silent),
    () => json({ error: m, code }, whole),
    () => json({ msg: m, code, message: '' }, whole),
    () => json({ error: { error: { message: m } } }, silent),
    () => json({ error: { message: m, code: 1210 } }, silent),
    ...(shown.message === m
      ? [
          () =>
            json(
              { error: { message: `${m}: ${code}`, code } },
              { ...whole, message: `${m}: ${code}` },
            ),
          () => ({ text: m, type: 'text/plain; charset=utf-8', error: silent }),
        ]
      : []),
    // A code equal to the status is not shown.
    ...(status === 429 ? [] : [() => json({ error: { message: m, code: `${status}` } }, silent)]),
    ...(told ? [() => json({ error: nothing }, told)] : []),
  );
  return random.pick(named)();
}

/** Returns the same word as other providers write it. */
function respell(word: string, random: Random): string {
  const parts = word.split('_');
  const capital = (one: string) => one.slice(0, 1).toUpperCase() + one.slice(1);
  return random.pick([
    word,
    word,
    word.toUpperCase(),
    parts.join('-'),
    parts.map(capital).join(''),
    `engine_${word}`,
    `${word}.7`,
  ]);
}

const STATUS_WORDS: readonly (readonly [word: string, status: number])[] = [
  ['invalid_request_error', 400],
  ['tool_use_failed', 400],
  ['unsupported_value', 400],
  ['context_length_exceeded', 400],
  ['content_filter', 400],
  ['invalid_prompt', 400],
  ['InvalidParameter', 400],
  ['authentication_error', 401],
  ['invalid_api_key', 401],
  ['permission_error', 403],
  ['not_found_error', 404],
  ['model_not_found', 404],
  ['rate_limit_error', 429],
  ['rate_limit_exceeded', 429],
  ['insufficient_quota', 429],
  ['overloaded_error', 503],
  ['some_error', 502],
];

/** Returns an error for a 200 or an event. It names its own status. */
export function spellReported(status: number, random: Random): Spelled {
  const { text: message, ...shown } = random.pick(MESSAGES.slice(0, 5))(random);
  const [known, ofWord] = random.pick(STATUS_WORDS);
  const word = respell(known, random);
  const spell = (body: object, error: ErrorPlan): Spelled => {
    const text = JSON.stringify(body);
    const isAboutModel = /model/i.test(text);
    return { text, type: JSON_TYPES[0]!, error: { ...error, ...shown, isAboutModel } };
  };
  return random.pick<() => Spelled>([
    () => spell({ error: { message, status } }, { status }),
    () => spell({ error: { message, status_code: `${status}`, status: 'x' } }, { status }),
    () =>
      spell({ error: { message, code: status, type: 'not_found' } }, { status, type: 'not_found' }),
    () =>
      spell(
        { error: { message, status_code: status, code: 'rate_limit' } },
        { status, code: 'rate_limit' },
      ),
    () => spell([{ error: { message, status } }], { status }),
    () => spell({ object: 'error', message, code: status, error: message }, { status }),
    () => spell({ type: 'error', error: { message, type: word } }, { status: ofWord, type: word }),
    () => spell({ error: { message, code: word, status: 200 } }, { status: ofWord, code: word }),
    () =>
      spell(
        { error: { message, code: word, type: 'some_error' } },
        { status: ofWord, code: word, type: 'some_error' },
      ),
  ])();
}

/** Returns an error for a 200, without a member `error` (docs/behaviour.md#provider-errors). */
export function spellBare(status: number, random: Random): Spelled {
  const { text: m, ...shown } = random.pick(MESSAGES.slice(0, 5))(random);
  const [body, named] = random.pick<readonly [object, number]>([
    [{ code: status, msg: m, success: false }, status],
    [{ status: `${status}`, message: m }, status],
    [{ base_resp: { status_code: 1000, status_msg: m } }, 502],
    [{ detail: m }, 502],
    [{ detail: [{ loc: ['body'], msg: m }], error: {} }, 502],
    [{ error_code: 1, error_msg: m, choices: null }, 502],
  ]);
  const text = JSON.stringify(body);
  const isAboutModel = /model/i.test(text);
  return { text, type: JSON_TYPES[0]!, error: { status: named, ...shown, isAboutModel } };
}

/** Returns an error as a stream's event. */
export function errorEvent(json: string, random: Random): string {
  const lines = JSON.stringify(JSON.parse(json), null, 1).split('\n');
  return random.pick([
    `data: ${json}\n\n`,
    `data:${json}\r\n\r\n`,
    `event: error\ndata: ${json}\n\n`,
    `error: ${json}\n\n`,
    `${json}\n\n`,
    `${lines.join('\n')}\n\n`,
    `${lines.map((line) => `data: ${line}`).join('\n')}\n\n`,
  ]);
}

/** Comments. Whatever they contain must be ignored. */
export const COMMENTS: readonly string[] = [
  ': ping',
  ':',
  ':{"error":1}',
  ': "finish_reason":"length"',
  ': {"choices":[{"index":1,"finish_reason":"length"}],"usage":{"total_tokens":9}}',
  ': data: [DONE]',
];

/** Returns an event with this data. */
export function spellEvent(json: string, eol: string, random: Random): string {
  const data = random.oneIn(4) ? json.replaceAll(/":(?=[\d"nt[{])/g, '": ') : json;
  if (!random.oneIn(3)) return `data: ${data}`;
  const isJson = /^[{[]/.test(json);
  const lines = isJson ? JSON.stringify(JSON.parse(json), null, 1).split('\n') : [json];
  return random.pick([
    `data:${data}`,
    `event: message${eol}data: ${data}`,
    `id: 7${eol}data: ${data}${eol}retry: 10`,
    `data: ${data}${eol}${random.pick(COMMENTS)}`,
    `data: ${data.replace(',"', `,${eol}data:"`)}`,
    lines.map((line) => `data: ${line}`).join(eol),
  ]);
}

/** Returns the end of a stream. Clients compare the beginning of its data. */
export function spellDone(random: Random): string {
  return random.oneIn(4)
    ? random.pick(['data:[DONE]', 'data: [DONE] ', 'data:  [DONE]', 'event: done\ndata: [DONE]'])
    : 'data: [DONE]';
}

/** Deltas before an answer begins. */
export const EMPTY_DELTAS: readonly object[] = [
  { role: 'assistant', content: '' },
  { role: 'assistant', content: null },
  { role: 'assistant' },
  {},
  { role: 'assistant', tool_calls: [], reasoning: '' },
  { content: '', function_call: {} },
];
export const otherDeltas = (text: string): readonly object[] => [
  { content: text },
  { content: text },
  { content: text },
  { role: 'assistant', content: text },
  { content: '', reasoning_content: text },
  { content: null, tool_calls: [{ index: 1, function: { name: 'f', arguments: text } }] },
  { refusal: text },
];

/** Values a rebuilt body would change. */
const VALUES = String.raw`
9007199254740993
-0
1e400
1.0
123456789012345678901234567890
1E-7
{ }
{"a":1,"a":2,"model":"x","model":"y"}
[ 1 ,	2 ]
{"__proto__":{"x":1}}
"é\u2028\ud83d\ude00 \u0000\/\""
"\\"
"\ud800"
"\"model\":\"x\""
`
  .trim()
  .split('\n');

interface SpelledBody {
  readonly body: string;
  readonly chat: Partial<ChatPlan>;
}

/** Returns the same request in another spelling. `body` is JSON with `"model":` and one message. */
export function spellRequest(
  body: string,
  { isStream, model }: Pick<ChatPlan, 'isStream' | 'model'>,
  random: Random,
): SpelledBody {
  const message = (text: string) => body.replace(/"messages":\[/, (all) => `${all}${text},`);
  const first = (text: string) => `{${text},${body.slice(1)}`;
  const written = JSON.stringify(model)
    .replace('/', String.raw`\/`)
    .replace('m', String.raw`\u006d`);
  const options = (text: string, asking: string) => {
    const usage = isStream
      ? ([`"stream_options":${text}`, `"stream_options":${asking}`] as const)
      : undefined;
    return { body: first(`"stream_options":${text}`), chat: { usage } };
  };
  const same = (text: string): SpelledBody => ({ body: text, chat: {} });
  const all: (() => SpelledBody)[] = [
    () =>
      same(
        message(
          '{"role":"assistant","content":null,"tool_calls":[{"id":"1","model":1,"stream":0}]}',
        ),
      ),
    () => same(message('{"role":"function","name":"f"}')),
    () =>
      same(message(`{"role":"${random.pick(['tool', 'system', 'developer'])}","content":null}`)),
    () =>
      same(message('{"role":"user","name":null,"content":[{"type":"text","text":"\\u00e9"},{}]}')),
    () => same(message('{"content":"a","content":"b","role":"system","name":"n","model":"x"}')),
    () => same(first(`${random.pick([' ', '\n\t'])}"x" : ${random.pick(VALUES)}`)),
    () => same(first('"metadata":{"model":"x","stream":"y","messages":[],"usage":[[1,"]}"]]}')),
    () => same(first('"model2":[1,{"model":2}],"Mode":["x"],"tools":[1,[2],{}]')),
    () => ({ body: first('"models":[]'), chat: { namesOthers: true } }),
    () => ({ body: first('"Model\u017f":[]'), chat: { namesOthers: true } }),
    () => same(` \n${body}\r\n\t`),
    () => ({
      body: body.replace(JSON.stringify(model), () => written),
      chat: { written: ['"model":', written] as const },
    }),
    () => ({
      body: body.replace('"model":', '"m\\u006fdel" : '),
      chat: { written: ['"m\\u006fdel" : ', JSON.stringify(model)] as const },
    }),
  ];
  if (!body.includes('stream_options')) {
    all.push(
      () => options('null', '{"include_usage":true}'),
      () => options('{ }', '{"include_usage":true }'),
      () => options('{"include_usage":null}', '{"include_usage":true}'),
      () =>
        options(
          '{ },"x":{"include_usage":false}',
          '{"include_usage":true },"x":{"include_usage":false}',
        ),
      () => {
        const { body: text, chat } = options('{ }', '{"include_usage":true }');
        return { body: `{"x":{"include_usage":true},${text.slice(1)}`, chat };
      },
      () => options('{"x":[1]}', '{"include_usage":true,"x":[1]}'),
      () => ({
        body: first('"stream_options":{"include_usage":false}'),
        chat: { asksForUsage: true },
      }),
      () => ({ body: first('"stream_options":"yes"'), chat: { asksForUsage: true } }),
    );
  }
  if (!isStream && !body.includes('"stream"')) all.push(() => same(first('"stream":null')));
  return random.pick(all)();
}

const MESSAGE = '{"role":"user","content":"x"}';
const around = (members: string) => `{"model":"a/m0",${members}}`;
const ofMessages = (...messages: string[]) => around(`"messages":[${messages.join()}]`);

/** Bytes other than HTTP, with the status of their refusal. */
export const BROKEN_HEADS: readonly { readonly text: string; readonly status: number }[] = [
  { text: 'GARBAGE\r\n\r\n', status: 400 },
  { text: '\u0016\u0003\u0001 TLS', status: 400 },
  { text: 'GET / HTTP/1.1\r\nno header\r\n\r\n', status: 400 },
  { text: 'GET / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n', status: 400 },
  { text: `GET / HTTP/1.1\r\nhost: a\r\nx: ${'y'.repeat(17_000)}\r\n\r\n`, status: 431 },
];

/** Bodies refused with 400. */
export const WRONG_BODIES: readonly string[] = [
  '{"model":"a/m0"',
  '[]',
  '"text"',
  '',
  `{"messages":[${MESSAGE}]}`,
  `{"model":"","messages":[${MESSAGE}]}`,
  `{"model":null,"messages":[${MESSAGE}]}`,
  `{"model":["a/m0"],"messages":[${MESSAGE}]}`,
  around('"messages":[]'),
  around('"messages":null'),
  around('"tools":[{}],"messages":[]'),
  around(`"Model":"b/m0","messages":[${MESSAGE}]`),
  around(`"\u017ftream":true,"messages":[${MESSAGE}]`),
  around(`"messages":${MESSAGE}`),
  around(`"stream":"yes","messages":[${MESSAGE}]`),
  around(`"stream":1,"messages":[${MESSAGE}]`),
  around(`"model":"b/m0","messages":[${MESSAGE}]`),
  around(`"stream":true,"messages":[${MESSAGE}],"stream":true`),
  around(String.raw`"messages":[${MESSAGE}],"m\u006fdel":"b/m0"`),
  `\ufeff${ofMessages(MESSAGE)}`,
  `${ofMessages(MESSAGE)}x`,
  ofMessages(MESSAGE, '{"content":"x"}'),
  ofMessages('{"role":1,"content":"x"}'),
  ofMessages(MESSAGE, '"text"'),
  ofMessages('[]'),
  ofMessages('{"role":"user"}', MESSAGE),
  ofMessages('{"role":"user","content":null}'),
  ofMessages('{"role":"user","content":1}'),
  ofMessages('{"role":"user","content":{}}', MESSAGE),
  ofMessages('{"role":"user","content":["text"]}', MESSAGE),
  ofMessages('{"role":"user","content":[{},1]}'),
  ofMessages('{"role":"user","content":"x","name":1}', MESSAGE),
  around(`"messages":[${MESSAGE}],"x":${'['.repeat(256)}${']'.repeat(256)}`),
  around(`"messages":[${MESSAGE}],"x":01`),
  around(`"messages":[${MESSAGE}],"x":"\u0001"`),
];

const wordsOf = (text: string) => text.trim().split(/\s+/);

/** Origins: this machine's pages, editors, extensions, and pages of other hosts. */
export const ORIGINS = wordsOf(`
  null http://localhost http://localhost:3000 https://localhost:8443 http://app.localhost:5173
  HTTP://LOCALHOST:3000 http://127.0.0.1:1 http://127.1.2.3 http://[::1] http://[::1]:3000
  chrome-extension://abcdefghijklmnop moz-extension://1234 vscode-webview://abc app://obsidian.md
  https://evil.example http://evil.example:8080 HTTPS://EVIL.EXAMPLE http://localhost.evil.example
  http://evillocalhost http://127.0.0.1.evil.example http://127.0.0.1:1@evil.example
  http://192.168.1.2 http://0.0.0.0 http://[::2] http:// http://localhost,https://evil.example
`);
export const HOSTS = wordsOf(`
  127.0.0.1 127.0.0.1:8080 10.1.2.3:9090 [::1]:9090 LOCALHOST:1 App.localhost:8080 localhost
  evil.test evil.test:8080 localhost.evil.test 1.2.3.4.evil.test
`);

/** Returns `Authorization` headers with this key, right and wrong. */
export const tokensWith = (key: string): readonly string[][] => [
  [],
  ...wordsOf('x Basic Bearer Bearer:x Bearer,x').map((one) => [one]),
  ['Basic Bearer x'],
  ['Bearer '],
  ['Bearer\tx'],
  ['Bearer wrong'],
  ['Bearer My API Key'],
  [`Bearer${key}`],
  [`Bearer ${key}x`],
  [`Bearer x${key}`],
  [`Bearer ${key.toUpperCase()}`],
  [`Bearer ${key.slice(0, -1)}`],
  [`xBearer ${key}`],
  [`Basic ${key}`],
  [`bEARER   ${key} `],
  [`Bearer ${key}`, `Bearer ${key}`],
  ['Basic x', `Bearer ${key}`],
];
