/**
 * How the endpoints of `/v1` differ: in their requests, in what a provider sends, and in what the
 * SDKs make of it.
 */

export type Json = Readonly<Record<string, unknown>>;

/** A choice of an answer, or all of an answer without choices. */
export interface Choice {
  text: string;
  reasoning: string;
  toolArguments: string;
  finish: string | null;
}

export type Choices = Map<number, Choice>;

/** What a program sees in JSON beside the content. */
export interface Reading {
  /** Why it sees that the answer has failed. */
  readonly failure?: string;
  /** The name of the event that ends an answer. */
  readonly end?: string;
  /** The member without which the JSON has no content. */
  readonly lacks?: string;
}

/** A part of a stream that the provider sends. */
export interface Part {
  readonly delta: string | Json;
  /** Of the choice or the block. */
  readonly index: number;
  readonly finish: string | null;
  /** All text that the stream has had before. */
  readonly before: string;
}

export interface Endpoint {
  /** Below `/v1`. */
  readonly path: string;
  /** The members of a request that hold `${prompt}`. */
  readonly request: string;
  /** Header lines that its SDKs send. */
  readonly headers: readonly string[];
  /** Returns a whole answer with this text. */
  readonly answerOf: (text: string) => Json;
  /** Returns the event that has this part. */
  readonly eventOf: (part: Part) => Json;
  /** The events that a step may name. */
  readonly events: Readonly<Record<string, Json>>;
  /** Whether events have a `sequence_number`. */
  readonly isNumbered?: true;
  /** Whether SDKs read events with this name. */
  readonly isRead: (name: string | undefined) => boolean;
  /** Whether SDKs need the event that ends an answer, and not only the end by HTTP. */
  readonly needsEnd?: true;
  readonly readAnswer: (json: Json, choices: Choices) => Reading;
  readonly readEvent: (json: Json, choices: Choices, name: string | undefined) => Reading;
}

function add(choices: Choices, index: unknown, part: { [name in keyof Choice]?: unknown }): void {
  const place = typeof index === 'number' ? index : 0;
  const empty: Choice = { text: '', reasoning: '', toolArguments: '', finish: null };
  const choice = choices.get(place) ?? empty;
  choices.set(place, choice);
  for (const name of ['text', 'reasoning', 'toolArguments'] as const)
    if (typeof part[name] === 'string') choice[name] += part[name];
  if (typeof part.finish === 'string') choice.finish = part.finish;
}

const objectOf = (value: unknown) => (value ?? {}) as Json;
const listOf = (value: unknown) => (Array.isArray(value) ? value : []) as Json[];
const failureOf = (error: unknown) => ({ failure: `error event ${JSON.stringify(error)}` });

const MODEL = 'truth-model';
const COMPLETION = {
  id: 'chatcmpl-truth',
  object: 'chat.completion',
  created: 1700000000,
  model: MODEL,
};
const CHUNK = { ...COMPLETION, object: 'chat.completion.chunk' };
/** The beginning of each chunk's JSON: `${chunk}` in a text. */
export const CHUNK_TEXT = JSON.stringify(CHUNK).slice(0, -1);
const TEXT_COMPLETION = { ...COMPLETION, id: 'cmpl-truth', object: 'text_completion' };
const USAGE = { prompt_tokens: 11, completion_tokens: 2, total_tokens: 13 };

/** Creates the reader of an answer's or a chunk's choices. */
function readChoices(addChoice: (one: Json, choices: Choices) => void) {
  return (json: Json, choices: Choices): Reading => {
    const list = listOf(json['choices']);
    for (const one of list) addChoice(one, choices);
    return list.length === 0 ? { lacks: 'choices' } : {};
  };
}

const readChat = (part: 'message' | 'delta') =>
  readChoices((one, choices) => {
    const { content: text, reasoning_content: reasoning, tool_calls: calls } = objectOf(one[part]);
    add(choices, one['index'], { text, reasoning, finish: one['finish_reason'] });
    for (const call of listOf(calls))
      add(choices, one['index'], { toolArguments: objectOf(call['function'])['arguments'] });
  });

