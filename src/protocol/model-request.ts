/**
 * Validates a chat completion request as it arrives. It is forwarded unchanged except for `model`
 * and the request for usage. `node:buffer` is imported whole: see `assertNodeVersion` of
 * lib/version.ts.
 */

import buffer from 'node:buffer';

import { joinParts, replaceText, sliceText } from '../lib/chunk-buffer.ts';
import { invalidRequest } from '../lib/errors.ts';
import { JsonScanner, type JsonValue } from '../lib/json.ts';

/** The longest `model`: decoding 30 MB of escapes for each attempt would take a second. */
const MAX_MODEL_BYTES = 2_097_152;
/** The longest `model` for a stream, because an open stream keeps it until its end. */
const MAX_STREAM_MODEL_BYTES = 4096;
/** Go's JSON decoder ignores case and uses the last match. Ollama and LocalAI use this decoder. */
const OTHER_CASE = /^(?:model|stream)$/iu;
const MODELS = /^models$/iu;
/** Depths of values in the request, by `JsonValue.depth`. */
const [BODY, MEMBER, MESSAGE, MESSAGE_MEMBER, CONTENT_PART] = [0, 1, 2, 3, 4];
const NO_VALUE = { kind: 'null', start: 0, end: 0, text: '' };
/** In a text each quotation mark has a backslash, so these never match what a user has written. */
const FILE_ID = /"file_id"\s*:\s*"[^"]/;
const ID = /"id"\s*:\s*"[^"]/;
const NO_MESSAGES = '"messages" must be a non-empty array';

/** If two members have the same name, the last counts. */
interface Message {
  role?: JsonValue;
  content?: JsonValue;
  name?: JsonValue;
  hasPlainPart?: boolean;
}

/**
 * `session`: the session's later requests need the same key. `organisation`: no other key or
 * provider can answer the request.
 */
export type Affinity = 'session' | 'organisation';

/** The request members that the gateway reads. */
export interface ModelRequest {
  readonly model: string;
  readonly stream: boolean;
  /**
   * True if the request is a stream, leaves `include_usage` unset, and has no `stream_options`
   * other than an object or null.
   */
  readonly mayAskForUsage: boolean;
  /** The request's own name for its session, at most 64 bytes. */
  readonly promptCacheKey: string | undefined;
  /** Set if the session of the request chooses its key, whatever the provider's settings say. */
  readonly affinity: Affinity | undefined;
  /**
   * Returns the client's bytes in parts. Only `model` is replaced, and with `asksForUsage` the
   * request for usage is added.
   */
  bodyWith(model: string, asksForUsage: boolean): readonly Buffer[];
}

/**
 * Parses the body of `POST /v1/chat/completions` (docs/behaviour.md#validation) while it arrives.
 *
 * The scanner reports a value after the values inside it. So the parser collects message members
 * inside every body member, and drops them if the body member is not `messages`.
 */
export class ModelRequestParser {
  readonly #json: JsonScanner;
  readonly #mayListModels: boolean;
  readonly #required: string;
  #isObject = false;
  #model: JsonValue | undefined;
  #stream: JsonValue | undefined;
  #hasRequired = false;
  #mistake: string | undefined;
  #items = 0;
  /** Counts only if the current member is `messages`. */
  #itemMistake: string | undefined;
  #message: Message = {};
  #hasPlainPart = false;
  #bodyStart = 0;
  #streamOptions: JsonValue | undefined;
  /** `include_usage` in the current member. */
  #innerUsage: JsonValue | undefined;
  #includeUsage: JsonValue | undefined;
  #promptCacheKey: string | undefined;
  /** `content` with parts and `audio` of items in the current member, which may refer to ids. */
  #innerReferrers: JsonValue[] | undefined;
  #referrers: readonly JsonValue[] | undefined;

  /**
   * @param mayListModels - false refuses `models`, because OpenRouter may choose another model from
   * it
   * @param required - the member that the request must have beside `model`
   * @param notedDepth - how many objects and arrays may enclose a value that `note` gets
   */
  constructor(mayListModels = true, required = 'messages', notedDepth?: number) {
    this.#json = new JsonScanner((value) => this.note(value), { depth: notedDepth });
    this.#mayListModels = mayListModels;
    this.#required = required;
  }

