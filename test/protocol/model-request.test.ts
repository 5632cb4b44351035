/** Validation of chat requests, and the two edits in the forwarded bytes. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { GatewayError } from '../../src/lib/errors.ts';
import { ModelRequestParser } from '../../src/protocol/model-request.ts';
import { parseModelRequest } from '../support/model-request.ts';
import { cutUp } from '../support/mutate.ts';
import { withRandom } from '../support/random.ts';

const MESSAGES = '"messages":[{"role":"user","content":"hi"}]';
const parse = (text: string) => parseModelRequest(Buffer.from(text));
const textOf = (parts: readonly Buffer[]) => Buffer.concat(parts).toString();

/** Returns the refusal's text; empty if the request is accepted. */
function refusalOf(run: () => unknown): string {
  try {
    run();
    return '';
  } catch (error) {
    return (error as GatewayError).message.replace('Invalid request: ', '');
  }
}

test('only the value of the model changes in the forwarded bytes', () => {
  const body = (model: string) =>
    ` {"seed":1.0,\n${MESSAGES} , "model" : ${model},"x":"\\u00e9"}\n`;
  for (const model of ['"p/m"', String.raw`"p\/\u006d"`]) {
    const request = parse(body(model));
    assert.equal(request.model, 'p/m');
    assert.equal(textOf(request.bodyWith('a "b"', false)), body(String.raw`"a \"b\""`));
  }
});

test('a request is read alike however its bytes are cut up', () =>
  withRandom((random) => {
    const text = `{"stream":true,"prompt_cache_key":"s","model":"é/m",${MESSAGES}}`;
    const rest = text.slice(1).replace('é/m', 'n');
    const expected = `{"stream_options":{"include_usage":true},${rest}`;
    for (let round = 0; round < 200; round += 1) {
      const request = parseModelRequest(...cutUp(random, Buffer.from(text)));
      const { model, stream, promptCacheKey } = request;
      assert.deepEqual([model, stream, promptCacheKey], ['é/m', true, 's']);
      assert.equal(textOf(request.bodyWith('n', true)), expected);
    }
  }));

test('usage is asked for in a stream that leaves it open, before or after the model', () => {
  const asked = '"include_usage":true';
  const options: Record<string, string> = {
    null: `{${asked}}`,
    '{}': `{${asked}}`,
    '{ }': `{${asked} }`,
    '{"a":1}': `{${asked},"a":1}`,
    '{"include_usage":null}': `{${asked}}`,
    '{"a":[{"include_usage":0}],"include_usage":null}': `{"a":[{"include_usage":0}],${asked}}`,
  };
  for (const [given, expected] of Object.entries(options)) {
    const before = (value: string, model: string) =>
      `{"stream_options":${value},"stream":true,"model":"${model}",${MESSAGES}}`;
    const after = (value: string, model: string) =>
      `{"model":"${model}",${MESSAGES},"stream":true,"stream_options":${value}}`;
    for (const body of [before, after]) {
      const request = parse(body(given, 'p/m'));
      assert.equal(request.mayAskForUsage, true, given);
      assert.equal(textOf(request.bodyWith('n', true)), body(expected, 'n'));
      assert.equal(textOf(request.bodyWith('n', false)), body(given, 'n'));
    }
  }
});

test("a client's own choice of usage stays, and so do unusable options", () => {
  const members = [
    '"stream":true,"stream_options":{"include_usage":false}',
    '"stream":true,"stream_options":{"include_usage":true}',
    '"stream":true,"stream_options":[]',
    '"stream":true,"stream_options":"x"',
    '"stream":false',
    '"stream":null',
    '"stream_options":{}',
  ];
  for (const member of members) {
    assert.equal(parse(`{"model":"m",${MESSAGES},${member}}`).mayAskForUsage, false, member);
  }
});

