/** The rules of answers with `choices`: those of chat and of `/v1/completions`. */

import { memberOf, parseUntrustedJson } from '../lib/json.ts';
import { MAX_ITEMS } from '../lib/json-outline.ts';
import { isBlank } from './answer-json.ts';
import type { AnswerNotes, AnswerRules, EventKind, StreamRules } from './endpoint.ts';
import { skimEvents } from './plain-events.ts';
import { usageIn } from './usage.ts';

/** Providers name the model in the first event, or never. */
const MAX_MODEL_EVENTS = 8;

/** The rules of one stream of chunks, which ends with `[DONE]`. */
export class ChoiceStream implements StreamRules {
  readonly maxHeartbeatBytes = 0;
  readonly hasDone = true;
  hasChoice = false;
  readonly #notes: AnswerNotes;
  readonly #failsEmpty: boolean;
  /** By the index of the choice. */
  readonly #choices = new Map<number, 'open' | 'finished' | 'reopened'>();
  #hasFinish = false;
  #modelEvents = MAX_MODEL_EVENTS;

  constructor(notes: AnswerNotes, failsEmpty: boolean) {
    this.#notes = notes;
    this.#failsEmpty = failsEmpty;
  }

  get isFinished(): boolean {
    return (
      this.#choices.size > 0 && [...this.#choices.values()].every((state) => state === 'finished')
    );
  }

