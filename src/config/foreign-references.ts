/** Recognises references to variables as other programs write them, which here are plain texts. */

/** A whole text that another program replaces; the group is the variable's name. */
const REFERENCES = [
  // A shell's. Only capitals match, because a password may begin with `$`.
  /^\$([A-Z][A-Z0-9_]*)$/,
  // Of Kubernetes, Windows and LiteLLM.
  /^\$\((\w+)\)$/,
  /^%([A-Z][A-Z0-9_]*)%$/i,
  /^os\.(?:environ|getenv)\W+(\w+)\W*$/,
  /^(?:process\.|\$)?env[:./]+(\w+)$/i,
  // Of Helm, Jinja and the like, with or without filters.
  /^\{\{\s*(\w+)\s*\}\}$/,
  /^\{\{.*\}\}$/s,
];
/** Such as `<your-key>`. */
const PLACEHOLDER = /^<[^<>]*>$/;
/** Any other text may be a part of a key. */
const SHOWN_NAME = /^[A-Z][A-Z0-9_]*$/;

/**
 * Returns the right spelling for a text that another program would replace, as a message; undefined
 * for any other text. With `showsName` the message names the variable.
 */
export function foreignReference(text: string, showsName = false): string | undefined {
  const trimmed = text.trim();
  if (PLACEHOLDER.test(trimmed)) return 'this is a placeholder; write a key, or "${NAME}"';
  for (const reference of REFERENCES) {
    const [found, name = ''] = reference.exec(trimmed) ?? [];
    if (found === undefined) continue;
    return `a reference is written "\${${showsName && SHOWN_NAME.test(name) ? name : 'NAME'}}"`;
  }
  return undefined;
}
