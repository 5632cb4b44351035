/** Patterns for names, with `*` for any text. */

/** Returns true if the pattern matches the whole name. Each `*` stands for any text, also none. */
export function matchesPattern(pattern: string, name: string): boolean {
  const [first = '', ...parts] = pattern.split('*');
  const last = parts.pop();
  if (last === undefined) return name === pattern;
  let at = first.length;
  for (const part of parts) {
    // The earliest place leaves the most of the name to the parts that follow.
    const found = name.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return name.startsWith(first) && name.endsWith(last) && at + last.length <= name.length;
}
