/** Reads `[clients.<name>]`, `[admin]` and the keys of callers. */

import { createHash } from 'node:crypto';

import { foreignReference, isLikePlaceholder, probableReference } from './foreign-references.ts';
import { CLIENT_BUCKETS } from '../lib/limits.ts';
import { isLoopback, withoutBrackets } from '../lib/loopback.ts';
import { canMeet } from '../lib/pattern.ts';
import { Secret } from '../lib/secret.ts';
import { SHORTEST_SECRET_CHARACTERS } from '../lib/secrets.ts';
import type { Section, SettingValues } from './setting-values.ts';

/** The longest key and the longest value in `headers`, because servers refuse longer headers. */
export const MAX_KEY_CHARACTERS = 4096;

/** The settings for a token bucket. */
export type BucketSettings = Section<'rate_limit.providers.<id>'>;

/**
 * A client from `[clients]`, identified by its key. The code calls it a tenant, because a client is
 * whoever has sent a request.
 */
export type Tenant = ReturnType<typeof readClients>[number];
/** The admin listener's settings. */
export type AdminSettings = NonNullable<ReturnType<typeof readAdmin>>;

/**
 * Reports a key that no header can carry, and a caller's key that is a placeholder. Warns about a
 * key in quotation marks, or that is probably no key. No message contains the key.
 */
