/**
 * A connection to a provider. It carries one request at a time, and reads the response by RFC 9112,
 * strictly: a response that two parties could read differently is refused (docs/behaviour.md).
 */

import type { Socket } from 'node:net';

import { GatewayError } from '../../lib/errors.ts';

/** Takes a response. If `onHead` or `onData` throws, the response fails. */
export interface ResponseReader {
  /** @param headers - by name in lower case; the values of a repeated header are joined by `, ` */
  onHead(status: number, headers: ReadonlyMap<string, string>): void;
  /** After `onData` has returned false, `resume` reads on. */
  onData(chunk: Buffer): boolean;
  /** Called once, with an error if the response is incomplete. Must not throw. */
  onEnd(error?: Error): void;
}

interface ConnectionTarget {
  readonly origin: string;
  /** The digest of the `TlsSettings`, if the provider has its own certificates. */
  readonly digest: string | undefined;
}

interface ConnectionOwner {
  /** Called when the connection can carry another request. */
  onFree(connection: Http1Connection): void;
  /** Called once, when the socket is closed. */
  onClosed(connection: Http1Connection): void;
}

/** Bytes that are no response of HTTP/1. The message is safe to log: it quotes none of them. */
export class MalformedResponse extends Error {}

type State =
  | 'idle'
  | 'head'
  /** In a body with a `Content-Length`. */
  | 'body'
  /** In a body that ends with the connection. */
  | 'unsized body'
  | 'chunk size'
  | 'chunk'
  | 'chunk end'
  | 'trailers';

/** The longest head or trailers. Node's own client has the same limit. */
const MAX_HEAD_BYTES = 16_384;
const MAX_FIELDS = 200;
/** The longest chunk size with its extensions. */
const MAX_SIZE_LINE_BYTES = 1024;
const MAX_INTERIM_RESPONSES = 8;
/** A request sent this long before the end of `Keep-Alive: timeout` still arrives in time. */
const KEEP_ALIVE_MARGIN_MS = 1000;

/** The code of the error for a connection that the provider has closed. */
export const CLOSED = 'CLOSED';

const LINE_END = '\r\n';
const HEAD_END = '\r\n\r\n';
/** RFC 9110 5.6.2. */
const TOKEN = "[\\w!#$%&'*+.^`|~-]+";
/** A character of a field value (RFC 9110 5.5), a reason phrase or a quoted pair. */
const CHARACTER = '[\\t\\x20-\\x7e\\x80-\\xff]';
const FIELD_LINE = `${TOKEN}:${CHARACTER}*`;
const STATUS_LINE = `HTTP/1\\.([01]) ([1-5]\\d\\d)(?: ${CHARACTER}*)?`;
/** RFC 9112 4 and 5, without the last line end. Status codes are those of RFC 9110 15. */
const HEAD = new RegExp(`^${STATUS_LINE}(?:\\r\\n${FIELD_LINE})*$`);
const TRAILERS = new RegExp(`^${FIELD_LINE}(?:\\r\\n${FIELD_LINE})*$`);
/** The least status line: its end completes a beginning that is shorter. */
const LEAST_STATUS_LINE = 'HTTP/1.1 200';
/** Fields up to any byte of the empty line behind them. */
const BEGUN_FIELDS = `(?:${FIELD_LINE}\\r\\n)*(?:${TOKEN}(?::${CHARACTER}*\\r?)?|\\r)?$`;
const BEGUN_HEAD = new RegExp(`^${STATUS_LINE}(?:\\r?$|\\r\\n${BEGUN_FIELDS})`);
const BEGUN_TRAILERS = new RegExp(`^${BEGUN_FIELDS}`);
/** Fields that may not stand in trailers (RFC 9110 6.5.1). */
const FRAMING = /^(?:content-length|transfer-encoding):/im;
const QUOTED = `"(?:[\\t\\x20!#-\\[\\]-\\x7e\\x80-\\xff]|\\\\${CHARACTER})*"`;
/** Twelve hexadecimal digits are a safe integer. */
const SIZE_DIGITS = 12;
const BEGUN_SIZE_LINE = new RegExp(`^[\\da-f]{1,${SIZE_DIGITS}}(?:;${CHARACTER}*)?\\r?$`, 'i');
/** RFC 9112 7.1 and 7.1.1. */
const EXTENSION = `;${TOKEN}(?:=(?:${TOKEN}|${QUOTED}))?`;
const SIZE_LINE = new RegExp(`^([\\da-f]{1,${SIZE_DIGITS}})(?:${EXTENSION})*$`, 'i');
/** RFC 9110 8.6. Fifteen digits are a safe integer. */
const LENGTH = /^\d{1,15}$/;
/** RFC 9112 9.6. */
const CLOSE = /(?:^|,)[\t ]*close[\t ]*(?:,|$)/i;
/** In seconds. */
const KEEP_ALIVE_TIMEOUT = /(?:^|,)[\t ]*timeout=(\d{1,6})[\t ]*(?:,|$)/i;

