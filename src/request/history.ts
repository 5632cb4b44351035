/** What is learned of a request, its attempts and its answer, for the log and the metrics. */

import { causeOf } from './cause.ts';
import { readUsage, type TokenUsage } from '../openai/usage.ts';
import { type ClientGone, GatewayError, type Outcome } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

/** The length of every name from outside. */
export const MAX_NAME_CHARACTERS = 128;
/** A longer text of a `usage` is not held until the stream ends. */
const MAX_HELD_USAGE_CHARACTERS = 1024;
/** Printable ASCII without escape sequences. */
const MODEL = /^[ -[\]-~]{1,64}$/;
/** The first word: Gemini writes `content_filter: OTHER`, and some providers `"null"` for none. */
const FINISH_REASON = /^(?!null$)[\w.-]{1,32}(?![\w.-])/;

/** One request. Times are on the clock of `performance.now()`. */
export class RequestHistory {
  /** The name of the client whose key was sent; keys of `[server.auth]` have none. */
  client: string | undefined;
  /** The provider of `attempt`; before that the first candidate. */
  provider: string | undefined;
  model: string | undefined;
  stream: boolean | undefined;
  promptCacheKey: string | undefined;
  requestBytes: number | undefined;
  traceId: string | undefined;
  /** In order, those that were skipped too. */
  attempts: readonly Attempt[] = [];
  /** The latest attempt; at the end the one whose answer or error the client gets. */
  attempt: Attempt | undefined;
  bodyReadAtMs: number | undefined;
  /** The gateway has repeated the request, with another key perhaps, or asked a fallback. */
  hasRetried = false;
  /** The failure that was answered, or that ended a stream. */
  failure: GatewayError | undefined;

  addAttempt(attempt: Attempt): Attempt {
    // Nearly all have one: a list that was pushed to takes 130 bytes more.
    this.attempts = this.attempts.length === 0 ? [attempt] : [...this.attempts, attempt];
    return attempt;
  }

  /** The attempts without those that were skipped. */
  get asked(): readonly Attempt[] {
    return this.attempts.filter((attempt) => attempt.wasAsked);
  }

  /**
   * Returns how long a chat completion took until its answer's head; undefined if its body was
   * never read. `gatewayMs` is neither the client's upload nor `upstreamMs`, which goes from the
   * first attempt to the end of the last one.
   */
  timeSpent(
    headAtMs: number,
  ): { readonly gatewayMs: number; readonly upstreamMs?: number } | undefined {
    if (this.bodyReadAtMs === undefined) return undefined;
    const totalMs = headAtMs - this.bodyReadAtMs;
    const { asked } = this;
    const last = asked.at(-1);
    if (!last) return { gatewayMs: totalMs };
    const upstreamMs = Math.min(last.endedAtMs ?? headAtMs, headAtMs) - asked[0]!.beganAtMs;
    return { gatewayMs: totalMs - upstreamMs, upstreamMs };
  }
}

/**
 * One attempt at a provider, called a try in the log and the metrics. A class, so that all attempts
 * have one shape: V8 would copy an object that grows member by member.
 */
export class Attempt {
  readonly provider: string;
  /** That of the provider's settings: a reload may have changed them meanwhile. */
  readonly digest: string;
  /** The model that the provider is asked for. */
  readonly model: string;
  /** The index of the provider's key; undefined if the provider has only one. */
  readonly key: number | undefined;
  /** Without the query, which may hold a key. */
  readonly url: string;
  readonly beganAtMs = performance.now();
  /** When its answer began, or it failed without one. */
  endedAtMs: number | undefined;
  /** `circuit_open` and `limit`: the provider was skipped. Undefined while the attempt is made. */
  outcome: Outcome | 'circuit_open' | 'limit' | undefined;
  /** It has the answer to the client: nobody else is asked, also if it fails later. */
  hasAnswer = false;
  failure: GatewayError | undefined;
  /** The provider's own. */
  status: number | undefined;
  /** The headers of the provider's reply. */
  headers: ReadonlyMap<string, string> | undefined;
  upstreamRequestId: string | undefined;
  /** Undefined if the request was not written to one, or the transport does not tell. */
  connection: 'new' | 'reused' | undefined;
  /** When the request was written to its connection. */
  sentAtMs: number | undefined;
  /** How long the lookup of the host's name took for a new connection. */
  lookupMs: number | undefined;
  /**
   * The model that the answer names, untrusted; `undefined` if that is no short text in printable
   * ASCII.
   */
  responseModel: string | undefined;
  /** Why the answer ended: at most 32 letters, digits, `_`, `.` and `-`. */
  finishReason: string | undefined;
  #usage: string | TokenUsage | undefined;
  /** The gateway has asked for the `usage`, and takes it out of the stream. */
  usageAdded = false;

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

  /** The provider was asked, or could not be connected to: it was not skipped. */
  get wasAsked(): boolean {
    return this.outcome !== 'limit' && this.outcome !== 'circuit_open';
  }

  /** The usable counts of the last `usage`; `undefined` if there is none. */
  get usage(): TokenUsage | undefined {
    return typeof this.#usage === 'string' ? readUsage(this.#usage) : this.#usage;
  }

  noteModel(model: unknown): void {
    this.responseModel = typeof model === 'string' && MODEL.test(model) ? model : undefined;
  }

  noteFinishReason(reason: unknown): void {
    this.finishReason = typeof reason === 'string' ? FINISH_REASON.exec(reason)?.[0] : undefined;
  }

  /**
   * Takes a `usage`, parsed, or as `readUsage` takes its text. The last one counts. A short text is
   * read when the counts are wanted, because some providers send one with each event. A long one is
   * read at once, because an open stream would hold it.
   */
  noteUsage(usage: unknown): void {
    const isShort = typeof usage === 'string' && usage.length <= MAX_HELD_USAGE_CHARACTERS;
    this.#usage = isShort ? usage : readUsage(usage);
  }

  /** The answer to the client begins. */
  beginAnswer(): void {
    this.hasAnswer = true;
    this.endedAtMs = performance.now();
  }

  /** Records how it ended. */
  recordEnd(failure?: GatewayError | ClientGone): void {
    this.endedAtMs ??= performance.now();
    // The gateway's memory is on no provider's account.
    const isOwn = failure instanceof GatewayError && failure.scope === 'gateway';
    this.outcome = isOwn ? 'internal_error' : (failure?.outcome ?? 'ok');
    if (failure instanceof GatewayError) this.failure = failure;
  }

  /** Returns the fields of a try in the log. */
  toFacts() {
    const { beganAtMs, endedAtMs, failure, wasAsked, key, outcome, upstreamRequestId } = this;
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
      duration_ms: wasAsked ? Math.round((endedAtMs ?? beganAtMs) - beganAtMs) : undefined,
    };
  }
}

type Recorded = ReturnType<Attempt['toFacts']>;
/** JSON has no undefined fields. */
export type TryFacts = Pick<Recorded, 'provider' | 'model' | 'outcome'> & Partial<Recorded>;
