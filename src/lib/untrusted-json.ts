/** Bounds the time of one parse: 3 million `{}`, in 9 MB, block `JSON.parse` for seconds. */
export const MAX_PARSED_CHARACTERS = 262_144;

/** Parses a provider's JSON; returns `undefined` if it is not JSON (V8's own error would quote it), or too long. */
export function parseUntrustedJson(text: string, maxCharacters = MAX_PARSED_CHARACTERS): unknown {
  if (text.length > maxCharacters) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** A member of a parsed value; `undefined` if that is no object, or does not have it. */
export function memberOf(value: unknown, name: string): unknown {
  if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined;
  return (value as Record<string, unknown>)[name];
}
