/** Reads the HTTP/1 messages of a connection as they arrive, and keeps what is wrong with them. */

export type Header = readonly [name: string, value: string];

export interface Message {
  /** The request line or the status line. */
  readonly start: string;
  /** Of a response; 0 for a request. */
  readonly status: number;
  /** Names in lower case. */
  readonly headers: readonly Header[];
  /** The head's bytes as latin1, for searches. */
  readonly head: string;
  /** The body without its transfer coding. */
  readonly pieces: Buffer[];
  /** When each piece arrived, by `performance.now()`. */
  readonly arrivedAtMs: number[];
  /** Whether the body ended as its framing says. */
  isWhole: boolean;
  /** Why the framing is invalid. */
  broken?: string;
}

/** Returns a header's value; several values are joined by a comma. */
export function headerOf({ headers }: Message, name: string): string | undefined {
  const values = headers.filter(([one]) => one === name).map(([, value]) => value);
  return values.length === 0 ? undefined : values.join(', ');
}

export const bodyOf = ({ pieces }: Message): Buffer => Buffer.concat(pieces);

type Phase = 'head' | 'length' | 'size' | 'data' | 'trailers' | 'until close' | 'broken';

const MAX_HEAD_BYTES = 4 * 1024 * 1024;

export class MessageReader {
  /** All messages that have begun, without interim responses. */
  readonly messages: Message[] = [];
  readonly #onWhole: (message: Message) => void;
  #phase: Phase = 'head';
  #rest: Buffer = Buffer.alloc(0);
  /** Bytes of the body or the chunk that are still to come. */
  #left = 0;

  constructor(onWhole: (message: Message) => void = () => {}) {
    this.#onWhole = onWhole;
  }

  /** Whether bytes have arrived that begin no whole head. */
  get hasPartOfHead(): boolean {
    return this.#phase === 'head' && this.#rest.length > 0;
  }

  feed(bytes: Buffer): void {
    this.#rest = this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes]);
    while (this.#step());
  }

  /** Tells that the peer has closed. A body until the close is whole then. */
  end(): void {
    if (this.#phase === 'until close') this.#finish();
  }

  get #current(): Message {
    return this.messages.at(-1)!;
  }

  /** Consumes bytes; returns false when more are needed. */
  #step(): boolean {
    switch (this.#phase) {
      case 'head':
        return this.#readHead();
      case 'length':
      case 'data':
        return this.#readData();
      case 'until close':
        return this.#take(this.#rest.length);
      case 'size':
        return this.#readSize();
      case 'trailers':
        return this.#readTrailer();
      default:
        return false;
    }
  }

  #readHead(): boolean {
    const end = this.#rest.indexOf('\r\n\r\n');
    if (end < 0) {
      if (this.#rest.length > MAX_HEAD_BYTES) this.#phase = 'broken';
      return false;
    }
    const head = this.#rest.toString('latin1', 0, end);
    this.#rest = this.#rest.subarray(end + 4);
    const [start = '', ...lines] = head.split('\r\n');
    const headers = lines.map((line): Header => {
      const colon = line.indexOf(':');
      return [line.slice(0, colon).trim().toLowerCase(), line.slice(colon + 1).trim()];
    });
    const status = Number(/^HTTP\/1\.[01] (\d{3})(?: |$)/.exec(start)?.[1] ?? 0);
    if (status >= 100 && status < 200) return true;
    const base = { start, status, headers, head, pieces: [], arrivedAtMs: [] };
    this.messages.push({ ...base, isWhole: false });
    this.#chooseFraming(start);
    return true;
  }

  #chooseFraming(start: string): void {
    const message = this.#current;
    const isResponse = start.startsWith('HTTP/');
    if (isResponse && message.status === 0) return this.#break(`not HTTP: ${start.slice(0, 40)}`);
    const length = headerOf(message, 'content-length');
    const isEmpty = message.status === 204 || message.status === 304;
    if (isEmpty) this.#finish();
    else if (headerOf(message, 'transfer-encoding') !== undefined) this.#phase = 'size';
    else if (length === undefined) {
      if (isResponse) this.#phase = 'until close';
      else this.#finish();
    } else if (!/^\d+$/.test(length)) this.#break(`content-length: ${length}`);
    else {
      this.#left = Number(length);
      this.#phase = 'length';
      if (this.#left === 0) this.#finish();
    }
  }

  #readData(): boolean {
    const isChunk = this.#phase === 'data';
    const took = this.#take(Math.min(this.#left, this.#rest.length));
    if (this.#left > 0) return took;
    if (!isChunk) this.#finish();
    else if (this.#rest.length < 2) return false;
    else if (this.#rest.toString('latin1', 0, 2) !== '\r\n') this.#break('a chunk has no end');
    else {
      this.#rest = this.#rest.subarray(2);
      this.#phase = 'size';
    }
    return true;
  }

  #readSize(): boolean {
    const line = this.#readLine();
    if (line === undefined) return false;
    const [, size] = /^([\da-f]{1,12})[ \t]*(?:;.*)?$/i.exec(line) ?? [];
    if (size === undefined) this.#break(`not a chunk: ${line.slice(0, 40)}`);
    else {
      this.#left = Number.parseInt(size, 16);
      this.#phase = this.#left === 0 ? 'trailers' : 'data';
    }
    return true;
  }

  #readTrailer(): boolean {
    const line = this.#readLine();
    if (line === '') this.#finish();
    return line !== undefined;
  }

  #readLine(): string | undefined {
    const end = this.#rest.indexOf('\r\n');
    if (end < 0) return undefined;
    const line = this.#rest.toString('latin1', 0, end);
    this.#rest = this.#rest.subarray(end + 2);
    return line;
  }

  #take(bytes: number): boolean {
    if (bytes === 0) return false;
    this.#current.pieces.push(this.#rest.subarray(0, bytes));
    this.#current.arrivedAtMs.push(performance.now());
    this.#rest = this.#rest.subarray(bytes);
    this.#left -= bytes;
    return true;
  }

  #finish(): void {
    this.#phase = 'head';
    this.#current.isWhole = true;
    this.#onWhole(this.#current);
  }

  #break(reason: string): void {
    this.#phase = 'broken';
    this.#current.broken = reason;
  }
}
