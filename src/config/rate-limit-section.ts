/** `[rate_limit]`: buckets for all requests and for each provider, and the Redis or Valkey that several gateways share them in. */

import { isIP } from 'node:net';

import { didYouMean } from '../lib/did-you-mean.ts';
import { Secret } from '../lib/secrets.ts';
import {
  MAX_KEY_CHARACTERS,
  toBucket,
  type BucketSettings,
  type ClientSettings,
} from './callers-section.ts';
import { MAX_PORT } from './server-rows.ts';
import type { SettingValues } from './setting-values.ts';

export interface StoreSettings {
  /** A name or an address; IPv6 without brackets. */
  readonly host: string;
  readonly port: number;
  readonly isTls: boolean;
  readonly username: string | undefined;
  readonly password: Secret | undefined;
  readonly database: number;
  /** What the names of its keys begin with. */
  readonly prefix: string;
}

const DEFAULT_PORT = '6379';
/** RFC 3986, 3.2.1: what may stand before the "@" of a URL. */
const USERINFO = /^(?:[\w\-.~!$&'()*+,;=:]|%[\da-f]{2})*$/i;

export interface RateLimitSettings {
  readonly enabled: boolean;
  readonly global: BucketSettings;
  readonly providers: ReadonlyMap<string, BucketSettings>;
  /** What keeps the buckets for several gateways. */
  readonly store: StoreSettings | undefined;
}

/**
 * Returns the limits. `known` are the ids of all providers; `clients` may have limits of their own, for which a store has
 * an effect too.
 */
export function readRateLimit(
  values: SettingValues,
  known: readonly string[],
  clients: readonly ClientSettings[],
): RateLimitSettings {
  const { enabled, store: url, prefix, ...bucket } = values.section('rate_limit');
  const global = toBucket(bucket);
  const providers = new Map<string, BucketSettings>();
  for (const id of values.sectionsBelow('rate_limit.providers')) {
    const name = `rate_limit.providers.${id}`;
    providers.set(id, toBucket(values.section('rate_limit.providers.<id>', name)));
    if (!known.includes(id)) values.problem(name, `no such provider${didYouMean(id, known)}`);
  }
  const isLimit = ({ requestsPerSecond }: BucketSettings) => requestsPerSecond > 0;
  const isLimited = [global, ...providers.values()].some(isLimit);
  if (!enabled && isLimited) {
    const why = 'rate_limit.enabled (GATEWAY_RATE_LIMIT_ENABLED) is false';
    values.warning('rate_limit.requests_per_second', `has no effect: ${why}`);
  }
  const store = readStore(url, prefix, values);
  if (store && !(enabled && isLimited) && !clients.some(({ limit }) => isLimit(limit))) {
    values.warning('rate_limit.store', 'has no effect: there is no rate limit');
  }
  return { enabled, global, providers, store };
}

/** Returns the settings of the store, or undefined if there is none or it is wrong. No message shows a part of the URL. */
function readStore(
  url: string | undefined,
  prefix: string,
  values: SettingValues,
): StoreSettings | undefined {
  if (!/^[\x21-\x7e]{1,64}$/.test(prefix) || /[{}]/.test(prefix)) {
    const expected = '1 to 64 visible ASCII characters without spaces and braces';
    values.problem('rate_limit.prefix', `expected ${expected}`);
  }
  // An unset variable in it has been reported.
  if (url === undefined || values.hasProblem('rate_limit.store')) return undefined;
  const parsed = parseStoreUrl(url);
  if (typeof parsed !== 'string') return { ...parsed, prefix };
  values.problem('rate_limit.store', parsed);
  return undefined;
}

/** Returns the parts of the URL, or what is wrong with it. */
function parseStoreUrl(url: string): Omit<StoreSettings, 'prefix'> | string {
  if (url.length > MAX_KEY_CHARACTERS) return `longer than ${MAX_KEY_CHARACTERS} characters`;
  const [, scheme, rest = ''] = /^(rediss?):\/\/(.*)$/s.exec(url) ?? [];
  if (scheme === undefined) return 'expected a URL that begins with redis:// or rediss://';
  if (/[?#]/.test(rest)) {
    return 'expected no query and no fragment; in a password "?" is %3F, "#" is %23';
  }
  const [, userinfo, authority = '', database = ''] =
    /^(?:([^/]*)@)?([^/]*)(?:\/(.*))?$/s.exec(rest) ?? [];
  if (!/^\d{0,9}$/.test(database)) {
    return 'expected an integer as database, after the "/"; in a password "/" is %2F';
  }
  const [, inBrackets, name = '', port = DEFAULT_PORT] =
    /^(?:\[(.*)\]|([^:[\]]*))(?::(.*))?$/s.exec(authority) ?? [];
  const host = inBrackets ?? name;
  const isHost = inBrackets === undefined ? /^[\w.-]+$/.test(name) : isIP(inBrackets) === 6;
  if (!isHost) return 'expected a host: a name, an IPv4 address, or an IPv6 address in brackets';
  const isPort = /^\d{1,5}$/.test(port) && Number(port) >= 1 && Number(port) <= MAX_PORT;
  if (!isPort) return `expected a port from 1 to ${MAX_PORT}`;
  const user = parseUserinfo(userinfo);
  if (typeof user === 'string') return user;
  return {
    host,
    port: Number(port),
    isTls: scheme === 'rediss',
    ...user,
    database: Number(database),
  };
}

/** Returns the user and the password, or what is wrong with them. */
function parseUserinfo(
  userinfo: string | undefined,
): Pick<StoreSettings, 'username' | 'password'> | string {
  if (userinfo === undefined) return { username: undefined, password: undefined };
  if (!USERINFO.test(userinfo)) {
    return 'user and password must be percent-encoded: "@" is %40, "/" is %2F, "%" is %25';
  }
  const [, username = '', password = ''] = /^([^:]*):(.*)$/.exec(userinfo) ?? [];
  if (password === '') return 'expected "user:password@" or ":password@" before the host';
  try {
    return {
      username: username === '' ? undefined : decodeURIComponent(username),
      password: new Secret(decodeURIComponent(password)),
    };
  } catch {
    return 'user and password must be percent-encoded UTF-8';
  }
}
