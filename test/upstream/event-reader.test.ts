/** The facts of an answer: model, finish_reason and usage, from events and complete answers. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { GatewayError } from '../../src/lib/errors.ts';
import { encodeEvent } from '../../src/lib/sse.ts';
import { openCompleteAnswer } from '../../src/upstream/answers/complete-answer.ts';
import type { AttemptContext } from '../../src/upstream/answers/attempt-context.ts';
import { EventReader, type PassedEvents } from '../../src/upstream/answers/event-reader.ts';
import { bodyOf } from '../support/byte-source.ts';
import { chatBody } from '../support/gateway.ts';
import { cutUp } from '../support/mutate.ts';
import { withRandom } from '../support/random.ts';
import { eventually, openChat, lineOf } from '../support/streams.ts';
import {
  completion,
  sendEvents,
  sendJson,
  type Script,
  DONE,
  beginStream,
} from '../support/upstream.ts';
import {
  newReplyContext,
  RecordedReply,
  relayStream,
  replyWith,
} from '../support/reply-context.ts';
import { scenario } from '../support/scenario.ts';

interface Facts {
  readonly model: string | undefined;
  readonly finishReason: string | undefined;
  readonly usage: object | undefined;
}

function toFacts({ attempt }: AttemptContext): Facts {
  const { responseModel: model, finishReason } = attempt;
  // The clients' limits use total_tokens, but the line has no such field.
  const { total_tokens: _, ...usage } = attempt.usage ?? {};
  const counts = Object.entries(usage).filter(([, count]) => count !== undefined);
  return { model, finishReason, usage: counts.length > 0 ? Object.fromEntries(counts) : undefined };
}

/** Relays a stream in these pieces. Returns its facts, and the client's text. */
async function relay(pieces: readonly Buffer[]): Promise<Facts & { text: string }> {
  const reply = new RecordedReply();
  const context = newReplyContext(reply);
  const failure = await relayStream(bodyOf(pieces), context, reply).then(
    () => undefined,
    (thrown: unknown) => thrown as GatewayError,
  );
  if (failure) reply.write(encodeEvent(failure.toBody()));
  else await eventually(() => reply.hasEnded, 'the end');
  return { text: Buffer.concat(reply.parts).toString(), ...toFacts(context) };
}

/** Makes an answer so long that it is read as an outline. */
const LONG_WHITE_SPACE = Buffer.alloc(262_144, ' ');

/** Reads a complete answer in these pieces. Its facts must not change if it is long. */
async function read(...pieces: readonly Buffer[]): Promise<Facts> {
  const facts = await readOnce(...pieces);
  assert.deepEqual(await readOnce(...pieces, LONG_WHITE_SPACE), facts, 'short and long answer');
  return facts;
}

async function readOnce(...pieces: readonly Buffer[]): Promise<Facts> {
  const context = { ...newReplyContext(), isStream: false };
  await openCompleteAnswer(replyWith(bodyOf(pieces)), {}, context);
  return toFacts(context);
}

function event(more: object | string, choices = '[]'): string {
  const members = typeof more === 'string' ? more : JSON.stringify(more).slice(1, -1);
  return `data: {"id":"1","model":"m-1","choices":${choices},${members}}\n\n`;
}

function choice(reason: string, delta: object = { content: 'a' }): string {
  return `[{"index":0,"delta":${JSON.stringify(delta)},"finish_reason":${reason}}]`;
}

const TOKEN = event('"usage":null', choice('null'));
const FINISH = event('"usage":null', choice('"stop"'));

/** Returns the usage from a stream with a usage event after its `finish_reason`. */
async function usageOf(written: string): Promise<object | undefined> {
  const whole = `{"choices":[{"message":{"content":"a"}}],"usage":${written}}`;
  const { usage } = await read(Buffer.from(whole));
  const stream = TOKEN + FINISH + event(`"usage":${written}`) + DONE;
  assert.deepEqual((await relay([Buffer.from(stream)])).usage, usage, 'stream and complete answer');
  return usage;
}

