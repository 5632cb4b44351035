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
  try {
    return { ...parseStoreUrl(store), prefix };
  } catch (error) {
    if (!(error instanceof UrlError)) throw error;
    section.problem('store', error.message);
    return undefined;
  }
}

class UrlError extends Error {}

function assertUrl(condition: boolean, message: string): void {
  if (!condition) throw new UrlError(message);
}

/** Throws `UrlError`. */
function parseStoreUrl(url: string): Omit<StoreSettings, 'prefix'> {
  assertUrl(url.length <= MAX_KEY_CHARACTERS, `longer than ${MAX_KEY_CHARACTERS} characters`);
  const [, scheme, rest = ''] = /^(rediss?):\/\/(.*)$/s.exec(url) ?? [];
  assertUrl(scheme !== undefined, 'expected a URL that begins with redis:// or rediss://');
  assertUrl(
    !/[?#]/.test(rest),
    'expected no query and no fragment; in a password "?" is %3F, "#" is %23',
  );
  const [, userinfo, authority = '', database = ''] =
    /^(?:([^/]*)@)?([^/]*)(?:\/(.*))?$/s.exec(rest) ?? [];
  assertUrl(
    /^\d{0,9}$/.test(database),
    'expected an integer as database, after the "/"; in a password "/" is %2F',
  );
  const [, inBrackets, name = '', port = DEFAULT_PORT] =
    /^(?:\[(.*)\]|([^:[\]]*))(?::(.*))?$/s.exec(authority) ?? [];
  const host = inBrackets ?? name;
  assertUrl(
    inBrackets === undefined ? /^[\w.-]+$/.test(name) : isIP(inBrackets) === 6,
    'expected a host: a name, an IPv4 address, or an IPv6 address in brackets',
  );
  assertUrl(
    /^\d{1,5}$/.test(port) && Number(port) >= 1 && Number(port) <= MAX_PORT,
    `expected a port from 1 to ${MAX_PORT}`,
  );
  return {
    host,
    port: Number(port),
    isTls: scheme === 'rediss',
    ...parseUserinfo(userinfo),
    database: Number(database),
  };
}

/** Throws `UrlError`. */
function parseUserinfo(userinfo: string | undefined): Pick<StoreSettings, 'username' | 'password'> {
  if (userinfo === undefined) return { username: undefined, password: undefined };
  assertUrl(
    USERINFO.test(userinfo),
    'user and password must be percent-encoded: "@" is %40, "/" is %2F, "%" is %25',
  );
  const [, username = '', password = ''] = /^([^:]*):(.*)$/.exec(userinfo) ?? [];
  assertUrl(password !== '', 'expected "user:password@" or ":password@" before the host');
  return {
    username: username === '' ? undefined : decode(username),
    password: new Secret(decode(password)),
  };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new UrlError('user and password must be percent-encoded UTF-8');
  }
}
