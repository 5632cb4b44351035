/** Providers' replies: completions, streams in recorded shapes, and every kind of failure. */

import { STATUS_CODES } from 'node:http';

import type { Random } from '../support/random.ts';
import {
  COMMENTS,
  EMPTY_DELTAS,
  errorEvent,
  otherDeltas,
  spellBare,
  spellDone,
  spellEvent,
  spellReported,
  spellStatus,
} from './dialects.ts';
import { NETWORK_FAULTS, type Ask, type Item, type Reply } from './plan.ts';

type AskedFor = Pick<Ask, 'id' | 'chat'>;
type Pair = readonly [name: string, value: string];

const JSON_TYPE: Pair = ['content-type', 'application/json'];
const STREAM_TYPE: Pair = ['content-type', 'text/event-stream; charset=utf-8'];
const STREAM_TYPES: readonly Pair[] = [
  STREAM_TYPE,
  ['content-type', 'text/event-stream'],
  ['content-type', 'Text/Event-Stream;charset=UTF-8'],
];
const NO_TYPE: Pair = ['content-type', 'application/octet-stream'];
const NO_CODING = (random: Random): Pair => [
  'content-encoding',
  random.pick(['identity', 'Identity', 'none', 'UTF-8', 'utf8', 'identity, none']),
];
const PLAIN: Omit<Reply, 'items' | 'headers'> = {
  connectMs: 0.11,
  headMs: 2.3,
  connection: 'new',
  status: 200,
  end: 'end',
  endMs: 0.2,
  rest: '',
};
/** The number of tokens: mostly few, sometimes many. */
const tokensOf = (random: Random) => random.pick([8, 8, 8, 40, 300]);

function usageOf(tokens: number, random?: Random) {
  const details = {
    prompt_tokens_details: { cached_tokens: 2 },
    completion_tokens_details: { reasoning_tokens: tokens - 5, audio_tokens: 0 },
  };
  const counts = { prompt_tokens: 3, completion_tokens: tokens - 3, total_tokens: tokens };
  return random?.oneIn(3) ? { ...counts, ...details } : counts;
}

const REASONS = ['stop', 'stop', 'stop', 'length', 'tool_calls'];

interface Content {
  readonly content: string;
  readonly finish_reason?: string;
  readonly usage?: unknown;
}

/** Returns the answer to a request at its endpoint, as JSON. */
function completion(
  { id, chat }: AskedFor,
  { content, finish_reason = 'stop', usage = usageOf(8) }: Content,
): Item {
  const json = (whole: object): Item => {
    return { kind: 'json', text: JSON.stringify(whole), waitMs: 0.3 };
  };
  if (chat?.answersWith === 'embeddings') {
    const data = [{ object: 'embedding', index: 0, embedding: [0.25, -1e-7, content.length] }];
    return json({ id, object: 'list', model: 'm', data, usage });
  }
  if (chat?.answersWith === 'text') {
    const choice = { index: 0, text: content, finish_reason };
    return json({ id, object: 'text_completion', model: 'm', choices: [choice], usage });
  }
  const choice = { index: 0, message: { role: 'assistant', content }, finish_reason };
  return json({ id, object: 'chat.completion', model: 'm', choices: [choice], usage });
}

const A_COMPLETION = completion({ id: 'x', chat: undefined }, { content: 'y' });