const COUNTS = { prompt_tokens: 12, completion_tokens: 34 };
const OPENAI = {
  ...COUNTS,
  total_tokens: 46,
  prompt_tokens_details: { cached_tokens: 8, audio_tokens: 0 },
  completion_tokens_details: { reasoning_tokens: 30, audio_tokens: 0 },
};
const READ = { ...COUNTS, cached_tokens: 8, reasoning_tokens: 30 };

const LINE = { ...READ, finish_reason: 'stop', outcome: 'ok' };
const PARTIAL = event({ usage: COUNTS }, choice('null'));
const WHOLE_STREAM = TOKEN + FINISH + event({ usage: OPENAI }) + DONE;
/** The provider's script, the access line, and the text after which the client leaves. */
const LINES: Record<string, [script: Script, line: object, leavesAfter?: string]> = {
  'of a complete answer': [
    (_, response) => sendJson(response, { ...completion(), usage: OPENAI }),
    LINE,
  ],
  'of a stream': [(_, response) => sendEvents(response, WHOLE_STREAM), LINE],
  'when the client left in the middle of a stream': [
    beginStream(PARTIAL),
    { ...COUNTS, outcome: 'client_closed', finish_reason: undefined },
    PARTIAL,
  ],
  'when the provider broke off in the middle of a stream': [
    (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(PARTIAL, () => response.destroy());
    },
    { ...COUNTS, outcome: 'upstream_error', finish_reason: undefined },
  ],
};
for (const [when, [script, line, leavesAfter]] of Object.entries(LINES)) {
  test(`the access line has the known usage and finish_reason ${when}`, async (t) => {
    const { gateway } = await scenario(t, { providers: { p: script } });
    const stream = !when.includes('complete');
    const client = openChat(gateway.port, chatBody({ stream }));
    if (leavesAfter) {
      await eventually(() => client.text() === leavesAfter, 'the first event');
      client.leave();
    }
    const told = await lineOf(gateway);
    for (const [name, value] of Object.entries(line)) assert.equal(told[name], value, name);
  });
}

test('model, finish_reason and usage of a complete answer are read in any order', async () => {
  const members = [
    '"model":"gpt-4o"',
    '"choices":[{"finish_reason":"length","message":{"content":"\\"usage\\":{\\"prompt_tokens\\":9}"}}]',
    '"usage":{"prompt_tokens":1,"note":"}\\"}{"}',
    '"others":[{"finish_reason":"no"}]',
    '"other":{"model":"no","usage":{"prompt_tokens":2},"finish_reason":"no","choices":1}',
  ];
  for (let turn = 0; turn < members.length; turn += 1) {
    members.push(members.shift()!);
    const facts = await read(Buffer.from(`{${members.join(',')}}`));
    const usage = { prompt_tokens: 1 };
    assert.deepEqual(facts, { model: 'gpt-4o', finishReason: 'length', usage });
  }
});

test('the usage of a complete answer is read however the answer is cut up', () =>
  withRandom(async (random) => {
    const bytes = Buffer.from(JSON.stringify({ ...completion(), usage: OPENAI }, null, 1));
    for (let round = 0; round < 200; round += 1) {
      // Rarely, because a long answer takes a hundred times as long.
      const readSo = round % 10 === 0 ? read : readOnce;
      const facts = await readSo(...cutUp(random, bytes));
      assert.deepEqual(facts, { model: 'm', finishReason: 'stop', usage: READ });
    }
  }));

