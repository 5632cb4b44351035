/**
 * Every failure a client can be told about: one class, one table.
 * Rooms throw `GatewayError`; only this file knows which kind has which status, type and code.
 */

/** One row of the interface's error table. `code` is absent where the interface leaves it out. */
interface ErrorRow {
  readonly status: number;
  readonly type: string;
  readonly code?: string;
  readonly prefix: string;
}

/** The interface's error table, row by row and in its order. */
const ERROR_TABLE = {
  authentication: { status: 401, type: 'authentication_error', prefix: '' },
  rateLimit: { status: 429, type: 'rate_limit_error', code: 'RATE_LIMIT_ERROR', prefix: '' },
  invalidRequest: {
    status: 400,
    type: 'invalid_request_error',
    code: 'INVALID_REQUEST',
    prefix: 'Invalid request: ',
  },
  // The one 400 whose message the interface spells without the prefix.
  unknownProvider: {
    status: 400,
    type: 'invalid_request_error',
    code: 'INVALID_REQUEST',
    prefix: 'Unknown provider: ',
  },
  notFound: { status: 404, type: 'not_found_error', code: 'NOT_FOUND', prefix: '' },
  provider: {
    status: 502,
    type: 'provider_error',
    code: 'PROVIDER_ERROR',
    prefix: 'Provider error: ',
  },
  api: { status: 502, type: 'provider_error', code: 'API_ERROR', prefix: '' },
  timeout: { status: 504, type: 'timeout_error', code: 'TIMEOUT', prefix: '' },
  internal: { status: 500, type: 'internal_error', code: 'INTERNAL_ERROR', prefix: '' },
  serialization: {
    status: 500,
    type: 'internal_error',
    code: 'SERIALIZATION_ERROR',
    prefix: 'Serialization error: ',
  },
  unsupported: {
    status: 501,
    type: 'unsupported_feature',
    code: 'UNSUPPORTED_FEATURE',
    prefix: '',
  },
} as const satisfies Record<string, ErrorRow>;

export type ErrorKind = keyof typeof ERROR_TABLE;

/** What else is known about a failure. Only `retryAfterSeconds`, `provider` and `upstreamStatus` reach the body. */
export interface ErrorFacts {
  /** The HTTP status to answer with, where it is not the table's: an upstream's own, or 408, 413, 417, 431. */
  readonly status?: number;
  readonly provider?: string;
  /** The provider's own HTTP status (API_ERROR). */
  readonly upstreamStatus?: number;
  readonly retryAfterSeconds?: number;
  /** Response headers that belong to the failure: `allow`, or allow-listed ones of the upstream. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Another attempt at the same provider may succeed. */
  readonly retryable?: boolean;
  /** The connection was at fault, and of no use before this request came: once, it is asked again for nothing. */
  readonly repeatAtOnce?: boolean;
  /** Set where the status alone does not say whether another provider may be asked. */
  readonly mayFallBack?: boolean;
  /** For the log only. */
  readonly cause?: unknown;
}

/** A failure in the interface's terms. `message` is complete, prefix included, and safe to send. */
export class GatewayError extends Error {
  readonly kind: ErrorKind;
  readonly status: number;
  readonly facts: ErrorFacts;

  constructor(kind: ErrorKind, text: string, facts: ErrorFacts = {}) {
    super(ERROR_TABLE[kind].prefix + text, { cause: facts.cause });
    this.name = 'GatewayError';
    this.kind = kind;
    this.status = facts.status ?? ERROR_TABLE[kind].status;
    this.facts = facts;
  }

  /** Anything thrown that is not a GatewayError is a bug of ours: a fixed 500, the rest only in the log. */
  static from(thrown: unknown): GatewayError {
    if (thrown instanceof GatewayError) return thrown;
    return new GatewayError('internal', 'Internal server error', { cause: thrown });
  }

  /** The documented error object (interface, Errors). */
  toBody(): string {
    const row: ErrorRow = ERROR_TABLE[this.kind];
    const isProviderError = row.type === 'provider_error';
    return JSON.stringify({
      error: {
        type: row.type,
        message: this.message,
        code: row.code,
        retry_after: this.kind === 'rateLimit' ? this.#retryAfterSeconds : undefined,
        provider: isProviderError ? this.facts.provider : undefined,
        status: this.kind === 'api' ? this.facts.upstreamStatus : undefined,
      },
    });
  }

  /** A 429 always says when to come back, also where the provider did not. */
  get #retryAfterSeconds(): number | undefined {
    return this.facts.retryAfterSeconds ?? (this.kind === 'rateLimit' ? 1 : undefined);
  }

  /** Headers every answer of this failure carries. */
  toHeaders(): Record<string, string> {
    const headers: Record<string, string> = { ...this.facts.headers };
    const retryAfterSeconds = this.#retryAfterSeconds;
    if (retryAfterSeconds !== undefined) headers['retry-after'] = String(retryAfterSeconds);
    // RFC 9110 11.6.1: a 401 of our own must name the scheme; a provider's 401 is not about our scheme.
    if (this.kind === 'authentication') headers['www-authenticate'] = 'Bearer';
    // SDKs retry every 5xx and 429; these two cannot get better by asking again.
    if (this.status === 501 || (retryAfterSeconds ?? 0) > MAX_USEFUL_RETRY_AFTER_SECONDS) {
      headers['x-should-retry'] = 'false';
    }
    return headers;
  }
}

/** OpenAI's SDKs ignore a longer `Retry-After` and come back after half a second instead. */
const MAX_USEFUL_RETRY_AFTER_SECONDS = 60;

/** Shorthand for the most common refusal. `text` comes after `Invalid request: `. */
export function invalidRequest(text: string, facts?: ErrorFacts): GatewayError {
  return new GatewayError('invalidRequest', text, facts);
}

/** Nobody is left to answer: the client closed its connection. Not a failure of anybody's. */
export class ClientGone extends Error {
  constructor() {
    super('client closed the connection');
    this.name = 'ClientGone';
  }
}
