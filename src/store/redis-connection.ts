/** A connection to Redis 5 or later, or to Valkey, where the rate limit script runs. */

import { createConnection, type Socket } from 'node:net';
import { connect as createTlsConnection } from 'node:tls';

import type { StoreSettings } from '../config/config.ts';
import { serverNameOf } from '../lib/loopback.ts';
import { lookup } from '../lib/name-lookup.ts';
import { messageOf } from '../lib/tls-errors.ts';
import type { StoredLimit, Taken } from '../policy/limiter.ts';

export const ANSWER_MS = 50;
/** The time limit for the name lookup, TCP and TLS together. */
const CONNECT_MS = 10_000;
const KEEP_ALIVE_PROBE_MS = 30_000;
/** The most commands without a reply, some 1.5 kB each. */
const MAX_PENDING = 2048;
const MAX_REPLY_CHARACTERS = 4096;
const MAX_CAUSE_CHARACTERS = 200;
const ERROR_CODE = /^-[A-Z]+\b/;

/**
 * Takes tokens from several buckets: with `ask` only if every bucket has enough, with `take` in any
 * case.
 *
 * A bucket is stored as its lack of tokens and the time of that lack. With the rate, the two are
 * GCRA's theoretical arrival time. Lua has only doubles, so a token has as many units as its period
 * has microseconds, and `rate` units come back each microsecond. So all numbers are integers, and
 * below 2^53 if the period is a second.
 *
 * A bucket without tokens per request must still be above zero. A key expires when its bucket is
 * full; the added millisecond is for rounding. A refusal writes too, so that the refill goes on
 * after the server's clock was set back. The reply's lacks are rounded up, so that no client is
 * shown a token that is not there yet.
 *
 * A calendar window is stored as its sum, and its `rate` is `window`, its `burst` the limit and its
 * `period` the window's end in milliseconds since the epoch. Its key expires an hour after the end,
 * for gateways whose clocks are behind.
 */
const SCRIPT = `
local time = redis.call('TIME')
local now = time[1] * 1e6 + time[2]
local lacks, answer, longest = {}, 'OK', 0
for i, key in ipairs(KEYS) do
  local rate, burst, period, tokens = string.match(ARGV[i + 1], '(%S+) (%S+) (%S+) (%S+)')
  local stored, wait = redis.call('GET', key) or ''
  if rate == 'window' then
    lacks[i] = tonumber(stored) or 0
    wait = lacks[i] < tonumber(burst) and 0 or math.max(1, period * 1e3 - now)
  else
    local token = period * 1e6
    local lack, since = string.match(stored, '^(%d+) (%d+)$')
    lacks[i] = lack and math.max(0, lack - math.max(0, now - since) * rate) or 0
    local over = lacks[i] + math.max(tokens * token, period) - burst * token
    wait = math.ceil(over / rate)
  end
  if wait > longest and ARGV[1] == 'ask' then
    longest, answer = wait, string.format('%d %.0f', i, wait)
  end
end
local isTaken = answer == 'OK'
for i, key in ipairs(KEYS) do
  local rate, _, period, tokens = string.match(ARGV[i + 1], '(%S+) (%S+) (%S+) (%S+)')
  if rate == 'window' then
    local sum = string.format('%.10f', lacks[i] + (isTaken and tokens or 0))
    local lifetimeMs = math.max(1, math.ceil(period + 3.6e6 - now / 1e3))
    if tonumber(sum) > lacks[i] then redis.call('SET', key, sum, 'PX', lifetimeMs) end
    answer = answer .. ' ' .. sum
  else
    local lack = math.max(0, lacks[i] + (isTaken and tokens * period * 1e6 or 0))
    local expiryMs = math.min(1e15, math.ceil(lack / rate / 1000) + 1)
    redis.call('SET', key, string.format('%.0f %.0f', lack, now), 'PX', expiryMs)
    answer = answer .. string.format(' %.0f', math.ceil(lack / period / 1e6))
  end
end
return redis.status_reply(answer)`;
/** `OK`, or the refusing bucket's position and its wait in microseconds; then lacks and sums. */
const ANSWER = /^(?:OK|(\d{1,9}) (\d{1,25}))((?: \d{1,25}(?:\.\d{10})?)*)$/;