/** Returns a complete answer in some shape. */
function someCompletion(ask: AskedFor, random: Random): Item {
  const { id } = ask;
  const isOfEmbeddings = ask.chat?.answersWith === 'embeddings';
  const tokens = tokensOf(random);
  const whole = usageOf(tokens, random);
  const usage = isOfEmbeddings ? { prompt_tokens: tokens, total_tokens: tokens } : whole;
  const content = `c${random.integer(0, 99)} "é"`;
  const item = completion(ask, { content, finish_reason: random.pick(REASONS), usage });
  const json = JSON.parse(item.text) as Record<string, unknown>;
  const choices = (json['choices'] ?? []) as object[];
  const other = {
    index: 1,
    message: { role: 'assistant', content: null, tool_calls: [{}] },
    finish_reason: '',
  };
  const more = [other, ...choices, { ...other, finish_reason: 'length' }];
  const shape = random.pick<object>([
    json,
    json,
    json,
    { ...json, error: null },
    // Without choices it would be an error.
    isOfEmbeddings ? json : { error: { message: 'half' }, ...json },
    { ...json, error: {}, errors: {} },
    { id, object: 'other', error: {}, errors: [], base_resp: { status_code: 0, status_msg: 'ok' } },
    { ...json, usage: null, extra: { usage: 1, choices: [{ finish_reason: 'x' }] } },
    { ...json, usage: undefined, ...(isOfEmbeddings ? {} : { choices: more }) },
    { id, object: 'other' },
  ]);
  const mark = random.oneIn(12) ? '\ufeff' : '';
  const spelled = random.oneIn(6) ? `${JSON.stringify(shape, null, 2)}\n` : JSON.stringify(shape);
  const text = mark + spelled;
  if (!random.oneIn(1500)) return { ...item, text };
  // Too long to be parsed whole.
  const pad = JSON.stringify([{ x: 'y'.repeat(270_000), finish_reason: 'no', usage: {} }]);
  return {
    ...item,
    text:
      mark +
      (random.oneIn(2)
        ? `{"pad":${pad},${spelled.trim().slice(1)}`
        : `${spelled.trim().slice(0, -1)},"pad":${pad}}`),
  };
}

interface ChunkFacts {
  readonly finish_reason?: string | null;
  readonly index?: number | undefined;
  readonly usage?: unknown;
}

/** Returns a choice in a stream's chunk. A text completion has a text in place of the delta. */
function choiceOf(
  { chat }: AskedFor,
  delta: object,
  { finish_reason = null, index = 0 }: ChunkFacts,
) {
  if (chat?.answersWith !== 'text') return { index, delta, finish_reason };
  const { content } = delta as { readonly content?: string | null };
  return { index, text: content ?? '', finish_reason };
}

function chunk(ask: AskedFor, delta: object, facts: ChunkFacts = {}): string {
  const object = ask.chat?.answersWith === 'text' ? 'text_completion' : 'chat.completion.chunk';
  const choices = [choiceOf(ask, delta, facts)];
  return JSON.stringify({ object, choices, usage: facts.usage });
}

/** Returns the reply to a request without a planned reply. */
export function answerWell(ask: AskedFor): Reply {
  if (!ask.chat?.isStream) {
    return { ...PLAIN, headers: [JSON_TYPE], items: [completion(ask, { content: 'well' })] };
  }
  const begin = chunk(ask, { role: 'assistant', content: ask.id });
  const end = chunk(ask, {}, { finish_reason: 'stop' });
  const items: Item[] = [
    { kind: 'data', text: `data: ${begin}\n\n`, waitMs: 0.3 },
    { kind: 'data', text: `data: ${end}\n\n`, waitMs: 0.5 },
    { kind: 'done', text: 'data: [DONE]\n\n', waitMs: 0.4 },
  ];
  return { ...PLAIN, headers: [STREAM_TYPE], items };
}

/**
 * A provider's model details, and the shown details: up to 2,048 characters as JSON, in three
 * levels.
 */
const SAID: readonly (readonly [said: object, shown: object])[] = [
  [{}, {}],
  [{ object: 'x', owned_by: 'y', secret: 1, context_length: null }, {}],
  [{ max_model_len: 5, created: 'x' }, { max_model_len: 5 }],
  [{ pricing: { a: { b: { c: 1 } } } }, { pricing: { a: { b: { c: 1 } } } }],
  [{ pricing: { a: { b: { c: [] } } }, input_modalities: [] }, { input_modalities: [] }],
  [{ architecture: 'x'.repeat(2046) }, { architecture: 'x'.repeat(2046) }],
  [{ architecture: 'x'.repeat(2047) }, {}],
  [{ meta: { n_ctx: 5, path: '/x' } }, { meta: { n_ctx: 5 } }],
  [{ supported_parameters: ['key-of-a-1'], context_window: 3 }, { context_window: 3 }],
];
const LONG_PAD = 'x'.repeat(300_000);