test('a usage is read in the spelling of each provider, as whole numbers', async () => {
  const rest = { completion_tokens: 0 };
  const most = Number.MAX_SAFE_INTEGER;
  const cached = { ...COUNTS, cached_tokens: 8 };
  const noDetails = { prompt_tokens_details: null, completion_tokens_details: 1 };
  const table: [written: object | string, usage?: object][] = [
    [OPENAI, READ],
    [{ ...COUNTS, prompt_cache_hit_tokens: 8 }, cached],
    [cached, cached],
    [
      { ...cached, prompt_tokens_details: { cached_tokens: 0 } },
      { ...COUNTS, cached_tokens: 0 },
    ],
    [{ ...COUNTS, ...noDetails }, COUNTS],
    [{ prompt_tokens: most }, { prompt_tokens: most }],
    ['{"__proto__":{"prompt_tokens":1},"constructor":1}'],
    [`{"prompt_tokens":5,"x":${'{"x":'.repeat(200)}1${'}'.repeat(201)}`, { prompt_tokens: 5 }],
  ];
  const notCounts = ['-1', '1.5', '9007199254740992', '1e400', '"7"', 'null', 'true', '[7]'];
  for (const value of [...notCounts, '{"a":7}']) {
    table.push([`{"prompt_tokens":${value},"completion_tokens":0}`, rest]);
  }
  const none = ['null', '{}', '[]', '7', '"x"', '{"total_tokens":7}', '[{"prompt_tokens":7}]'];
  for (const value of none) table.push([value]);
  for (const [written, usage] of table) {
    const text = typeof written === 'string' ? written : JSON.stringify(written);
    assert.deepEqual(await usageOf(text), usage, text);
  }
});

test('a usage is read beside anything of any length', async () => {
  const padded = (bytes: number) => {
    const usage = { ...COUNTS, padding: '' };
    usage.padding = 'x'.repeat(bytes - JSON.stringify(usage).length);
    return JSON.stringify(usage);
  };
  for (const bytes of [100, 16_385, 1_048_576]) {
    assert.deepEqual(await usageOf(padded(bytes)), COUNTS);
  }
});

test('a usage in JSON that is not closed is ignored', async () => {
  const [brackets, closed] = ['['.repeat(9000), ']'.repeat(9000)];
  const whole = `{"choices":[],"usage":{"prompt_tokens":5,"x":${brackets}${closed}}}`;
  assert.deepEqual((await readOnce(Buffer.from(whole))).usage, { prompt_tokens: 5 });
  for (const open of [
    '{"prompt_tokens":1',
    '{"prompt_tokens":1,"x":"}',
    '{"x":{"prompt_tokens":1}',
    `{"x":${'['.repeat(16_000)}`,
    ...['\n', '\r', '\r\n'].map((lineEnd) => `{"prompt_tokens"${lineEnd}:1}}`),
  ]) {
    const cut = `${TOKEN}data: {"choices":[],"usage":${open}`;
    for (const events of [cut, `${cut}\n\n${FINISH}${DONE}`]) {
      assert.equal((await relay([Buffer.from(events)])).usage, undefined, events.slice(0, 300));
    }
  }
});

test('the last usage object of a stream counts, also within another member', async () => {
  const first = event('"usage":{"prompt_tokens":1}', choice('null'));
  const last = event('"usage" :\t{"prompt_tokens":2}', choice('"stop"'));
  const nested = event('"x_groq":{"id":"r","usage":{"prompt_tokens":3}}');
  const table: [events: string, tokens: number][] = [
    [first + last + DONE, 2],
    [last + first + DONE, 1],
    [first + last + TOKEN + FINISH + DONE, 2],
    [first + last + nested + DONE, 3],
    [event('"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":4}', choice('"stop"')) + DONE, 4],
  ];
  for (const [events, prompt_tokens] of table) {
    assert.deepEqual((await relay([Buffer.from(events)])).usage, { prompt_tokens }, events);
  }
});

test('the words of a message or of a tool call are never taken for facts', async () => {
  const said = `"usage":{"prompt_tokens":666},"finish_reason":"no","model":"no"`;
  const deltas = [
    { content: `{${said}}` },
    { content: `\\"usage":{"prompt_tokens":666},\\` },
    { content: 'usage', role: 'usage', model: undefined },
    { tool_calls: [{ index: 0, function: { name: 'usage', arguments: `{${said}}` } }] },
  ];
  for (const delta of deltas) {
    const events =
      event({ usage: COUNTS }, choice('"stop"')) + event('"x":1', choice('null', delta));
    const { text, ...facts } = await relay([Buffer.from(events + DONE)]);
    assert.deepEqual(facts, { model: 'm-1', finishReason: 'stop', usage: COUNTS });
    assert.equal(text, events + DONE);
  }
});