/**
 * A connection to a provider, for one request at a time. Its listeners on the socket never throw:
 * the response's reader gets each failure.
 */
export class Http1Connection {
  readonly socket: Socket;
  readonly target: ConnectionTarget;
  /** True once the pool has kept the connection for a later request. */
  wasKept = false;
  /** True once a byte of the current response has arrived. */
  hasFirstByte = false;
  becameFreeAtMs = 0;
  /** How long the connection may be idle by the provider's `Keep-Alive`, less a margin. */
  keepAliveMs = Infinity;
  readonly #owner: ConnectionOwner;
  #reader: ResponseReader | undefined;
  #state: State = 'idle';
  #leftBytes = 0;
  #interimResponses = 0;
  /** True if the connection closes behind the response. */
  #isLast = false;
  #isPaused = false;
  /** An incomplete head or line, or the bytes that have arrived during a pause. */
  #unparsed: Buffer | undefined;
  /** How the connection has ended during a pause: the response ends behind `#unparsed`. */
  #ended: { readonly error: Error | undefined } | undefined;

  /** @param socket - connected, and without a listener for its data */
  constructor(socket: Socket, target: ConnectionTarget, owner: ConnectionOwner) {
    this.socket = socket;
    this.target = target;
    this.#owner = owner;
    socket.on('data', (chunk: Buffer) => this.#read(chunk));
    socket.on('end', () => this.#onSocketEnd(undefined));
    socket.on('error', (error: Error) => this.#onSocketEnd(error));
    socket.on('close', () => {
      owner.onClosed(this);
      this.#onSocketEnd(undefined);
    });
  }

  get isFree(): boolean {
    return this.#state === 'idle' && this.socket.readable && this.socket.writable;
  }

  /** Begins a request, which the caller writes to the socket. Its response goes to `reader`. */
  begin(reader: ResponseReader): void {
    this.#reader = reader;
    this.#state = 'head';
    this.#interimResponses = 0;
    this.hasFirstByte = false;
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#readOn();
    if (this.#isPaused) return;
    if (this.#ended) this.#onSocketEnd(this.#ended.error);
    else this.socket.resume();
  }

  /** Closes the connection. The reader is called no more. */
  destroy(): void {
    this.#reader = undefined;
    this.#state = 'idle';
    this.#unparsed = undefined;
    this.socket.destroy();
  }

  #read(chunk: Buffer): void {
    this.hasFirstByte = true;
    this.#unparsed = this.#unparsed ? Buffer.concat([this.#unparsed, chunk]) : chunk;
    if (this.#isPaused) this.socket.pause();
    else this.#readOn();
  }

  #readOn(): void {
    const bytes = this.#unparsed;
    if (!bytes) return;
    this.#unparsed = undefined;
    let at = 0;
    try {
      while (this.#reader && at < bytes.length && !this.#isPaused) {
        const next = this.#readPart(bytes, at);
        if (next === at) break;
        at = next;
      }
    } catch (error) {
      return this.#fail(error instanceof MalformedResponse ? error : GatewayError.from(error));
    }
    if (!this.#reader) return this.#giveBack(at < bytes.length);
    if (at < bytes.length) this.#unparsed = at === 0 ? bytes : bytes.subarray(at);
    if (this.#isPaused) this.socket.pause();
  }

  /** Returns the offset behind the part, or `at` if the part is incomplete. */
  #readPart(bytes: Buffer, at: number): number {
    switch (this.#state) {
      case 'unsized body':
        this.#pass(bytes, at, bytes.length);
        return bytes.length;
      case 'body':
      case 'chunk':
        return this.#readBody(bytes, at);
      case 'head':
        return this.#readHead(bytes, at);
      case 'chunk size':
        return this.#readChunkSize(bytes, at);
      case 'chunk end':
        return this.#readChunkEnd(bytes, at);
      default:
        return this.#readTrailers(bytes, at);
    }
  }

  #readBody(bytes: Buffer, at: number): number {
    const end = Math.min(at + this.#leftBytes, bytes.length);
    this.#leftBytes -= end - at;
    this.#pass(bytes, at, end);
    // The reader may have closed the connection.
    if (this.#leftBytes > 0 || !this.#reader) return end;
    if (this.#state === 'chunk') this.#state = 'chunk end';
    else this.#complete();
    return end;
  }

  #readChunkSize(bytes: Buffer, at: number): number {
    const line = textUntil(LINE_END, bytes, at, MAX_SIZE_LINE_BYTES);
    if (line === undefined) {
      const begun = bytes.toString('latin1', at);
      if (!BEGUN_SIZE_LINE.test(begun)) throw new MalformedResponse('malformed chunk');
      return at;
    }
    const digits = SIZE_LINE.exec(line)?.[1];
    if (digits === undefined) throw new MalformedResponse('malformed chunk');
    this.#leftBytes = Number.parseInt(digits, 16);
    this.#state = this.#leftBytes > 0 ? 'chunk' : 'trailers';
    return at + line.length + LINE_END.length;
  }

  #readChunkEnd(bytes: Buffer, at: number): number {
    const end = bytes.toString('latin1', at, at + LINE_END.length);
    if (!LINE_END.startsWith(end)) throw new MalformedResponse('malformed chunk');
    if (end !== LINE_END) return at;
    this.#state = 'chunk size';
    return at + LINE_END.length;
  }

  #readTrailers(bytes: Buffer, at: number): number {
    const isEmpty = bytes[at] === LINE_END.charCodeAt(0);
    const mark = isEmpty ? LINE_END : HEAD_END;
    const trailers = textUntil(mark, bytes, at, isEmpty ? 0 : MAX_HEAD_BYTES);
    if (!isEmpty) {
      const text = trailers ?? bytes.toString('latin1', at);
      const form = trailers === undefined ? BEGUN_TRAILERS : TRAILERS;
      if (!form.test(text) || FRAMING.test(text)) throw new MalformedResponse('malformed trailers');
    }
    if (trailers === undefined) return at;
    this.#complete();
    return at + trailers.length + mark.length;
  }

  #readHead(bytes: Buffer, at: number): number {
    const text = textUntil(HEAD_END, bytes, at, MAX_HEAD_BYTES);
    if (text === undefined) {
      // A malformed head may never have an end.
      const begun = bytes.toString('latin1', at);
      const line = begun + LEAST_STATUS_LINE.slice(begun.length);
      if (!BEGUN_HEAD.test(line)) throw new MalformedResponse('malformed head');
      return at;
    }
    const next = at + text.length + HEAD_END.length;
    const [, minor, digits] = HEAD.exec(text) ?? [];
    if (digits === undefined) throw new MalformedResponse('malformed head');
    const status = Number(digits);
    if (status === 101) throw new MalformedResponse('an upgrade that nobody asked for');
    if (status < 200) {
      // The final response follows (RFC 9110 15.2).
      this.#interimResponses += 1;
      if (this.#interimResponses <= MAX_INTERIM_RESPONSES) return next;
      throw new MalformedResponse('too many interim responses');
    }
    const headers = fieldsOf(text);
    const isHttp10 = minor === '0';
    this.#state = this.#bodyStateOf(status, headers, isHttp10);
    const connection = headers.get('connection');
    this.#isLast = isHttp10 || this.#state === 'unsized body' || CLOSE.test(connection ?? '');
    // A 204 may not announce content (RFC 9112 6.1, RFC 9110 8.6). If the content comes all the
    // same, it must not answer the next request.
    const isAnnounced = headers.has('transfer-encoding') || headers.has('content-length');
    if (status === 204 && isAnnounced) this.#isLast = true;
    const seconds = KEEP_ALIVE_TIMEOUT.exec(headers.get('keep-alive') ?? '')?.[1];
    this.keepAliveMs = seconds ? Number(seconds) * 1000 - KEEP_ALIVE_MARGIN_MS : Infinity;
    this.#reader!.onHead(status, headers);
    if (this.#state === 'body' && this.#leftBytes === 0) this.#complete();
    return next;
  }

  /** Returns the state for the body's first byte (RFC 9112 6.3), and notes the body's length. */
  #bodyStateOf(status: number, headers: ReadonlyMap<string, string>, isHttp10: boolean): State {
    const coding = headers.get('transfer-encoding');
    const length = headers.get('content-length');
    if (coding !== undefined) {
      // RFC 9112 6.1: each of these may be an attempt to smuggle a response.
      if (coding.toLowerCase() !== 'chunked' || length !== undefined || isHttp10) {
        throw new MalformedResponse('malformed Transfer-Encoding');
      }
    } else if (length !== undefined && !LENGTH.test(length)) {
      throw new MalformedResponse('malformed Content-Length');
    }
    this.#leftBytes = 0;
    if (status === 204 || status === 304) return 'body';
    if (coding !== undefined) return 'chunk size';
    if (length === undefined) return 'unsized body';
    this.#leftBytes = Number(length);
    return 'body';
  }

  #pass(bytes: Buffer, start: number, end: number): void {
    const isWhole = start === 0 && end === bytes.length;
    if (!this.#reader!.onData(isWhole ? bytes : bytes.subarray(start, end))) this.#isPaused = true;
  }

  #complete(): void {
    const reader = this.#reader!;
    this.#reader = undefined;
    this.#state = 'idle';
    this.#isPaused = false;
    reader.onEnd();
  }

  /** @param hasSurplus - true if bytes follow the response: their connection cannot be trusted */
  #giveBack(hasSurplus: boolean): void {
    if (hasSurplus || this.#isLast || !this.isFree) this.destroy();
    else this.#owner.onFree(this);
  }

  /** Takes the end or the error of the socket. During a pause both wait for `resume`. */
  #onSocketEnd(error: Error | undefined): void {
    this.#ended ??= { error };
    if (this.#isPaused) return;
    if (this.#state === 'unsized body' && !this.#ended.error) this.#complete();
    this.#fail(this.#ended.error ?? closedByProvider());
  }

  #fail(error: Error): void {
    const reader = this.#reader;
    this.destroy();
    reader?.onEnd(error);
  }
}

/** Returns the text before `mark`, or undefined if `mark` has not arrived. */
function textUntil(
  mark: string,
  bytes: Buffer,
  start: number,
  maxBytes: number,
): string | undefined {
  const end = bytes.indexOf(mark, start, 'latin1');
  const minBytes = (end < 0 ? bytes.length - mark.length + 1 : end) - start;
  if (minBytes > maxBytes) throw new MalformedResponse('a line or head that is too long');
  return end < 0 ? undefined : bytes.toString('latin1', start, end);
}

function fieldsOf(head: string): Map<string, string> {
  const lines = head.split(LINE_END);
  if (lines.length - 1 > MAX_FIELDS) throw new MalformedResponse('too many headers');
  const fields = new Map<string, string>();
  for (const line of lines.slice(1)) {
    const colon = line.indexOf(':');
    const name = line.slice(0, colon).toLowerCase();
    const value = withoutOuterSpace(line, colon + 1);
    const before = fields.get(name);
    fields.set(name, before === undefined ? value : `${before}, ${value}`);
  }
  return fields;
}

/**
 * Returns a line's value without white space around it (RFC 9110 5.5): `trim` would remove more,
 * and a regular expression takes quadratic time.
 */
function withoutOuterSpace(line: string, start: number): string {
  let end = line.length;
  while (start < end && isSpace(line, start)) start += 1;
  while (start < end && isSpace(line, end - 1)) end -= 1;
  return line.slice(start, end);
}

const isSpace = (text: string, at: number) => text[at] === ' ' || text[at] === '\t';

function closedByProvider(): Error {
  return Object.assign(new Error('the provider closed the connection'), { code: CLOSED });
}