test('the first fault in the order of the checks is the refusal', () => {
  const faults: Record<string, string> = {
    '[]': 'request body must be a JSON object',
    [`[{"model":"m",${MESSAGES}}]`]: 'request body must be a JSON object',
    '{"stream":1}': '"model" must be a non-empty string',
    '{"model":7,"stream":1}': '"model" must be a non-empty string',
    '{"model":"m","stream":1}': '"stream" must be a boolean',
    '{"model":"m","Model":"n"}': '"messages" must be a non-empty array',
    '{"model":"m","messages":[]}': '"messages" must be a non-empty array',
    '{"model":"m","messages":{"a":{"role":"user","content":"hi"}}}':
      '"messages" must be a non-empty array',
    [`{"model":"m","model":"n",${MESSAGES}}`]: 'duplicate member "model"',
    [`{"stream":true,"model":"m",${MESSAGES},"stream":true}`]: 'duplicate member "stream"',
    [`{"model":"m","MODEL":"n",${MESSAGES}}`]: '"model" and "stream" must be written in lower case',
    [`{"model":"m",${MESSAGES},"ſtream":true}`]:
      '"model" and "stream" must be written in lower case',
    [`{"model":"m",${MESSAGES},"\\u0053tream":true}`]:
      '"model" and "stream" must be written in lower case',
  };
  for (const [body, fault] of Object.entries(faults)) {
    assert.equal(
      refusalOf(() => parse(body)),
      fault,
      body,
    );
  }
  assert.match(
    refusalOf(() => parse(`{"model":"m",${MESSAGES}} 1`)),
    /not valid JSON/,
  );
  const broken = Buffer.from([0x7b, 0xff]);
  assert.equal(
    refusalOf(() => parseModelRequest(broken)),
    'request body is not valid UTF-8',
  );
});

test('the first wrong message is named by its place', () => {
  const ok = '{"role":"user","content":"hi"}';
  const faults: Record<string, string> = {
    '"hi"': '" must be an object',
    '["role"]': '" must be an object',
    '{"content":"hi"}': '.role" must be a string',
    '{"role":null,"content":"hi"}': '.role" must be a string',
    '{"role":"user"}': '.content" is required',
    '{"role":"user","content":null}': '.content" is required',
    '{"role":"tool"}': '.content" is required',
    '{"role":"user","content":{}}': '.content" must be a string or an array of parts',
    '{"role":"user","content":[{},"hi"]}': '.content" must be a string or an array of parts',
    '{"role":"user","content":"hi","name":1}': '.name" must be a string',
    '{"role":"user","role":1,"content":"hi"}': '.role" must be a string',
  };
  for (const [message, fault] of Object.entries(faults)) {
    const body = `{"model":"m","messages":[${ok},${message},7]}`;
    assert.equal(
      refusalOf(() => parse(body)),
      `"messages[1]${fault}`,
      body,
    );
  }
  const accepted = [
    '{"role":"assistant"}',
    '{"role":"function"}',
    '{"role":"assistant","content":null}',
    '{"role":"tool","content":null}',
    '{"role":"user","content":[]}',
    '{"role":"user","content":[{"type":"text","parts":["x"]}],"name":null}',
    '{"role":1,"role":"user","content":["x"],"content":[{}]}',
  ];
  for (const message of accepted) {
    assert.equal(
      refusalOf(() => parse(`{"model":"m","messages":[${message}]}`)),
      '',
      message,
    );
  }
});

test('the items of other members are no messages and no options', () => {
  assert.equal(
    refusalOf(() => parse(`{"model":"m","stop":["a",1],${MESSAGES},"x":[2]}`)),
    '',
  );
  const empty = '{"model":"m","stop":["a"],"messages":[]}';
  assert.equal(
    refusalOf(() => parse(empty)),
    '"messages" must be a non-empty array',
  );
  const wrong = '{"model":"m","stop":["a","b"],"messages":[7]}';
  assert.equal(
    refusalOf(() => parse(wrong)),
    '"messages[0]" must be an object',
  );
  const options = '"metadata":{"include_usage":true},"stream":true,"stream_options":{}';
  assert.equal(parse(`{"model":"m",${MESSAGES},${options}}`).mayAskForUsage, true);
});

