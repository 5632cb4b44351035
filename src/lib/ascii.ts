/** Bytes by their names in ASCII. */

export const TAB = 0x09;
export const LINE_FEED = 0x0a;
export const CARRIAGE_RETURN = 0x0d;
export const SPACE = 0x20;
export const QUOTE = 0x22;
export const COMMA = 0x2c;
export const COLON = 0x3a;
export const OPEN_BRACKET = 0x5b;
export const BACKSLASH = 0x5c;
export const CLOSE_BRACKET = 0x5d;
export const OPEN_BRACE = 0x7b;
export const CLOSE_BRACE = 0x7d;

/** Returns a table with a 1 for each of these characters, and a 0 for every other byte. */
export function byteSet(characters: string): Uint8Array {
  const table = new Uint8Array(256);
  for (const byte of Buffer.from(characters)) table[byte] = 1;
  return table;
}
