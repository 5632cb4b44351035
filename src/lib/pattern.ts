/** Patterns for names: each `*` in a pattern stands for any text, also none. */

/**
 * Returns the texts in the name at the places of the pattern's `*`, or undefined if the name does
 * not match. All texts but the last are as short as they can be.
 */
export function capture(pattern: string, name: string): readonly string[] | undefined {
  const [first = '', ...parts] = pattern.split('*');
  const last = parts.pop();
  if (last === undefined) return name === pattern ? [] : undefined;
  const texts: string[] = [];
  let at = first.length;
  for (const part of parts) {
    // The earliest place leaves the most of the name to the parts that follow.
    const found = name.indexOf(part, at);
    if (found < 0) return undefined;
    texts.push(name.slice(at, found));
    at = found + part.length;
  }
  const end = name.length - last.length;
  if (!name.startsWith(first) || !name.endsWith(last) || at > end) return undefined;
  return [...texts, name.slice(at, end)];
}

export function matches(pattern: string, name: string): boolean {
  return capture(pattern, name) !== undefined;
}

/** Returns true if a name can match both patterns. */
export function canMeet(a: string, b: string): boolean {
  if (!a.includes('*')) return matches(b, a);
  if (!b.includes('*')) return matches(a, b);
  // Between their beginnings and their ends, the `*` of each pattern take the other's texts.
  const isEnd = (one: string, other: string) => one.endsWith(other) || other.endsWith(one);
  const [startOfA, startOfB] = [a.slice(0, a.indexOf('*')), b.slice(0, b.indexOf('*'))];
  const isStart = startOfA.startsWith(startOfB) || startOfB.startsWith(startOfA);
  return isStart && isEnd(a.slice(a.lastIndexOf('*') + 1), b.slice(b.lastIndexOf('*') + 1));
}
