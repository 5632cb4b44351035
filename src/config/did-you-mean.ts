/** Further names get no suggestion, because a file can have thousands of unknown names. */
const MAX_SUGGESTIONS = 10;

/** Suggestions for the unknown names in one reading of the settings. */
export class Suggestions {
  #left = MAX_SUGGESTIONS;

  /** Returns `; did you mean "port"?` if a known name is similar, else all known names. */
  didYouMean(name: string, known: readonly string[]): string {
    const list = known.length === 0 || this.#left <= 0 ? '' : `; known: ${known.join(', ')}`;
    return this.similarTo(name, known) || list;
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
  const [nearest] = known.toSorted((a, b) => editDistance(given, a) - editDistance(given, b));
  // If more than half the letters differ, it is another name and not a typing error.
  const limit = Math.min(Math.max(2, given.length / 3), given.length / 2);
  if (nearest !== undefined && editDistance(given, nearest) <= limit) {
    return `; did you mean "${nearest}"?`;
  }
  return '';
}

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
