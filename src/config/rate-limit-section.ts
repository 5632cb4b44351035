/**
 * Reads `[rate_limit]`: buckets for all requests and for each provider, and the Redis or Valkey
 * that several gateways share.
 */

import { isIP } from 'node:net';

import { isPrivate } from '../lib/loopback.ts';
import { Secret } from '../lib/secret.ts';
import { MAX_KEY_CHARACTERS } from './keys.ts';
import { MAX_PORT } from './settings-table.ts';
import type { Section, SettingValues } from './setting-values.ts';

export type BucketSettings = Pick<
  Section<'rate_limit.providers.<id>'>,
  'requestsPerSecond' | 'burstCapacity'
>;
export type StoreSettings = NonNullable<ReturnType<typeof readStore>>;

/**
 * Characters allowed in a URL's user or password (RFC 3986 3.2.1), without the colon between them.
 */
const USERINFO = "[\\w\\-.~!$&'()*+,;=%]";
const STORE_URL = new RegExp(
  `^(rediss?)://(?:(${USERINFO}*):((?:${USERINFO}|:)+)@)?` +
    '(?:\\[([\\dA-Fa-f:.]+)\\]|([\\w.-]+))(?::(\\d{1,5}))?(?:/(\\d{0,9}))?$',
);
const EXPECTED_URL =
  'expected redis:// or rediss://, then [user:password@]host[:port][/database], ' +
  'with user and password percent-encoded: "@" is %40, "/" is %2F';

const RATE = /^rate_limit\..*requests_per_(?:second|minute)$/s;

const BURST = /^((?:rate_limit|clients)(?:\..+)?)\.burst_capacity$/s;

/** `known` has the ids of all providers. */
export function readRateLimit(values: SettingValues, known: readonly string[]) {
  const { enabled, store: url, prefix, ...global } = values.section('rate_limit');
  const providers = new Map<string, Section<'rate_limit.providers.<id>'>>();
  for (const id of values.sectionsBelow('rate_limit.providers')) {
    const name = `rate_limit.providers.${id}`;
    providers.set(id, values.section('rate_limit.providers.<id>', name));
    if (known.includes(id)) continue;
    values.problem(name, `no such provider${values.suggestions.didYouMean(id, known)}`);
  }
  const [limit] = [...values.plain()].find(([name, { value }]) => RATE.test(name) && value) ?? [];
  if (!enabled && limit !== undefined) {
    const why = 'rate_limit.enabled (GATEWAY_RATE_LIMIT_ENABLED) is false';
    values.warning(limit, `has no effect: ${why}`);
  }
  warnOfBursts(values);
  return { enabled, global, providers, store: readStore(url, prefix, values) };
}

/** Warns about each `burst_capacity` without a rate, unless it is the default. */
function warnOfBursts(values: SettingValues): void {
  const plain = values.plain();
  for (const [name, { value, row }] of plain) {
    const [, section] = BURST.exec(name) ?? [];
    if (section === undefined || value === row.default) continue;
    if (plain.get(`${section}.requests_per_second`)?.value !== 0) continue;
    values.warning(name, 'has no effect: no bucket exists unless requests_per_second is set');
  }
}

/**
 * Returns the store's settings, or undefined without a store or if its URL is wrong. No message
 * quotes the URL, because it may hold a password.
 */
function readStore(url: string | undefined, prefix: string, values: SettingValues) {
  if (!/^[\x21-\x7e]{1,64}$/.test(prefix) || /[{}]/.test(prefix)) {
    const expected = '1 to 64 visible ASCII characters without spaces or braces';
    values.problem('rate_limit.prefix', `expected ${expected}`);
  }
  // An unreplaced reference in the URL was already reported.
  if (url === undefined || values.wrong.has('rate_limit.store')) return undefined;
  const refuse = (text: string) => values.problem('rate_limit.store', text);
  if (url.length > MAX_KEY_CHARACTERS)
    return refuse(`the URL is longer than ${MAX_KEY_CHARACTERS} characters`);
  const [, scheme, username, password, address, name = '', port = '6379', database = ''] =
    STORE_URL.exec(url) ?? [];
  if (scheme === undefined || (address !== undefined && isIP(address) !== 6)) {
    return refuse(EXPECTED_URL);
  }
  if (Number(port) < 1 || Number(port) > MAX_PORT) {
    return refuse(`expected a port from 1 to ${MAX_PORT}`);
  }
  if (scheme === 'redis' && password !== undefined && !isPrivate(address ?? name)) {
    const text = 'the password is sent in clear text beyond a private network; use rediss://';
    values.warning('rate_limit.store', text);
  }
  try {
    return {
      /** A host name or an address, IPv6 without brackets. */
      host: address ?? name,
      port: Number(port),
      isTls: scheme === 'rediss',
      username: username ? decodeURIComponent(username) : undefined,
      password: password === undefined ? undefined : new Secret(decodeURIComponent(password)),
      database: Number(database),
      /** Begins the name of each key in the store. */
      prefix,
    };
  } catch {
    return refuse(EXPECTED_URL);
  }
}