  /**
   * Never throws: a mistake waits for `finish`, because an oversized body is refused for its size
   * first.
   */
  push(chunk: Buffer): void {
    this.#json.push(chunk);
  }

  /**
   * @param body - read again when the request is sent, so that an open stream keeps no bytes
   * @throws `invalidRequest` if the body is not a valid request
   */
  finish(body: { readonly parts: readonly Buffer[] }): ModelRequest {
    const { parts } = body;
    const whole = joinParts(parts);
    if (!buffer.isUtf8(whole)) throw invalidRequest('request body is not valid UTF-8');
    const jsonFault = this.#json.finish();
    if (jsonFault) throw jsonFault;
    if (!this.#isObject) throw invalidRequest('request body must be a JSON object');
    const { kind, start, end, text } = this.#model ?? NO_VALUE;
    const isStream = this.#stream?.kind === 'true';
    const maxModelBytes = isStream ? MAX_STREAM_MODEL_BYTES : MAX_MODEL_BYTES;
    if (end - start > maxModelBytes) throw invalidRequest('"model" is too long');
    // The scanner does not decode a long text.
    const isLong = kind === 'string' && text === '';
    const model = isLong ? String(JSON.parse(sliceText(parts, start, end))) : text;
    if (model === '') throw invalidRequest('"model" must be a non-empty string');
    // Some clients send `null` for an absent argument.
    const stream = this.#stream?.kind ?? 'null';
    if (stream !== 'true' && stream !== 'false' && stream !== 'null') {
      throw invalidRequest('"stream" must be a boolean');
    }
    if (!this.#hasRequired) throw invalidRequest(mistakeOfRequired(this.#required));
    if (this.#mistake) throw invalidRequest(this.#mistake);

    const usageEdit = isStream ? this.#usageEdit(parts) : undefined;
    const isBound = this.#referrers !== undefined && refersToIds(this.#referrers, whole);
    return {
      model,
      stream: isStream,
      mayAskForUsage: usageEdit !== undefined,
      promptCacheKey: this.#promptCacheKey,
      affinity: isBound ? 'organisation' : undefined,
      bodyWith(name: string, asksForUsage: boolean) {
        const edit = { text: JSON.stringify(name), start, end };
        if (!asksForUsage) return replaceText(body.parts, edit);
        // The last edit is made first, so that the first edit's offsets stay valid.
        const [first, last] = [edit, usageEdit!].toSorted((a, b) => a.start - b.start);
        return replaceText(replaceText(body.parts, last!), first!);
      },
    };
  }

  /**
   * Returns undefined if the request sets `include_usage` itself, or has an unusable
   * `stream_options`.
   */
  #usageEdit(body: readonly Buffer[]) {
    const [options, asked] = [this.#streamOptions, this.#includeUsage];
    const insert = (text: string, at: number) => ({ text, start: at, end: at });
    const member = '"include_usage":true';
    if (!options) return insert(`"stream_options":{${member}},`, this.#bodyStart + 1);
    if (options.kind === 'null') return { ...options, text: `{${member}}` };
    if (options.kind !== 'object') return undefined;
    const isEmpty = /^\{\s*\}$/.test(sliceText(body, options.start, options.end));
    if (!asked) return insert(isEmpty ? member : `${member},`, options.start + 1);
    return asked.kind === 'null' ? { ...asked, text: 'true' } : undefined;
  }

  /** Notes a value in the body, after the values inside it. */
  protected note(value: JsonValue): void {
    const { kind, depth, name } = value;
    if (depth === CONTENT_PART) {
      if (kind !== 'object') this.#hasPlainPart = true;
    } else if (depth === MESSAGE_MEMBER) {
      if (name === 'role') this.#message.role = value;
      else if (name === 'name') this.#message.name = value;
      else if (name === 'content') {
        this.#message.content = value;
        this.#message.hasPlainPart = this.#hasPlainPart;
      }
      if ((name === 'content' && kind === 'array') || (name === 'audio' && kind === 'object')) {
        (this.#innerReferrers ??= []).push(value);
      }
      this.#hasPlainPart = false;
    } else if (depth === MESSAGE) {
      const mistake = kind === 'object' ? mistakeOf(this.#message) : '" must be an object';
      if (mistake !== undefined) this.#itemMistake ??= `"messages[${this.#items}]${mistake}`;
      // The members of `stream_options` are at this depth too.
      if (name === 'include_usage') this.#innerUsage = value;
      this.#items += 1;
      this.#message = {};
    } else if (depth === MEMBER) {
      const mistake = this.#noteMember(value);
      this.#mistake ??= mistake;
      this.#items = 0;
      this.#itemMistake = undefined;
      this.#innerUsage = undefined;
      this.#innerReferrers = undefined;
    } else if (depth === BODY) {
      this.#isObject = kind === 'object';
      this.#bodyStart = value.start;
    }
  }

  #noteMember(value: JsonValue): string | undefined {
    const { kind, name } = value;
    if (name === 'model' || name === 'stream') {
      const before = name === 'model' ? this.#model : this.#stream;
      if (name === 'model') this.#model = value;
      else this.#stream = value;
      // The bytes are forwarded, and an upstream may read the other member.
      return before ? `duplicate member "${name}"` : undefined;
    }
    if (name === this.#required) {
      this.#hasRequired = true;
      if (name === 'messages') {
        this.#referrers = this.#innerReferrers;
        return kind === 'array' && this.#items > 0 ? this.#itemMistake : NO_MESSAGES;
      }
      return kind === 'string' || kind === 'array' ? undefined : mistakeOfRequired(name);
    }
    if (name === 'stream_options') {
      this.#streamOptions = value;
      this.#includeUsage = this.#innerUsage;
    }
    // The text is '' if it is too long to decode.
    if (name === 'prompt_cache_key') this.#promptCacheKey = value.text || undefined;
    if (OTHER_CASE.test(name)) return '"model" and "stream" must be written in lower case';
    const isListRefused = !this.#mayListModels && MODELS.test(name);
    return isListRefused ? 'a client whose models are limited may not send "models"' : undefined;
  }
}

/**
 * Returns whether a message refers to a file or to a spoken answer by its id, which only the
 * organisation that has stored it can read.
 */
function refersToIds(referrers: readonly JsonValue[], body: Buffer): boolean {
  const hasFileId = body.includes('"file_id"');
  return referrers.some(({ name, start, end }) => {
    const isAudio = name === 'audio';
    const textOf = () => body.toString('latin1', start, end);
    return (isAudio || hasFileId) && (isAudio ? ID : FILE_ID).test(textOf());
  });
}

/** A provider ignores or refuses `stream`. */
export class UnstreamedParser extends ModelRequestParser {
  override finish(body: { readonly parts: readonly Buffer[] }): ModelRequest {
    return { ...super.finish(body), stream: false, mayAskForUsage: false };
  }
}

function mistakeOfRequired(name: string): string {
  return name === 'messages' ? NO_MESSAGES : `"${name}" must be a string or an array`;
}

/**
 * Returns a message's mistake, as the text that follows `"messages[0]`: `.role" must be a string`.
 */
function mistakeOf({ role, content, name, hasPlainPart }: Message): string | undefined {
  if (role?.kind !== 'string') return '.role" must be a string';
  const contentKind = content?.kind;
  if (contentKind === undefined) {
    // An assistant may have called tools instead.
    const mayBeAbsent = role.text === 'assistant' || role.text === 'function';
    if (!mayBeAbsent) return '.content" is required';
  } else if (contentKind === 'null') {
    // Agents send null in tool and system messages.
    if (role.text === 'user') return '.content" is required';
  } else if (contentKind !== 'string' && (contentKind !== 'array' || hasPlainPart)) {
    return '.content" must be a string or an array of parts';
  }
  const isName = !name || name.kind === 'string' || name.kind === 'null';
  return isName ? undefined : '.name" must be a string';
}
