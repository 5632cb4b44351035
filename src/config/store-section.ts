/** `[rate_limit] store` and `prefix`: the Redis or Valkey that several gateways share their limits in. */

import { isIP } from 'node:net';

import { Secret } from '../lib/secrets.ts';
import { MAX_KEY_CHARACTERS } from './api-keys.ts';
import type { SectionReader } from './section-reader.ts';
import { MAX_PORT } from './shared-rows.ts';

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

/** Returns the settings of the store, or undefined if there is none or it is wrong. No message shows a part of the URL. */
export function readStore(
  { store, prefix }: { readonly store: string | undefined; readonly prefix: string },
  section: SectionReader,
): StoreSettings | undefined {
  if (!/^[\x21-\x7e]{1,64}$/.test(prefix) || /[{}]/.test(prefix)) {
    const expected = '1 to 64 visible ASCII characters without spaces and braces';
    section.problem('prefix', `expected ${expected}`);
  }
  // An unset variable in it has been reported.
  if (store === undefined || section.hasProblem('store')) return undefined;
  const parsed = parseStoreUrl(store);
  if (typeof parsed !== 'string') return { ...parsed, prefix };
  section.problem('store', parsed);
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
