/** `POST /v1/responses`: its streams consist of events with a `type`, and have no `[DONE]`. */

import type { GatewayError } from '../lib/errors.ts';
import { type JsonValue, MAX_JSON_DEPTH, memberOf } from '../lib/json.ts';
import { isBlank } from './answer-json.ts';
import { ModelRequestParser } from './model-request.ts';
import type { AnswerNotes, Endpoint, EventKind, StreamRules } from './endpoint.ts';
import { usageIn } from './usage.ts';

/** Members that refer to what only the organisation of one key can read. */
const BINDING = ['previous_response_id', 'conversation', 'background', 'prompt'];
/** `container` may also be an object, for a new container. */
const BINDING_KINDS: ReadonlyMap<string, JsonValue['kind']> = new Map([
  ['file_id', 'string'],
  ['file_ids', 'array'],
  ['vector_store_ids', 'array'],
  ['container', 'string'],
  ['container_id', 'string'],
]);
/** The length of an empty text, array or object, as SDKs write it. */
const EMPTY_BYTES = 2;
/** Depths of values in the request, by `JsonValue.depth`. */
const [MEMBER, ITEM, ITEM_MEMBER] = [1, 2, 3];

/** By the `type` of an event. An event `error` is an error at all endpoints. */
const KINDS: ReadonlyMap<string, 'preamble' | 'heartbeat' | 'end' | 'failure'> = new Map([
  ['response.created', 'preamble'],
  ['response.queued', 'preamble'],
  ['response.in_progress', 'preamble'],
  ['response.keep_alive', 'heartbeat'],
  ['response.completed', 'end'],
  ['response.incomplete', 'end'],
  ['response.failed', 'failure'],
]);
/** No content. A tool call has other members too. */
const LABELS = ['id', 'type', 'status', 'role', 'phase', 'encrypted_content'];

class ResponsesParser extends ModelRequestParser {
  #isBound = false;
  #itemHasId = false;
  #itemHasContent = false;
  #hasReference = false;

  constructor(mayListModels: boolean, required?: string) {
    super(mayListModels, required, MAX_JSON_DEPTH);
  }

  protected override note(value: JsonValue): void {
    super.note(value);
    const { depth, kind, name, text } = value;
    const isEmpty = value.end - value.start === EMPTY_BYTES;
    const isSet = kind !== 'null' && kind !== 'false' && !isEmpty;
    if (depth === MEMBER) {
      const isReference = name === 'input' && this.#hasReference;
      if (isReference || (isSet && BINDING.includes(name))) this.#isBound = true;
      this.#hasReference = false;
    } else if (depth === ITEM) {
      // The provider looks the content up by the id, whatever the type is.
      if (this.#itemHasId && !this.#itemHasContent) this.#hasReference = true;
      this.#itemHasId = false;
      this.#itemHasContent = false;
    } else if (depth === ITEM_MEMBER) {
      if (isSet && name === 'id') this.#itemHasId = true;
      // A reasoning item's summary is not its reasoning.
      if (isSet && name !== 'summary' && !LABELS.includes(name)) this.#itemHasContent = true;
      // Reasoning and compaction items, which only their own organisation can decrypt.
      const isEncrypted = kind === 'string' && name === 'encrypted_content';
      const isAnswer = name === 'type' && text === 'mcp_approval_response';
      if (isEncrypted || isAnswer) this.#isBound = true;
    }
    // Members of the body's `metadata` are less deep, and may have any name.
    if (depth >= ITEM_MEMBER && isSet && BINDING_KINDS.get(name) === kind) this.#isBound = true;
  }

  override finish(body: { readonly parts: readonly Buffer[] }) {
    // A later request may refer to the answer of any request, so the session chooses each key.
    const affinity = this.#isBound ? ('organisation' as const) : ('session' as const);
    return { ...super.finish(body), mayAskForUsage: false, affinity };
  }
}

/** The last event has the whole answer. */
class ResponseStream implements StreamRules {
  readonly maxHeartbeatBytes = 1024;
  readonly #notes: AnswerNotes;
  readonly #failsEmpty: boolean;
  #isModelWanted = true;

