/**
 * Random streams and complete answers of each endpoint, short and padded beyond 256 KiB, and random
 * streams with and without a parse of each event: the client gets the same, and the log has the
 * same facts. FUZZ_CASES makes 5,000 of each in place of 500. A
 * failure names its seed, and FUZZ_SEED begins with it.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { encodeEvent } from '../../src/lib/sse.ts';
import { COMPLETIONS } from '../../src/protocol/completions.ts';
import { EMBEDDINGS } from '../../src/protocol/embeddings.ts';
import { CHAT } from '../../src/protocol/chat.ts';
import { ChoiceStream } from '../../src/protocol/choices.ts';
import type { AnswerNotes, Endpoint, StreamRules } from '../../src/protocol/endpoint.ts';
import { COUNT_TOKENS, MESSAGES } from '../../src/protocol/messages.ts';
import { RESPONSES } from '../../src/protocol/responses.ts';
import type { AttemptContext } from '../../src/upstream/answers/attempt-context.ts';
import { openCompleteAnswer } from '../../src/upstream/answers/complete-answer.ts';
import { bodyOf } from '../support/byte-source.ts';
import { createRandom, type Random, SEED as FIXED_SEED } from '../support/random.ts';
import {
  newReplyContext,
  RecordedReply,
  relayStream,
  replyWith,
} from '../support/reply-context.ts';
import { eventually } from '../support/streams.ts';

const CASES = process.env['FUZZ_CASES'] ? 5000 : 500;
const SEED = Number(
  process.env['FUZZ_SEED'] ?? (process.env['FUZZ_CASES'] ? Date.now() % 2 ** 31 : FIXED_SEED),
);
const MANY_CASES = { timeout: 3_600_000 };
const PAD = 'x'.repeat(265_000);
/** With more long preambles the answer would begin. */
const MAX_PADDED = 3;

const ERRORS = [
  { error: { message: 'boom', code: 429 } },
  { error: { message: `${'b'.repeat(600)}oom`, type: 'overloaded_error' } },
  { error: { message: 'no', code: 'invalid_prompt' }, status: 'failed' },
  { error: {} },
  { error: 0 },
  { errors: [{ message: 'boom' }] },
  { message: 'hm' },
  { detail: [{ msg: 'hm', loc: ['a', 1] }] },
  { type: 'error', message: 'e', code: 'rate_limit_exceeded' },
  { base_resp: { status_code: 1004, status_msg: 'no' } },
  {},
];
const USAGES = [
  null,
  { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 },
  { input_tokens: 5, output_tokens: 6, input_tokens_details: { cached_tokens: 1 } },
  { prompt_tokens: 3, prompt_tokens_details: { cached_tokens: 2 } },
];
const REASONS = [null, null, null, '', 'null', 'stop', 'length', 'network_error'];

function choice(random: Random): object {
  const content = { content: random.pick(['a', '', 'é "x"']) };
  const calls = { tool_calls: random.pick([[], [{ index: 1, function: { arguments: '{}' } }]]) };
  return {
    index: random.pick([0, 0, 0, 1]),
    delta: random.pick([content, content, {}, { role: 'assistant' }, calls]),
    text: random.pick([undefined, undefined, '', 'a']),
    finish_reason: random.pick(REASONS),
    usage: random.pick([undefined, undefined, undefined, ...USAGES]),
  };
}

function chunk(random: Random): object {
  const choices = Array.from({ length: random.pick([0, 1, 1, 1, 1, 2]) }, () => choice(random));
  const usage = random.pick([undefined, undefined, ...USAGES]);
  const xGroq = random.oneIn(8) ? { usage: random.pick(USAGES) } : undefined;
  return { model: random.pick(['m', 'm', 'n', '']), choices, usage, x_groq: xGroq };
}

const TYPES = ['created', 'in_progress', 'output_item.added', 'output_text.delta', 'keep_alive'];
const ENDS = ['completed', 'incomplete', 'failed'];

