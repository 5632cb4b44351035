/** `POST /v1/messages`, Anthropic's own protocol, for providers that speak it. */

import { type GatewayError, invalidRequest } from '../lib/errors.ts';
import { type JsonValue, memberOf } from '../lib/json.ts';
import { isBlank } from './answer-json.ts';
import { ModelRequestParser, UnstreamedParser } from './model-request.ts';
import type { AnswerNotes, Endpoint, EventKind, StreamRules } from './endpoint.ts';
import { countIn, usageOf } from './usage.ts';

/** For a client that sends no version. */
export const ANTHROPIC_VERSION = '2023-06-01';
/** Depths of values in the request, by `JsonValue.depth`. */
const [MEMBER, TOOL_MEMBER] = [1, 3];

class MessagesParser extends ModelRequestParser {
  #hasMaxTokens = false;
  #hasContainer = false;
  #itemRunsCode = false;
  #runsCode = false;

  protected override note(value: JsonValue): void {
    super.note(value);
    const { depth, kind, name, text } = value;
    if (depth === TOOL_MEMBER && name === 'type' && text.startsWith('code_execution')) {
      this.#itemRunsCode = true;
    }
    if (depth !== MEMBER) return;
    if (name === 'max_tokens') this.#hasMaxTokens = kind === 'number';
    // Only the organisation of one key has the container.
    if (name === 'container' && kind !== 'null') this.#hasContainer = true;
    if (name === 'tools') this.#runsCode = this.#itemRunsCode;
    this.#itemRunsCode = false;
  }

  override finish(body: { readonly parts: readonly Buffer[] }) {
    const request = super.finish(body);
    if (!this.#hasMaxTokens) throw invalidRequest('"max_tokens" must be a number');
    // The answer names a container, to which the session's next request may refer.
    const own = this.#runsCode ? ('session' as const) : undefined;
    const affinity = this.#hasContainer ? ('organisation' as const) : (request.affinity ?? own);
    return { ...request, mayAskForUsage: false, affinity };
  }
}

/** By the `type` of an event. All others are parts. */
const KINDS: ReadonlyMap<unknown, EventKind> = new Map<unknown, EventKind>([
  ['message_start', 'preamble'],
  ['ping', 'heartbeat'],
  ['message_stop', 'end'],
]);

class MessageStream implements StreamRules {
  readonly maxHeartbeatBytes = 256;
  readonly #notes: AnswerNotes;
  readonly #failsEmpty: boolean;
  #counts: Counts = {};

  constructor(notes: AnswerNotes, failsEmpty: boolean) {
    this.#notes = notes;
    this.#failsEmpty = failsEmpty;
  }