const readTexts = readChoices((one, choices) =>
  add(choices, one['index'], { text: one['text'], finish: one['finish_reason'] }),
);

/** OpenAI's SDKs for Python and Node raise an error for an event with a top-level `error` alone. */
const raising = (read: Endpoint['readAnswer']) => (json: Json, choices: Choices) =>
  json['error'] ? failureOf(json['error']) : read(json, choices);

const OPENAI = { headers: [], isRead: () => true };

const CHAT: Endpoint = {
  ...OPENAI,
  path: '/chat/completions',
  request: '"messages":[{"role":"user","content":"${prompt}"}]',
  answerOf: (content) => {
    const message = { role: 'assistant', content };
    const choices = [{ index: 0, message, finish_reason: 'stop', logprobs: null }];
    return { ...COMPLETION, choices, usage: USAGE };
  },
  eventOf: ({ delta: given, index, finish }) => {
    const delta = typeof given === 'string' ? { content: given } : given;
    return { ...CHUNK, choices: [{ index, delta, finish_reason: finish }] };
  },
  events: {},
  readAnswer: readChat('message'),
  readEvent: raising(readChat('delta')),
};

const textChoice = (text: string, index: number, finish: string | null) => ({
  index,
  text,
  finish_reason: finish,
  logprobs: null,
});

const COMPLETIONS: Endpoint = {
  ...OPENAI,
  path: '/completions',
  request: '"prompt":"${prompt}"',
  answerOf: (text) => ({
    ...TEXT_COMPLETION,
    choices: [textChoice(text, 0, 'stop')],
    usage: USAGE,
  }),
  eventOf: ({ delta, index, finish }) => {
    const text = typeof delta === 'string' ? delta : '';
    return { ...TEXT_COMPLETION, choices: [textChoice(text, index, finish)] };
  },
  events: {},
  readAnswer: readTexts,
  readEvent: raising(readTexts),
};

const RESPONSE = {
  id: 'resp_truth',
  object: 'response',
  created_at: 1700000000,
  status: 'in_progress',
  background: false,
  error: null,
  incomplete_details: null,
  instructions: '${long}',
  model: MODEL,
  output: [],
  parallel_tool_calls: true,
  temperature: 1,
  tool_choice: 'auto',
  tools: [],
  top_p: 1,
  metadata: {},
  usage: null,
};
const ITEM = { id: 'msg_truth', type: 'message', status: 'in_progress', role: 'assistant' };
const ITEM_TEXT = { item_id: 'msg_truth', output_index: 0, content_index: 0 };
const outputText = (text: string) => ({ type: 'output_text', text, annotations: [], logprobs: [] });

const responseOf = (text: string, status: string) => ({
  ...RESPONSE,
  status,
  output: [{ ...ITEM, status, content: [outputText(text)] }],
  usage: { input_tokens: 11, output_tokens: 2, total_tokens: 13 },
});

/** By the `type` of an event that has a delta. */
const RESPONSE_DELTAS: Readonly<Record<string, keyof Choice>> = {
  'response.output_text.delta': 'text',
  'response.reasoning_summary_text.delta': 'reasoning',
  'response.function_call_arguments.delta': 'toolArguments',
};

function addFinish({ incomplete_details: details, status }: Json, choices: Choices): void {
  add(choices, 0, { finish: objectOf(details)['reason'] ?? status });
}

function readResponse(json: Json, choices: Choices): Reading {
  if (json['status'] === 'failed')
    return { failure: `status failed ${JSON.stringify(json['error'])}` };
  if (!Array.isArray(json['output'])) return { lacks: 'output' };
  addFinish(json, choices);
  for (const item of listOf(json['output'])) {
    add(choices, 0, { toolArguments: item['arguments'] });
    for (const { text } of listOf(item['summary'])) add(choices, 0, { reasoning: text });
    for (const { text } of listOf(item['content'])) add(choices, 0, { text });
  }
  return {};
}

