/**
 * An event that is too long to be parsed: what is known of it is gathered while its bytes arrive.
 */

import { endOfLine } from '../lib/sse.ts';
import { AnswerScan } from './answer-scan.ts';

/**
 * The longest beginning that tells lines apart: `data: [DONE]` and `event: error`, with one more
 * byte.
 */
const MAX_HEAD_BYTES = 13;
const DATA = /^data: ?/;
/**
 * Lines that only a parse understands: JSON without a field, llama.cpp's field `error`, and the end
 * of the stream.
 */
const UNUSUAL = /^(?:[{[]|error:|data:[ \t]*\[D)/;

/** Takes the bytes of one event, and scans the JSON of its data. Nothing is kept of them. */
export class LongEvent {
  readonly scan = new AnswerScan();
  /** The length of its data. */
  dataBytes = 0;
  /** Its last field `event` is `error`. */
  isNamedError = false;
  /** It has lines that only a parse understands. */
  isUnusual = false;
  /** The beginning of the line, as Latin-1, until its field is known. */
  #head = '';
  #line: 'head' | 'data' | 'other' = 'head';

  /**
   * @param skippedBytes - the length of what stands before the event in the bytes to which the
   * scan's offsets refer
   */
  constructor(skippedBytes: number) {
    this.scan.json.skip(skippedBytes);
  }

  /** Takes the next bytes, cut anywhere. */
  push(bytes: Buffer): void {
    let at = 0;
    while (at < bytes.length) {
      const lineEnd = endOfLine(bytes, at);
      const isEnd = lineEnd < bytes.length;
      if (this.#line === 'head') {
        const headEnd = Math.min(at + MAX_HEAD_BYTES - this.#head.length, lineEnd);
        this.#head += bytes.toString('latin1', at, headEnd);
        at = headEnd;
        if (isEnd || this.#head.length === MAX_HEAD_BYTES) this.#endHead();
      }
      // The line end is white space of the JSON.
      const end = isEnd ? lineEnd + 1 : lineEnd;
      if (this.#line === 'data') this.#scan(bytes.subarray(at, end));
      else if (this.#line === 'other') this.scan.json.skip(end - at);
      if (isEnd) this.#line = 'head';
      at = end;
    }
  }

  #endHead(): void {
    const head = this.#head;
    this.#head = '';
    const [prefix] = DATA.exec(head) ?? [];
    this.#line = prefix === undefined ? 'other' : 'data';
    this.isUnusual ||= UNUSUAL.test(head);
    if (head.startsWith('event:')) this.isNamedError = /^event: ?error$/.test(head);
    this.scan.json.skip(prefix?.length ?? head.length);
    if (prefix !== undefined) this.#scan(Buffer.from(head.slice(prefix.length), 'latin1'));
  }

  #scan(data: Buffer): void {
    this.dataBytes += data.length;
    this.scan.json.push(data);
  }
}