  read(json: unknown, hasBegun: boolean): EventKind {
    const kind = KINDS.get(memberOf(json, 'type')) ?? 'part';
    const mayBeEmpty = this.#failsEmpty && !hasBegun;
    if (mayBeEmpty && kind === 'end') return { emptyReason: undefined };
    const message = memberOf(json, 'message');
    const model = memberOf(message, 'model');
    if (model !== undefined) this.#notes.noteModel(model);
    const reason = memberOf(memberOf(json, 'delta'), 'stop_reason');
    if (typeof reason === 'string') this.#notes.noteFinishReason(reason);
    const usage = usageOf(message) ?? usageOf(json);
    if (usage) {
      // The later event has the answer's tokens, and from some providers the prompt's again.
      this.#counts = withCounts(this.#counts, usage);
      this.#notes.noteUsage(toUsage(this.#counts));
    }
    return mayBeEmpty && kind === 'part' && isEmptyEvent(json) ? 'preamble' : kind;
  }
}

const COUNT_NAMES = [
  'input_tokens',
  'cache_creation_input_tokens',
  'cache_read_input_tokens',
  'output_tokens',
] as const;
type Counts = Readonly<Partial<Record<(typeof COUNT_NAMES)[number], number>>>;

/** A later null or 0 replaces no count. */
function withCounts(counts: Counts, usage: object): Counts {
  const later = COUNT_NAMES.map((name) => {
    const count = countIn(usage, name);
    const before = counts[name];
    return [name, count || (before ?? count)];
  });
  return Object.fromEntries(later) as Counts;
}

/** In OpenAI's names, a prompt's tokens include the cached ones. */
function toUsage(counts: Counts) {
  const cached = counts.cache_read_input_tokens ?? 0;
  return {
    prompt_tokens: (counts.input_tokens ?? 0) + (counts.cache_creation_input_tokens ?? 0) + cached,
    completion_tokens: counts.output_tokens,
    prompt_tokens_details: { cached_tokens: cached },
  };
}

function noteAnswer(answer: unknown, notes: AnswerNotes): void {
  notes.noteModel(memberOf(answer, 'model'));
  notes.noteFinishReason(memberOf(answer, 'stop_reason'));
  const usage = usageOf(answer);
  if (usage) notes.noteUsage(toUsage(withCounts({}, usage)));
}

/** A message with another `stop_reason`, such as a refusal or a limit, is an answer. */
const WHOLE = new Set<unknown>(['end_turn', 'stop_sequence', null, undefined]);

/** A tool call is content: its block has no text. */
function isEmpty(answer: unknown): boolean {
  const content = memberOf(answer, 'content') ?? [];
  const isWhole = WHOLE.has(memberOf(answer, 'stop_reason'));
  return isWhole && Array.isArray(content) && content.every(isEmptyBlock);
}

/** Returns whether a block's text is empty. A null member counts as absent. */
function isEmptyBlock(block: unknown): boolean {
  return isBlank(memberOf(block, 'text') ?? memberOf(block, 'thinking') ?? undefined);
}

/** A signature is no content. */
function isEmptyEvent(json: unknown): boolean {
  const delta = memberOf(json, 'delta');
  switch (memberOf(json, 'type')) {
    case 'content_block_start':
      return isEmptyBlock(memberOf(json, 'content_block'));
    case 'content_block_delta':
      return isEmptyBlock(delta) || memberOf(delta, 'type') === 'signature_delta';
    case 'content_block_stop':
      return true;
    case 'message_delta':
      return isEmpty(delta);
    default:
      return false;
  }
}

const ERROR_TYPES: ReadonlyMap<number, string> = new Map([
  [401, 'authentication_error'],
  [402, 'billing_error'],
  [403, 'permission_error'],
  [404, 'not_found_error'],
  [413, 'request_too_large'],
  [429, 'rate_limit_error'],
  [503, 'overloaded_error'],
  [504, 'timeout_error'],
  [529, 'overloaded_error'],
]);

function encodeErrorBody({ message, status }: GatewayError, requestId: string): string {
  const type = ERROR_TYPES.get(status) ?? (status < 500 ? 'invalid_request_error' : 'api_error');
  return JSON.stringify({ type: 'error', error: { type, message }, request_id: requestId });
}

export const MESSAGES: Endpoint = {
  path: '/messages',
  operation: 'messages',
  Parser: MessagesParser,
  Stream: MessageStream,
  noteAnswer,
  isEmpty,
  ownProtocol: {
    keyHeader: 'x-api-key',
    passedHeaders: new Map([
      ['anthropic-version', ANTHROPIC_VERSION],
      ['anthropic-beta', undefined],
    ]),
    encodeErrorBody,
  },
  encodeError: (failure, requestId) =>
    Buffer.from(`event: error\ndata: ${encodeErrorBody(failure, requestId)}\n\n`),
};

/** Counts the tokens of a request that no model answers. */
export const COUNT_TOKENS: Endpoint = {
  path: '/messages/count_tokens',
  operation: 'count_tokens',
  Parser: UnstreamedParser,
  Stream: MessageStream,
  noteAnswer() {},
  ownProtocol: MESSAGES.ownProtocol!,
};