/**
 * Buckets for the script's trial run. The run fails on a full or read-only store, because it
 * writes, and on a cluster, because it takes several keys.
 */
const PROBES = ['probe', 'probe-2'].map((name) => {
  return { name, rate: 1e6, periodSeconds: 1, capacity: 1e6, perRequest: 1 };
});

interface Command {
  readonly name: string;
  readonly timer: NodeJS.Timeout;
  readonly resolve: (reply: string | undefined) => void;
}

export interface RedisConnectionOptions {
  readonly onReady: () => void;
  /**
   * @param cause - never holds the password
   * @param wasIdle - true if the server has closed the connection while no command waited for a
   * reply
   */
  readonly onClosed: (cause: string, wasIdle: boolean) => void;
  readonly answerMs?: number;
}

/** A connection that ends with its first failure, of whatever kind. */
export class RedisConnection {
  readonly #settings: StoreSettings;
  readonly #options: Required<RedisConnectionOptions>;
  readonly #socket: Socket;
  readonly #connectTimer: NodeJS.Timeout;
  #unread = '';
  /** Commands without a reply, the oldest first, because replies come in order. */
  #pending: Command[] = [];
  #isClosed = false;

  constructor(settings: StoreSettings, options: RedisConnectionOptions) {
    const { host, port, isTls } = settings;
    this.#settings = settings;
    this.#options = { answerMs: ANSWER_MS, ...options };
    this.#connectTimer = setTimeout(
      () => this.close(isTls ? 'no TLS connection in time' : 'connect timed out'),
      CONNECT_MS,
    ).unref();
    this.#socket = isTls
      ? createTlsConnection({ host, port, lookup, servername: serverNameOf(host) })
      : createConnection({ host, port, lookup });
    this.#socket.setNoDelay(true).setKeepAlive(true, KEEP_ALIVE_PROBE_MS);
    this.#socket
      .once(isTls ? 'secureConnect' : 'connect', () => void this.#prepare())
      .on('data', (chunk: Buffer) => this.#read(chunk))
      // The AggregateError for a host with several addresses has no message.
      .on('error', (error: NodeJS.ErrnoException) => {
        const text = messageOf(error, 'its URL may need redis:// in place of rediss://');
        this.close(text || String(error.code));
      })
      .on('close', () => this.close('the connection was closed', this.#pending.length === 0));
  }

  /**
   * Resolves with undefined if the connection ends first.
   *
   * @param tokens - how many to take in any case; if undefined, a request's tokens are taken or
   * refused
   */
  async run(buckets: readonly StoredLimit[], tokens?: number): Promise<Taken | undefined> {
    const askedTime = Date.now();
    const args = scriptArguments(buckets, this.#settings.prefix, tokens);
    const answer = await this.#call('EVAL', ...args);
    if (answer === undefined) return undefined;
    const [isAnswer, position, waitUs, lacks = ''] = ANSWER.exec(answer) ?? [];
    const refusedBy = buckets[Number(position) - 1];
    if (isAnswer === undefined || (position && !refusedBy)) {
      this.close('unexpected reply from the script');
      return undefined;
    }
    const reported = lacks.split(' ').slice(1);
    for (const [index, text] of reported.entries()) {
      const bucket = buckets[index];
      if (!bucket) continue;
      if ('rate' in bucket) bucket.onLack?.(Number(text));
      else bucket.local.set(Number(text), askedTime);
    }
    return refusedBy ? { refusedBy, waitMs: Number(waitUs) / 1000 } : 'taken';
  }

  close(cause: string, wasIdle = false): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearTimeout(this.#connectTimer);
    this.#socket.destroy();
    for (const { resolve, timer } of this.#pending) {
      clearTimeout(timer);
      resolve(undefined);
    }
    this.#pending = [];
    this.#options.onClosed(cause.slice(0, MAX_CAUSE_CHARACTERS), wasIdle);
  }

  async #prepare(): Promise<void> {
    clearTimeout(this.#connectTimer);
    const { username, password, database } = this.#settings;
    const user = username === undefined ? [] : [username];
    if (password) await this.#call('AUTH', ...user, password.reveal());
    if (database !== 0) await this.#call('SELECT', String(database));
    const taken = await this.run(PROBES);
    if (taken === 'taken') this.#options.onReady();
    else this.close('unexpected reply from the script');
  }

  #call(name: string, ...args: readonly string[]): Promise<string | undefined> {
    return new Promise((resolve) => {
      if (this.#isClosed || this.#pending.length >= MAX_PENDING) return resolve(undefined);
      const { answerMs } = this.#options;
      const check = () => {
        if (this.#pending[0] === command) this.close(`no answer in ${answerMs} ms`);
      };
      // The event loop reads sockets between timers and immediates, so a reply that arrived while
      // the loop was busy is still in time.
      const timer = setTimeout(() => setImmediate(check), answerMs).unref();
      const command: Command = { name, timer, resolve };
      this.#pending.push(command);
      this.#socket.write(encodeCommand([name, ...args]));
    });
  }

  /**
   * Each reply is a line, because the script returns status replies. The bytes are decoded as
   * latin1, because a chunk may end inside a UTF-8 character.
   */
  #read(chunk: Buffer): void {
    const lines = (this.#unread + chunk.toString('latin1')).split('\r\n');
    this.#unread = lines.pop()!;
    for (const line of lines) this.#settle(line);
    if (this.#unread.length > MAX_REPLY_CHARACTERS) this.close('the reply is too long');
  }

  #settle(line: string): void {
    const command = this.#pending[0];
    if (!command) return this.close('unexpected reply without a command');
    if (line.startsWith('-')) {
      // An error reply to AUTH may quote the password.
      const shown = command.name === 'AUTH' ? (ERROR_CODE.exec(line)?.[0] ?? '-error') : line;
      return this.close(`${command.name}: ${shown.slice(1)}`);
    }
    if (!line.startsWith('+')) return this.close('the reply is not RESP');
    this.#pending.shift();
    clearTimeout(command.timer);
    command.resolve(line.slice(1));
  }
}

export function scriptArguments(buckets: readonly StoredLimit[], prefix: string, tokens?: number) {
  // The settings are in the key, because a bucket with other settings is another bucket. A window
  // keeps its sum when its limit changes.
  const keys: string[] = [];
  // Each bucket has a single argument, because before the login Redis closes a connection with more
  // than ten arguments.
  const limits: string[] = [];
  for (const bucket of buckets) {
    const { name, capacity, perRequest } = bucket;
    const taken = tokens ?? perRequest;
    if ('rate' in bucket) {
      const { rate, periodSeconds } = bucket;
      const period = periodSeconds === 1 ? '' : `/${periodSeconds}`;
      keys.push(`${prefix}:${name}:${rate}/${capacity}${period}`);
      limits.push(`${rate} ${capacity} ${periodSeconds} ${taken}`);
    } else {
      keys.push(`${prefix}:${name}:${bucket.local.name}`);
      limits.push(`window ${capacity} ${bucket.local.current().endTime} ${taken}`);
    }
  }
  return [SCRIPT, String(keys.length), ...keys, tokens === undefined ? 'ask' : 'take', ...limits];
}

/** Encodes a command as RESP. */
export function encodeCommand(args: readonly string[]): string {
  const strings = args.map((arg) => `$${Buffer.byteLength(arg)}\r\n${arg}\r\n`);
  return `*${args.length}\r\n${strings.join('')}`;
}