/** Returns a reply to the gateway's own request for models. */
export function listModels(random?: Random): Reply {
  const names = ['m0', 'm1', 'listed', 'key-of-a-1'];
  const models = names
    .filter((id) => (random ? random.oneIn(2) : id === 'm0' || id === 'listed'))
    .map((id) => {
      const [said, shown] = random?.pick(SAID) ?? [{}, {}];
      const more = random?.oneIn(2) ? { context_length: random.integer(1, 9) } : {};
      const created = random?.oneIn(2) ? { created: random.integer(1, 9) } : {};
      return {
        sent: { ...said, ...more, ...created },
        model: { id, ...created, shown: { ...shown, ...more } },
      };
    });
  const data = models.map(({ model: { id }, sent }) => ({ id, ...sent }));
  const named = models.map(({ model: { id }, sent }) => ({ name: `models/${id}`, ...sent }));
  const pad = random?.oneIn(20) ? LONG_PAD : undefined;
  const text = JSON.stringify([{ data, pad }, data, { models: named }][random?.integer(0, 2) ?? 0]);
  // A name is not shown if it contains a key.
  const shown = models.map(({ model }) => model).filter(({ id }) => !id.startsWith('key'));
  const item: Item = { kind: 'json', text, waitMs: 0.3, models: shown };
  return { ...PLAIN, headers: [JSON_TYPE], items: [item] };
}

/** Returns a reply to a request for models, sometimes late, cut off, or refused. */
export function aList(random: Random, statuses?: readonly number[]): Reply {
  const headMs = time(random, 0.2, 4000);
  if (statuses && random.oneIn(2)) return anErrorStatus(random, statuses);
  const list = listModels(random);
  if (!random.oneIn(3)) return { ...list, headMs };
  return random.pick<() => Reply>([
    () => ({ ...anErrorStatus(random), end: random.pick(['end', 'hang'] as const) }),
    () => ({ ...list, end: random.pick(['cut', 'hang'] as const) }),
    () => ({ ...list, headMs: undefined }),
    () => ({ ...list, fault: random.pick(NETWORK_FAULTS) }),
    () => ({ ...list, items: [A_COMPLETION] }),
  ])();
}

/** Returns a time with a fraction, so two events hardly ever happen at the same moment. */
export function time(random: Random, minMs: number, maxMs: number): number {
  return Math.round((minMs + random.next() ** 3 * (maxMs - minMs)) * 1000) / 1000 + 0.0007;
}

function timing(random: Random, isSlow: boolean) {
  return {
    connectMs: random.oneIn(isSlow ? 8 : 60) ? time(random, 900, 6000) : 0.11,
    headMs: time(random, 0.2, random.oneIn(isSlow ? 3 : 12) ? 7000 : 60),
    connection: random.pick(['new', 'reused'] as const),
  };
}

/** Returns a good answer, at once or slowly. */
export function anAnswer(ask: AskedFor, random: Random, isSlow: boolean): Reply {
  const common = { ...PLAIN, ...timing(random, isSlow), headers: headersOf(random) };
  const isJoined = random.oneIn(2);
  if (ask.chat?.isStream) return { ...common, ...aStream(ask, random, isSlow), isJoined };
  const json = someCompletion(ask, random);
  const isCut = random.oneIn(4);
  const at = random.integer(1, json.text.length - 1);
  const cut = isCut ? { at, waitMs: time(random, 0, isSlow ? 3000 : 20) } : undefined;
  const status = random.oneIn(12) ? 201 : 200;
  const type = random.oneIn(20) ? random.pick([STREAM_TYPE, NO_TYPE]) : JSON_TYPE;
  const encoding = random.oneIn(20) ? [NO_CODING(random)] : [];
  const headers = [type, ...encoding, ...common.headers];
  return { ...common, status, headers, items: [{ ...json, cut }] };
}

