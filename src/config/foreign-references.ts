/** Recognises references to variables as other programs write them, which here are plain texts. */

/** A whole text that another program replaces; the group is the variable's name. */
const REFERENCES = [
  // A shell's. Only capitals match, because a password may begin with `$`.
  /^\$([A-Z][A-Z0-9_]*)$/,
  // Of Kubernetes, Windows and LiteLLM.
  /^\$\((\w+)\)$/,
  /^%([A-Z][A-Z0-9_]*)%$/i,
  /^os\.(?:environ(?:\.get)?|getenv)\W+(\w+)(?:\W*|\W.*\))$/,
  /^(?:process\.|\$)?env(?:[:./]+|\[["']?)(\w+)(?:["']?\])?$/i,
  // Marks that a deployment pipeline replaces in files.
  /^__([A-Z][A-Z0-9_]*?)__$/,
  /^@{1,2}([A-Z][A-Z0-9_]*)@{1,2}$/,
  /^#\{(\w+)\}#?$/,
  // Of Helm, Jinja and the like, with or without filters.
  /^\{\{\s*(\w+)\s*\}\}$/,
  /^\{\{.*\}\}$/s,
];
/** The path of a file that another program reads, such as `file:/run/secrets/key`. */
const FILE_REFERENCE = /^@?file:\S*\/\S*$/i;
/** Such as `<your-key>`. */
const PLACEHOLDER = /^<[^<>]*>$/;
/** Texts that a password may be too. Names in small letters have two words. */
const LIKE_REFERENCES = [
  /^\$[a-z][a-z0-9]*(?:_[a-z0-9]+)+$/,
  // As Compose escapes a shell's.
  /^\$\$[A-Z][A-Z0-9_]*$/,
  // A format string's field, as in Python.
  /^\{(?:[A-Z][A-Z0-9_]*|[a-z][a-z0-9]*(?:_[a-z0-9]+)+)\}$/,
];
/** Such as `your-api-key-here`, `sk-xxxx` and `changeme`. */
const LIKE_PLACEHOLDERS = [
  new RegExp(
    '^(?:[a-z]{2,4}-)?(?:your|insert|replace|enter|paste)[-_]?(?:[a-z0-9]+[-_])*' +
      '(?:(?:api)?key|token|secret|here)$',
    'i',
  ),
  /^(?:[a-z]{2,4}-)?(?:x{4,64}|\.{3,}|\*{3,})$/i,
  /^(?:change|replace)[-_]?me$/i,
];
/** Any other text may be a part of a key. */
const SHOWN_NAME = /^[A-Z][A-Z0-9_]*$/;

/**
 * Returns the right spelling for a text that another program would replace. With `showsName` the
 * message names the variable.
 */
export function foreignReference(text: string, showsName = false): string | undefined {
  const trimmed = text.trim();
  if (PLACEHOLDER.test(trimmed)) return 'this is a placeholder; write a key, or "${NAME}"';
  if (FILE_REFERENCE.test(trimmed)) return 'a reference to a file is written "${file:PATH}"';
  for (const reference of REFERENCES) {
    const [found, name = ''] = reference.exec(trimmed) ?? [];
    if (found === undefined) continue;
    return `a reference is written "\${${showsName && SHOWN_NAME.test(name) ? name : 'NAME'}}"`;
  }
  return undefined;
}

/** Returns a warning for a text that is probably a reference, but may be a key. */
export function probableReference(text: string): string | undefined {
  const isLike = LIKE_REFERENCES.some((pattern) => pattern.test(text));
  return isLike ? 'this looks like a reference, which is "${NAME}" here' : undefined;
}

/** A local server may take a placeholder as a key; as the key of a caller it could be guessed. */
export function isLikePlaceholder(text: string): boolean {
  return LIKE_PLACEHOLDERS.some((pattern) => pattern.test(text));
}