test('a stream is read alike with each line end, however it is cut up', () =>
  withRandom(async (random) => {
    const events = [
      [': hello\n\n', TOKEN, event('"usage":{"prompt_tokens":1}', choice('null'))],
      [`event: x\n${FINISH}`, event({ usage: OPENAI }), DONE, event('"usage":{"prompt_tokens":2}')],
    ].flat();
    for (const lineEnd of ['\n', '\r\n', '\r']) {
      const bytes = Buffer.from(events.join('').replaceAll('\n', lineEnd));
      for (let round = 0; round < 200; round += 1) {
        const { text, ...facts } = await relay(cutUp(random, bytes));
        assert.deepEqual(facts, { model: 'm-1', finishReason: 'stop', usage: READ });
        assert.ok(bytes.toString().startsWith(text));
      }
    }
  }));

test('an event above 256 KiB is read alike with each line end, however it is cut up', () =>
  withRandom(async (random) => {
    const usage = JSON.stringify(OPENAI).replaceAll(',', ',\ndata: ');
    const members = ['"model":"m-1"', `"x":"${'x'.repeat(262_144)}"`, `"usage":${usage}`];
    members.push(`"choices":${choice('"stop"')}`);
    for (const lineEnd of ['\n', '\r\n', '\r']) {
      for (let round = 0; round < 20; round += 1) {
        members.push(members.shift()!);
        const long = `: hello\nid: 1\n: x\ndata: {${members.join(',\ndata:')}}\n\n`;
        const bytes = Buffer.from((long + DONE).replaceAll('\n', lineEnd));
        const { text, ...facts } = await relay(cutUp(random, bytes));
        assert.deepEqual(facts, { model: 'm-1', finishReason: 'stop', usage: READ });
        assert.ok(bytes.toString().startsWith(text) && bytes.length - text.length < 2, lineEnd);
      }
    }
  }));

test('an event that does not pass gives no facts', async () => {
  const error = event('"error":{"message":"no"},"usage":{"prompt_tokens":9}', choice('"error"'));
  for (const pieces of [[TOKEN + error], [TOKEN, error]]) {
    const { text, ...facts } = await relay(pieces.map((piece) => Buffer.from(piece)));
    assert.ok(text.startsWith(`${TOKEN}data: {"error":`));
    assert.deepEqual(facts, { model: 'm-1', finishReason: undefined, usage: undefined });
  }
});

test('a finish_reason is a first word of at most 32 characters, and the last counts', async () => {
  const long = 'x'.repeat(33);
  const table: [reasons: string[], expected?: string][] = [
    [['"tool_calls"'], 'tool_calls'],
    [['"content_filter: OTHER"'], 'content_filter'],
    [[`"${long.slice(1)}"`], long.slice(1)],
    [['"length"', 'null', '""', '"null"'], 'length'],
    [['"length"', '"stop"'], 'stop'],
  ];
  const none = [
    `"${long}"`,
    `"${'x'.repeat(100_000)}"`,
    '"\\u0007\\n"',
    '"\u001b[31m"',
    '"\u00e9"',
  ];
  for (const reason of [...none, 'null', '7']) table.push([[reason]]);
  for (const [reasons, expected] of table) {
    const events = reasons.map((reason) => event('"x":1', choice(reason))).join('');
    const { finishReason } = await relay([Buffer.from(events + DONE)]);
    assert.equal(finishReason, expected, events.slice(0, 200));
    if (reasons.length > 1 || reasons[0]!.includes('\u001b')) continue;
    const answer = `{"choices":${choice(reasons[0]!)}}`;
    assert.equal((await read(Buffer.from(answer))).finishReason, expected, answer.slice(0, 200));
  }
});