test('a model may have 2 MiB, but 4 KiB for a stream, escapes included', () => {
  const body = (bytes: number, stream: boolean, letter = 'x') =>
    `{"model":"${letter.repeat((bytes - 2) / letter.length)}","stream":${stream},${MESSAGES}}`;
  for (const [bytes, stream] of [
    [2_097_152, false],
    [4096, true],
  ] as const) {
    assert.equal(parse(body(bytes, stream)).model.length, bytes - 2);
    assert.equal(
      refusalOf(() => parse(body(bytes + 1, stream))),
      '"model" is too long',
    );
  }
  const escaped = parse(body(60_002, false, String.raw`\u00e9`));
  assert.equal(escaped.model, 'é'.repeat(10_000));
});

test('a cache key is a short text', () => {
  const keyOf = (key: string) => parse(`{"model":"m",${MESSAGES},${key}}`).promptCacheKey;
  assert.equal(keyOf('"prompt_cache_key":"a\\u0062"'), 'ab');
  for (const key of ['""', '7', 'null', '["a"]', `"${'x'.repeat(65)}"`]) {
    assert.equal(keyOf(`"prompt_cache_key":${key}`), undefined, key);
  }
});

test('a list of models is refused for a client with limited models', () => {
  const listed = (mayListModels: boolean, name: string) => {
    const parser = new ModelRequestParser(mayListModels);
    const body = Buffer.from(`{"model":"m",${MESSAGES},"${name}":["n"]}`);
    parser.push(body);
    return refusalOf(() => parser.finish({ parts: [body] }));
  };
  const refused = 'a client whose models are limited may not send "models"';
  for (const name of ['models', 'MODELS', 'modelſ']) {
    assert.equal(listed(false, name), refused, name);
    assert.equal(listed(true, name), '', name);
  }
  assert.equal(listed(false, 'my_models'), '');
});

test('a request belongs to an organisation if a message has a file_id or the id of audio', () => {
  const user = (...content: unknown[]) => ({ role: 'user', content });
  const text = { type: 'text', text: 'a' };
  const file = { type: 'file', file: { filename: 'a', file_id: 'file-1' } };
  const heard = (audio: unknown) => ({ role: 'assistant', audio });
  const affinityOf = (members: object) =>
    parse(JSON.stringify({ model: 'm', messages: [user(text)], ...members })).affinity;
  const bound: unknown[][] = [
    [user(file)],
    [user(text, text), user(text, file), user(text)],
    // Mistral's.
    [user({ type: 'file', file_id: 'file-1' })],
    [{ role: 'user', content: 'a' }, heard({ id: 'audio_1' }), { role: 'user', content: 'b' }],
    [heard({ data: 'x', transcript: '{"', id: 'audio_1' })],
  ];
  for (const messages of bound) {
    const body = { messages, stream_options: {}, user: 'b' };
    assert.equal(affinityOf(body), 'organisation', JSON.stringify(messages));
  }
  const free: object[] = [
    {},
    { messages: [user({ type: 'text', text: '{"file_id":"file-1"}' })] },
    { messages: [user({ type: 'file', file: { file_id: '' } }), heard({ id: '' })] },
    { messages: [user({ type: 'file', file: { file_id: null } }), heard({ id: null })] },
    { messages: [user({ type: 'file', file: { filename: 'file_id', file_data: 'a' } })] },
    { messages: [{ ...heard({ data: 'a' }), content: 'a', id: 'x', tool_calls: [{ id: 'x' }] }] },
    { messages: [heard(null), { role: 'user', content: '"file_id":"a"' }] },
    { other: [user(file), heard({ id: 'audio_1' })] },
    { metadata: { file_id: 'a' }, audio: { id: 'a', voice: 'b' }, tools: [{ file_id: 'a' }] },
  ];
  for (const body of free) assert.equal(affinityOf(body), undefined, JSON.stringify(body));
});

test('an endpoint may require a member of any name, a text or an array', () => {
  const refusal = (text: string) =>
    refusalOf(() => {
      const body = Buffer.from(text);
      const parser = new ModelRequestParser(true, 'query');
      parser.push(body);
      parser.finish({ parts: [body] });
    });
  assert.equal(refusal('{"model":"p/m","query":"a"}'), '');
  assert.equal(refusal('{"model":"p/m","query":["a"]}'), '');
  const fault = '"query" must be a string or an array';
  assert.equal(refusal('{"model":"p/m","query":1}'), fault);
  assert.equal(refusal(`{"model":"p/m",${MESSAGES}}`), fault);
});