/** Returns a complete answer without content, reasoning or tool call. */
export function anEmptyAnswer(ask: AskedFor, random: Random): Reply {
  const whole = anAnswer(ask, random, false);
  const finish_reason = random.oneIn(4) ? 'network_error' : 'stop';
  if (!ask.chat?.isStream) {
    const empty = completion(ask, { content: '', finish_reason });
    const text = random.oneIn(2)
      ? empty.text
      : random.pick(['{"choices":[]}', '{"choices":null}', '{}']);
    return { ...whole, items: [{ ...empty, text, cut: undefined }] };
  }
  const isUsage = ({ text }: Item) => text.includes('"choices":[],"usage":{');
  const isDoneAlone = random.oneIn(3) && whole.items.some(({ kind }) => kind === 'done');
  const data = (json: string): Item => ({ kind: 'data', text: `data: ${json}\n\n`, waitMs: 0.3 });
  const items = [
    data(chunk(ask, random.pick(EMPTY_DELTAS))),
    ...(isDoneAlone ? [] : [data(chunk(ask, {}, { finish_reason }))]),
    ...whole.items.filter((item) => item.kind === 'done' || isUsage(item)),
  ];
  return { ...whole, items };
}

const REQUEST_IDS = [
  'x-request-id',
  'request-id',
  'mistral-correlation-id',
  'x-ds-trace-id',
  'x-generation-id',
  'apim-request-id',
  'x-amzn-requestid',
  'cf-ray',
];

/** Returns headers that pass, and others. */
function headersOf(random: Random): Pair[] {
  const all: Pair[] = [
    ['x-ratelimit-remaining-requests', `${random.integer(0, 99)}`],
    ['ratelimit', '"default";r=50'],
    ['anthropic-ratelimit-tokens-limit', '9'],
    [random.pick(REQUEST_IDS), `up-${random.integer(0, 99)}`],
    [random.pick(REQUEST_IDS), 'up-other'],
    ['x-returned', random.pick(['yes', 'yes', 'with key-of-a-1', 'with \u00e9', 'x'.repeat(4097)])],
    ['set-cookie', 'secret=1'],
    ['server', 'nginx'],
    ['x-should-retry', 'true'],
    ['x-should-retry-2', 'no'],
    ['my-ratelimit', 'no'],
    ['openai-processing-ms', '5'],
  ];
  const headers = [...new Map(all.filter(() => random.oneIn(4)))];
  if (!random.oneIn(8)) return headers;
  const named = random.pick(['X-Returned', 'ratelimit ,x-returned', 'x-request-id, Cf-Ray']);
  return [...headers, ['connection', `keep-alive, ${named}`]];
}

