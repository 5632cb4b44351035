/** What an answer says about itself: its model, why it ended, and its token counts. */

import { BACKSLASH, CLOSE_BRACE, OPEN_BRACE, QUOTE } from '../lib/ascii.ts';
import type { TokenUsage } from '../lib/request-facts.ts';
import { memberOf, parseUntrustedJson } from '../lib/untrusted-json.ts';

/** OpenAI's `usage` has 300 bytes. */
export const MAX_USAGE_BYTES = 16_384;
/** A longer model or `finish_reason` is not noted. */
export const MAX_WORD_CHARACTERS = 64;
/** Printable ASCII without escape sequences. */
const MODEL = /^[ -[\]-~]{1,64}$/;
/** The first word: Gemini writes `content_filter: OTHER`, and some providers `"null"` for none. */
const FINISH_REASON = /^(?!null$)[\w.-]{1,32}(?![\w.-])/;

/** Is filled in while the answer is read: a complete one before `attempt` resolves, a stream until it has ended. */
export class AnswerFacts {
  /** The model that the answer names, untrusted; `undefined` if that is no short text in printable ASCII. */
  model: string | undefined;
  /** Why the answer ended: at most 32 letters, digits, `_`, `.` and `-`; `undefined` if it does not say so. */
  finishReason: string | undefined;
  /** Of a stream that has ended: how many events it had. */
  events: number | undefined;
  #usage: TokenUsage | undefined;
  /** The last `usage`, until it is read. */
  #unread: unknown;

  /** The usable counts of the last `usage`; `undefined` if there is none. */
  get usage(): TokenUsage | undefined {
    if (this.#unread !== undefined) this.#usage = readUsage(this.#unread);
    this.#unread = undefined;
    return this.#usage;
  }

  noteModel(model: unknown): void {
    this.model = typeof model === 'string' && MODEL.test(model) ? model : undefined;
  }

  /** The last one counts. */
  noteFinishReason(reason: unknown): void {
    this.finishReason = typeof reason === 'string' ? FINISH_REASON.exec(reason)?.[0] : undefined;
  }

  /**
   * Takes a `usage`, or its JSON with what follows it, cut off after MAX_USAGE_BYTES. The last one counts. It is
   * parsed only when the counts are read: some providers send one with each event.
   */
  noteUsage(usage: unknown): void {
    this.#unread = usage ?? undefined;
  }
}

function readUsage(noted: unknown): TokenUsage {
  const usage = typeof noted === 'string' ? parseUntrustedJson(firstObject(noted)) : noted;
  const promptDetails = memberOf(usage, 'prompt_tokens_details');
  const completionDetails = memberOf(usage, 'completion_tokens_details');
  return {
    prompt_tokens: count(usage, 'prompt_tokens'),
    completion_tokens: count(usage, 'completion_tokens'),
    cached_tokens:
      count(promptDetails, 'cached_tokens') ??
      // DeepSeek, and Moonshot.
      count(usage, 'prompt_cache_hit_tokens') ??
      count(usage, 'cached_tokens'),
    reasoning_tokens: count(completionDetails, 'reasoning_tokens'),
  };
}

/** The JSON object at the start of `text`, without what follows it; '' if it is not whole. */
function firstObject(text: string): string {
  let depth = 0;
  let isInString = false;
  for (let at = 0; at < text.length; at += 1) {
    const character = text.charCodeAt(at);
    if (character === QUOTE) isInString = !isInString;
    else if (isInString && character === BACKSLASH) at += 1;
    else if (!isInString && character === OPEN_BRACE) depth += 1;
    else if (!isInString && character === CLOSE_BRACE) depth -= 1;
    if (depth === 0) return text.slice(0, at + 1);
  }
  return '';
}

function count(value: unknown, name: string): number | undefined {
  const number = memberOf(value, name);
  return Number.isSafeInteger(number) && (number as number) >= 0 ? (number as number) : undefined;
}