test('the model is the first text, if it has at most 64 printable characters', async () => {
  const table: [models: string[], expected: string | undefined][] = [
    [['meta-llama/Llama-3.3-70B (fp8)'], 'meta-llama/Llama-3.3-70B (fp8)'],
    [['', 'gpt-4o', 'gpt-4'], 'gpt-4o'],
    [['m'.repeat(64)], 'm'.repeat(64)],
    [['m'.repeat(65)], undefined],
    [['a\\nb', 'c'], undefined],
    [['\u00e9'], undefined],
    [['\u007f'], undefined],
  ];
  for (const [models, expected] of table) {
    const events = models.map((model) => `data: {"model":"${model}","choices":[]}\n\n`);
    for (const pieces of [[events.join('') + FINISH], [...events, FINISH]]) {
      const { model } = await relay(pieces.map((piece) => Buffer.from(piece)));
      assert.equal(model, expected ?? undefined, events.join(''));
    }
    if (models.length > 1) continue;
    const { model } = await read(Buffer.from(`{"model":"${models[0]}","choices":[]}`));
    assert.equal(model, expected, events.join(''));
  }
});

test('facts are read from their own members only', async () => {
  const events = [
    'data: {"choices":[],"usages":{"prompt_tokens":1},"usag":{"prompt_tokens":1}}\n\n',
    'data: {"choices":["usage",{"prompt_tokens":1},"model","a",{"model":1,"finish_reason":{"usage":7}}]}\n\n',
    DONE,
  ];
  const { text: _, ...facts } = await relay([Buffer.from(events.join(''))]);
  assert.deepEqual(facts, { model: undefined, finishReason: undefined, usage: undefined });
  const answer = '{"choices":[{"finish_reason":null},{"finish_reason":"a"},{"finish_reason":"b"}]}';
  assert.equal((await read(Buffer.from(answer))).finishReason, 'a');
});

interface ReaderOptions {
  /** The gateway has asked for the usage, and removes it. */
  readonly usageAdded?: boolean;
  readonly emptyAnswers?: 'pass' | 'fail';
}

/** Pushes the pieces. Returns what passes for each, and the error's message. */
function readEvents(
  pieces: readonly string[],
  { usageAdded = false, emptyAnswers = 'pass' }: ReaderOptions = {},
) {
  const context = newReplyContext();
  context.attempt.usageAdded = usageAdded;
  const { services } = context;
  const server = { ...services.config.server, emptyAnswers };
  const config = { ...services.config, server };
  const reader = new EventReader({ ...context, services: { ...services, config } });
  const found: PassedEvents[] = [];
  const take = (events: PassedEvents) => {
    found.push(events);
    return events;
  };
  const passed = () =>
    found.map(({ before = [], toPass }) => Buffer.concat([...before, toPass]).toString());
  const push = (text: string) => take(reader.push(Buffer.from(text)));
  const finish = () => take(reader.finish());
  for (const piece of pieces) push(piece);
  const error = () => found.find((one) => one.error)?.error;
  return { reader, push, finish, passed, error };
}

const BEGUN = event('"a":1', choice('null'));
const errorText = (text: string) => `data: {"error":{"message":"${text}"}}\n\n`;

test('events pass up to an error, or to [DONE] and its line end', () => {
  const { passed, error } = readEvents([BEGUN + BEGUN + errorText('boom') + BEGUN]);
  assert.deepEqual(passed(), [BEGUN + BEGUN]);
  assert.match(error()!.message, /boom$/);
  const rows: readonly (readonly [text: string, passed: string, isEndOpen: boolean])[] = [
    [`${BEGUN}${DONE}`, `${BEGUN}${DONE}`, false],
    [`${DONE}${BEGUN}`, DONE, false],
    ['data: [DONE]\r\r', 'data: [DONE]\r\r', true],
    ['data: [DONE]\r\rdata: x\r\r', 'data: [DONE]\r\r', false],
    ['data: [DONE]\r\n\r\n', 'data: [DONE]\r\n\r\n', false],
  ];
  for (const [text, expected, isEndOpen] of rows) {
    const { reader, passed: texts } = readEvents([text]);
    assert.deepEqual(texts(), [expected]);
    assert.deepEqual([reader.isDone, reader.isEndOpen], [true, isEndOpen], text);
  }
});

