/** The history of a request: its attempts and its answer, for the log and the metrics. */

import { causeOf } from './cause.ts';
import { readUsage, type TokenUsage } from '../openai/usage.ts';
import { type ClientGone, GatewayError, type Outcome } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

/** Maximum length of a name from outside, such as a model's. */
export const MAX_NAME_CHARACTERS = 128;
/** A longer `usage` text is parsed at once, instead of held until the stream ends. */
const MAX_HELD_USAGE_CHARACTERS = 1024;
/** Printable ASCII without backslashes, and so without escape sequences. */
const MODEL = /^[ -[\]-~]{1,64}$/;
/**
 * The first word of a `finish_reason`, because Gemini writes `content_filter: OTHER`. Some
 * providers write the text `null` if there is no reason.
 */
const FINISH_REASON = /^(?!null$)[\w.-]{1,32}(?![\w.-])/;

/** The history of a request. Times are on the clock of `performance.now()`. */
export class RequestHistory {
  /** The name of the client whose key was sent; undefined for a key of `[server.auth]`. */
  client: string | undefined;
  /** The provider of `attempt`; before the first attempt, that of the first candidate. */
  provider: string | undefined;
  model: string | undefined;
  stream: boolean | undefined;
  promptCacheKey: string | undefined;
  requestBytes: number | undefined;
  traceId: string | undefined;
  /** All attempts in order, including skipped providers. */
  attempts: readonly Attempt[] = [];
  /** The latest attempt; at the end, the attempt whose answer or error the client gets. */
  attempt: Attempt | undefined;
  bodyReadAtMs: number | undefined;
  /** The gateway has sent the request again, perhaps with another key, or has asked a fallback. */
  hasRetried = false;
  /** The failure that the client got instead of an answer, or that ended its stream. */
  failure: GatewayError | undefined;

  /** Appends an attempt, and returns it. */
  addAttempt(attempt: Attempt): Attempt {
    // Nearly every request has a single attempt, and an array that `push` has grown takes 130 bytes
    // more.
    this.attempts = this.attempts.length === 0 ? [attempt] : [...this.attempts, attempt];
    return attempt;
  }

  /** The attempts at providers that were not skipped. */
  get asked(): readonly Attempt[] {
    return this.attempts.filter((attempt) => attempt.wasAsked);
  }

  /**
   * Returns how long a chat completion took until its answer's head, in milliseconds; undefined if
   * its body was never read. `upstreamMs` spans the time from the first attempt to the end of the
   * last attempt. `gatewayMs` is the rest of the time after the client's upload.
   *
   * @param headAtMs - when the head was sent, on the clock of `performance.now()`
   */
  timeSpent(
    headAtMs: number,
  ): { readonly gatewayMs: number; readonly upstreamMs?: number } | undefined {
    if (this.bodyReadAtMs === undefined) return undefined;
    const totalMs = headAtMs - this.bodyReadAtMs;
    const { asked } = this;
    const last = asked.at(-1);
    if (!last) return { gatewayMs: totalMs };
    const upstreamMs = Math.min(last.decidedAtMs ?? headAtMs, headAtMs) - asked[0]!.beganAtMs;
    return { gatewayMs: totalMs - upstreamMs, upstreamMs };
  }
}

/**
 * One attempt at a provider, called a try in the log and the metrics. A class gives all attempts
 * the same shape, because V8 would copy an object that grows member by member.
 */