function response(random: Random): object {
  const output = random.pick([[], [{ type: 'message', content: [{ type: 'a', text: 'a' }] }]]);
  return {
    model: random.pick(['m', undefined]),
    status: random.pick(ENDS),
    incomplete_details: random.pick([null, { reason: 'max_output_tokens' }]),
    error: random.pick([null, { code: 'server_error', message: 'boom' }]),
    usage: random.pick(USAGES),
    output,
  };
}

function responseEvent(random: Random): object {
  const type = random.pick([...TYPES, ...TYPES, ...ENDS]);
  return {
    type: random.pick([`response.${type}`, `response.${type}`, `response.${type}`, 'keepalive']),
    response: random.oneIn(3) || ENDS.includes(type) ? response(random) : undefined,
    item: type.includes('item') ? { id: 'i', content: random.pick([[], [{}], [1]]) } : undefined,
  };
}

const blockOf = (random: Random) => random.pick([{ type: 'text', text: '' }, { text: 'a' }, {}]);

function newMessage(random: Random): object {
  return {
    model: random.pick(['m', undefined]),
    stop_reason: random.pick([null, 'end_turn', 'max_tokens']),
    content: Array.from({ length: random.integer(0, 2) }, () => blockOf(random)),
    usage: random.pick([...USAGES, { input_tokens: 3, cache_read_input_tokens: 2 }]),
  };
}

function messageEvent(random: Random): object {
  const type = random.pick(['message_start', 'ping', 'content_block_delta', 'message_delta']);
  return {
    type: random.oneIn(6) ? 'message_stop' : type,
    message: type === 'message_start' ? newMessage(random) : undefined,
    delta: random.pick([{ text: 'a' }, { stop_reason: 'end_turn' }]),
    usage: random.pick([undefined, { output_tokens: 4 }]),
  };
}

/** Returns JSON, now and then an error, with a place for the pad. */
function written(random: Random, json: object): string {
  const members = JSON.stringify(random.oneIn(10) ? random.pick(ERRORS) : json).slice(1, -1);
  const comma = members === '' ? '' : ',';
  return random.oneIn(2) ? `{"pad":"@"${comma}${members}}` : `{${members}${comma}"pad":"@"}`;
}

function stream(random: Random, endpoint: Endpoint): string {
  const generateEvent =
    { [RESPONSES.path]: responseEvent, [MESSAGES.path]: messageEvent }[endpoint.path] ?? chunk;
  let text = random.pick(['', '', '\ufeff', ': hi\n\n']);
  for (let count = random.integer(1, 7); count > 0; count -= 1) {
    const json = generateEvent(random);
    if (random.oneIn(10)) text += ': c\n';
    if (random.oneIn(8)) text += `event: ${random.pick(['message', 'error', 'ping'])}\n`;
    const other = random.pick(['[DONE]', ' [DONE] ', '{broken', '7']);
    text += `data: ${random.oneIn(15) ? other : written(random, json)}\n\n`;
    if (random.oneIn(25)) text += 'event: ping\n\n';
  }
  if (random.oneIn(2)) text += 'data: [DONE]\n\n';
  if (random.oneIn(10)) text = text.slice(0, random.integer(0, text.length));
  return text.replaceAll('\n', random.pick(['\n', '\n', '\r\n', '\r']));
}

function cutUp(random: Random, text: string): Buffer[] {
  const bytes = Buffer.from(text);
  const pieces: Buffer[] = [];
  const longest = text.length > PAD.length ? 120_000 : 100;
  for (let at = 0; at < bytes.length; at += pieces.at(-1)!.length) {
    pieces.push(bytes.subarray(at, at + random.integer(1, longest)));
  }
  return pieces;
}

interface Options {
  readonly endpoint: Endpoint;
  readonly usageAdded: boolean;
  readonly emptyAnswers: 'pass' | 'fail';
}

function newContext({ endpoint, usageAdded, emptyAnswers }: Options, reply: RecordedReply) {
  const context = newReplyContext(reply);
  context.attempt.usageAdded = usageAdded;
  const { call, services } = context;
  const server = { ...services.config.server, emptyAnswers };
  return {
    ...context,
    call: { ...call, history: { ...call.history, endpoint } },
    services: { ...services, config: { ...services.config, server } },
  };
}

