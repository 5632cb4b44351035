/** Further names get no suggestion, because a file can have thousands of unknown names. */
const MAX_SUGGESTIONS = 10;

/** Suggestions for the unknown names in one reading of the settings. */
export class Suggestions {
  #left = MAX_SUGGESTIONS;

  /**
   * Returns `; did you mean "port"?` if a known name is similar, else `elsewhere` and all known
   * names.
   */
  didYouMean(name: string, known: readonly string[], elsewhere = ''): string {
    const list = known.length === 0 ? '' : `; known: ${known.join(', ')}`;
    const others = this.#left > 0 ? elsewhere + list : '';
    return this.similarTo(name, known) || others;
  }

  /** Returns an empty text if no known name is similar. */
  similarTo(name: string, known: readonly string[]): string {
    this.#left -= 1;
    return this.#left < 0 ? '' : similarTo(name, known);
  }
}

function similarTo(name: string, known: readonly string[]): string {
  // Cut, because a long name would take long to compare.
  const given = name.slice(0, 64);
  const longer = known.filter((one) => hasWordsOf(one, given));
  if (longer.length === 1) return `; did you mean "${longer[0]}"?`;
  const [nearest] = known.toSorted((a, b) => editDistance(given, a) - editDistance(given, b));
  // If more than half the letters differ, it is another name and not a typing error.
  const limit = Math.min(Math.max(2, given.length / 3), given.length / 2);
  if (nearest !== undefined && editDistance(given, nearest) <= limit) {
    return `; did you mean "${nearest}"?`;
  }
  return '';
}

/** Returns true for `GATEWAY_AUTH_KEYS` and `GATEWAY_KEY`. */
function hasWordsOf(longer: string, name: string): boolean {
  const words = wordsOf(longer);
  return wordsOf(name).every((word) => words.includes(word));
}

/** Returns the words of a name without the `s` of a plural. */
const wordsOf = (name: string) => name.split('_').map((word) => word.replace(/s$/i, ''));

function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (const [i, character] of Array.from(a).entries()) {
    const next = [i + 1];
    for (let column = 1; column <= b.length; column += 1) {
      const substitution = row[column - 1]! + (b[column - 1] === character ? 0 : 1);
      next.push(Math.min(substitution, row[column]! + 1, next[column - 1]! + 1));
    }
    row = next;
  }
  return row[b.length]!;
}
