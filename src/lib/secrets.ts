/**
 * Text without keys: the filter that keeps them out of logs and messages, and texts from outside
 * made safe to show.
 */

import type { Secret } from './secret.ts';

/**
 * The shapes of keys that are not configured here: vendors echo them in error texts, masked or
 * whole.
 */
const KEY_SHAPES = [
  '\\bsk-[\\w*.-]{6,}',
  '\\bBearer\\s+[\\w*.~+/=-]+',
  '\\b(?:api_?)?key=[^\\s&"]+',
];
/** The beginning of a word, also behind a character in percent-encoding. */
const WORD_START = '(?:\\b|(?<=%[\\da-f]{2}))';
/** The same shapes in percent-encoding: `Bearer%20…`, `%26key%3D…`. */
const ENCODED_SHAPES = [
  `${WORD_START}sk-[\\w*.-]{6,}`,
  `${WORD_START}Bearer(?:\\s|%20)+[\\w*.~+/=%-]+`,
  `${WORD_START}(?:api_?)?key(?:=|%3d)[^\\s&"]+`,
];

/**
 * Shorter keys are placeholders for local servers ("ollama", "none"): to hide them would hide
 * words.
 */
export const SHORTEST_SECRET_CHARACTERS = 8;

export interface Redactor {
  /** Replaces every secret, and everything shaped like a key, by `[secret]`. */
  (text: string): string;
  /**
   * Returns false only if nothing would be replaced in any part of the text. Cheaper: it looks for
   * the beginnings of secrets.
   */
  mayChange(text: string): boolean;
}

/** Each makes the search longer. */
const MAX_FORMER_SECRETS = 100;

/**
 * Returns the function that hides the given secrets. The end of a text may have cut a key off: its
 * beginning is replaced too. A secret that is no key is replaced only as a whole. `add` hides more:
 * up to 100 former ones stay hidden, for requests that began with them.
 */
export function createRedactor(secrets: readonly Secret[]) {
  const known = new Map<string, boolean>();
  let patterns = createPatterns(known);
  /** Made when a text seems to have a secret in percent-encoding: these patterns are slow. */
  let ofEncoded: RegExp | undefined;
  function add(added: readonly Secret[]): void {
    const texts = new Map<string, boolean>();
    for (const secret of added) {
      // A copy: a key may be a slice of the settings file's text, which V8 would keep in memory as
      // a whole.
      const text = Buffer.from(secret.reveal()).toString();
      texts.set(text, secret.isKey || (texts.get(text) ?? known.get(text) ?? false));
    }
    for (const text of texts.keys()) known.delete(text);
    for (const [text, isKey] of texts) known.set(text, isKey);
    const excess = known.size - texts.size - MAX_FORMER_SECRETS;
    for (const text of [...known.keys()].slice(0, Math.max(0, excess))) known.delete(text);
    patterns = createPatterns(known);
    ofEncoded = undefined;
  }
  add(secrets);
  const mayChange = (text: string) =>
    patterns.beginnings.test(text) ||
    (text.includes('%') && patterns.beginnings.test(decodePercent(text)));
  const redact = (text: string) => {
    if (!mayChange(text)) return text;
    if (!text.includes('%')) return text.replace(patterns.secrets, '[secret]');
    ofEncoded ??= createPatterns(known, true).secrets;
    return text.replace(ofEncoded, '[secret]');
  };
  return Object.assign(redact, { mayChange, add });
}

/** The last word of a text that begins like a key: the rest of the key was perhaps cut off. */
const LAST_WORD = '\\S*$';
/** What vendors write in place of a key's middle. */
const MASKED = '[\\w-]{0,16}(?:\\*{2,}|\\.{3}|…)\\S*';

/**
 * Returns the pattern of the beginnings of all secrets, and that of the secrets.
 *
 * @param secrets - the texts, and whether each is a key
 * @param isEncoded - also matches secrets in percent-encoding, whichever of their characters are
 * encoded
 */
function createPatterns(secrets: ReadonlyMap<string, boolean>, isEncoded = false) {
  const patternOf = isEncoded ? encodedPattern : escapePattern;
  const shapes = isEncoded ? ENCODED_SHAPES : KEY_SHAPES;
  const forms = [...secrets].flatMap(([text, isKey]) =>
    // In JSON a secret is spelled differently.
    [...new Set([text, JSON.stringify(text).slice(1, -1)])].map((form) => ({ form, isKey })),
  );
  // One alternative for each beginning: with one for each key, a hostile text takes a minute.
  const rests = new Map<string, string[]>();
  for (const { form, isKey } of forms.toSorted((a, b) => b.form.length - a.form.length)) {
    if (form.length < SHORTEST_SECRET_CHARACTERS) continue;
    const beginning = patternOf(form.slice(0, SHORTEST_SECRET_CHARACTERS).toLowerCase());
    const sharing = rests.get(beginning) ?? [];
    rests.set(beginning, sharing);
    sharing.push(patternOf(form.slice(SHORTEST_SECRET_CHARACTERS)));
    if (isKey && !sharing.includes(LAST_WORD)) sharing.push(MASKED, LAST_WORD);
  }
  const whole = [...rests].map(([beginning, sharing]) => `${beginning}(?:${sharing.join('|')})`);
  return {
    beginnings: new RegExp([...rests.keys(), ...shapes].join('|'), 'i'),
    secrets: new RegExp([...whole, ...shapes].join('|'), 'gi'),
  };
}

/** Matches the text, of which any characters may be in percent-encoding (RFC 3986 2.1). */
function encodedPattern(text: string): string {
  const forms = Array.from(text, (character) => {
    const encoded = Buffer.from(character).toString('hex').replace(/../g, '%$&');
    return `(?:${escapePattern(character)}|${encoded})`;
  });
  return forms.join('');
}

function decodePercent(text: string): string {
  return text.replace(/(?:%[\da-f]{2})+/gi, (encoded) =>
    Buffer.from(encoded.replaceAll('%', ''), 'hex').toString(),
  );
}

function escapePattern(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
}

/**
 * Control characters, line separators, and what turns the direction of text could forge lines or
 * fields.
 */
const CONTROL_CHARACTERS =
  // oxlint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/**
 * Returns the first `maxCharacters` of a text as a copy: V8's slice would keep the whole text in
 * memory.
 */
export function cutText(text: string, maxCharacters: number): string {
  return text.length > maxCharacters ? Buffer.from(text.slice(0, maxCharacters)).toString() : text;
}

/** Cuts untrusted text to `maxCharacters`, and then writes control characters as `\uXXXX`. */
export function escapeControlCharacters(text: string, maxCharacters: number): string {
  const shown = cutText(text, maxCharacters);
  // `replace` with a function costs ten times as much.
  if (shown.search(CONTROL_CHARACTERS) === -1) return shown;
  return shown.replace(
    CONTROL_CHARACTERS,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Replaces the same characters by spaces, for text that people read. */
export function withoutControlCharacters(text: string): string {
  return text.replace(CONTROL_CHARACTERS, ' ');
}