  constructor(notes: AnswerNotes, failsEmpty: boolean) {
    this.#notes = notes;
    this.#failsEmpty = failsEmpty;
  }

  read(json: unknown, hasBegun: boolean): EventKind {
    const type = memberOf(json, 'type');
    // OpenAI sends `keepalive` in long silences, other servers `ping`.
    if (typeof type !== 'string' || !type.startsWith('response.')) return 'heartbeat';
    if (isEmptyItem(memberOf(json, 'item')) || isEmptyItem(memberOf(json, 'part'))) {
      return 'preamble';
    }
    const kind = KINDS.get(type) ?? 'part';
    const answer = memberOf(json, 'response');
    const isLast = kind === 'end' || kind === 'failure';
    if (isLast && !hasBegun) {
      if (kind === 'failure') return { fault: answer };
      if (this.#failsEmpty && isEmptyResponse(answer)) return { emptyReason: undefined };
    }
    this.#noteModel(memberOf(answer, 'model'));
    if (!isLast) return kind;
    this.#notes.noteUsage(usageIn(json));
    this.#notes.noteFinishReason(finishReasonOf(answer));
    return kind === 'failure' ? { fault: answer, passes: true } : kind;
  }

  #noteModel(model: unknown): void {
    if (!this.#isModelWanted || typeof model !== 'string' || model === '') return;
    this.#isModelWanted = false;
    this.#notes.noteModel(model);
  }
}

function isEmptyItem(item: unknown): boolean {
  const content = memberOf(item, 'content');
  const hasEmptyParts = Array.isArray(content) && content.every(hasOnlyLabels);
  return hasOnlyLabels(hasEmptyParts ? { ...(item as object), content: [] } : item);
}

function hasOnlyLabels(item: unknown): boolean {
  if (typeof item !== 'object' || item === null) return false;
  return Object.entries(item).every(([name, value]) => LABELS.includes(name) || isBlank(value));
}

function isEmptyResponse(answer: unknown): boolean {
  const output = memberOf(answer, 'output') ?? [];
  const isWhole = (finishReasonOf(answer) ?? 'completed') === 'completed';
  return isWhole && Array.isArray(output) && output.every(isEmptyItem);
}

function finishReasonOf(answer: unknown): unknown {
  return memberOf(memberOf(answer, 'incomplete_details'), 'reason') ?? memberOf(answer, 'status');
}

/**
 * Encodes OpenAI's event `error`, with the documented error object in addition: SDKs raise an error
 * for its `error`, and show the event alone as one of many.
 */
function encodeError(failure: GatewayError): Buffer {
  const { error } = JSON.parse(failure.toBody()) as { error: { code?: string; message: string } };
  const { code = null, message } = error;
  const data = { type: 'error', sequence_number: 0, code, message, param: null, error };
  return Buffer.from(`event: error\ndata: ${JSON.stringify(data)}\n\n`);
}

/**
 * OpenAI's messages about a missing object or a conversation in use. They must begin with these
 * words, because other messages quote the request.
 */
const REFERENCES = new RegExp(
  '^(?:(?:item|(?:previous )?response|conversation|container|file|vector store|prompt)s?\\b' +
    '.{0,200}\\bnot found|no such [\\w ]{1,32} object\\b|' +
    '.{0,64}\\boperating on this conversation)',
  'is',
);

export const RESPONSES: Endpoint = {
  path: '/responses',
  operation: 'responses',
  Parser: ResponsesParser,
  required: 'input',
  Stream: ResponseStream,
  noteAnswer(answer, notes) {
    notes.noteModel(memberOf(answer, 'model'));
    notes.noteFinishReason(finishReasonOf(answer));
    notes.noteUsage(usageIn(answer));
  },
  hasFailed: (answer) => memberOf(answer, 'status') === 'failed',
  isEmpty: isEmptyResponse,
  encodeError,
  references: REFERENCES,
};
