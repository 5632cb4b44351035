/** The chat completion request: untrusted bytes in, a validated request out, its bytes otherwise untouched. */

import { replaceText, sliceText } from '../lib/chunk-buffer.ts';
import { invalidRequest } from '../lib/errors.ts';
import { JsonScanner, type JsonKind, type JsonVisitor } from '../lib/json-scanner.ts';
import type { ChatRequest } from '../lib/messages.ts';
import { Utf8Validator } from '../lib/utf8-validator.ts';

/** The model is decoded, and encoded again for each attempt: 30 MB of escapes would take a second. */
const MAX_MODEL_BYTES = 2_097_152;
/** Go's JSON decoder, and so Ollama and LocalAI, ignores the case of names and takes the last such member. */
const OTHER_CASE = /^(?:model|stream)$/iu;
const MODELS = /^models$/iu;
const NO_MESSAGES = '"messages" must be a non-empty array';

/** Parses the body of `POST /v1/chat/completions` (interface, Resources) while it arrives. */
export class ChatRequestParser {
  readonly #utf8 = new Utf8Validator();
  readonly #members: RequestMembers;
  #isObject = false;
  /** What the scan of an earlier chunk has thrown. */
  #fault: unknown;
  readonly #json = new JsonScanner({
    onValue: (kind) => {
      this.#isObject = kind === 'object';
      return this.#isObject ? this.#members : undefined;
    },
  });

  /** `mayListModels`: whether `models` may be there, in which OpenRouter takes other models than `model`. */
  constructor(mayListModels = true) {
    this.#members = new RequestMembers(mayListModels);
  }

  /** Scans the next chunk. Never throws: a body that turns out too large is refused for that first. */
  push(chunk: Buffer): void {
    if (this.#fault) return;
    try {
      if (!this.#utf8.push(chunk)) throw invalidUtf8();
      this.#json.push(chunk);
    } catch (error) {
      this.#fault = error;
    }
  }

  /**
   * Returns the request; it holds the bytes of `body`, which are all chunks, and copies nothing. Throws
   * `invalidRequest` for anything that is not a chat completion request.
   */
  end(body: readonly Buffer[]): ChatRequest {
    if (this.#fault) throw this.#fault;
    if (!this.#utf8.isComplete) throw invalidUtf8();
    this.#json.end();
    if (!this.#isObject) throw invalidRequest('request body must be a JSON object');
    const { stream, hasMessages, fault } = this.#members;
    const { kind, start, end } = this.#members.model ?? { kind: 'null', start: 0, end: 0 };
    if (end - start > MAX_MODEL_BYTES) throw invalidRequest('"model" is too long');
    const written = sliceText(body, start, end);
    const model = kind === 'string' ? String(JSON.parse(written)) : '';
    if (model === '') throw invalidRequest('"model" must be a non-empty string');
    if (stream !== undefined && !STREAM_KINDS.has(stream.kind)) {
      throw invalidRequest('"stream" must be a boolean');
    }
    if (!hasMessages) throw invalidRequest(NO_MESSAGES);
    if (fault) throw invalidRequest(fault);

    return {
      model,
      stream: stream?.kind === 'true',
      bodyWithModel: (name) => replaceText(body, JSON.stringify(name), start, end),
    };
  }
}

/** `null` is what some clients send for an argument that was not given. */
const STREAM_KINDS = new Set<JsonKind>(['true', 'false', 'null']);

function invalidUtf8(): Error {
  return invalidRequest('request body is not valid UTF-8');
}

interface Member {
  readonly kind: JsonKind;
  readonly start: number;
  end: number;
}

/** The top-level members. */
class RequestMembers implements JsonVisitor {
  model: Member | undefined;
  stream: Member | undefined;
  hasMessages = false;
  /** What is wrong with the members, apart from the values of `model` and `stream`. */
  fault: string | undefined;
  readonly #mayListModels: boolean;
  /** The member under way, if it is one of these. */
  #member: Member | undefined;
  #messages: MessageList | undefined;

  constructor(mayListModels: boolean) {
    this.#mayListModels = mayListModels;
  }

  onValue(kind: JsonKind, name: string, start: number): JsonVisitor | undefined {
    this.#member = undefined;
    this.#messages = undefined;
    if (name === 'model' || name === 'stream') {
      // The bytes are forwarded, and an upstream may take the other one of the two.
      if (this[name]) this.fault ??= `duplicate member "${name}"`;
      this[name] = this.#member = { kind, start, end: start };
    } else if (name === 'messages') {
      this.hasMessages = true;
      this.#messages = new MessageList();
      if (kind === 'array') return this.#messages;
    } else if (OTHER_CASE.test(name)) {
      this.fault ??= '"model" and "stream" must be written in lower case';
    } else if (!this.#mayListModels && MODELS.test(name)) {
      this.fault ??= 'a client whose models are limited may not send "models"';
    }
    return undefined;
  }

  onEnd(end: number): void {
    if (this.#member) this.#member.end = end;
    if (this.#messages) this.fault ??= this.#messages.fault;
  }
}

/** The items of `messages`. */
class MessageList implements JsonVisitor {
  /** What is wrong with the first message that is not right. */
  fault: string | undefined = NO_MESSAGES;
  #count = 0;
  #message = new Message();

  onValue(kind: JsonKind): JsonVisitor | undefined {
    if (this.#count === 0) this.fault = undefined;
    this.#message = new Message();
    this.#message.isObject = kind === 'object';
    return this.#message.isObject ? this.#message : undefined;
  }

  onEnd(): void {
    const { fault } = this.#message;
    if (fault !== undefined) this.fault ??= `"messages[${this.#count}]${fault}`;
    this.#count += 1;
  }
}

/** The members of one message. One that is there twice counts as the last of the two. */
class Message implements JsonVisitor {
  readonly textName = 'role';
  isObject = false;
  #name = '';
  #role: string | undefined;
  #contentKind: JsonKind = 'null';
  #parts: ContentParts | undefined;
  #nameKind: JsonKind = 'null';

  /** What is wrong with the message, to be put behind its place in the list. */
  get fault(): string | undefined {
    if (!this.isObject) return '" must be an object';
    if (this.#role === undefined) return '.role" must be a string';
    if (this.#contentKind === 'null') {
      // An assistant may have called tools instead.
      const mayBeEmpty = this.#role === 'assistant' || this.#role === 'function';
      if (!mayBeEmpty) return '.content" is required';
    } else if (this.#contentKind !== 'string' && !this.#parts?.areObjects) {
      return '.content" must be a string or an array of parts';
    }
    const isName = this.#nameKind === 'string' || this.#nameKind === 'null';
    return isName ? undefined : '.name" must be a string';
  }

  onValue(kind: JsonKind, name: string): JsonVisitor | undefined {
    this.#name = name;
    if (name === 'name') this.#nameKind = kind;
    if (name !== 'content') return undefined;
    this.#contentKind = kind;
    this.#parts = kind === 'array' ? new ContentParts() : undefined;
    return this.#parts;
  }

  onEnd(_end: number, text: string | undefined): void {
    if (this.#name === 'role') this.#role = text;
  }
}

/** The items of a message's `content`. */
class ContentParts implements JsonVisitor {
  areObjects = true;

  onValue(kind: JsonKind): undefined {
    if (kind !== 'object') this.areObjects = false;
  }
}