  skim(events: Buffer): boolean {
    const isOnlyChoice = this.#choices.size === 1 && this.#choices.has(0);
    if (this.#modelEvents > 0 || this.#hasFinish || !isOnlyChoice) return false;
    const text = skimEvents(events);
    if (text === undefined || text === '') return text === '';
    // A `usage` elsewhere, or in a broken event, does not replace the `usage` before it.
    const usage = this.#notes.usageAdded ? undefined : usageIn(parseUntrustedJson(text));
    if (usage === undefined) return false;
    this.#notes.noteUsage(usage);
    return true;
  }

  read(json: unknown, hasBegun: boolean): EventKind {
    const emptyReason = hasBegun ? undefined : failedReasonOf(json);
    if (emptyReason !== undefined) return { emptyReason };
    this.hasChoice ||= !hasNoChoice(json);
    this.#noteModel(memberOf(json, 'model'));
    const usage = usageIn(json);
    if (usage) this.#notes.noteUsage(usage);
    for (const choice of choicesIn(json) ?? []) {
      const index = memberOf(choice, 'index');
      const reason = memberOf(choice, 'finish_reason');
      const isFinished = typeof reason === 'string' && !isUnfinished(choice, false);
      if (isFinished) this.#notes.noteFinishReason(reason);
      this.#noteChoice(typeof index === 'number' ? index : 0, isFinished, this.hasContent(choice));
    }
    if (this.#notes.usageAdded && isUsageChunk(json)) return 'removed';
    if (!isPreamble(json, this.#failsEmpty)) return 'part';
    // llama.cpp's, if the client asks for `return_progress`.
    return memberOf(json, 'prompt_progress') === undefined ? 'preamble' : 'comment';
  }

  /** Returns whether a choice's delta has more than a role and empty values. */
  hasContent(choice: unknown): boolean {
    const delta = memberOf(choice, 'delta');
    return typeof delta === 'object' && delta !== null && !isEmpty(delta);
  }

  #noteModel(model: unknown): void {
    if (this.#modelEvents === 0) return;
    const isNamed = typeof model === 'string' && model !== '';
    this.#modelEvents = isNamed ? 0 : this.#modelEvents - 1;
    if (isNamed) this.#notes.noteModel(model);
  }

  /**
   * Content after a `finish_reason` reopens the choice. From then on only an event without content
   * finishes it, because some providers write `stop` into every chunk.
   */
  #noteChoice(index: number, isFinished: boolean, isContent: boolean): void {
    const before = this.#choices.get(index);
    if (before === undefined && this.#choices.size === MAX_ITEMS) return;
    this.#hasFinish ||= isFinished;
    const isReopened = isContent && before !== undefined && before !== 'open';
    const state = isFinished ? 'finished' : (before ?? 'open');
    this.#choices.set(index, isReopened ? 'reopened' : state);
  }
}

/** The rules for answers with `choices`, or without any. */
export const CHOICES: AnswerRules = {
  Stream: ChoiceStream,
  noteAnswer(json, notes) {
    const reasons = (choicesIn(json) ?? []).map((choice) => memberOf(choice, 'finish_reason'));
    notes.noteModel(memberOf(json, 'model'));
    notes.noteFinishReason(reasons.find((reason) => typeof reason === 'string' && reason !== ''));
    notes.noteUsage(usageIn(json));
  },
  failedReasonOf,
};

/**
 * Returns whether an event is a chat chunk before the answer: its choices, if any, have deltas with
 * only a `role` and empty values, and no `finish_reason`. vLLM, OpenAI and others send the role as
 * soon as a request is queued. Azure sends its `prompt_filter_results`.
 *
 * @param failsEmpty - whether the `finish_reason` `stop` counts as none, because an answer without
 *   content has failed
 */
export function isPreamble(json: unknown, failsEmpty: boolean): boolean {
  const choices = memberOf(json, 'choices');
  return (
    Array.isArray(choices) &&
    choices.every(
      (choice) => isEmpty(memberOf(choice, 'delta')) && isUnfinished(choice, failsEmpty),
    )
  );
}

/**
 * Returns whether a chunk has a `usage` and no choices. Azure adds `latency_checkpoint`, others
 * `x_groq`, `timings` and more.
 */
export function isUsageChunk(json: unknown): boolean {
  return Boolean(memberOf(json, 'usage')) && hasNoChoice(json);
}

/** Returns whether `choices` is absent, null or an empty array. */
export function hasNoChoice(json: unknown): boolean {
  return choicesIn(json)?.length === 0;
}

/** Returns the `choices`: none if they are absent or null, undefined if they are no array. */
function choicesIn(json: unknown): readonly unknown[] | undefined {
  const choices = memberOf(json, 'choices') ?? [];
  return Array.isArray(choices) ? choices : undefined;
}

/** Returns whether a completion has no content, and ended with `stop` or without a reason. */
export function isEmptyCompletion(json: unknown): boolean {
  const isEmptyChoice = (choice: unknown) =>
    isEmpty(memberOf(choice, 'message')) && isUnfinished(choice, true);
  return choicesIn(json)?.every(isEmptyChoice) === true;
}

/** z.ai's, OpenRouter's and DeepSeek's. */
const FAILED_REASONS = new Set<unknown>(['network_error', 'error', 'insufficient_system_resource']);

/**
 * Returns the `finish_reason` of an answer or an event without content that the provider itself
 * calls failed.
 */
export function failedReasonOf(json: unknown): string | undefined {
  const choices = choicesIn(json);
  const failed = choices?.find((choice) => FAILED_REASONS.has(memberOf(choice, 'finish_reason')));
  // Nearly every answer has content, so it is looked at last.
  if (failed === undefined || !choices!.every(isSilent)) return undefined;
  return String(memberOf(failed, 'finish_reason'));
}

/** Returns whether a choice of an answer or an event has no content. */
export function isSilent(choice: unknown): boolean {
  const parts = [memberOf(choice, 'message') ?? {}, memberOf(choice, 'delta') ?? {}];
  return parts.every(isEmpty) && isBlank(memberOf(choice, 'text') ?? '');
}

/** Returns whether a choice has no `finish_reason`. With `isStopEmpty`, `stop` counts as none. */
export function isUnfinished(choice: unknown, isStopEmpty: boolean): boolean {
  const reason = memberOf(choice, 'finish_reason') ?? '';
  // Some providers write `""` or `"null"` until the answer is finished.
  return reason === '' || reason === 'null' || (isStopEmpty && reason === 'stop');
}

function isEmpty(message: unknown): boolean {
  if (typeof message !== 'object' || message === null || Array.isArray(message)) return false;
  return Object.entries(message).every(([name, value]) => name === 'role' || isBlank(value));
}
