/** Reads an event that is too long to parse, while its bytes arrive. */

import { JsonOutline } from '../lib/json-outline.ts';
import { endOfLine } from '../lib/sse.ts';

/** `data: [DONE]` or `event: error`, with one more byte. */
const MAX_HEAD_BYTES = 13;
const DATA = /^data: ?/;
/** JSON without a field, llama.cpp's field `error`, and the end mark. */
const NEEDS_PARSE = /^(?:[{[]|error:|data:[ \t]*\[D)/;

/** Makes the outline of the JSON in an event's data. Keeps none of its bytes. */
export class LongEvent {
  readonly outline = new JsonOutline();
  dataBytes = 0;
  /** True if the last field `event` is `error`. */
  isNamedError = false;
  needsParse = false;
  /** The beginning of the current line as Latin-1. */
  #head = '';
  #line: 'head' | 'data' | 'other' = 'head';

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
      // In the JSON, the line end is white space.
      const end = isEnd ? lineEnd + 1 : lineEnd;
      if (this.#line === 'data') this.#takeData(bytes.subarray(at, end));
      if (isEnd) this.#line = 'head';
      at = end;
    }
  }

  #endHead(): void {
    const head = this.#head;
    this.#head = '';
    const [prefix] = DATA.exec(head) ?? [];
    this.#line = prefix === undefined ? 'other' : 'data';
    this.needsParse ||= NEEDS_PARSE.test(head);
    if (head.startsWith('event:')) this.isNamedError = /^event: ?error$/.test(head);
    if (prefix !== undefined) this.#takeData(Buffer.from(head.slice(prefix.length), 'latin1'));
  }

  #takeData(data: Buffer): void {
    this.dataBytes += data.length;
    this.outline.push(data);
  }
}
