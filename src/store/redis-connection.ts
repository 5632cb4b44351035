/**
 * One connection to Redis 5 or later, or to Valkey, on which the script runs. The first failure of
 * any kind ends it.
 */

import { createConnection, type Socket } from 'node:net';
import { connect as createTlsConnection } from 'node:tls';

import type { StoreSettings } from '../config/config.ts';
import { serverNameOf } from '../lib/loopback.ts';
import { lookup } from '../lib/name-lookup.ts';
import type { StoredBucket, Taken } from '../policy/limiter.ts';

/** A request waits no longer for a reply. */
export const ANSWER_MS = 50;
/** For the name lookup, TCP and TLS together. */
const CONNECT_MS = 10_000;
const KEEP_ALIVE_PROBE_MS = 30_000;
/** Commands without a reply yet, of some 1.5 kB each; further ones are not sent. */
const MAX_PENDING = 2048;
/** The longest replies are error messages. */
const MAX_REPLY_CHARACTERS = 4096;
const MAX_CAUSE_CHARACTERS = 200;
const ERROR_CODE = /^-[A-Z]+\b/;

/**
 * Takes tokens of several buckets, or if it is asked and they are not there, of none. A bucket is
 * what it lacks and since when: with the rate, that is GCRA's theoretical arrival time. Lua has
 * only doubles, so a token is as many units as its period has microseconds, in each of which `rate`
 * units come back: all numbers are integers, below 2^53 if the period is a second. A bucket of
 * which a request takes none has to be above zero. A key expires when its bucket is full; the 1 ms
 * more is for rounding. A refusal writes too: after the server's clock was set back, the refill
 * goes on from there. What a bucket lacks is told if its period is longer than a second.
 */
const SCRIPT = `
local time = redis.call('TIME')
local now = time[1] * 1e6 + time[2]
local lacks, answer, longest = {}, 'OK', 0
for i, key in ipairs(KEYS) do
  local rate, burst, period, tokens = string.match(ARGV[i + 1], '(%S+) (%S+) (%S+) (%S+)')
  local token = period * 1e6
  local lack, since = string.match(redis.call('GET', key) or '', '^(%d+) (%d+)$')
  lacks[i] = lack and math.max(0, lack - math.max(0, now - since) * rate) or 0
  local over = lacks[i] + math.max(tokens * token, period) - burst * token
  local wait = math.ceil(over / rate)
  if wait > longest and ARGV[1] == 'ask' then
    longest, answer = wait, string.format('%d %.0f', i, wait)
  end
end
local isTaken = answer == 'OK'
for i, key in ipairs(KEYS) do
  local rate, _, period, tokens = string.match(ARGV[i + 1], '(%S+) (%S+) (%S+) (%S+)')
  local lack = math.max(0, lacks[i] + (isTaken and tokens * period * 1e6 or 0))
  local expiryMs = math.min(1e15, math.ceil(lack / rate / 1000) + 1)
  redis.call('SET', key, string.format('%.0f %.0f', lack, now), 'PX', expiryMs)
  if period ~= '1' then answer = answer .. string.format(' %.0f', lack / period / 1e6) end
end
return redis.status_reply(answer)`;
/** `OK`, or a bucket's position and microseconds; then what buckets lack. */
const ANSWER = /^(?:OK|(\d{1,9}) (\d{1,25}))((?: \d{1,25})*)$/;

/**
 * They show that the store can write, as a full or a read-only one cannot, and several keys at
 * once, as a cluster cannot.
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
  /** The script has run. */
  readonly onReady: () => void;
  /**
   * Called once. `cause` never holds the password. `wasIdle`: the other end has closed, and no
   * reply is missing.
   */
  readonly onEnd: (cause: string, wasIdle: boolean) => void;
  /** Limit for each reply, in milliseconds. */
  readonly answerMs?: number;
}

export class RedisConnection {
  readonly #settings: StoreSettings;
  readonly #options: Required<RedisConnectionOptions>;
  readonly #socket: Socket;
  readonly #connectTimer: NodeJS.Timeout;
  /** The beginning of a reply. */
  #unread = '';
  /** In the order of their replies, and so the oldest first. */
  #pending: Command[] = [];
  #isEnded = false;

