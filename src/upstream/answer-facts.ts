/** What an answer says about itself: its model, why it ended, and its token counts. */

import { JsonScanner } from '../lib/json-scanner.ts';
import type { TokenUsage } from '../lib/request-facts.ts';
import { parseUntrustedJson } from '../lib/untrusted-json.ts';

/** OpenAI's `usage` has 300 bytes. */
export const MAX_USAGE_BYTES = 16_384;
/** Printable ASCII. */
const MODEL = /^[ -~]{1,64}$/;
/** Some providers write `"null"` until the answer is finished. */
const FINISH_REASON = /^(?!null$)[\w.-]{1,32}$/;

/** Is filled in while the answer is read: a complete one before `attempt` resolves, a stream until it has ended. */
export class AnswerFacts {
  #model: string | undefined;
  #finishReason: string | undefined;
  #usage: TokenUsage | undefined;
  /** Text that is not parsed yet. */
  #usageText: string | undefined;

  /** The model that the answer names, untrusted; `undefined` if that is no short text in ASCII. */
  get model(): string | undefined {
    return this.#model;
  }

  /** The last `finish_reason` that is a short word. */
  get finishReason(): string | undefined {
    return this.#finishReason;
  }

  /** The counts of the last `usage`; `undefined` if it has no usable one. */
  get usage(): TokenUsage | undefined {
    if (this.#usageText !== undefined) this.#usage = readUsage(this.#usageText);
    this.#usageText = undefined;
    return this.#usage;
  }

  /** The first model counts. */
  noteModel(model: unknown): void {
    if (typeof model === 'string' && MODEL.test(model)) this.#model ??= model;
  }

  noteFinishReason(reason: string): void {
    if (FINISH_REASON.test(reason)) this.#finishReason = reason;
  }

  /**
   * Takes the JSON of a `usage` object, at most MAX_USAGE_BYTES of it and of what follows it. It is parsed only when
   * the counts are read: some providers send one with each event.
   */
  noteUsage(text: string): void {
    this.#usageText = text;
  }
}

function readUsage(text: string): TokenUsage | undefined {
  const usage = parseUntrustedJson(text.slice(0, endOfValue(text)));
  const prompt = field(usage, 'prompt_tokens_details');
  const completion = field(usage, 'completion_tokens_details');
  const counts = {
    prompt_tokens: count(usage, 'prompt_tokens'),
    completion_tokens: count(usage, 'completion_tokens'),
    cached_tokens:
      count(prompt, 'cached_tokens') ??
      // DeepSeek, and Moonshot.
      count(usage, 'prompt_cache_hit_tokens') ??
      count(usage, 'cached_tokens'),
    reasoning_tokens: count(completion, 'reasoning_tokens'),
  };
  return Object.values(counts).some((value) => value !== undefined) ? counts : undefined;
}

/** The offset after the JSON value at the start of `text`, which is in latin1; 0 if it is not whole. */
function endOfValue(text: string): number {
  let end = 0;
  const json = new JsonScanner({
    onValue: () => undefined,
    onEnd: (offset) => {
      end = offset;
    },
  });
  try {
    json.push(Buffer.from(text, 'latin1'));
  } catch {
    // What follows the value.
  }
  return end;
}

function count(value: unknown, name: string): number | undefined {
  const number = field(value, name);
  return Number.isSafeInteger(number) && (number as number) >= 0 ? (number as number) : undefined;
}

function field(value: unknown, name: string): unknown {
  if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined;
  return (value as Record<string, unknown>)[name];
}
