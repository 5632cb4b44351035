/** What providers answer: completions, streams of recorded shapes, and every kind of failure. */

import { STATUS_CODES } from 'node:http';

import type { Random } from '../support/random.ts';
import { NETWORK_FAULTS, type Ask, type ErrorPlan, type Item, type Reply } from './plan.ts';

type AskedFor = Pick<Ask, 'id' | 'chat'>;
type Pair = readonly [name: string, value: string];

const JSON_TYPE: Pair = ['content-type', 'application/json'];
const STREAM_TYPE: Pair = ['content-type', 'text/event-stream; charset=utf-8'];
const PLAIN: Omit<Reply, 'items' | 'headers'> = {
  connectMs: 0.11,
  headMs: 2.3,
  connection: 'new',
  status: 200,
  end: 'end',
  endMs: 0.2,
  rest: '',
};
/** Most answers have so many, and some have many. */
const tokensOf = (random: Random) => random.pick([8, 8, 8, 40, 300]);
const usageOf = (tokens: number) => ({
  prompt_tokens: 3,
  completion_tokens: tokens - 3,
  total_tokens: tokens,
});

function completion(id: string, content: string, tokens = 8): Item {
  const choice = { index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' };
  const usage = usageOf(tokens);
  const whole = { id, object: 'chat.completion', model: 'm', choices: [choice], usage };
  return { kind: 'json', text: JSON.stringify(whole), waitMs: 0.3, tokens };
}

function chunk(delta: object, finish_reason: string | null = null, index = 0): string {
  const choices = [{ index, delta, finish_reason }];
  return `data: ${JSON.stringify({ object: 'chat.completion.chunk', choices })}`;
}

/** The reply to a request for which the plan has none. */
export function answerWell({ id, chat }: AskedFor): Reply {
  if (!chat?.isStream) return { ...PLAIN, headers: [JSON_TYPE], items: [completion(id, 'well')] };
  const items: Item[] = [
    {
      kind: 'content',
      text: `${chunk({ role: 'assistant', content: id })}\n\n`,
      waitMs: 0.3,
    },
    { kind: 'finish', text: `${chunk({}, 'stop')}\n\n`, waitMs: 0.5 },
    { kind: 'done', text: 'data: [DONE]\n\n', waitMs: 0.4 },
  ];
  return { ...PLAIN, headers: [STREAM_TYPE], items };
}

type Models = NonNullable<Item['models']>;

/** The reply to the gateway's own question for models. */
export function listModels(models: Models = [{ id: 'm0' }, { id: 'listed' }], as = 0): Reply {
  const named = models.map(({ id, ...more }) => ({ name: `models/${id}`, ...more }));
  const text = JSON.stringify([{ data: models }, models, { models: named }][as]);
  return { ...PLAIN, headers: [JSON_TYPE], items: [{ kind: 'json', text, waitMs: 0.3, models }] };
}

/** One that is a list, or is none: late, cut off, with a wrong key. */
export function aList(random: Random): Reply {
  const models = ['m0', 'm1', 'listed']
    .filter(() => random.oneIn(2))
    .map((id) => (random.oneIn(2) ? { id, context_length: random.integer(1, 9) } : { id }));
  const list = listModels(models, random.integer(0, 2));
  const headMs = time(random, 0.2, 4000);
  if (!random.oneIn(3)) return { ...list, headMs };
  return random.pick<() => Reply>([
    () => ({ ...anErrorStatus(random), end: random.pick(['end', 'hang'] as const) }),
    () => ({ ...list, end: random.pick(['cut', 'hang'] as const) }),
    () => ({ ...list, headMs: undefined }),
    () => ({ ...list, fault: random.pick(NETWORK_FAULTS) }),
    () => ({ ...list, items: [completion('x', 'y')] }),
  ])();
}

/** Times with a fraction: hardly two things of a world happen at the same moment. */
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

/** A reply that is an answer, at once or slowly. */
export function anAnswer(ask: AskedFor, random: Random, isSlow: boolean): Reply {
  const common = { ...PLAIN, ...timing(random, isSlow), headers: headersOf(random) };
  if (ask.chat?.isStream) return { ...common, ...aStream(ask, random, isSlow) };
  const json = completion(ask.id, `c${random.integer(0, 99)}`, tokensOf(random));
  const isCut = random.oneIn(4);
  const at = random.integer(1, json.text.length - 1);
  const cut = isCut ? { at, waitMs: time(random, 0, isSlow ? 3000 : 20) } : undefined;
  return { ...common, headers: [JSON_TYPE, ...common.headers], items: [{ ...json, cut }] };
}

/** A whole answer without content, reasoning or tool call. */
export function anEmptyAnswer(ask: AskedFor, random: Random): Reply {
  const whole = anAnswer(ask, random, false);
  if (!ask.chat?.isStream) {
    const json = { ...completion(ask.id, ''), cut: undefined, isEmpty: true };
    return { ...whole, items: [json] };
  }
  const isPart = ({ kind }: Item) => kind !== 'content' && kind !== 'finish';
  const before = whole.items.findIndex(({ kind }) => kind === 'content');
  const isDoneAlone = random.oneIn(3) && whole.items.some(({ kind }) => kind === 'done');
  const preamble: Item = {
    kind: 'preamble',
    text: `${chunk({ role: 'assistant', content: '' })}\n\n`,
    waitMs: 0.3,
  };
  const finish: Item = { kind: 'finish', text: `${chunk({}, 'stop')}\n\n`, waitMs: 0.3 };
  const items = [
    ...whole.items.slice(0, before).filter(({ kind }) => kind === 'comment'),
    preamble,
    ...(isDoneAlone ? [] : [finish]),
    ...whole.items.slice(before).filter(isPart),
  ];
  return { ...whole, items };
}

/** Those that pass, and those that do not. */
function headersOf(random: Random): Pair[] {
  const all: Pair[] = [
    ['x-ratelimit-remaining-requests', `${random.integer(0, 99)}`],
    ['x-request-id', `up-${random.integer(0, 99)}`],
    ['cf-ray', 'ray-1'],
    ['x-returned', 'yes'],
    ['set-cookie', 'secret=1'],
    ['server', 'nginx'],
    ['x-should-retry', 'true'],
    ['my-ratelimit', 'no'],
  ];
  return all.filter(() => random.oneIn(4));
}

function aStream(ask: AskedFor, random: Random, isSlow: boolean): Pick<Reply, 'items' | 'headers'> {
  const eol = random.oneIn(4) ? '\r\n\r\n' : '\n\n';
  const waitMs = () => time(random, 0, random.oneIn(isSlow ? 3 : 20) ? 5000 : 30);
  const items: Item[] = [];
  const add = (kind: Item['kind'], text: string, tokens?: number) =>
    void items.push(
      cutUp({ kind, text: text + eol, waitMs: random.oneIn(3) ? 0 : waitMs(), tokens }, random),
    );
  if (random.oneIn(5)) add('comment', ': ping');
  if (random.oneIn(2)) add('preamble', chunk({ role: 'assistant', content: '' }));
  const choices = random.oneIn(8) ? 2 : 1;
  const count = random.integer(1, 5);
  for (let n = 0; n < count; n += 1) {
    if (random.oneIn(10)) add('comment', ': ping');
    add('content', chunk({ content: `${ask.id}-${n} é` }, null, n % choices));
  }
  const finished = Math.min(choices, count) - (random.oneIn(12) ? 1 : 0);
  for (let index = 0; index < finished; index += 1) add('finish', chunk({}, 'stop', index));
  const asksForUsage = ask.chat?.asksForUsage === true;
  if (asksForUsage || random.oneIn(3)) {
    const tokens = tokensOf(random);
    const usage = { choices: [], usage: usageOf(tokens), x_groq: 1 };
    add('usage', `data: ${JSON.stringify(usage)}`, tokens);
  }
  if (!random.oneIn(5)) add('done', 'data: [DONE]');
  if (random.oneIn(20)) add('comment', ': after');
  return { items, headers: [STREAM_TYPE] };
}

function cutUp(item: Item, random: Random): Item {
  if (!random.oneIn(4)) return item;
  const at = random.integer(1, item.text.length - 1);
  return { ...item, cut: { at, waitMs: random.oneIn(3) ? 0 : time(random, 0, 40) } };
}

/** A reply that fails in some way, at any point. */
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
    const error = anError(random);
    const text = `data: ${JSON.stringify(bodyOf(error, random))}\n\n`;
    return { ...common, end, items: [...kept, { kind: 'error', text, waitMs: 0.3, error }] };
  }
  const rest = next && random.oneIn(2) ? next.text.slice(0, next.text.length >> 1) : '';
  return { ...common, end, items: kept, rest };
}

