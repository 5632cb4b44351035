/** Scans long answers and long events without a parse. */

import { JsonScanner, type JsonValue } from '../lib/json.ts';
import { BARE_MESSAGE_NAMES } from './error-body.ts';

/**
 * Returns whether an event's data is an error, for JSON that is too long to parse. The message of
 * such an error is not passed on.
 */
export function isLongError(data: string): boolean {
  const scan = new AnswerScan();
  scan.json.push(Buffer.from(data));
  return !scan.json.finish() && scan.isError;
}

/** Further choices are not noted, because OpenAI returns 128 at most. */
export const MAX_CHOICES = 1000;
type ScannedChoice = { readonly index: number; readonly finishReason: string };
const NO_CHOICE: ScannedChoice = { index: 0, finishReason: '' };

/**
 * Finds the members that distinguish long answers and long events, while their bytes arrive. It
 * does not parse them, because an answer's log probabilities may have a million elements.
 */
export class AnswerScan {
  readonly json = new JsonScanner((value) => this.#note(value), Infinity);
  #hasError = false;
  #hasMessage = false;
  #hasChoices = false;
  /** True if the current member has an item. */
  #hasItem = false;
  /** The first `model`, or ''. */
  model = '';
  /** The first `type`, which an event of `/v1/responses` has, or ''. */
  eventType = '';
  /** The first `finish_reason` in the current member. */
  #innerReason = '';
  /** The first `finish_reason` in `choices`. */
  finishReason = '';
  /** The current item of the current member. */
  #item: ScannedChoice = NO_CHOICE;
  /** The items of the current member. */
  #items: ScannedChoice[] = [];
  /** The items of `choices`. */
  choices: readonly ScannedChoice[] = [];
  /** The offset of the last non-null `usage`, or of the `usage` in `response`; 0 without any. */
  usageStart = 0;
  /** The offset of the first `usage` in the current member; 0 without any. */
  #innerUsageStart = 0;

  /** True if the answer has an error and no choices. */
  get isError(): boolean {
    return this.#hasError && !this.#hasChoices;
  }

  /** Ends the scan after the last byte. Returns the answer's kind, as its members show it. */
  finish(): 'not JSON' | 'error' | 'completion' | 'other' {
    if (this.json.finish()) return 'not JSON';
    const isBareMessage = this.#hasMessage && !this.#hasChoices;
    if (this.isError || isBareMessage) return 'error';
    return this.#hasChoices ? 'completion' : 'other';
  }

  /** Notes a value. The scanner reports it after the values inside it. */
  #note({ kind, depth, name, start, end, text }: JsonValue): void {
    if (depth === 3 && name === 'finish_reason') {
      this.#innerReason ||= text;
      this.#item = { ...this.#item, finishReason: text };
    }
    if (depth === 3 && name === 'index' && kind === 'number') {
      this.#item = { ...this.#item, index: Number(this.json.number) };
    }
    if (depth === 2) {
      if (name === 'usage') this.#innerUsageStart = start;
      this.#endItem(kind);
    }
    if (depth !== 1) return;
    if (kind !== 'null') {
      const isEmpty = kind === 'string' ? end - start === 2 : kind === 'false';
      const isSet = kind === 'object' || kind === 'array' ? this.#hasItem : !isEmpty;
      if (isSet && (name === 'error' || name === 'errors')) this.#hasError = true;
      if (isSet && kind === 'string' && BARE_MESSAGE_NAMES.includes(name)) this.#hasMessage = true;
      if (name === 'model') this.model ||= text;
      if (name === 'type') this.eventType ||= text;
      if (name === 'usage') this.usageStart = start;
      if (name === 'response') this.usageStart ||= this.#innerUsageStart;
      if (name === 'choices') {
        this.#hasChoices = true;
        this.choices = this.#items;
        this.finishReason ||= this.#innerReason;
      }
    }
    this.#innerReason = '';
    this.#innerUsageStart = 0;
    this.#hasItem = false;
    this.#items = [];
  }

  #endItem(kind: JsonValue['kind']): void {
    this.#hasItem = true;
    if (kind === 'object' && this.#items.length < MAX_CHOICES) this.#items.push(this.#item);
    this.#item = NO_CHOICE;
  }
}