/** Returns what the client gets, without the pads, and the facts for the log. */
async function outcomeOf(
  options: Options,
  run: (context: AttemptContext, reply: RecordedReply) => Promise<void>,
) {
  const reply = new RecordedReply();
  const context = newContext(options, reply);
  let failure: readonly unknown[] = [];
  try {
    await run(context, reply);
  } catch (thrown) {
    if (!(thrown instanceof GatewayError)) throw thrown;
    const { kind, message, scope, status, details } = thrown;
    failure = [kind, message, scope, status, details.problem, details.retry];
    if (reply.headersSent) reply.write(encodeEvent(thrown.toBody()));
  }
  const { responseModel, finishReason, usage } = context.attempt;
  const counts = Object.values(usage ?? {}).some((count) => count !== undefined);
  return {
    text: Buffer.concat(reply.parts).toString().replaceAll(PAD, ''),
    failure,
    responseModel,
    finishReason,
    usage: counts ? usage : undefined,
  };
}

const relay = (options: Options, pieces: readonly Buffer[]) =>
  outcomeOf(options, async (context, reply) => {
    await relayStream(bodyOf(pieces), context, reply);
    await eventually(() => reply.hasEnded, 'the end');
  });

const answer = (options: Options, pieces: readonly Buffer[]) =>
  outcomeOf(options, async (context, reply) => {
    const whole = { ...context, isStream: false };
    const opened = await openCompleteAnswer(replyWith(bodyOf(pieces)), {}, whole);
    await opened.deliver(reply);
  });

/** Compares short and long for each case. */
async function compareAll(
  endpoint: Endpoint,
  generate: (random: Random) => string,
  read: typeof relay,
): Promise<void> {
  for (let seed = SEED; seed < SEED + CASES; seed += 1) {
    const random = createRandom(seed);
    const text = generate(random);
    const usageAdded = [CHAT, COMPLETIONS].includes(endpoint) && random.oneIn(3);
    const options = { endpoint, usageAdded, emptyAnswers: random.pick(['pass', 'fail'] as const) };
    let padded = 0;
    const pad = () =>
      padded < MAX_PADDED && !random.oneIn(3) ? `"${(padded += 1) && PAD}"` : '""';
    const long = text.replaceAll('"@"', pad);
    const short = text.replaceAll('"@"', '""');
    const about = `${JSON.stringify(text)}\n(repeat with FUZZ_SEED=${seed})`;
    const expected = await read(options, cutUp(random, short));
    assert.deepEqual(await read(options, cutUp(random, long)), expected, about);
  }
}

for (const endpoint of [CHAT, COMPLETIONS, RESPONSES, MESSAGES]) {
  test(`streams of ${endpoint.path} with long events read as with short events`, MANY_CASES, () =>
    compareAll(endpoint, (random) => stream(random, endpoint), relay),
  );
}

const COMPLETED = { message: { role: 'assistant', content: 'a' }, finish_reason: 'stop' };
for (const endpoint of [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES, COUNT_TOKENS]) {
  test(`long answers of ${endpoint.path} read as short answers`, MANY_CASES, () =>
    compareAll(
      endpoint,
      (random) => {
        const completion = { ...chunk(random), choices: random.pick([[], [COMPLETED], [{}]]) };
        const list = { object: 'list', data: [{ embedding: [0, 1] }], usage: random.pick(USAGES) };
        const json = {
          [RESPONSES.path]: response(random),
          [EMBEDDINGS.path]: list,
          [MESSAGES.path]: newMessage(random),
          [COUNT_TOKENS.path]: { input_tokens: 3 },
        };
        return written(random, json[endpoint.path] ?? completion);
      },
      answer,
    ),
  );
}

const FIRST = '{"model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}';
const VALUES = [...USAGES, [], {}, 0, 5, '', 'x'];
const OTHERS = ['data:', 'data: [DONE]', 'data: 7', 'id: 1', 'event: ping', 'error: {}', '{"a":1}'];
const LINES = ['id: 1', ': "usage":{}', 'event: message', 'event: error', 'data:', '{"error":1}'];

