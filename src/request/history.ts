/** Records a request's attempts and answer, for the log and the metrics. */

import { causeOf } from './cause.ts';
import type { Affinity } from '../protocol/model-request.ts';
import { CHAT } from '../protocol/chat.ts';
import type { AnswerNotes, Endpoint } from '../protocol/endpoint.ts';
import { readUsage, type TokenUsage } from '../protocol/usage.ts';
import { type ClientGone, GatewayError, type Outcome } from '../lib/errors.ts';
import { type LogFacts, redactFacts } from '../lib/log.ts';
import { escapeControlCharacters, type Redactor } from '../lib/secrets.ts';

/** The longest name from outside, such as a model's. */
export const MAX_NAME_CHARACTERS = 128;
/** Printable ASCII without backslashes, and so without escape sequences. */
const MODEL = /^[ -[\]-~]{1,64}$/;
/**
 * The first word of a `finish_reason`, because Gemini writes `content_filter: OTHER`. Some
 * providers write the text `null` if there is no reason.
 */
const FINISH_REASON = /^(?!null$)[\w.-]{1,32}(?![\w.-])/;

/**
 * Returns whether a try with this outcome has asked its provider, even if no connection could be
 * made. Else an open circuit or a limit kept it away.
 */
export const hasAsked = (outcome: Attempt['outcome']) =>
  outcome !== 'limit' && outcome !== 'circuit_open';

const isAsked = (attempt: Attempt) => attempt.wasAsked;

interface Wait {
  readonly beganAtMs: number;
  readonly endedAtMs: number;
}

const NO_WAITS: readonly Wait[] = [];

interface TimeSpent {
  readonly gatewayMs: number;
  readonly queueMs?: number;
  readonly upstreamMs?: number;
}

export class RequestHistory {
  /** The name of the client with this key; undefined for a key from `[server.auth]`. */
  client: string | undefined;
  /** Hides the request's key, if the settings know it by its digest alone. */
  redactKey: Redactor | undefined;
  /** The provider of `attempt`, or of the first candidate before any attempt. */
  provider: string | undefined;
  model: string | undefined;
  stream: boolean | undefined;
  promptCacheKey: string | undefined;
  affinity: Affinity | undefined;
  endpoint: Endpoint = CHAT;
  requestBytes: number | undefined;
  traceId: string | undefined;
  /** Skipped providers have an attempt too. */
  attempts: readonly Attempt[] = [];
  /** The latest attempt; at the request's end the attempt whose answer or error the client got. */
  attempt: Attempt | undefined;
  bodyReadAtMs: number | undefined;
  /** The waits for a slot of a provider. */
  waits: readonly Wait[] = NO_WAITS;
  /** True while the request holds a slot of the provider of `attempt`, also between attempts. */
  holdsSlot = false;
  /** True once the request went on to a retry, another key or a fallback. */
  hasRetried = false;
  /** The failure in place of an answer, or at the end of a broken stream. */
  failure: GatewayError | undefined;

  withoutKey<Facts extends LogFacts>(facts: Facts): Facts {
    return this.redactKey ? redactFacts(facts, this.redactKey) : facts;
  }

  addAttempt(attempt: Attempt): Attempt {
    // Nearly every request has a single attempt, and an array grown by `push` takes 130 bytes more.
    this.attempts = this.attempts.length === 0 ? [attempt] : [...this.attempts, attempt];
    return attempt;
  }

  get asked(): readonly Attempt[] {
    const { attempts } = this;
    // Usually no provider was skipped, so no new array is needed.
    return attempts.every(isAsked) ? attempts : attempts.filter(isAsked);
  }

  /**
   * Divides the milliseconds from the client's upload to the answer's head; undefined without a
   * body that names a model. `queueMs` is the wait for slots. `upstreamMs` spans all attempts
   * without waits. `gatewayMs` is the rest.
   */
  timeSpent(headAtMs: number): TimeSpent | undefined {
    if (this.bodyReadAtMs === undefined) return undefined;
    const totalMs = headAtMs - this.bodyReadAtMs;
    const { asked, waits } = this;
    const last = asked.at(-1);
    // A comment of `stream_keepalive` may have begun the answer before the wait or the attempts.
    const waitedMs = waitedMsOf(waits, headAtMs);
    const waited = waits.length > 0 && { queueMs: waitedMs };
    if (!last) return { gatewayMs: totalMs - waitedMs, ...waited };
    const spanMs = Math.min(last.decidedAtMs ?? headAtMs, headAtMs) - asked[0]!.beganAtMs;
    const within = waits.filter(
      (wait) => asked[0]!.beganAtMs < wait.beganAtMs && last.beganAtMs >= wait.endedAtMs,
    );
    const upstreamMs = Math.max(0, spanMs - waitedMsOf(within, headAtMs));
    return { gatewayMs: totalMs - waitedMs - upstreamMs, upstreamMs, ...waited };
  }
}

