/** Reads `[clients.<name>]` and `[admin]`. */

import { CLIENT_BUCKETS, CLIENT_WINDOWS } from '../lib/limits.ts';
import { isLoopback, withoutBrackets } from '../lib/loopback.ts';
import { canMeet } from '../lib/pattern.ts';
import type { Secret } from '../lib/secret.ts';
import { sha256 } from '../lib/sha256.ts';
import { allAliases } from './aliases-section.ts';
import { toSecrets } from './keys.ts';
import type { Section, SettingValues } from './setting-values.ts';
import { unpricedModels, type PricedRouting } from './unpriced-models.ts';

/**
 * A client from `[clients]`, identified by its key. The code calls it a tenant, because a client is
 * whoever has sent a request.
 */
export type Tenant = ReturnType<typeof readClients>[number];
export type AdminSettings = NonNullable<ReturnType<typeof readAdmin>>;

/** More models without a price are counted. */
const MAX_UNPRICED_SHOWN = 5;

/**
 * Reports a client without a key, a key already in use, and cost limits that miss a model because
 * it has no price. Warns about `models` that match nothing, about limits that miss a provider's
 * streams because it lacks `stream_usage`, and about windows that begin anew with each restart.
 */
export function readClients(values: SettingValues, routing: PricedRouting) {
  const all = allAliases(routing);
  const { registered, primary, fallback } = routing.providers;
  const { enabled, keys: anonymous = [] } = values.section('server.auth');
  const taken = new Set(anonymous.map((key) => sha256(key).toString('hex')));
  /** Returns true if a request for a matching name may reach this provider. */
  const leadsTo = (pattern: string, id: string) =>
    canMeet(pattern, id) ||
    canMeet(pattern, `${id}/*`) ||
    (id === primary && !pattern.includes('/') && !all.some(({ name }) => name === pattern)) ||
    all.some(
      ({ name, targets }) =>
        canMeet(pattern, name) && targets.some(({ providerId }) => providerId === id),
    );
  const leadsSomewhere = (pattern: string) =>
    all.some(({ name }) => canMeet(pattern, name)) ||
    registered.some(({ id }) => leadsTo(pattern, id));
  const names = values.sectionsBelow('clients');
  if (names.length > 0 && !enabled) {
    values.problem('clients', 'clients have no effect while server.auth.enabled is false');
  }
  const clients = names.map((name) => {
    const path = `clients.${name}`;
    if (!/^[A-Za-z0-9._@-]{1,64}$/.test(name)) {
      values.problem(path, 'a client name has 1 to 64 letters, digits, ".", "_", "@" or "-"');
    }
    const section = values.section('clients.<name>', path);
    const { key, keys, keySha256, expires, models, unpriced, maxConcurrentRequests, ...limit } =
      section;
    const keyDigests = readKeysOf(values, path, { key, keys, keySha256 }, taken);
    for (const model of models ?? []) {
      if (leadsSomewhere(model)) continue;
      const text = 'matches no alias and no model of a registered provider';
      values.warning(`${path}.models`, `"${values.asWritten(model)}" ${text}`);
    }
    const uncounted = registered
      .filter(({ streamUsage }) => !streamUsage)
      .map(({ id }) => id)
      .filter(
        (id) => fallback.includes(id) || (models ?? ['*']).some((model) => leadsTo(model, id)),
      );
    const counted = unitsOf(limit);
    warnOfStreams(values, path, counted, uncounted);
    if (!counted.includes('cost')) {
      const text = 'has no effect: no price is needed unless cost_per_day or cost_per_month is set';
      if (unpriced !== undefined) values.warning(`${path}.unpriced`, text);
    } else if (unpriced === undefined) {
      checkPrices(values, path, unpricedModels(models ?? ['*'], routing));
    }
    /** True if one of the keys is known by its digest alone. */
    const hasHashedKey = keySha256 !== undefined;
    const identity = { name, keyDigests, hasHashedKey, expiryTime: expires?.getTime() };
    return { ...identity, models, limit, maxConcurrentRequests };
  });
  warnOfRestart(values, clients);
  return clients;
}

/** Returns what the limits count of answers. */
function unitsOf(limit: Readonly<Record<string, number>>): readonly ('tokens' | 'cost')[] {
  const rows = [...CLIENT_BUCKETS, ...CLIENT_WINDOWS];
  return (['tokens', 'cost'] as const).filter((unit) =>
    rows.some(({ counts, property }) => counts === unit && limit[property]! > 0),
  );
}

/** Warns about limits that miss streams of these providers. */
function warnOfStreams(
  values: SettingValues,
  path: string,
  counted: readonly string[],
  uncounted: readonly string[],
): void {
  if (counted.length === 0 || uncounted.length === 0) return;
  const limits = `${counted.join(' and ').replace('tokens', 'token')} limits`;
  const streams = `streams from ${uncounted.join(', ')} only if the client asks for usage`;
  const remedy = 'set stream_usage = true for these providers';
  values.warning(path, `${limits} count ${streams}; ${remedy}`);
}

/** Reports models without a price that may answer a client with a cost limit. */
function checkPrices(values: SettingValues, path: string, unpriced: readonly string[]): void {
  if (unpriced.length === 0) return;
  const shown = unpriced.slice(0, MAX_UNPRICED_SHOWN).map((model) => values.asWritten(model));
  const more = unpriced.length - shown.length;
  const models = shown.join(', ') + (more > 0 ? ` and ${more} more` : '');
  const why = `models without a price may answer, and their cost is unknown: ${models}`;
  const remedy = 'set their prices in model_details, restrict models, or set unpriced = "allow"';
  values.problem(path, `${why}; ${remedy}`);
}

/** Warns about clients whose windows are in this process's memory only. */
function warnOfRestart(
  values: SettingValues,
  clients: readonly { name: string; limit: Readonly<Record<string, number>> }[],
): void {
  if (values.section('rate_limit').store !== undefined) return;
  const names = clients
    .filter(({ limit }) => CLIENT_WINDOWS.some(({ property }) => limit[property]! > 0))
    .map(({ name }) => name);
  if (names.length === 0) return;
  const text = `a restart begins the days and months of ${names.join(', ')} anew`;
  values.warning('clients', `${text}, because [rate_limit] store is not set`);
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
  const settings = new Map(keys.map((text) => [sha256(text).toString('hex'), 'keys']));
  if (key !== undefined) settings.set(sha256(key).toString('hex'), 'key');
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
