/** What an upstream's error says about itself, wherever the provider writes it. */

import { memberOf, parseUntrustedJson } from '../lib/untrusted-json.ts';

/** An error as the upstream reports it, in an error body or an error event. All of it is untrusted. */
export interface UpstreamFault {
  readonly message: string | undefined;
  readonly code: string | undefined;
  readonly type: string | undefined;
  /** The HTTP status that the body names, or that its code or type stands for; else 502. */
  readonly status: number;
}

/** Where providers write their messages, in the order in which they are looked for. */
const MESSAGE_NAMES = 'message msg detail error errors Message error_description'.split(' ');
/** Arrays and objects that are searched for a message. Bounds the depth of the search too. */
const MAX_SEARCHED = 100;
const STATUS_NAMES = ['status_code', 'status', 'code'];
const STATUSES_BY_WORD: readonly (readonly [words: RegExp, status: number])[] = [
  [/^(?:invalid_request_error|tool_use_failed|unsupported_value|context_length_exceeded)$/, 400],
  [/^content_(?:filter|policy)/, 400],
  [/^(?:authentication_error|invalid_api_key)$/, 401],
  [/permission/i, 403],
  [/not_found/i, 404],
  [/rate_?limit|insufficient_quota/i, 429],
  [/overloaded/i, 503],
];
/** What an aggregator writes in place of its provider's message (OpenRouter). */
const SAYS_NOTHING = /^provider returned error\.?$/i;

/**
 * Whether the JSON of a 200 or of an event reports an error: `{error: …}`, `[{error: …}]` (Gemini),
 * `{object: "error", …}` (vLLM), `{type: "error", …}`.
 */
export function reportsFault(json: unknown): boolean {
  const body = bodyOf(json);
  const isFlat = memberOf(body, 'object') === 'error' || memberOf(body, 'type') === 'error';
  return isFlat || Boolean(memberOf(body, 'error'));
}

/** Reads the JSON, or the text, of an error. */
export function readFault(json: unknown): UpstreamFault {
  const body = bodyOf(json);
  const sources = [memberOf(body, 'error'), body];
  const textOf = (name: string) => sources.map((source) => memberOf(source, name)).find(isText);
  const [code, type] = [textOf('code'), textOf('type')];
  const named = sources
    .flatMap((source) => STATUS_NAMES.map((name) => memberOf(source, name)))
    .find(isErrorStatus);
  const status = Number(named ?? statusOf(code) ?? statusOf(type) ?? 502);
  return { message: firstText(json), code, type, status };
}

function bodyOf(json: unknown): unknown {
  return Array.isArray(json) ? json[0] : json;
}

/** The first text under one of the names, in arrays and objects inside them too. */
function firstText(value: unknown, search = { left: MAX_SEARCHED }): string | undefined {
  if (isText(value)) return value;
  if (typeof value !== 'object' || value === null || search.left === 0) return undefined;
  search.left -= 1;
  const parts: unknown[] = Array.isArray(value)
    ? value
    : MESSAGE_NAMES.map((name) => memberOf(value, name));
  for (const part of parts) {
    const text = firstText(part, search);
    if (text !== undefined) {
      return SAYS_NOTHING.test(text) ? withRaw(text, memberOf(value, 'metadata'), search) : text;
    }
  }
  return undefined;
}

/** Adds whose error it is, and what it says. */
function withRaw(text: string, metadata: unknown, search: { left: number }): string {
  const raw = memberOf(metadata, 'raw');
  const said = firstText(typeof raw === 'string' ? parseUntrustedJson(raw) : raw, search) ?? raw;
  return [text, memberOf(metadata, 'provider_name'), said].filter(isText).join(': ');
}

function statusOf(word = ''): number | undefined {
  return STATUSES_BY_WORD.find(([words]) => words.test(word))?.[1];
}

/** A number or a text: to make text of a deep array would overflow the stack. */
function isErrorStatus(value: unknown): boolean {
  return (typeof value === 'number' || typeof value === 'string') && /^[45]\d\d$/.test(`${value}`);
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value.trim() !== '';
}
