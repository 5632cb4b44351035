/** Keeps keys out of logs and messages, and makes texts from outside safe to show. */

import type { Secret } from './secret.ts';

/**
 * Shapes of keys from other configurations, because vendors echo such keys in error texts, masked
 * or whole.
 */
const KEY_SHAPES = [
  '\\bsk-[\\w*.-]{6,}',
  '\\bBearer\\s+[\\w*.~+/=-]+',
  '\\b(?:api_?)?key=[^\\s&"]+',
];
/** The start of a word, also behind a percent-encoded character. */
const WORD_START = '(?:\\b|(?<=%[\\da-f]{2}))';
/** The same shapes in percent-encoding: `Bearer%20...`, `%26key%3D...`. */
const ENCODED_SHAPES = [
  `${WORD_START}sk-[\\w*.-]{6,}`,
  `${WORD_START}Bearer(?:\\s|%20)+[\\w*.~+/=%-]+`,
  `${WORD_START}(?:api_?)?key(?:=|%3d)[^\\s&"]+`,
];

/**
 * Shorter keys are not hidden, because they are placeholders for local servers ("ollama", "none")
 * and ordinary words.
 */
export const SHORTEST_SECRET_CHARACTERS = 8;

/** Hides secrets in texts. */
export interface Redactor {
  /** Replaces every secret, and every text shaped like a key, by `[secret]`. */
  (text: string): string;
  /**
   * Returns false only if nothing in the text would be replaced. Cheaper than a call, because it
   * looks only for the beginnings of secrets.
   */
  mayChange(text: string): boolean;
}

/** Bounds the search time, because each secret makes it longer. */
const MAX_FORMER_SECRETS = 100;

/**
 * Returns the function that hides `secrets`. At the end of a text it also hides the beginning of a
 * key, because the rest may have been cut off. A secret with `isKey` false is hidden only as a
 * whole.
 *
 * Its `add` hides further secrets. Up to 100 former secrets stay hidden, because running requests
 * may have begun with them.
 */
export function createRedactor(secrets: readonly Secret[]) {
  const known = new Map<string, boolean>();
  let patterns = createPatterns(known);
  /**
   * Created once a text seems to have a secret in percent-encoding, because this pattern is slow.
   */
  let encodedSecrets: RegExp | undefined;
  function add(added: readonly Secret[]): void {
    const texts = new Map<string, boolean>();
    for (const secret of added) {
      // A copy, because a key may be a slice of the settings file and V8 would keep the whole file
      // in memory.
      const text = Buffer.from(secret.reveal()).toString();
      texts.set(text, secret.isKey || (texts.get(text) ?? known.get(text) ?? false));
    }
    for (const text of texts.keys()) known.delete(text);
    for (const [text, isKey] of texts) known.set(text, isKey);
    const excess = known.size - texts.size - MAX_FORMER_SECRETS;
    for (const text of [...known.keys()].slice(0, Math.max(0, excess))) known.delete(text);
    patterns = createPatterns(known);
    encodedSecrets = undefined;
  }
  add(secrets);
  const mayChange = (text: string) =>
    patterns.beginnings.test(text) ||
    (text.includes('%') && patterns.beginnings.test(decodePercent(text)));
  const redact = (text: string) => {
    if (!mayChange(text)) return text;
    if (!text.includes('%')) return text.replace(patterns.secrets, '[secret]');
    encodedSecrets ??= createPatterns(known, true).secrets;
    return text.replace(encodedSecrets, '[secret]');
  };
  return Object.assign(redact, { mayChange, add });
}

/**
 * Matches, behind a key's first 8 characters, a text's end without a space: the rest of the key may
 * have been cut off there.
 */
const LAST_WORD = '\\S*$';
/** A key's rest, with a vendor's mask in place of its middle. */
const MASKED = '[\\w-]{0,16}(?:\\*{2,}|\\.{3}|…)\\S*';

/**
 * Returns two patterns: the beginnings of all secrets, and whole secrets.
 *
 * @param secrets - the texts, and whether each is a key
 * @param isEncoded - also matches percent-encoded characters
 */
function createPatterns(secrets: ReadonlyMap<string, boolean>, isEncoded = false) {
  const patternOf = isEncoded ? encodedPattern : escapePattern;
  const shapes = isEncoded ? ENCODED_SHAPES : KEY_SHAPES;
  const forms = [...secrets].flatMap(([text, isKey]) =>
    // JSON may escape some characters.
    [...new Set([text, JSON.stringify(text).slice(1, -1)])].map((form) => ({ form, isKey })),
  );
  // Secrets with the same beginning share an alternative: with an alternative for each secret, a
  // hostile text takes a minute to search.
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

/** Returns a pattern for the text with any characters in percent-encoding (RFC 3986, 2.1). */
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

/** Control characters, line separators and text direction marks could forge lines or fields. */
const CONTROL_CHARACTERS =
  // oxlint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/**
 * Returns a text's first `maxCharacters`, as a copy, because V8's slice would keep the whole text
 * in memory.
 */
export function cutText(text: string, maxCharacters: number): string {
  return text.length > maxCharacters ? Buffer.from(text.slice(0, maxCharacters)).toString() : text;
}

/** Cuts untrusted text to `maxCharacters`, and then writes control characters as `\uXXXX`. */
export function escapeControlCharacters(text: string, maxCharacters: number): string {
  const shown = cutText(text, maxCharacters);
  // Searches first, because `replace` with a function costs ten times as much.
  if (shown.search(CONTROL_CHARACTERS) === -1) return shown;
  return shown.replace(
    CONTROL_CHARACTERS,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Replaces control characters by spaces, for people to read. */
export function withoutControlCharacters(text: string): string {
  return text.replace(CONTROL_CHARACTERS, ' ');
}
