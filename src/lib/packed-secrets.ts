/** Settings on their way to another thread: a message has no classes, and would lose the text of a `Secret`. */

import { Secret } from './secrets.ts';

declare const packed: unique symbol;
/** Plain data of type `T` in which each secret is a table of its own. For messages between threads only. */
export type Packed<T> = { readonly [packed]: T };

/** A table with this key is a secret. No header has such a name, and other tables of settings have fixed keys. */
const SECRET = '[secret]';

export function packSecrets<T>(data: T): Packed<T> {
  return copy(data, (value) =>
    value instanceof Secret ? { [SECRET]: value.reveal(), isKey: value.isKey } : undefined,
  ) as Packed<T>;
}

export function unpackSecrets<T>(data: Packed<T>): T {
  return copy(data, (value) => {
    const { [SECRET]: text, isKey } = value as { [SECRET]?: string; isKey?: boolean };
    return text === undefined ? undefined : new Secret(text, { isKey: isKey === true });
  }) as T;
}

/** Copies plain data, and instead of each object what `replace` returns for it, if that is not undefined. */
function copy(value: unknown, replace: (value: object) => unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  const replaced = replace(value);
  if (replaced !== undefined) return replaced;
  if (Array.isArray(value)) return value.map((entry) => copy(entry, replace));
  if (value instanceof Map) {
    return new Map([...value].map(([key, entry]) => [key, copy(entry, replace)]));
  }
  return Object.fromEntries(
    Object.entries(value).map(([key, entry]) => [key, copy(entry, replace)]),
  );
}