/** Returns a chunk that is usually plain, and has now and then what a parse alone can tell. */
function plainChunk(random: Random): object {
  if (random.oneIn(25)) return random.pick([...ERRORS, { object: 'error', message: 'e' }]);
  const usage = random.oneIn(3) ? random.pick(VALUES) : undefined;
  const calls = [{ index: random.pick([0, 0, 1]), function: { arguments: '{}' } }];
  const delta = random.oneIn(8)
    ? { tool_calls: calls }
    : { content: random.pick(['a', 'é\n', '']) };
  const first = {
    index: random.oneIn(20) ? 1 : random.pick([0, 0, undefined]),
    delta,
    finish_reason: random.oneIn(12) ? random.pick(REASONS) : null,
  };
  const choices = random.oneIn(8) ? [] : [first];
  const place = random.pick(['top', 'top', 'choice', 'x_groq', 'note']);
  if (place === 'top') return { choices, usage };
  if (place === 'choice') return { choices: choices.map((one) => ({ ...one, usage })) };
  return { choices, [place]: { usage } };
}

/** Escapes a letter of a name or a short value. */
const escapeLetter = (random: Random, json: string) =>
  json.replaceAll(/"[a-z_]+"/g, (name) => {
    if (!random.oneIn(3)) return name;
    const at = random.integer(1, name.length - 2);
    const code = name.charCodeAt(at).toString(16).padStart(4, '0');
    return `${name.slice(0, at)}\\u${random.oneIn(2) ? code : code.toUpperCase()}${name.slice(at + 1)}`;
  });

/** Returns an event that is usually plain, else broken, escaped, spaced or on several lines. */
function plainEvent(random: Random): string {
  if (random.oneIn(25)) return `${random.pick(OTHERS)}\n\n`;
  let json = JSON.stringify(plainChunk(random));
  if (random.oneIn(10)) json = escapeLetter(random, json);
  if (random.oneIn(10)) json = json.replaceAll(/":(?=["{[])/g, random.pick(['": ', '" \t:\t']));
  if (random.oneIn(12)) json = json.slice(0, random.integer(1, json.length));
  if (random.oneIn(10))
    json = json.replaceAll(/[:,{]/g, (one) => (random.oneIn(4) ? `${one}@` : one));
  const lines = [`data:${random.pick(['', ' ', ' ', '  '])}${json.replaceAll('@', '\ndata: ')}`];
  if (random.oneIn(15)) lines.unshift(random.pick(LINES));
  if (random.oneIn(15)) lines.push(random.pick(LINES));
  return `${random.oneIn(10) ? ': c\n\n' : ''}${lines.join('\n')}\n\n`;
}

test(
  'streams of chat read the same with and without a parse of each event',
  MANY_CASES,
  async () => {
    let skims = 0;
    /** Chat with other rules for streams. */
    const chat = (change: (rules: StreamRules) => StreamRules['skim']): Endpoint => ({
      ...CHAT,
      Stream: class extends ChoiceStream {
        constructor(notes: AnswerNotes, failsEmpty: boolean) {
          super(notes, failsEmpty);
          Object.assign(this, { skim: change(this) });
        }
      },
    });
    const skimmed = chat((rules) => {
      const skim = rules.skim!.bind(rules);
      return (events) => {
        const isPlain = skim(events);
        skims += Number(isPlain);
        return isPlain;
      };
    });
    const parsed = chat(() => undefined);
    for (let seed = SEED; seed < SEED + CASES; seed += 1) {
      const random = createRandom(seed);
      let text = `data: ${FIRST}\n\n`;
      for (let count = random.integer(1, 12); count > 0; count -= 1) text += plainEvent(random);
      if (random.oneIn(3)) text += 'data: [DONE]\n\n';
      text = text.replaceAll('\n', random.pick(['\n', '\n', '\r\n', '\r']));
      const pieces = cutUp(random, text);
      const options = { usageAdded: random.oneIn(4), emptyAnswers: 'pass' } as const;
      assert.deepEqual(
        await relay({ ...options, endpoint: skimmed }, pieces),
        await relay({ ...options, endpoint: parsed }, pieces),
        `${JSON.stringify(text)}\n(repeat with FUZZ_SEED=${seed})`,
      );
    }
    assert.ok(skims > CASES, `only ${skims} skims`);
  },
);