function aStream(ask: AskedFor, random: Random, isSlow: boolean): Pick<Reply, 'items' | 'headers'> {
  const eol = random.pick(['\n', '\n', '\n', '\n', '\r\n', '\r\n', '\r']);
  const waitMs = () => time(random, 0, random.oneIn(isSlow ? 3 : 20) ? 5000 : 30);
  const items: Item[] = [];
  const add = (kind: Item['kind'], text: string) =>
    void items.push(cutUp({ kind, text, waitMs: random.oneIn(3) ? 0 : waitMs() }, random));
  const data = (json: string) => add('data', spellEvent(json, eol, random) + eol + eol);
  const comment = (text: string) => add('comment', `${text}${eol}${eol}`);
  if (random.oneIn(5)) comment(': ping');
  if (random.oneIn(8)) data('{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}');
  if (random.oneIn(2)) data(chunk(ask, random.pick(EMPTY_DELTAS)));
  if (random.oneIn(20))
    data(random.pick(['{"object":"nobody knows"}', 'hello', '[]', '{"choices":{}}']));
  const choices = random.oneIn(8) ? random.integer(2, 3) : 1;
  const step = random.pick([1, 1, 9]);
  const count = random.integer(1, 5);
  const usageOfChunk = random.pick([() => undefined, () => undefined, () => null, usageOf]);
  const isStopAlways = random.oneIn(12);
  const hasNoError = random.oneIn(12);
  for (let n = 0; n < count; n += 1) {
    if (random.oneIn(10)) comment(random.pick(COMMENTS));
    const deltas = otherDeltas(
      `${ask.id}-${n} é "[DONE]" `.repeat(choices === 1 && random.oneIn(4000) ? 18_000 : 1),
    );
    const index = choices === 1 && random.oneIn(20) ? undefined : (n % choices) * step;
    const unfinished = isStopAlways ? 'stop' : random.oneIn(10) ? '' : null;
    const facts = { finish_reason: unfinished, index, usage: usageOfChunk(6 + n) };
    const text = chunk(ask, random.pick(deltas), facts);
    data(hasNoError ? `{"error":{},${text.slice(1)}` : text);
  }
  const finished = Math.min(choices, count) - (random.oneIn(12) ? 1 : 0);
  for (let index = 0; index < finished; index += 1) {
    const delta = random.oneIn(4) ? { content: 'end' } : {};
    const finish_reason = random.pick(REASONS);
    const facts = { finish_reason, index: index * step, usage: usageOfChunk(20 + index) };
    data(chunk(ask, delta, facts));
  }
  const asksForUsage = ask.chat?.asksForUsage === true;
  if (asksForUsage || random.oneIn(3)) {
    const usage = usageOf(tokensOf(random), random);
    const last = random.pick([
      { choices: [], usage, x_groq: 1 },
      { choices: [], usage },
      { usage, model: 'm' },
      { choices: null, latency_checkpoint: { engine_ttft_ms: 1 }, usage },
      { x: { usage: { total_tokens: 1 } }, choices: [], usage, timings: { predicted_n: [5] } },
    ]);
    data(
      JSON.stringify(
        random.oneIn(6)
          ? { choices: [choiceOf(ask, {}, { finish_reason: random.pick(REASONS) })], usage }
          : last,
      ),
    );
  }
  const end = eol === '\r' ? '\n' : eol;
  if (!random.oneIn(5)) add('done', spellDone(random) + end + end);
  if (random.oneIn(20)) comment(': after');
  const [first, ...others] = items;
  const marked = { ...first!, text: `\ufeff${first!.text}` };
  const headers = [random.oneIn(8) ? random.pick(STREAM_TYPES) : STREAM_TYPE];
  if (random.oneIn(10)) headers.splice(0, 1, random.pick([JSON_TYPE, ['content-type', 'x']]));
  return { items: random.oneIn(12) ? [marked, ...others] : items, headers };
}

function cutUp(item: Item, random: Random): Item {
  if (!random.oneIn(4)) return item;
  const last = Buffer.byteLength(item.text) - 1;
  // Cut before, or inside, the item's last line end.
  const at = random.oneIn(3) ? last - random.integer(0, 2) : random.integer(1, last);
  return { ...item, cut: { at, waitMs: random.oneIn(3) ? 0 : time(random, 0, 40) } };
}

/** Returns a reply with some failure, at any point. */
export function aFailure(ask: AskedFor, random: Random): Reply {
  const isStream = ask.chat?.isStream === true;
  const kind = random.integer(0, isStream ? 11 : 8);
  const common: Reply = { ...anAnswer(ask, random, false), rest: '' };
  if (kind <= 2) return anErrorStatus(random);
  if (kind === 3) return { ...common, fault: random.pick(NETWORK_FAULTS), items: [], rest: '' };
  if (kind === 4) return { ...common, headMs: undefined };
  if (kind === 5) return strange(common, isStream, random);
  // Cut off, or silent for ever, somewhere inside.
  const end = random.pick(['end', 'cut', 'hang'] as const);
  if (!isStream) {
    const [json] = common.items;
    const text = json!.text.slice(0, random.integer(0, json!.text.length - 1));
    return { ...common, end, items: [{ ...json!, text, cut: undefined }] };
  }
  const kept = common.items.slice(0, random.integer(0, common.items.length));
  const next = common.items[kept.length];
  if (kind >= 9) {
    const { error, text } = spellReported(random.pick(STATUSES), random);
    const event = errorEvent(text, random);
    return { ...common, end, items: [...kept, { kind: 'error', text: event, waitMs: 0.3, error }] };
  }
  const half = next && random.oneIn(2) ? next.text.slice(0, next.text.length >> 1) : '';
  // Whole data counts as an event, even without its blank line.
  const rest = half.endsWith('[]') ? '' : half;
  return { ...common, end, items: kept, rest };
}

