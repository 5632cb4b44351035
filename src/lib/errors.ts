/** Every failure that a client is told about: one class, one table. */

/** The end of a request or an attempt; see docs/log.md. */
export type Outcome =
  | 'ok'
  | 'client_closed'
  | 'refused'
  | 'rejected'
  | 'rate_limited'
  | 'upstream_error'
  | 'timeout'
  | 'internal_error';

/** Whose limit a 429 is about: the gateway's, or a provider's own (`upstream`). */
export type Limit =
  | 'global'
  | 'client'
  | 'client_requests_per_minute'
  | 'client_tokens_per_minute'
  | 'client_tokens_per_day'
  | 'provider'
  | 'server_concurrency'
  | 'client_concurrency'
  | 'provider_concurrency'
  | 'memory'
  | 'upstream';

/**
 * Checks that an error does not name to the client: their names in the metrics, and their texts in
 * the log.
 */
export const CHECKS = {
  no_token: 'no token',
  unknown_token: 'unknown token',
  model_not_allowed: 'model not allowed for this client',
} as const;

/** The check that has refused a request. */
type Check = keyof typeof CHECKS;
/** The limit or the check that has refused a request. */
export type Refusal = Limit | Check;

/**
 * How far a failure reaches. `client`: this request alone, which is wrong. `model`: the model that
 * was asked, because its provider was reached. `provider`: all of its models, because no connection
 * was made. `gateway`: this process or its machine; no other provider is asked, unless a retry may
 * help. Incidents of providers count `model` and `provider`.
 */
type Scope = 'client' | 'model' | 'provider' | 'gateway';

/**
 * Whether a request may be sent to the same provider again. `at once`: its connection was unusable
 * before it was sent, so the first repetition is free, and later ones are as with `later`. `later`:
 * after a wait, as often as the provider's `retries` allow.
 */
type Retry = 'no' | 'at once' | 'later';

/** What has failed, if a rule treats it unlike other failures of its status and scope. */
type Problem =
  /** A content policy refuses the request: neither another key nor another provider is asked. */
  | 'policy'
  /** The request is longer than the model's context: another provider may have more room. */
  | 'length'
  /** The provider lacks a model that a setting names: its circuit counts this 404. */
  | 'model gone'
  /** The answer ended too early: the incident is `cut`, not `nonsense`. */
  | 'cut'
  /** This machine can open no connection: the incident is `descriptors`. */
  | 'descriptors';

/** `code` is undefined if the documented error has none. Messages begin with `prefix`. */
type ErrorRow = readonly [
  status: number,
  type: string,
  code: string | undefined,
  prefix: string,
  scope: Scope,
];

/** The interface's error table, and the scope of each error whose details say no other. */
const ERROR_TABLE = {
  authentication: [401, 'authentication_error', undefined, '', 'client'],
  rateLimit: [429, 'rate_limit_error', 'RATE_LIMIT_ERROR', '', 'gateway'],
  invalidRequest: [400, 'invalid_request_error', 'INVALID_REQUEST', 'Invalid request: ', 'client'],
  // The interface spells this message without the prefix of other 400s.
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

/** OpenAI's SDKs ignore a longer `Retry-After` and repeat the request after half a second. */
const MAX_USEFUL_RETRY_AFTER_SECONDS = 60;

type ErrorKind = keyof typeof ERROR_TABLE;

/**
 * Details of a failure. Only `retryAfterSeconds`, `provider` and `upstreamStatus` reach the body.
 */
export interface ErrorDetails {
  /**
   * The HTTP status to answer with, if not the table's: an upstream's own, or 408, 413, 417, 431.
   */
  readonly status?: number;
  /** The provider that was asked. */
  readonly provider?: string;
  /** That of the error table if absent. */
  readonly scope?: Scope;
  /** The provider's own HTTP status (API_ERROR). */
  readonly upstreamStatus?: number;
  readonly retryAfterSeconds?: number;
  /** Response headers that belong to the failure: `allow`, or allow-listed ones of the upstream. */
  readonly headers?: Readonly<Record<string, string>>;
  /** `no` if absent. */
  readonly retry?: Retry;
  /** Absent for most failures. */
  readonly problem?: Problem;
  /** Whose limit was exceeded. For the log, the metrics and the incident `memory`. */
  readonly limit?: Limit;
  /** That limit by its name in the settings, and how full it is. For the log only. */
  readonly limitState?: string;
  /** A provider's own text, or what the network reported. For the log only. */
  readonly cause?: unknown;
  /** For the log and the metrics: the message must not say which check has failed. */
  readonly check?: Check;
  /** For the log, instead of a message that quotes the provider. */
  readonly reason?: string;
}

/** A failure in the interface's terms. `message` is complete, prefix included, and safe to send. */
export class GatewayError extends Error {
  readonly kind: ErrorKind;
  readonly status: number;
  readonly scope: Scope;
  readonly retry: Retry;
  readonly details: ErrorDetails;
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
    // Every 429 has one, even if the provider sent none.
    this.#retryAfterSeconds = details.retryAfterSeconds ?? (kind === 'rateLimit' ? 1 : undefined);
  }

  /**
   * Returns a GatewayError as it is. Anything else is a bug: a fixed 500, with the details as its
   * cause.
   */
  static from(thrown: unknown): GatewayError {
    if (thrown instanceof GatewayError) return thrown;
    return new GatewayError('internal', 'Internal server error', { cause: thrown });
  }

  get outcome(): Outcome {
    // A provider has answered a mistake of the client's.
    if (this.kind === 'api' && this.scope === 'client') return 'rejected';
    const [status] = ERROR_TABLE[this.kind];
    if (status === 429) return 'rate_limited';
    if (status === 504) return 'timeout';
    if (status < 500) return 'refused';
    return this.kind === 'internal' ? 'internal_error' : 'upstream_error';
  }

  /** The error object (docs/errors.md) as JSON. */
  toBody(): string {
    const [, type, code] = ERROR_TABLE[this.kind];
    return JSON.stringify({
      error: {
        type,
        message: this.message,
        code,
        retry_after: this.kind === 'rateLimit' ? this.#retryAfterSeconds : undefined,
        provider: type === 'provider_error' ? this.details.provider : undefined,
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
    // RFC 9110 11.6.1: a 401 names the scheme. A provider's 401 is not about this gateway's.
    if (this.kind === 'authentication') headers['www-authenticate'] = 'Bearer';
    // SDKs repeat each 5xx and 429. It cannot help here, and each timeout is paid. A provider's own
    // 501 or 504 may pass.
    const isFinal = this.kind === 'unsupported' || this.kind === 'timeout';
    if (isFinal || retryAfterSeconds > MAX_USEFUL_RETRY_AFTER_SECONDS) {
      headers['x-should-retry'] = 'false';
    }
    return headers;
  }
}

/** The most common refusal. `text` comes after `Invalid request: `. */
export function invalidRequest(text: string, details?: ErrorDetails): GatewayError {
  return new GatewayError('invalidRequest', text, details);
}

/** The client closed its connection: there is nobody to answer, and no failure. */
export class ClientGone extends Error {
  readonly outcome = 'client_closed';

  constructor() {
    super('client closed the connection');
    this.name = 'ClientGone';
  }
}