test('an error is found by its JSON or name, and before the answer by its message', () => {
  const long = `"x":"${'x'.repeat(262_144)}"`;
  const always = [
    'data: {"error":"boom"}',
    'data: {"object":"error","message":"boom"}',
    'event: error\ndata: boom',
    'event: error\ndata: {"a":1}',
    `event: error\ndata: {${long}}`,
    `data: {"error":"boom",${long}}`,
    '{"error":"boom"}',
    '{\n"error":\n"boom"}',
    'error: {"message":"boom"}',
    '{"error":"boom"}\ndata: [DONE]',
    '{"error":"boom"}\ndata: {"choices":[]}',
  ];
  const early = ['data: {"detail":"boom"}', 'data: {"code":500,"msg":"boom"}', '{"msg":"boom"}'];
  const never = [
    'data: {"error":null,"choices":[]}',
    'data: {"error":{}}',
    `data: {${long},"choices":[]}`,
    'data: {"choices":[],"message":"boom"}',
    '{"choices":[{}],"msg":"boom"}',
    '{"error":"boom"',
    'event: error',
    ': {"error":"boom"}',
  ];
  for (const text of [...always, ...early, ...never]) {
    const isFirst = readEvents([`${text}\n\n`]).error() !== undefined;
    const isLater = readEvents([BEGUN, `${text}\n\n`]).error() !== undefined;
    const expected = [!never.includes(text), always.includes(text)];
    assert.deepEqual([isFirst, isLater], expected, text.slice(0, 60));
  }
});

test('a long error that is not JSON shows the beginning of its text', () => {
  const text = `event: error\ndata: boom ${'x'.repeat(300_000)}\n\n`;
  const found = readEvents([text.slice(0, 9), text.slice(9)]);
  assert.match(found.error()!.message, /^API error: 502 - boom x{400,}/);
});

test('the answer begins with the first event that is neither a preamble nor [DONE]', () => {
  const stateOf = (text: string, options?: ReaderOptions) => {
    const { hasBegun, hasPreamble, hasOtherLines, rules } = readEvents([text], options).reader;
    const { hasChoice } = rules;
    return Object.entries({ hasBegun, hasPreamble, hasChoice, hasOtherLines })
      .filter(([, isTrue]) => isTrue)
      .map(([name]) => name)
      .join(' ');
  };
  const role = event('"a":1', choice('null', { role: 'assistant' }));
  const stopped = event('"a":1', choice('"stop"', {}));
  assert.equal(stateOf(BEGUN), 'hasBegun hasChoice');
  assert.equal(stateOf(role), 'hasPreamble hasChoice');
  assert.equal(stateOf(role + BEGUN), 'hasBegun hasPreamble hasChoice');
  assert.equal(stateOf(event('"a":1')), 'hasPreamble');
  assert.equal(stateOf('data: x\n\n'), 'hasBegun');
  assert.equal(stateOf(stopped), 'hasBegun hasChoice');
  assert.equal(stateOf(stopped, { emptyAnswers: 'fail' }), 'hasPreamble hasChoice');
  assert.equal(stateOf(DONE), '');
  assert.equal(stateOf(': comment\n\n'), '');
  assert.equal(stateOf('<html>\n\n'), 'hasOtherLines');
});

