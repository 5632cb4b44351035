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
 * The beginning of a key stays where one of `settings` has the same text, because a name such as
 * `engineering` is no secret when a key begins with it. `settings` are names with values, without
 * keys.
 *
 * Its `add` hides further secrets, and takes the settings with them. Up to 100 former secrets stay
 * hidden, because running requests may have begun with them.
 */
export function createRedactor(secrets: readonly Secret[], settings: Iterable<unknown> = []) {
  const known = new Map<string, boolean>();
  let patterns = createPatterns(known);
  /**
   * Created once a text seems to have a secret in percent-encoding, because this pattern is slow.
   */
  let encodedSecrets: RegExp | undefined;
  const shown = new ShownBeginnings();
  /** Replaces every match, but not the beginning of a key that a setting shows. */
  function hide(text: string, pattern: RegExp): string {
    let hidden = '';
    let from = 0;
    pattern.lastIndex = 0;
    for (let found = pattern.exec(text); found; found = pattern.exec(text)) {
      const [match, ...lastWords] = found;
      if (lastWords.some((word) => word !== undefined) && shown.has(match)) {
        pattern.lastIndex = found.index + 1;
        continue;
      }
      hidden += `${text.slice(from, found.index)}[secret]`;
      from = pattern.lastIndex;
    }
    return hidden + text.slice(from);
  }
  function add(added: readonly Secret[], latest: Iterable<unknown> = []): void {
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
    shown.update(latest, known, patterns);
  }
  add(secrets, settings);
  const mayChange = (text: string) =>
    patterns.beginnings.test(text) ||
    (text.includes('%') && patterns.beginnings.test(decodePercent(text)));
  const redact = (text: string) => {
    if (!mayChange(text)) return text;
    if (!text.includes('%')) return hide(text, patterns.secrets);
    encodedSecrets ??= createPatterns(known, true).secrets;
    return hide(text, encodedSecrets);
  };
  return Object.assign(redact, { mayChange, add });
}

/** The beginnings of keys that the settings show, such as a client's name. */
class ShownBeginnings {
  /** The settings that may have the beginning of a key, in lower case. */
  #texts = '';
  #latestTexts = '';
  /** The keys whose beginning is in `#texts`, in lower case. */
  #keys: readonly string[] = [];

  /** Takes new settings. Keeps the former too, because the log names settings that are gone. */
  update(
    settings: Iterable<unknown>,
    secrets: ReadonlyMap<string, boolean>,
    patterns: ReturnType<typeof createPatterns>,
  ): void {
    const former = this.#latestTexts;
    // Each setting is taken as JSON, and without JSON's backslashes, because redacted texts have
    // either form.
    this.#latestTexts = Array.from(settings, (setting) => JSON.stringify(setting))
      .flatMap((text) => [`${text}\n`, `${text.replaceAll(/\\(["\\])/g, '$1')}\n`])
      .filter((text) => patterns.beginnings.test(text))
      .join('');
    // A whole key in a setting is a mistake, and shows nothing. The line feed ends the last word,
    // so that no mere beginning is replaced.
    const texts = (this.#latestTexts + former).replace(patterns.secrets, '[secret]');
    this.#texts = texts.toLowerCase();
    this.#keys = formsOf(secrets)
      .filter(({ isKey }) => isKey)
      .map(({ text }) => text.toLowerCase())
      .filter((key) => this.#texts.includes(key.slice(0, SHORTEST_SECRET_CHARACTERS)));
  }

  /** Returns true if the settings show the longest beginning of a key that begins the text. */
  has(text: string): boolean {
    const lowerCase = text.toLowerCase();
    let longest = '';
    for (const key of this.#keys) {
      const beginning = sharedBeginning(lowerCase, key);
      if (beginning.length > longest.length) longest = beginning;
    }
    return longest.length >= SHORTEST_SECRET_CHARACTERS && this.#texts.includes(longest);
  }
}

/**
 * Matches, behind a key's first 8 characters, a text's end without a space: the rest of the key may
 * have been cut off there. A pattern has no other capturing groups.
 */
const LAST_WORD = '(\\S*$)';
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
  // Secrets with the same beginning share an alternative: with an alternative for each secret, a
  // hostile text takes a minute to search.
  const rests = new Map<string, string[]>();
  for (const { text, isKey } of formsOf(secrets)) {
    const beginning = patternOf(text.slice(0, SHORTEST_SECRET_CHARACTERS).toLowerCase());
    const sharing = rests.get(beginning) ?? [];
    rests.set(beginning, sharing);
    sharing.push(patternOf(text.slice(SHORTEST_SECRET_CHARACTERS)));
    if (isKey && !sharing.includes(LAST_WORD)) sharing.push(MASKED, LAST_WORD);
  }
  const whole = [...rests].map(([beginning, sharing]) => `${beginning}(?:${sharing.join('|')})`);
  return {
    beginnings: new RegExp([...rests.keys(), ...shapes].join('|'), 'i'),
    secrets: new RegExp([...whole, ...shapes].join('|'), 'gi'),
  };
}

/** Returns the texts that are long enough to hide, and their forms in JSON, longest first. */
function formsOf(secrets: ReadonlyMap<string, boolean>) {
  return [...secrets]
    .flatMap(([secret, isKey]) =>
      // JSON may escape some characters.
      [...new Set([secret, JSON.stringify(secret).slice(1, -1)])].map((text) => ({ text, isKey })),
    )
    .filter(({ text }) => text.length >= SHORTEST_SECRET_CHARACTERS)
    .toSorted((a, b) => b.text.length - a.text.length);
}

/** Returns the longest beginning of `secret` with which `text`, perhaps encoded, begins. */
function sharedBeginning(text: string, secret: string): string {
  let at = 0;
  let length = 0;
  for (const character of secret) {
    const form = text.startsWith('%', at) ? encodePercent(character) : character;
    if (!text.startsWith(form, at)) break;
    at += form.length;
    length += character.length;
  }
  return secret.slice(0, length);
}

/** Returns a pattern for the text with any characters in percent-encoding (RFC 3986, 2.1). */
function encodedPattern(text: string): string {
  const forms = Array.from(text, (character) => {
    return `(?:${escapePattern(character)}|${encodePercent(character)})`;
  });
  return forms.join('');
}

function encodePercent(text: string): string {
  return Buffer.from(text).toString('hex').replace(/../g, '%$&');
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
