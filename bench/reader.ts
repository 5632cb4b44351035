/** Reads responses from a connection and compares every byte with the expected bytes. */

import { EVENT_BYTES } from './payloads.ts';

/**
 * How a head and a chunk's size end (hyper writes capitals). The size follows the last chunk's end.
 */
const ENDS = { head: /\r\n\r\n/, size: /(?<=[\da-f])\r\n/i };
const LINE_END = 10;
/** How many bytes are searched for the end at once. */
const LOOK_AT_BYTES = { head: 1024, size: 16 };

export class Reader {
  /**
   * Bytes of this response's body so far, all correct. A rebuilt event counts like the original.
   */
  received = 0;
  readonly #expected: Buffer;
  readonly #isRewritten: boolean;
  #isStream = false;
  #last = 0;
  #state: 'head' | 'size' | 'body' | 'end' = 'head';
  #isChunked = false;
  #text = '';
  /** Bytes left in this part of the body, or in the last chunk's end. */
  #left = 0;

  constructor(expected: Buffer, isRewritten: boolean) {
    this.#expected = expected;
    this.#isRewritten = isRewritten;
  }

  /** Takes bytes. Returns whether they end the response. Throws if they are not as expected. */
  feed(data: Buffer): boolean {
    let isWhole = false;
    for (let at = 0; at < data.length;) {
      if (this.#state === 'head' || this.#state === 'size') {
        at = this.#readText(data, at, this.#state);
        continue;
      }
      const end = Math.min(data.length, at + this.#left);
      if (this.#state === 'body') this.#take(data, at, end);
      this.#left -= end - at;
      at = end;
      if (this.#left > 0) continue;
      isWhole = this.#state === 'end' || !this.#isChunked;
      this.#state = isWhole ? 'head' : 'size';
    }
    if (isWhole && this.received < this.#least()) throw new Error('answered too little');
    return isWhole;
  }

  #readText(data: Buffer, at: number, state: 'head' | 'size'): number {
    const until = Math.min(data.length, at + LOOK_AT_BYTES[state]);
    const before = this.#text.length;
    this.#text += data.toString('latin1', at, until);
    const end = ENDS[state].exec(this.#text);
    if (!end) return until;
    const text = this.#text.slice(0, end.index);
    this.#text = '';
    if (state === 'head') this.#enterBody(text);
    else {
      const size = parseInt(text, 16);
      this.#left = size === 0 ? 2 : size;
      this.#state = size === 0 ? 'end' : 'body';
    }
    return at + end.index + end[0].length - before;
  }

  #enterBody(head: string): void {
    if (!head.startsWith('HTTP/1.1 200')) throw new Error(`answered ${head.slice(9, 12)}`);
    const length = /\r\ncontent-length: *(\d+)/i.exec(head)?.[1];
    this.received = 0;
    this.#left = Number(length);
    this.#isChunked = length === undefined;
    this.#isStream = /\r\ncontent-type: *text\/event-stream/i.test(head);
    this.#state = this.#isChunked ? 'size' : 'body';
  }

  /** Returns a response's least bytes: all bytes, or the whole events in a rebuilt response. */
  #least(): number {
    const all = this.#expected.length;
    return this.#isRewritten ? all - (all % EVENT_BYTES) : all;
  }

  #take(data: Buffer, at: number, end: number): void {
    if (!this.#isRewritten) this.#compare(data, at, end);
    else if (this.#isStream) this.#countEvents(data, at, end);
    else this.received += end - at;
  }

  /** Counts events, which end with an empty line. */
  #countEvents(data: Buffer, at: number, end: number): void {
    for (let index = at; index < end; index += 1) {
      if (data[index] === LINE_END && this.#last === LINE_END) this.received += EVENT_BYTES;
      this.#last = data[index]!;
    }
  }

  #compare(data: Buffer, at: number, end: number): void {
    const until = this.received + end - at;
    const isRight =
      until <= this.#expected.length &&
      data.compare(this.#expected, this.received, until, at, end) === 0;
    if (!isRight) throw new Error(`answered other bytes after the first ${this.received}`);
    this.received = until;
  }
}