export function checkKey(
  values: SettingValues,
  name: string,
  key: string,
  isOfCaller = false,
): void {
  // All visible ASCII characters are allowed, because vendors use more than RFC 6750's tokens
  // allow.
  if (!/^[\x21-\x7e]+$/.test(key)) {
    values.problem(name, 'a key must be visible ASCII characters without spaces');
  } else if (key.length > MAX_KEY_CHARACTERS) {
    values.problem(name, `a key cannot be longer than ${MAX_KEY_CHARACTERS} characters`);
  } else if (/^(["']).*\1$/.test(key)) {
    // `docker --env-file` and some shells pass on the quotation marks in KEY="value".
    values.warning(name, 'the key begins and ends with a quotation mark; remove both');
  }
  const reference = probableReference(key);
  if (reference) values.warning(name, reference);
  if (!isLikePlaceholder(key)) return;
  if (isOfCaller) values.problem(name, 'this is a placeholder; write a key, or "${NAME}"');
  else values.warning(name, 'this looks like a placeholder, and is used as a key');
}

/** Reports a text that is not the digest of a key. */
function checkDigest(values: SettingValues, name: string, digest: string): void {
  // The reference to an unset variable is reported already.
  if (values.wrong.has(name)) return;
  const command = 'printf %s "$KEY" | sha256sum';
  if (!/^[\da-f]{64}$/i.test(digest)) {
    const found = `found ${digest.length} characters`;
    const text = `${found}, expected the 64 hexadecimal digits that ${command} prints before "-"`;
    values.problem(name, text);
  } else if (digest.toLowerCase() === sha256('')) {
    values.problem(name, 'this is the digest of an empty text, as of a variable that is not set');
  }
}

/**
 * Checks the keys of callers. An unreplaced reference or a placeholder is refused, because whoever
 * guesses its text would be let in.
 */
export function checkCallerKeys(values: SettingValues): void {
  for (const [name, { value, row }] of values.plain()) {
    if (row.key !== 'of callers') continue;
    if (name.endsWith('.key_sha256')) {
      checkDigest(values, name, value as string);
      continue;
    }
    for (const key of new Set([value as string | string[]].flat())) {
      const foreign = foreignReference(key);
      // A variable or a file may have the text. In the settings file it is reported already.
      if (foreign && !values.wrong.has(name)) values.problem(name, foreign);
      if (foreign) continue;
      checkKey(values, name, key, true);
      if (key.includes('${') && !values.wrong.has(name)) {
        const text =
          'a reference is written "${NAME}" or "${file:PATH}", and only in the settings file';
        values.problem(name, `a key cannot contain "\${"; ${text}`);
      }
      if (key.length < SHORTEST_SECRET_CHARACTERS) {
        const limit = `${SHORTEST_SECRET_CHARACTERS} characters`;
        const text = `a key shorter than ${limit} is not hidden in logs and error texts`;
        values.warning(name, text);
      }
    }
  }
}

/**
 * Returns all clients. Reports a client without a key and a key already in use. Warns about
 * `models` that match nothing, and about token limits that miss a provider's streams because it
 * lacks `stream_usage`.
 */
export function readClients(
  values: SettingValues,
  aliases: readonly { readonly name: string; readonly targets: readonly string[] }[],
  registered: readonly { readonly id: string; readonly streamUsage: boolean }[],
) {
  const { enabled, keys: anonymous = [] } = values.section('server.auth');
  const { primary, fallback = [] } = values.section('providers');
  const taken = new Set(anonymous.map(sha256));
  /** Returns true if a request for a matching name may reach this provider. */
  const leadsTo = (pattern: string, id: string) =>
    canMeet(pattern, id) ||
    canMeet(pattern, `${id}/*`) ||
    (id === primary && !pattern.includes('/') && !aliases.some(({ name }) => name === pattern)) ||
    aliases.some(
      ({ name, targets }) =>
        canMeet(pattern, name) && targets.some((target) => target.startsWith(`${id}/`)),
    );
  const leadsSomewhere = (pattern: string) =>
    aliases.some(({ name }) => canMeet(pattern, name)) ||
    registered.some(({ id }) => leadsTo(pattern, id));
  const names = values.sectionsBelow('clients');
  if (names.length > 0 && !enabled) {
    values.problem('clients', 'clients have no effect while server.auth.enabled is false');
  }
  return names.map((name) => {
    const path = `clients.${name}`;
    if (!/^[A-Za-z0-9._@-]{1,64}$/.test(name)) {
      values.problem(path, 'a client name has 1 to 64 letters, digits, ".", "_", "@" or "-"');
    }
    const section = values.section('clients.<name>', path);
    const { key, keys, keySha256, expires, models, maxConcurrentRequests, ...limit } = section;
    const expiresAtMs = expires?.getTime();
    const keyDigests = readKeysOf(values, path, { key, keys, keySha256 }, taken);
    for (const model of models ?? []) {
      if (leadsSomewhere(model)) continue;
      const text = `"${values.asWritten(model)}" matches no alias and no model of a registered provider`;
      values.warning(`${path}.models`, text);
    }
    const uncounted = registered
      .filter(({ streamUsage }) => !streamUsage)
      .map(({ id }) => id)
      .filter(
        (id) => fallback.includes(id) || (models ?? ['*']).some((model) => leadsTo(model, id)),
      );
    const hasTokenLimit = CLIENT_BUCKETS.some(
      ({ counts, setting }) => counts === 'tokens' && limit[setting] > 0,
    );
    if (hasTokenLimit && uncounted.length > 0) {
      const streams = `streams from ${uncounted.join(', ')} only if the client asks for usage`;
      const remedy = 'set stream_usage = true for these providers';
      values.warning(path, `token limits count ${streams}; ${remedy}`);
    }
    /** True if one of the keys is known by its digest alone. */
    const hasUnknownKey = keySha256 !== undefined;
    const identity = { name, keyDigests, hasUnknownKey, expiresAtMs };
    return { ...identity, models, limit, maxConcurrentRequests };
  });
}

/**
 * Returns the SHA-256 digests of a client's keys in small hexadecimal digits, each once. Reports a
 * client without a key, and a key whose digest is in `taken`. Adds the digests to `taken`.
 */
function readKeysOf(
  values: SettingValues,
  path: string,
  { key, keys = [], keySha256 }: Pick<Section<'clients.<name>'>, 'key' | 'keys' | 'keySha256'>,
  taken: Set<string>,
): readonly Secret[] {
  const settings = new Map(keys.map((text) => [sha256(text), 'keys']));
  if (key !== undefined) settings.set(sha256(key), 'key');
  if (keySha256 !== undefined) settings.set(keySha256.toLowerCase(), 'key_sha256');
  // A wrong value is reported already.
  const isWrong = ['key', 'keys', 'key_sha256'].some((name) => values.wrong.has(`${path}.${name}`));
  if (settings.size === 0 && !isWrong) {
    values.problem(`${path}.key`, 'key, keys or key_sha256 is required');
  }
  for (const [digest, setting] of settings) {
    const text = 'another client or [server.auth] has this key';
    if (taken.has(digest)) values.problem(`${path}.${setting}`, text);
    taken.add(digest);
  }
  return toSecrets(settings.keys());
}

/** Returns the SHA-256 digest of the text's UTF-8 bytes in small hexadecimal digits. */
function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

export function toSecrets(keys: Iterable<string> = []): readonly Secret[] {
  return [...keys].map((key) => new Secret(key));
}

/**
 * Returns the admin listener's settings, or undefined without a port: then nothing listens. Reports
 * a listener open to other machines without a key.
 */
export function readAdmin(values: SettingValues) {
  const { port, host, keys = [] } = values.section('admin');
  if (port === undefined) return undefined;
  if (!isLoopback(host) && keys.length === 0) {
    const clients = `any client that can reach ${values.asWritten(host)}`;
    const why = `${clients} could read other clients' requests`;
    values.problem('admin.keys', `a key is required, because ${why}; or set host = "127.0.0.1"`);
  }
  return { port, host: withoutBrackets(host), keys: toSecrets(keys) };
}
