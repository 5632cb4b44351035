/** The rows of `[server]` in the table of settings, and those that several sections have. */

import { boolean, integer, oneOf, seconds, text, TEXTS, type Rows } from './setting-kinds.ts';

export const MAX_PORT = 65_535;
export const MAX_RETRIES = 10;
export const MAX_WORKERS = 256;

/** A token bucket, wherever there can be one. */
export const BUCKET = {
  requests_per_second: {
    ...integer(0, 1_000_000, 0),
    meaning: 'requests that the bucket is refilled with; 0 is unlimited',
  },
  burst_capacity: { ...integer(1, 1_000_000, 100), meaning: 'requests that the bucket holds' },
};

export const CONCURRENCY = {
  max_concurrent_requests: {
    ...integer(0, 1_000_000, 0),
    meaning: 'requests in flight at the same time, streams until their end; 0 is unlimited',
  },
};

/** A body is held in memory until it has been sent. */
const MAX_BODY_BYTES = 268_435_456;
/** The default of `max_buffered_bytes` is a quarter of the memory, but not less. */
export const MIN_BUFFERED_BYTES = 67_108_864;

export const SERVER = {
  port: {
    ...integer(0, MAX_PORT, 8080),
    env: 'GATEWAY_PORT',
    flag: 'port',
    needsRestart: true,
    meaning: 'listen port; 0 lets the system choose',
  },
  host: {
    ...text('0.0.0.0'),
    defaultText: '0.0.0.0; 127.0.0.1 with `--demo`',
    env: 'GATEWAY_HOST',
    flag: 'host',
    needsRestart: true,
    meaning: 'bind address; 127.0.0.1 for local only',
  },
  workers: {
    ...integer(1, MAX_WORKERS, 1),
    type: 'integer or auto',
    env: 'GATEWAY_WORKERS',
    flag: 'workers',
    needsRestart: true,
    meaning:
      'threads that serve requests; `auto` is one for each processor; more than one need Linux and Node 22.12 or newer, `auto` is one elsewhere',
  },
  timeout: {
    ...seconds(1, 60),
    env: 'GATEWAY_TIMEOUT',
    meaning: "one attempt at one provider: to the complete answer, or to a stream's first event",
  },
  first_token_timeout: {
    ...seconds(1),
    meaning: "a shorter limit for a stream's first event, so that a fallback is asked sooner",
  },
  stream_idle_timeout: {
    ...seconds(0, 300),
    meaning: 'silence inside a running stream; comments do not count as data; 0 is off',
  },
  shutdown_timeout: {
    ...seconds(0, 25),
    meaning:
      'time after SIGTERM for requests in flight; those that remain then end with an error, and get 2 s to send it',
  },
  ...CONCURRENCY,
  drain_delay: {
    ...seconds(0, 0),
    meaning: 'time after SIGTERM in which the port stays open and `/health` answers 503 `draining`',
  },
  retries: {
    ...integer(0, MAX_RETRIES, 0),
    meaning: 'further attempts at the same provider after a failure that may pass',
  },
  max_body_bytes: {
    ...integer(1, MAX_BODY_BYTES, 33_554_432),
    meaning: 'larger requests are refused with 413',
  },
  max_buffered_bytes: {
    ...integer(1_048_576, 2 ** 40, MIN_BUFFERED_BYTES),
    defaultText: 'a quarter of the memory, at least 64 MiB',
    meaning:
      'bodies, complete answers and unfinished events of all clients together; what does not fit is refused with 429, or 413 if it never can',
  },
  cors: { ...boolean(false), env: 'GATEWAY_CORS', meaning: 'answer browsers on other origins' },
  upstream: {
    ...oneOf(['auto', 'fetch'], 'auto'),
    env: 'GATEWAY_UPSTREAM',
    needsRestart: true,
    meaning: "`fetch` sends requests to providers over Node's fetch instead of the agent under it",
  },
  trusted_proxies: {
    ...TEXTS,
    meaning:
      "addresses and CIDR ranges of proxies; the log's `remote` is then the rightmost address of `X-Forwarded-For` that is none of them",
  },
} as const satisfies Rows;
