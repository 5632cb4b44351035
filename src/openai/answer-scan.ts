/** What a long answer, or a long event, says about itself: found by a scan, without a parse. */

import { JsonScanner, type JsonValue } from '../lib/json.ts';
import { BARE_MESSAGE_NAMES } from './error-body.ts';

/**
 * Returns whether the JSON of an event, too long to be parsed, is an error. Its message is not
 * passed on.
 */
export function isLongError(data: string): boolean {
  const scan = new AnswerScan();
  scan.json.push(Buffer.from(data));
  return !scan.json.finish() && scan.isError;
}

/** Of more choices nothing is noted: OpenAI gives 128 at most. */
export const MAX_CHOICES = 1000;
type ScannedChoice = { readonly index: number; readonly finishReason: string };
const NO_CHOICE: ScannedChoice = { index: 0, finishReason: '' };

/**
 * Looks for the members by which long answers, and long events, differ, while they arrive. They are
 * not parsed: the log probabilities of one may be a million elements.
 */
export class AnswerScan {
  readonly json = new JsonScanner((value) => this.#note(value), Infinity);
  #hasError = false;
  #hasMessage = false;
  #hasChoices = false;
  /** The current member has an item. */
  #hasItem = false;
  model = '';
  /** The first one in the current member, and the first one in `choices`. */
  #innerReason = '';
  finishReason = '';
  /** The current item of the current member; the items of that member; and those of `choices`. */
  #item: ScannedChoice = NO_CHOICE;
  #items: ScannedChoice[] = [];
  choices: readonly ScannedChoice[] = [];
  /** The offset of the last `usage` that is not null; 0 if there is none. */
  usageStart = 0;

  /** There are no choices beside it. */
  get isError(): boolean {
    return this.#hasError && !this.#hasChoices;
  }

  /** To be called after the last byte. Returns what the answer is, as far as its members tell. */
  finish(): 'not JSON' | 'error' | 'completion' | 'other' {
    if (this.json.finish()) return 'not JSON';
    const isBareMessage = this.#hasMessage && !this.#hasChoices;
    if (this.isError || isBareMessage) return 'error';
    return this.#hasChoices ? 'completion' : 'other';
  }

  /** A value comes after those inside it. */
  #note({ kind, depth, name, start, end, text }: JsonValue): void {
    if (depth === 3 && name === 'finish_reason') {
      this.#innerReason ||= text;
      this.#item = { ...this.#item, finishReason: text };
    }
    if (depth === 3 && name === 'index' && kind === 'number') {
      this.#item = { ...this.#item, index: Number(this.json.number) };
    }
    if (depth === 2) this.#endItem(kind);
    if (depth !== 1) return;
    if (kind !== 'null') {
      const isEmpty = kind === 'string' ? end - start === 2 : kind === 'false';
      const isSaid = kind === 'object' || kind === 'array' ? this.#hasItem : !isEmpty;
      if (isSaid && (name === 'error' || name === 'errors')) this.#hasError = true;
      if (isSaid && kind === 'string' && BARE_MESSAGE_NAMES.includes(name)) this.#hasMessage = true;
      if (name === 'model') this.model ||= text;
      if (name === 'usage') this.usageStart = start;
      if (name === 'choices') {
        this.#hasChoices = true;
        this.choices = this.#items;
        this.finishReason ||= this.#innerReason;
      }
    }
    this.#innerReason = '';
    this.#hasItem = false;
    this.#items = [];
  }

  #endItem(kind: JsonValue['kind']): void {
    this.#hasItem = true;
    if (kind === 'object' && this.#items.length < MAX_CHOICES) this.#items.push(this.#item);
    this.#item = NO_CHOICE;
  }
}
