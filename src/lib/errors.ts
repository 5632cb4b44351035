/** The failures that clients receive: one class, `GatewayError`, and one table. */

import type { Limit } from './limits.ts';

/** How a request or an attempt ended; see docs/log.md. */
export type Outcome =
  | 'ok'
  | 'client_closed'
  | 'refused'
  | 'rejected'
  | 'rate_limited'
  | 'upstream_error'
  | 'timeout'
  | 'internal_error';

/** Checks whose result is hidden from the client. Metrics show a check's name, the log its text. */
export const CHECKS = {
  no_token: 'no token',
  unknown_token: 'unknown token',
  expired_token: 'expired token',
  model_not_allowed: 'model not allowed for this client',
} as const;

type Check = keyof typeof CHECKS;
export type Refusal = Limit | Check;

/**
 * Whose fault a failure is, and so how far it reaches. Incidents count `key`, `model` and
 * `provider`.
 *
 * - `client`: only this request, because it is wrong.
 * - `key`: the gateway's key at the provider. Another key may be accepted.
 * - `model`: the requested model, because its provider was reached.
 * - `provider`: all the provider's models, because no connection was made.
 * - `gateway`: this process, its machine or its limits, or a client that did not read. It ends the
 *   request, because no other provider can help. Retries and fallbacks follow only the problem
 *   `descriptors`, which may be over by then.
 */
type Scope = 'client' | 'key' | 'model' | 'provider' | 'gateway';

/**
 * Whether a request may be sent to the same provider again.
 *
 * - `at once`: yes, because its connection was unusable before the request was sent. The first
 *   repetition is free; the rest follow `later`.
 * - `later`: after a wait, as often as the provider's `retries` allow.
 */
type Retry = 'no' | 'at once' | 'later';

/** A cause with rules of its own. */
type Problem =
  /** A content policy refuses the request: neither another key nor another provider is asked. */
  | 'policy'
  /** The request exceeds the model's context: another provider may have more room. */
  | 'length'
  /** The request names an earlier answer or a file that only its own organisation may have. */
  | 'reference'
  /**
   * The provider lacks the model, or the key may not use it: another target may have it. With the
   * scope `model` the settings name the model, so its circuit counts the failure.
   */
  | 'model gone'
  /** The answer ended early: the incident is `cut`, not `nonsense`. */
  | 'cut'
  /** The provider's name was not resolved: the incident is `lookup_failed`, not `unreachable`. */
  | 'lookup'
  /** The provider's certificate was not accepted: the incident is `certificate`. */
  | 'certificate'
  /** This machine can open no connection: the incident is `descriptors`. */
  | 'descriptors';

/** `prefix` begins each message. */
type ErrorRow = readonly [
  status: number,
  type: string,
  code: string | undefined,
  prefix: string,
  scope: Scope,
];

/** The documented errors (docs/errors.md). */
const ERROR_TABLE = {
  authentication: [401, 'authentication_error', undefined, '', 'client'],
  rateLimit: [429, 'rate_limit_error', 'RATE_LIMIT_ERROR', '', 'gateway'],
  invalidRequest: [400, 'invalid_request_error', 'INVALID_REQUEST', 'Invalid request: ', 'client'],
  // The documented message lacks the prefix of other 400s.
  unknownProvider: [
    400,
    'invalid_request_error',
    'INVALID_REQUEST',
    'Unknown provider: ',
    'client',
  ],
  notFound: [404, 'not_found_error', 'NOT_FOUND', '', 'client'],
  provider: [502, 'provider_error', 'PROVIDER_ERROR', 'Provider error: ', 'model'],
  api: [502, 'provider_error', 'API_ERROR', '', 'model'],
  timeout: [504, 'timeout_error', 'TIMEOUT', '', 'model'],
  internal: [500, 'internal_error', 'INTERNAL_ERROR', '', 'gateway'],
  serialization: [500, 'internal_error', 'SERIALIZATION_ERROR', 'Serialization error: ', 'model'],
  unsupported: [501, 'unsupported_feature', 'UNSUPPORTED_FEATURE', '', 'model'],
} as const satisfies Record<string, ErrorRow>;

/** OpenAI's SDKs ignore a longer `Retry-After`, and repeat the request after half a second. */
const MAX_USEFUL_RETRY_AFTER_SECONDS = 60;

type ErrorKind = keyof typeof ERROR_TABLE;

