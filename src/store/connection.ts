/** One connection to Redis 5 or later, or to Valkey, on which the script runs. The first failure of any kind ends it. */

import { createConnection, isIP, type Socket } from 'node:net';
import { connect as createTlsConnection } from 'node:tls';

import type { StoreSettings } from '../config/config.ts';
import type { StoredBucket, Taken } from '../policy/limits.ts';

/** A request waits no longer for a reply. */
export const ANSWER_MS = 50;
/** For TCP and TLS together. */
const CONNECT_MS = 2000;
const KEEP_ALIVE_PROBE_MS = 30_000;
/** Commands without a reply yet, of some 1.5 kB each; further ones are not sent. */
const MAX_PENDING = 2048;
/** The longest replies are error messages. */
const MAX_REPLY_CHARACTERS = 4096;
const MAX_CAUSE_CHARACTERS = 200;
const ERROR_CODE = /^-[A-Z]+\b/;

/**
 * Takes tokens of several buckets, or of none. A bucket is what it lacks and since when: with the rate, that is GCRA's theoretical arrival time. Lua has only
 * doubles, so a token is 1e6 units, of which a microsecond refills `rate`: all numbers are integers below 2^53.
 * A key expires when its bucket is full; the 1 ms more is for rounding. A refusal writes too: after the server's
 * clock was set back, the refill goes on from there.
 */
const SCRIPT = `
local time = redis.call('TIME')
local now = time[1] * 1e6 + time[2]
local tokens = ARGV[1] * 1e6
local lacks, answer = {}, 'OK'
for i, key in ipairs(KEYS) do
  local rate, burst = ARGV[2 * i], ARGV[2 * i + 1] * 1e6
  local lack, since = string.match(redis.call('GET', key) or '', '^(%d+) (%d+)$')
  lacks[i] = lack and math.max(0, lack - math.max(0, now - since) * rate) or 0
  local over = lacks[i] + tokens - burst
  if over > 0 and answer == 'OK' then answer = i .. ' ' .. math.ceil(over / rate) end
end
if answer ~= 'OK' then tokens = 0 end
for i, key in ipairs(KEYS) do
  local lack = math.max(0, lacks[i] + tokens)
  local expiryMs = math.ceil(lack / ARGV[2 * i] / 1000) + 1
  redis.call('SET', key, string.format('%.0f %.0f', lack, now), 'PX', expiryMs)
end
return redis.status_reply(answer)`;

/** They show that the store can write, as a full or a read-only one cannot, and several keys at once, as a cluster cannot. */
const PROBES = ['probe', 'probe-2'].map((name) => {
  return { name, requestsPerSecond: 1e6, burstCapacity: 1e6 };
});

interface Command {
  readonly name: string;
  readonly timer: NodeJS.Timeout;
  readonly resolve: (reply: string | undefined) => void;
}

export interface ConnectionOptions {
  /** The script has run. */
  readonly onReady: () => void;
  /** Called once. `cause` never holds the password. `wasIdle`: the other end has closed, and no reply is missing. */
  readonly onEnd: (cause: string, wasIdle: boolean) => void;
  /** Limit for each reply, in milliseconds. */
  readonly answerMs?: number;
}

export class Connection {
  readonly #settings: StoreSettings;
  readonly #options: Required<ConnectionOptions>;
  readonly #socket: Socket;
  readonly #connectTimer: NodeJS.Timeout;
  /** The beginning of a reply. */
  #unread = '';
  /** In the order of their replies, and so the oldest first. */
  #pending: Command[] = [];
  #isEnded = false;

  /** Connects. */
  constructor(settings: StoreSettings, options: ConnectionOptions) {
    const { host, port, isTls } = settings;
    this.#settings = settings;
    this.#options = { answerMs: ANSWER_MS, ...options };
    this.#connectTimer = setTimeout(
      () => this.end(isTls ? 'no TLS connection in time' : 'connect timed out'),
      CONNECT_MS,
    ).unref();
    this.#socket = isTls
      ? // RFC 6066 3: no address literals in SNI.
        createTlsConnection({ host, port, servername: isIP(host) ? '' : host })
      : createConnection({ host, port });
    this.#socket.setNoDelay(true).setKeepAlive(true, KEEP_ALIVE_PROBE_MS);
    this.#socket
      .once(isTls ? 'secureConnect' : 'connect', () => void this.#prepare())
      .on('data', (chunk: Buffer) => this.#read(chunk))
      // An AggregateError, of several addresses, has no message.
      .on('error', (error: NodeJS.ErrnoException) => this.end(error.message || String(error.code)))
      .on('close', () => this.end('the connection was closed', this.#pending.length === 0));
  }

  /**
   * Runs the script: `tokens` 1 takes one of each bucket, -1 puts it back. Returns undefined if the connection has ended or
   * ends first. Never rejects.
   */
  async run(tokens: 1 | -1, buckets: readonly StoredBucket[]): Promise<Taken | undefined> {
    const args = scriptArguments(tokens, buckets, this.#settings.prefix);
    const answer = await this.#call('EVAL', ...args);
    if (answer === undefined || answer === 'OK') return answer && 'taken';
    // A bucket's position and microseconds.
    const [, position, waitUs] = /^(\d{1,9}) (\d{1,9})$/.exec(answer) ?? [];
    const refusedBy = buckets[Number(position) - 1];
    if (refusedBy) return { refusedBy, waitMs: Number(waitUs) / 1000 };
    this.end('the script gives a wrong answer');
    return undefined;
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
    const taken = await this.run(1, PROBES);
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
      // Sockets are read between timers and immediates: replies that came while the event loop was busy are in time.
      const timer = setTimeout(() => setImmediate(check), answerMs).unref();
      const command: Command = { name, timer, resolve };
      this.#pending.push(command);
      this.#socket.write(encodeCommand([name, ...args]));
    });
  }

  /** Every reply is one line: the script returns status replies. latin1 cuts no character in two. */
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

/** Returns the arguments of `EVAL`. */
export function scriptArguments(
  tokens: 1 | -1,
  buckets: readonly StoredBucket[],
  prefix: string,
): string[] {
  const limits = buckets.map((one) => [`${one.requestsPerSecond}`, `${one.burstCapacity}`]);
  // Buckets with other settings are other buckets.
  const keys = buckets.map(({ name }, index) => `${prefix}:${name}:${limits[index]!.join('/')}`);
  return [SCRIPT, String(keys.length), ...keys, String(tokens), ...limits.flat()];
}

/** Encodes a command of RESP as an array of bulk strings. */
export function encodeCommand(args: readonly string[]): string {
  const strings = args.map((arg) => `$${Buffer.byteLength(arg)}\r\n${arg}\r\n`);
  return `*${args.length}\r\n${strings.join('')}`;
}