const anyType = (random: Random) => random.pick([JSON_TYPE, STREAM_TYPE, NO_TYPE]);
const A_STREAM = { model: 'm', isStream: true, asksForUsage: false };

/** Returns an answer that does not fit the request. */
function strange(common: Reply, isStream: boolean, random: Random): Reply {
  const html: Item = { kind: 'json', text: '<html><body>busy</body></html>', waitMs: 0.2 };
  const replies: (() => Reply)[] = [
    () => {
      const coding: Pair = ['content-encoding', random.pick(['gzip', 'BR', 'identity, x-gzip'])];
      const others = common.headers.filter(([name]) => name !== coding[0]);
      return { ...common, headers: [coding, ...others] };
    },
    () => ({ ...common, status: random.pick([204, 301, 302, 304, 600]) }),
    () => {
      const spell = random.oneIn(2) ? spellBare : spellReported;
      const { error, text } = spell(random.pick(STATUSES), random);
      return {
        ...common,
        headers: [random.oneIn(4) ? STREAM_TYPE : JSON_TYPE],
        items: [{ kind: 'error', text, waitMs: 0.2, error }],
      };
    },
    isStream
      ? () => ({ ...common, headers: [anyType(random)], items: [A_COMPLETION] })
      : () => ({ ...answerWell({ id: 'x', chat: A_STREAM }), headers: [anyType(random)] }),
    isStream
      ? () => ({ ...common, items: [{ kind: 'done', text: 'data: [DONE]\n\n', waitMs: 0.2 }] })
      : () => ({ ...common, headers: [['content-type', 'text/html']], items: [html] }),
    () => ({ ...common, headers: [anyType(random)], items: [html] }),
  ];
  return random.pick(replies)();
}

const STATUSES = [
  400, 401, 402, 403, 404, 407, 408, 409, 413, 422, 429, 429, 429, 500, 501, 502, 503, 504, 520,
  529,
];
/** Values of `Retry-After`. The dates lie in the past, within a world, or behind its end. */
const RETRY_AFTER = [
  '1',
  '2',
  '7.2',
  '20',
  '30',
  '31',
  '60',
  '61',
  '7200',
  '90000',
  'soon',
  '3, 9',
  'Wed, 21 Oct 2015 07:28:00 GMT',
  'Thu, 01 Jan 2026 00:00:08 GMT',
  'Thu, 01 Jan 2026 00:00:50 GMT',
  'Thu, 01 Jan 2026 00:05:00 GMT, Thu, 01 Jan 2026 00:00:01 GMT',
];

/** Returns an HTTP error from a reachable provider. */
export function anErrorStatus(random: Random, statuses: readonly number[] = STATUSES): Reply {
  const status = random.pick(statuses);
  const { error, text, type } = spellStatus(status, random);
  const told = random.pick<readonly Pair[]>([
    [],
    [],
    [],
    [],
    ...RETRY_AFTER.map((value): Pair[] => [['retry-after', value]]),
    [['retry-after-ms', '1500']],
    [
      ['retry-after-ms', '9000'],
      ['retry-after', '2'],
    ],
  ]);
  const isTold = status === 429 || random.oneIn(4);
  return {
    ...PLAIN,
    ...timing(random, false),
    status,
    headers: [['content-type', type], ...(isTold ? told : []), ...headersOf(random)],
    items: [{ kind: 'error', text, waitMs: random.oneIn(15) ? 1500.01 : 0.2, error }],
    end: random.oneIn(15) ? 'hang' : 'end',
  };
}

/** A status's reason phrase. */
export const phraseOf = (status: number) => STATUS_CODES[status] ?? 'Unknown error';