/** Answers that are no answer to this request. */
function strange(common: Reply, isStream: boolean, random: Random): Reply {
  const html: Item = { kind: 'json', text: '<html><body>busy</body></html>', waitMs: 0.2 };
  const replies: (() => Reply)[] = [
    () => ({ ...common, headers: [['content-encoding', 'gzip'], ...common.headers] }),
    () => ({ ...common, status: random.pick([204, 301, 302, 304, 600]) }),
    () => {
      const error = anError(random);
      const text = JSON.stringify(bodyOf(error, random));
      return {
        ...common,
        headers: [JSON_TYPE],
        items: [{ kind: 'error', text, waitMs: 0.2, error }],
      };
    },
    isStream
      ? () => ({ ...common, headers: [JSON_TYPE], items: [completion('x', 'y')] })
      : () => ({ ...common, headers: [STREAM_TYPE] }),
    isStream
      ? () => ({ ...common, items: [{ kind: 'done', text: 'data: [DONE]\n\n', waitMs: 0.2 }] })
      : () => ({ ...common, headers: [['content-type', 'text/html']], items: [html] }),
  ];
  return random.pick(replies)();
}

const STATUSES = [
  400, 401, 403, 404, 408, 409, 413, 422, 429, 429, 429, 500, 501, 502, 503, 504, 520, 529,
];
const MESSAGES = ['the model is busy', 'no such thing: <class "int">', "don't do that"];