/** The answer's body shows only `retryAfterSeconds` and `upstreamStatus`. */
export interface ErrorDetails {
  /** The HTTP status if the table's does not apply: the upstream's own, or a 408, 413, 417, … */
  readonly status?: number;
  readonly scope?: Scope;
  readonly upstreamStatus?: number;
  readonly retryAfterSeconds?: number;
  /** How long a stream was silent when it failed. */
  readonly silentMs?: number;
  /** The answer's further headers. */
  readonly headers?: Readonly<Record<string, string>>;
  readonly retry?: Retry;
  readonly problem?: Problem;
  readonly limit?: Limit;
  /** For the log: the limit's name in the settings and how full it is. */
  readonly limitState?: string;
  /** For the log: the provider's text or the network's error. */
  readonly cause?: unknown;
  /** The message must not name the check. */
  readonly check?: Check;
  /** The client whose key has expired. */
  readonly client?: string | undefined;
  /** The log's text in place of a message that quotes the provider. */
  readonly reason?: string;
}

/** `message` includes the prefix and is safe to send. */
export class GatewayError extends Error {
  readonly kind: ErrorKind;
  readonly status: number;
  readonly scope: Scope;
  readonly retry: Retry;
  readonly details: ErrorDetails;
  /** The provider of the failed attempt, once the attempt has ended. */
  provider: string | undefined;
  readonly #retryAfterSeconds: number | undefined;

  constructor(kind: ErrorKind, text: string, details: ErrorDetails = {}) {
    const [status, , , prefix, scope] = ERROR_TABLE[kind];
    super(prefix + text, { cause: details.cause });
    this.name = 'GatewayError';
    this.kind = kind;
    this.status = details.status ?? status;
    this.scope = details.scope ?? scope;
    this.retry = details.retry ?? 'no';
    this.details = details;
    // Every 429 has a `Retry-After`, even if the provider sent none.
    this.#retryAfterSeconds = details.retryAfterSeconds ?? (kind === 'rateLimit' ? 1 : undefined);
  }

  /** Any value but a GatewayError is a bug, so it becomes the `cause` of a fixed 500. */
  static from(thrown: unknown): GatewayError {
    if (thrown instanceof GatewayError) return thrown;
    return new GatewayError('internal', 'Internal server error', { cause: thrown });
  }

  get outcome(): Outcome {
    const isAnswered = this.details.upstreamStatus !== undefined;
    if (isAnswered && this.scope === 'client') return 'rejected';
    const [status] = ERROR_TABLE[this.kind];
    if (status === 429) return 'rate_limited';
    if (status === 504) return 'timeout';
    if (status < 500) return 'refused';
    return this.scope === 'gateway' ? 'internal_error' : 'upstream_error';
  }

  /** Returns the error object (docs/errors.md) as JSON. */
  toBody(): string {
    const [, type, code] = ERROR_TABLE[this.kind];
    return JSON.stringify({
      error: {
        type,
        message: this.message,
        code,
        retry_after: this.kind === 'rateLimit' ? this.#retryAfterSeconds : undefined,
        provider: type === 'provider_error' ? this.provider : undefined,
        status: this.kind === 'api' ? this.details.upstreamStatus : undefined,
      },
    });
  }

  toHeaders(): Record<string, string> {
    const headers: Record<string, string> = {
      'content-type': 'application/json',
      'x-content-type-options': 'nosniff',
      ...this.details.headers,
    };
    const retryAfterSeconds = this.#retryAfterSeconds ?? 0;
    if (retryAfterSeconds > 0) headers['retry-after'] = String(retryAfterSeconds);
    // RFC 9110, 11.6.1: a 401 names the scheme. A provider's 401 is about another key.
    if (this.kind === 'authentication') headers['www-authenticate'] = 'Bearer';
    // SDKs repeat every 5xx and 429. A repetition cannot help here, and the provider charges for
    // each timeout. A provider's own 501 or 504 has the kind `api`: a repetition may help.
    const isRepeatUseless = this.kind === 'unsupported' || this.kind === 'timeout';
    if (isRepeatUseless || retryAfterSeconds > MAX_USEFUL_RETRY_AFTER_SECONDS) {
      headers['x-should-retry'] = 'false';
    }
    return headers;
  }
}

/** `text` follows `Invalid request: `. */
export function invalidRequest(text: string, details?: ErrorDetails): GatewayError {
  return new GatewayError('invalidRequest', text, details);
}

/** Nobody is left to answer, so this is no failure. */
export class ClientGone extends Error {
  readonly outcome = 'client_closed';

  constructor() {
    super('client closed the connection');
    this.name = 'ClientGone';
  }
}