const RESPONSES: Endpoint = {
  ...OPENAI,
  path: '/responses',
  request: '"input":"${prompt}"',
  answerOf: (text) => responseOf(text, 'completed'),
  eventOf: ({ delta, finish, before }) => {
    if (finish !== null)
      return { type: `response.${finish}`, response: responseOf(before, finish) };
    return { type: 'response.output_text.delta', ...ITEM_TEXT, delta, logprobs: [] };
  },
  events: {
    'response.created': { response: RESPONSE },
    'response.in_progress': { response: RESPONSE },
    'response.output_item.added': { output_index: 0, item: { ...ITEM, content: [] } },
    'response.content_part.added': { ...ITEM_TEXT, part: outputText('') },
    keepalive: {},
  },
  isNumbered: true,
  needsEnd: true,
  readAnswer: readResponse,
  // Programs look for the API's own two events of failures, because the SDKs raise nothing there.
  readEvent: (json, choices) => {
    const { type, response, error } = json;
    if (error) return failureOf(error);
    if (type === 'error') return failureOf(json);
    if (type === 'response.failed') return failureOf(objectOf(response)['error'] ?? type);
    const name = RESPONSE_DELTAS[String(type)];
    if (name) add(choices, 0, { [name]: json['delta'] });
    if (type !== 'response.completed' && type !== 'response.incomplete') return {};
    addFinish(objectOf(response), choices);
    return { end: type };
  },
};

const messageOf = (content: Json[], reason: string | null) => ({
  id: 'msg_truth',
  type: 'message',
  role: 'assistant',
  model: MODEL,
  content,
  stop_reason: reason,
  stop_sequence: null,
  usage: { input_tokens: 11, output_tokens: 2 },
});

/** Adds a content block, or a part of one. */
function addBlock(block: Json, choices: Choices): void {
  const { text, thinking: reasoning, partial_json: toolArguments, stop_reason: finish } = block;
  add(choices, 0, { text, reasoning, toolArguments, finish });
}

const MESSAGES: Endpoint = {
  path: '/messages',
  request: '"max_tokens":100,"messages":[{"role":"user","content":"${prompt}"}]',
  headers: ['anthropic-version: 2023-06-01'],
  answerOf: (text) => messageOf([{ type: 'text', text }], 'end_turn'),
  eventOf: ({ delta: given, index, finish }) => {
    const stop = { stop_reason: finish, stop_sequence: null };
    if (finish !== null) return { type: 'message_delta', delta: stop, usage: { output_tokens: 2 } };
    const delta = typeof given === 'string' ? { type: 'text_delta', text: given } : given;
    return { type: 'content_block_delta', index, delta };
  },
  events: {
    message_start: { message: messageOf([], null) },
    content_block_start: { index: 0, content_block: { type: 'text', text: '' } },
    content_block_stop: { index: 0 },
    message_stop: {},
    ping: {},
  },
  needsEnd: true,
  // Anthropic's SDKs for Python and Node leave out all others.
  isRead: (name) => name !== undefined && name !== 'ping',
  readAnswer: (json, choices) => {
    if (!Array.isArray(json['content'])) return { lacks: 'content' };
    add(choices, 0, { finish: json['stop_reason'] });
    for (const block of listOf(json['content'])) addBlock(block, choices);
    return {};
  },
  readEvent: (json, choices, name) => {
    if (name === 'error') return failureOf(json['error'] ?? json);
    const { type, content_block: block, delta } = json;
    addBlock(objectOf(block ?? delta), choices);
    return type === 'message_stop' ? { end: type } : {};
  },
};

export const ENDPOINTS = {
  chat: CHAT,
  completions: COMPLETIONS,
  responses: RESPONSES,
  messages: MESSAGES,
} as const;

export type EndpointName = keyof typeof ENDPOINTS;

/** Returns the endpoint of a request line. */
export function endpointOf(start: string): Endpoint | undefined {
  const [, path = ''] = /^POST ([^ ?]*)/.exec(start) ?? [];
  return Object.values(ENDPOINTS).find((one) => path.endsWith(one.path));
}