/** Returns the milliseconds that the waits take before `untilMs`. */
export function waitedMsOf(waits: readonly Wait[], untilMs = Infinity): number {
  const lengths = waits.map(({ beganAtMs, endedAtMs }) => Math.min(endedAtMs, untilMs) - beganAtMs);
  return lengths.reduce((sum, ms) => sum + Math.max(0, ms), 0);
}

interface Asked {
  readonly provider: { readonly id: string; readonly subject: object };
  readonly model: string;
  readonly isStream: boolean;
}

/**
 * An attempt at a provider, called a try in the log and the metrics. A class gives all attempts the
 * same shape, because V8 would copy an object that grows member by member.
 */
export class Attempt implements AnswerNotes {
  readonly provider: string;
  /** The provider's `Subject` of incidents. With other settings a provider has another. */
  readonly subject: object;
  readonly model: string;
  readonly isStream: boolean;
  /** Undefined if the provider has a single key. */
  readonly key: number | undefined;
  /** Without its query, which might hold a key. */
  readonly url: string;
  readonly beganAtMs = performance.now();
  /** When the answer began, or when the attempt failed before. Not a stream's end. */
  decidedAtMs: number | undefined;
  /** `circuit_open` and `limit` if the provider was skipped; undefined while the attempt runs. */
  outcome: Outcome | 'circuit_open' | 'limit' | undefined;
  /**
   * True if the client gets this attempt's answer, so that no other provider is asked if it fails
   * later.
   */
  hasAnswer = false;
  failure: GatewayError | undefined;
  status: number | undefined;
  /** Undefined once the answer has begun. */
  headers: ReadonlyMap<string, string> | undefined;
  upstreamRequestId: string | undefined;
  /** Undefined before the request is written to a connection, and always over fetch. */
  connection: 'new' | 'reused' | undefined;
  sentAtMs: number | undefined;
  lookupMs: number | undefined;
  /** Untrusted; undefined unless it is short, printable ASCII. */
  responseModel: string | undefined;
  finishReason: string | undefined;
  usage: TokenUsage | undefined;
  /** True if the gateway has asked for the `usage`, and removes it from the stream. */
  usageAdded = false;

  constructor({ provider, model, isStream }: Asked, url: string, key?: number) {
    this.provider = provider.id;
    this.subject = provider.subject;
    this.model = model;
    this.isStream = isStream;
    this.key = key;
    this.url = url;
  }

  get wasAsked(): boolean {
    return hasAsked(this.outcome);
  }

  noteModel(model: unknown): void {
    this.responseModel = typeof model === 'string' && MODEL.test(model) ? model : undefined;
  }

  noteFinishReason(reason: unknown): void {
    this.finishReason = typeof reason === 'string' ? FINISH_REASON.exec(reason)?.[0] : undefined;
  }

  noteUsage(usage: unknown): void {
    const latest = readUsage(usage);
    const { prompt_tokens, completion_tokens, total_tokens } = latest;
    // Some streams end with an empty `usage`, which must not erase the counts of an earlier event.
    if (!this.usage || prompt_tokens || completion_tokens || total_tokens) this.usage = latest;
  }

  beginAnswer(): void {
    this.hasAnswer = true;
    this.decidedAtMs = performance.now();
    // An open stream would keep them, often 2 KB.
    this.headers = undefined;
  }

  recordEnd(failure?: GatewayError | ClientGone): void {
    // A begun answer keeps its time.
    this.decidedAtMs ??= performance.now();
    // The gateway's own failure, such as full memory, must not count against the provider.
    const isGatewayFailure = failure instanceof GatewayError && failure.scope === 'gateway';
    this.outcome = isGatewayFailure ? 'internal_error' : (failure?.outcome ?? 'ok');
    if (failure instanceof GatewayError) this.failure = failure;
  }

  toFacts() {
    const { beganAtMs, decidedAtMs, failure, wasAsked, key, outcome, upstreamRequestId } = this;
    const { connection, lookupMs, sentAtMs } = this;
    return {
      provider: this.provider,
      model: escapeControlCharacters(this.model, MAX_NAME_CHARACTERS),
      key: key === undefined ? undefined : key + 1,
      outcome: outcome!,
      status: this.status,
      cause: failure && wasAsked ? causeOf(failure) : undefined,
      url: wasAsked && outcome !== 'ok' ? this.url : undefined,
      upstream_request_id:
        upstreamRequestId && escapeControlCharacters(upstreamRequestId, MAX_NAME_CHARACTERS),
      lookup_ms: lookupMs === undefined ? undefined : Math.round(lookupMs),
      connect_ms: connection === 'new' ? Math.round(sentAtMs! - beganAtMs) : undefined,
      duration_ms: wasAsked ? Math.round((decidedAtMs ?? beganAtMs) - beganAtMs) : undefined,
    };
  }
}

type Recorded = ReturnType<Attempt['toFacts']>;
export type TryFacts = Pick<Recorded, 'provider' | 'model' | 'outcome'> & Partial<Recorded>;