test('an answer is finished when each of its choices is', () => {
  const indexed = (index: unknown, reason?: string, content?: string) =>
    ({ index, delta: content ? { content } : {}, finish_reason: reason }) as const;
  type Choice = ReturnType<typeof indexed>;
  const isFinished = (...events: readonly (readonly Choice[])[]) => {
    const texts = events.map((choices) => event('"a":1', JSON.stringify(choices)));
    return readEvents(texts).reader.rules.isFinished;
  };
  const token = indexed(0, undefined, 'a');
  const end = indexed(0, 'stop');
  assert.equal(isFinished(), false);
  assert.equal(isFinished([]), false);
  assert.equal(isFinished([token]), false);
  assert.equal(isFinished([token], [end]), true);
  assert.equal(isFinished([indexed(0, 'stop', 'a')]), true);
  assert.equal(isFinished([token], [indexed(undefined, 'length')]), true);
  // A second choice is open, and is then finished.
  assert.equal(isFinished([token, indexed(1)], [end]), false);
  assert.equal(isFinished([token, indexed(1)], [end], [indexed(1, 'stop')]), true);
  assert.equal(isFinished([end], [indexed(1)]), false);
  // Only an event without content finishes a choice again.
  assert.equal(isFinished([end], [end]), true);
  assert.equal(isFinished([end], [token]), false);
  assert.equal(isFinished([end], [token], [token], [end]), true);
  assert.equal(isFinished([end], [indexed(0, 'stop', 'a')]), false);
  assert.equal(isFinished([end], [indexed(0, 'stop', 'a')], [end]), true);
  assert.equal(isFinished([end], [token], [indexed(0, 'stop', 'a')]), false);
  assert.equal(isFinished([token], [end], [indexed(0)]), true);
  // Choices after the first thousand are not noted.
  const ended = Array.from({ length: 1000 }, (_, index) => indexed(index, 'stop'));
  assert.equal(isFinished([...ended, indexed(1000)]), true);
  assert.equal(isFinished([...ended.slice(1), indexed(1000)]), false);
});

test('a usage chunk that the gateway asked for is removed with its line end', () => {
  const usage = (end: string) => `data: {"choices":[],"usage":{"total_tokens":1}}${end}`;
  const token = (end: string) => `data: {"choices":[{"delta":{"content":"a"}}]}${end}`;
  const [begun, rest] = [`data: {"x":"${'x'.repeat(200_000)}`, `${'x'.repeat(100_000)}"}\r\r`];
  const rows: readonly (readonly [pieces: string[], passed: string[]])[] = [
    [[token('\n\n') + usage('\n\n') + token('\n\n')], [token('\n\n') + token('\n\n')]],
    [[usage('\n\n')], ['']],
    [[`${usage('\n\n')}${token('\n\n')}`.repeat(2)], [token('\n\n').repeat(2)]],
    [
      [usage('\r\r'), `\n${token('\r\r')}`],
      ['', token('\r\r')],
    ],
    [
      [usage('\r\r'), token('\r\r')],
      ['', token('\r\r')],
    ],
    [
      [usage('\r\r'), '', `\n${token('\r\r')}`],
      ['', '', token('\r\r')],
    ],
    [
      [usage('\r\r') + token('\r\r'), `\n${token('\r\r')}`],
      [token('\r\r'), `\n${token('\r\r')}`],
    ],
    [
      [usage('\n\n'), `\n${token('\n\n')}`],
      ['', `\n${token('\n\n')}`],
    ],
    [
      [usage('\r\r'), begun, rest, `\n${token('\r\r')}`],
      ['', '', begun + rest, `\n${token('\r\r')}`],
    ],
    [
      [usage('\r\r'), `\n${token('\n\n')}`, `\n${token('\n\n')}`],
      ['', token('\n\n'), `\n${token('\n\n')}`],
    ],
  ];
  for (const [pieces, expected] of rows) {
    const added = readEvents([token('\n\n'), ...pieces], { usageAdded: true });
    assert.deepEqual(added.passed().slice(1), expected, JSON.stringify(pieces));
    const kept = readEvents([token('\n\n'), ...pieces]);
    assert.equal(kept.passed().slice(1).join(''), pieces.join(''));
  }
});