function anError(random: Random): ErrorPlan {
  const status = random.pick(STATUSES);
  const codes = status === 400 ? ['context_length_exceeded', 'content_policy_violation'] : [];
  if (status === 429) codes.push('insufficient_quota', 'rate_limit_exceeded');
  const code = random.oneIn(2) ? random.pick([...codes, 'some_code']) : undefined;
  return { status, code, message: random.oneIn(6) ? undefined : random.pick(MESSAGES) };
}

/** The dialects of error objects. */
function bodyOf({ status, code, message }: ErrorPlan, random: Random): unknown {
  const plain = { message, code, status };
  return random.pick(
    [
      { error: plain },
      { error: { ...plain, type: 'some_error' } },
      [{ error: plain }],
      { object: 'error', ...plain, error: message ?? 'x' },
    ].slice(0, message === undefined ? 3 : 4),
  );
}

/** Answers of a provider that is there, with an HTTP error. */
export function anErrorStatus(random: Random): Reply {
  const error = anError(random);
  const { status } = error;
  const isPage = random.oneIn(6);
  const text = isPage ? '<!doctype html><p>no</p>' : JSON.stringify(bodyOf(error, random));
  const type: Pair = isPage ? ['content-type', 'text/html'] : JSON_TYPE;
  const retryAfter = random.pick([undefined, undefined, '1', '2', '7.2', '20', '45', '90']);
  const isTold = retryAfter !== undefined && (status === 429 || random.oneIn(4));
  const shown = isPage ? { status } : error;
  return {
    ...PLAIN,
    ...timing(random, false),
    status,
    headers: [type, ...(isTold ? [['retry-after', retryAfter] as Pair] : []), ...headersOf(random)],
    items: [{ kind: 'error', text, waitMs: random.oneIn(15) ? 1500.01 : 0.2, error: shown }],
    end: random.oneIn(15) ? 'hang' : 'end',
  };
}

/** The reason phrase of a status. */
export const phraseOf = (status: number) => STATUS_CODES[status] ?? 'Unknown error';
