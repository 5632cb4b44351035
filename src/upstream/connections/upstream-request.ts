/** A request to a provider and its response, as the transports take and return them. */

import type { TlsSettings } from '../../config/config.ts';
import { joinParts, lengthOf } from '../../lib/chunk-buffer.ts';
import type { ByteSource } from '../../lib/memory/byte-source.ts';
import { copyIfResizable, type HeldBody } from '../../lib/memory/held-body.ts';

export interface UpstreamRequest {
  readonly method: 'GET' | 'POST';
  /** Scheme, host and port. */
  readonly origin: string;
  readonly tls?: TlsSettings | undefined;
  readonly path: string;
  readonly fixed: FixedHeaders;
  /** Further headers, names and values in turn. */
  readonly headers: readonly string[];
  readonly body?: readonly Buffer[];
  /** Keeps the body's bytes until they are sent. */
  readonly heldBody?: HeldBody;
  /** The body of a stream's request must be freed long before the answer ends. */
  readonly isStream?: boolean;
  /**
   * True if the request needs a new connection. Over fetch it may still get a reused connection.
   */
  readonly reconnect?: boolean | undefined;
}

/** Headers that are the same for many requests. */
interface FixedHeaders {
  /** Names and values in turn. */
  readonly pairs: readonly string[];
  /** Lines of HTTP/1, behind `host` and `connection`. */
  readonly text: string;
}

/** Returns the fixed headers of requests to `origin`. */
export function fixedHeaders(
  origin: string,
  headers: Readonly<Record<string, string>>,
): FixedHeaders {
  const host = origin.slice(origin.indexOf('//') + 2);
  const lines = Object.entries({ host, connection: 'keep-alive', ...headers });
  return {
    pairs: Object.entries(headers).flat(),
    text: lines.map(([name, value]) => `${name}: ${value}\r\n`).join(''),
  };
}

export interface UpstreamResponse {
  readonly status: number;
  readonly headers: UpstreamHeaders;
  readonly body: ByteSource;
}

/**
 * A request's connection. The fields are set when the request is written, so that a request has
 * them even if it fails later. Over fetch they stay undefined.
 */
export interface ConnectionUse {
  connection?: 'new' | 'reused' | undefined;
  sentAtMs?: number | undefined;
  /** Undefined for a reused connection, an address or a proxy. */
  lookupMs?: number | undefined;
}

/** Response headers, by name in lower case. */
export type UpstreamHeaders = ReadonlyMap<string, string>;

/** A longer body is sent in slices. */
const MAX_WHOLE_BYTES = 4096;
const SLICE_BYTES = 65_536;

/** Returns a short body as a buffer, and a long body as a `SlicedBody`. */
export function toBody({ body, heldBody }: UpstreamRequest): Buffer | SlicedBody | undefined {
  if (!body) return undefined;
  return lengthOf(body) > MAX_WHOLE_BYTES ? new SlicedBody(body, heldBody) : joinParts(body);
}

/** Gives out a body in slices, and releases the body with the last slice. */
export class SlicedBody {
  readonly length: number;
  #parts: Buffer[];
  #heldBody: HeldBody | undefined;

  /**
   * `firstAnswer` drops `heldBody` once an answer has begun, so it is freed with its last reader.
   */
  constructor(parts: readonly Buffer[], heldBody: HeldBody | undefined) {
    this.length = lengthOf(parts);
    this.#parts = [...parts];
    this.#heldBody = heldBody;
    heldBody?.retain();
  }

  next(): Buffer | undefined {
    const part = this.#parts.shift();
    if (!part) return undefined;
    const slice = copyIfResizable(part.subarray(0, SLICE_BYTES));
    if (slice.length < part.length) this.#parts.unshift(part.subarray(SLICE_BYTES));
    if (this.#parts.length === 0) this.release();
    return slice;
  }

  release(): void {
    this.#parts = [];
    this.#heldBody?.release();
    this.#heldBody = undefined;
  }
}