test('at the end, a whole event gets its blank line, and part of an event is a cut', () => {
  const rows: readonly (readonly [text: string, passed: string, problem?: string])[] = [
    ['data: [DONE]', 'data: [DONE]\n\n'],
    ['data: [DONE]\n', 'data: [DONE]\n\n'],
    ['data: {"choices":[]}', 'data: {"choices":[]}\n\n'],
    ['data: {"choices":[]}\n', 'data: {"choices":[]}\n\n'],
    ['event: a\ndata: {"choices":[]}\r', 'event: a\ndata: {"choices":[]}\r\n\n'],
    ['data: {"choices":[', '', 'cut'],
    ['data: {"choices":[]}\ndata: {', '', 'cut'],
    ['{"choices":[', '', 'cut'],
    ['', ''],
    [': comment', ''],
    ['data:', ''],
    ['<html>', ''],
  ];
  for (const [text, expected, problem] of rows) {
    const { finish, passed, error, reader } = readEvents([BEGUN, text]);
    finish();
    assert.equal(passed().at(-1), expected, text);
    assert.equal(error()?.details.problem, problem, text);
    assert.equal(reader.hasOtherLines, /^[<{]/.test(text), text);
  }
  const failed = readEvents([BEGUN, '{"error":"boom"}']);
  failed.finish();
  assert.match(failed.error()!.message, /boom$/);
});

test('a long event passes in its parts, and the events behind it are read', () => {
  const long = `data: {"choices":[],"x":"${'x'.repeat(200_000)}`;
  const rest = `${'x'.repeat(100_000)}"`;
  const { passed, push, reader } = readEvents([long]);
  const first = push(`${rest},"usage":{"total_tokens":7}}\n\n${BEGUN}data: {`);
  assert.equal(first.before?.length, 2);
  assert.equal(passed().join(''), `${long}${rest},"usage":{"total_tokens":7}}\n\n${BEGUN}`);
  assert.deepEqual([reader.hasBegun, reader.isEventPassed], [true, false]);
  push('"choices":[]}\n\n');
  assert.equal(passed().at(-1), 'data: {"choices":[]}\n\n');
  const data = (pieces: string[]) => readEvents(pieces).reader.isAlive;
  assert.equal(data([long, `${rest}}\n\n: comment\n\n`]), true, 'the long event is data');
  assert.equal(data([long, `${rest}}\n\n`, ': comment\n\n']), false);
  const behind = readEvents([long, `${rest}}\n\n${errorText('boom')}`]);
  assert.equal(behind.passed().join(''), `${long}${rest}}\n\n`);
  assert.match(behind.error()!.message, /boom$/);
  // With short data, the event is parsed although another field makes it long.
  const id = `id: ${rest}${rest}${rest}\n`;
  const short = readEvents([id, BEGUN + BEGUN]);
  assert.equal(short.passed().join(''), id + BEGUN + BEGUN);
  assert.match(readEvents([id, errorText('boom')]).error()!.message, /boom$/);
  assert.equal(readEvents([id, id, '\n']).reader.hasBegun, false, 'no data');
});

test('an unfinished event that has passed on is no error, and neither is the next by it', () => {
  const { reader, push, passed, error } = readEvents([]);
  const part = 'data: {"error":"a';
  const { before = [] } = reader.pushUnfinished(Buffer.from(BEGUN + part));
  assert.equal(Buffer.concat(before).toString(), BEGUN + part);
  assert.equal(reader.isEventPassed, true);
  push(`"}\n\n${BEGUN}`);
  assert.equal(passed().join(''), `"}\n\n${BEGUN}`);
  assert.deepEqual([error(), reader.isEventPassed], [undefined, false]);
  push(errorText('boom'));
  assert.match(error()!.message, /boom$/);
  const ended = readEvents([]);
  ended.reader.pushUnfinished(Buffer.from(part));
  ended.finish();
  assert.deepEqual([ended.passed(), ended.error()], [['\n\n'], undefined]);
});
