/** RESP2, the protocol of Redis and Valkey, without the types that the rate limits do not use. */

/** The longest replies are error messages. */
const MAX_REPLY_CHARACTERS = 4096;

export interface Reply {
  readonly text: string;
  /** `text` begins with the code of the error. */
  readonly isError: boolean;
}

/** Encodes a command as an array of bulk strings. */
export function encodeCommand(args: readonly string[]): string {
  const strings = args.map((arg) => `$${Buffer.byteLength(arg)}\r\n${arg}\r\n`);
  return `*${args.length}\r\n${strings.join('')}`;
}

/** Reads simple strings, errors and bulk strings from bytes that are split anywhere. */
export class ReplyReader {
  /** The beginning of a reply. latin1: a character is a byte, as lengths count them. */
  #text = '';

  /** Returns the replies that `chunk` completes. Throws if it holds anything else, or a reply that is too long. */
  read(chunk: Buffer): Reply[] {
    const replies: Reply[] = [];
    const text = this.#text + chunk.toString('latin1');
    let start = 0;
    for (;;) {
      const parsed = parseReply(text, start);
      if (!parsed) break;
      replies.push(parsed.reply);
      start = parsed.end;
    }
    if (text.length - start > MAX_REPLY_CHARACTERS) throw new Error('the reply is too long');
    this.#text = text.slice(start);
    return replies;
  }
}

/** Returns undefined if the reply is not complete. */
function parseReply(text: string, start: number): { reply: Reply; end: number } | undefined {
  const type = text[start];
  if (type === undefined) return undefined;
  if (!'+-$'.includes(type)) throw new Error('the reply is not RESP');
  const lineEnd = text.indexOf('\r\n', start);
  if (lineEnd === -1) return undefined;
  const line = text.slice(start + 1, lineEnd);
  if (type !== '$') return { reply: { text: line, isError: type === '-' }, end: lineEnd + 2 };

  if (!/^\d{1,4}$/.test(line)) throw new Error('the reply has no valid length');
  const bulkStart = lineEnd + 2;
  const bulkEnd = bulkStart + Number(line);
  if (text.length < bulkEnd + 2) return undefined;
  if (!text.startsWith('\r\n', bulkEnd)) throw new Error('the reply has another length');
  return { reply: { text: text.slice(bulkStart, bulkEnd), isError: false }, end: bulkEnd + 2 };
}