  /** Connects. */
  constructor(settings: StoreSettings, options: RedisConnectionOptions) {
    const { host, port, isTls } = settings;
    this.#settings = settings;
    this.#options = { answerMs: ANSWER_MS, ...options };
    this.#connectTimer = setTimeout(
      () => this.end(isTls ? 'no TLS connection in time' : 'connect timed out'),
      CONNECT_MS,
    ).unref();
    this.#socket = isTls
      ? createTlsConnection({ host, port, lookup, servername: serverNameOf(host) })
      : createConnection({ host, port, lookup });
    this.#socket.setNoDelay(true).setKeepAlive(true, KEEP_ALIVE_PROBE_MS);
    this.#socket
      .once(isTls ? 'secureConnect' : 'connect', () => void this.#prepare())
      .on('data', (chunk: Buffer) => this.#read(chunk))
      // An AggregateError, of several addresses, has no message.
      .on('error', (error: NodeJS.ErrnoException) => this.end(error.message || String(error.code)))
      .on('close', () => this.end('the connection was closed', this.#pending.length === 0));
  }

  /**
   * Runs the script, for a request or to take `tokens` in any case. Returns undefined if the
   * connection ends first.
   */
  async run(buckets: readonly StoredBucket[], tokens?: number): Promise<Taken | undefined> {
    const args = scriptArguments(buckets, this.#settings.prefix, tokens);
    const answer = await this.#call('EVAL', ...args);
    if (answer === undefined) return undefined;
    const [isAnswer, position, waitUs, lacks = ''] = ANSWER.exec(answer) ?? [];
    const refusedBy = buckets[Number(position) - 1];
    if (isAnswer === undefined || (position && !refusedBy)) {
      this.end('the script gives a wrong answer');
      return undefined;
    }
    const told = lacks.split(' ').slice(1);
    const periodic = buckets.filter(({ periodSeconds }) => periodSeconds > 1);
    for (const [index, lack] of told.entries()) periodic[index]?.onLack?.(Number(lack));
    return refusedBy ? { refusedBy, waitMs: Number(waitUs) / 1000 } : 'taken';
  }

  /** Closes the connection. */
  end(cause: string, wasIdle = false): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    clearTimeout(this.#connectTimer);
    this.#socket.destroy();
    for (const { resolve, timer } of this.#pending) {
      clearTimeout(timer);
      resolve(undefined);
    }
    this.#pending = [];
    this.#options.onEnd(cause.slice(0, MAX_CAUSE_CHARACTERS), wasIdle);
  }

  async #prepare(): Promise<void> {
    clearTimeout(this.#connectTimer);
    const { username, password, database } = this.#settings;
    const user = username === undefined ? [] : [username];
    if (password) await this.#call('AUTH', ...user, password.reveal());
    if (database !== 0) await this.#call('SELECT', String(database));
    const taken = await this.run(PROBES);
    if (taken === 'taken') this.#options.onReady();
    else this.end('the script gives a wrong answer');
  }

  #call(name: string, ...args: readonly string[]): Promise<string | undefined> {
    return new Promise((resolve) => {
      if (this.#isEnded || this.#pending.length >= MAX_PENDING) return resolve(undefined);
      const { answerMs } = this.#options;
      const check = () => {
        if (this.#pending[0] === command) this.end(`no answer in ${answerMs} ms`);
      };
      // Sockets are read between timers and immediates: replies that came while the event loop was
      // busy are in time.
      const timer = setTimeout(() => setImmediate(check), answerMs).unref();
      const command: Command = { name, timer, resolve };
      this.#pending.push(command);
      this.#socket.write(encodeCommand([name, ...args]));
    });
  }

  /**
   * Every reply is one line: the script returns status replies. latin1 cuts no character in two.
   */
  #read(chunk: Buffer): void {
    const lines = (this.#unread + chunk.toString('latin1')).split('\r\n');
    this.#unread = lines.pop()!;
    for (const line of lines) this.#settle(line);
    if (this.#unread.length > MAX_REPLY_CHARACTERS) this.end('the reply is too long');
  }

  /** A reply belongs to the oldest command. */
  #settle(line: string): void {
    const command = this.#pending[0];
    if (!command) return this.end('a reply without a command');
    if (line.startsWith('-')) {
      // An error of AUTH may quote its arguments, or a part of them.
      const shown = command.name === 'AUTH' ? (ERROR_CODE.exec(line)?.[0] ?? '-error') : line;
      return this.end(`${command.name}: ${shown.slice(1)}`);
    }
    if (!line.startsWith('+')) return this.end('the reply is not RESP');
    this.#pending.shift();
    clearTimeout(command.timer);
    command.resolve(line.slice(1));
  }
}

/**
 * Returns the arguments of `EVAL`: asks for what a request takes, or takes `tokens` in any case.
 */
export function scriptArguments(buckets: readonly StoredBucket[], prefix: string, tokens?: number) {
  // Buckets with other settings are other buckets.
  const keys = buckets.map(({ name, rate, capacity, periodSeconds }) => {
    const period = periodSeconds === 1 ? '' : `/${periodSeconds}`;
    return `${prefix}:${name}:${rate}/${capacity}${period}`;
  });
  // One each: Redis closes a connection that sends more than ten arguments before it has logged in.
  const limits = buckets.map(({ rate, capacity, periodSeconds, perRequest }) =>
    [rate, capacity, periodSeconds, tokens ?? perRequest].join(' '),
  );
  return [SCRIPT, String(keys.length), ...keys, tokens === undefined ? 'ask' : 'take', ...limits];
}

/** Encodes a command of RESP as an array of bulk strings. */
export function encodeCommand(args: readonly string[]): string {
  const strings = args.map((arg) => `$${Buffer.byteLength(arg)}\r\n${arg}\r\n`);
  return `*${args.length}\r\n${strings.join('')}`;
}