export class Attempt {
  readonly provider: string;
  /**
   * Digest of the provider's settings, because a reload may have changed the settings meanwhile.
   */
  readonly digest: string;
  /** The model that the provider is asked for. */
  readonly model: string;
  /** Index of the provider's key; undefined if the provider has a single key. */
  readonly key: number | undefined;
  /** The URL without its query, which may hold a key. */
  readonly url: string;
  readonly beganAtMs = performance.now();
  /** When the answer began, or the attempt failed before. Not the end of a stream. */
  decidedAtMs: number | undefined;
  /** `circuit_open` and `limit` if the provider was skipped; undefined while the attempt runs. */
  outcome: Outcome | 'circuit_open' | 'limit' | undefined;
  /** The client gets this attempt's answer, so no other provider is asked if it fails later. */
  hasAnswer = false;
  failure: GatewayError | undefined;
  /** Status of the provider's reply. */
  status: number | undefined;
  /** The headers of the provider's reply. */
  headers: ReadonlyMap<string, string> | undefined;
  upstreamRequestId: string | undefined;
  /** Undefined if the request was not written to a connection, or if the transport is fetch. */
  connection: 'new' | 'reused' | undefined;
  /** When the request was written to its connection. */
  sentAtMs: number | undefined;
  /** How long the name lookup for a new connection took, in milliseconds. */
  lookupMs: number | undefined;
  /**
   * The model named in the answer, untrusted; undefined unless it is a short text of printable
   * ASCII.
   */
  responseModel: string | undefined;
  /** Why the answer ended: at most 32 letters, digits, `_`, `.` and `-`. */
  finishReason: string | undefined;
  #usage: string | TokenUsage | undefined;
  /** The gateway has asked for the `usage`, and removes it from the stream. */
  usageAdded = false;

  /** Begins an attempt now. `key` is the index of the provider's key. */
  constructor(
    { id, digest, chatUrl }: Readonly<Record<'id' | 'digest' | 'chatUrl', string>>,
    model: string,
    key?: number,
  ) {
    this.provider = id;
    this.digest = digest;
    this.model = model;
    this.key = key;
    this.url = chatUrl;
  }

  /**
   * False if the provider was skipped. True also if no connection to the provider could be made.
   */
  get wasAsked(): boolean {
    return this.outcome !== 'limit' && this.outcome !== 'circuit_open';
  }

  /** Token counts from the last `usage`; undefined if the answer has no usable `usage`. */
  get usage(): TokenUsage | undefined {
    return typeof this.#usage === 'string' ? readUsage(this.#usage) : this.#usage;
  }

  /** Notes the answer's `model`, if it is a text that may be shown. */
  noteModel(model: unknown): void {
    this.responseModel = typeof model === 'string' && MODEL.test(model) ? model : undefined;
  }

  /** Notes the answer's `finish_reason`. */
  noteFinishReason(reason: unknown): void {
    this.finishReason = typeof reason === 'string' ? FINISH_REASON.exec(reason)?.[0] : undefined;
  }

  /**
   * Notes a `usage`, either parsed or as the text that `readUsage` takes; the last call counts. A
   * short text is parsed when the counts are read, because some providers send a `usage` with each
   * event. A long text is parsed at once, because an open stream would hold it.
   */
  noteUsage(usage: unknown): void {
    const isShort = typeof usage === 'string' && usage.length <= MAX_HELD_USAGE_CHARACTERS;
    this.#usage = isShort ? usage : readUsage(usage);
  }

  /** Marks that the client's answer has begun. */
  beginAnswer(): void {
    this.hasAnswer = true;
    this.decidedAtMs = performance.now();
  }

  /** Records how the attempt has ended, with its failure if it has failed. */
  recordEnd(failure?: GatewayError | ClientGone): void {
    // An answer that has begun keeps its time.
    this.decidedAtMs ??= performance.now();
    // The gateway's own failure, such as full memory, must not count against the provider.
    const isGatewayFailure = failure instanceof GatewayError && failure.scope === 'gateway';
    this.outcome = isGatewayFailure ? 'internal_error' : (failure?.outcome ?? 'ok');
    if (failure instanceof GatewayError) this.failure = failure;
  }

  /** Returns the fields of a try in the log. */
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
/** A try as JSON, which has no undefined fields. */
export type TryFacts = Pick<Recorded, 'provider' | 'model' | 'outcome'> & Partial<Recorded>;
