/**
 * Every setting by its section and its name in gateway.toml. The reader reads by this table; gateway.schema.json and
 * the table of keys in docs/configuration.md are generated from it (`npm run generate`).
 */

import { LOG_LEVELS } from '../lib/log.ts';
import {
  boolean,
  HEADERS,
  integer,
  oneOf,
  seconds,
  text,
  TEXT_OR_TEXTS,
  TEXTS,
  type Rows,
} from './setting-kinds.ts';

const MAX_PORT = 65_535;
/** A body is held in memory until it has been sent. */
const MAX_BODY_BYTES = 268_435_456;
const MAX_RETRIES = 10;

/** A token bucket, wherever there can be one. */
const BUCKET = {
  requests_per_second: {
    ...integer(0, 1_000_000, 0),
    meaning: 'requests that the bucket is refilled with; 0 is unlimited',
  },
  burst_capacity: {
    ...integer(1, 1_000_000, 100),
    meaning: 'requests that the bucket holds',
  },
};

const CONCURRENCY = {
  max_concurrent_requests: {
    ...integer(0, 1_000_000, 0),
    meaning: 'requests in flight at the same time, streams until their end; 0 is unlimited',
  },
};

export const SETTINGS = {
  server: {
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
      meaning:
        'time after SIGTERM in which the port stays open and `/health` answers 503 `draining`',
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
      ...integer(1_048_576, 2 ** 40),
      defaultText: 'a quarter of the memory, at least 64 MiB',
      meaning:
        'bodies, complete answers and unfinished events of all clients together; what does not fit is refused with 429',
    },
    cors: {
      ...boolean(false),
      env: 'GATEWAY_CORS',
      meaning: 'answer browsers on other origins',
    },
    upstream: {
      ...oneOf(['auto', 'fetch'], 'auto'),
      env: 'GATEWAY_UPSTREAM',
      needsRestart: true,
      meaning:
        "`fetch` sends requests to providers over Node's fetch instead of the agent under it",
    },
    trusted_proxies: {
      ...TEXTS,
      meaning:
        "addresses and CIDR ranges of proxies; the log's `remote` is then the rightmost address of `X-Forwarded-For` that is none of them",
    },
  },
  'server.auth': {
    enabled: { ...boolean(true), meaning: 'false: no token is asked for' },
    keys: {
      ...TEXTS,
      key: 'of callers',
      env: 'GATEWAY_AUTH_KEYS',
      meaning:
        'accepted tokens, of visible ASCII characters without spaces; without any and without clients: any text after `Bearer `',
    },
  },
  'clients.<name>': {
    key: { ...text(), key: 'of callers', meaning: 'its token; this or `keys` is required' },
    keys: {
      ...TEXTS,
      key: 'of callers',
      meaning:
        'more tokens of the same client, all accepted: both keys while one replaces the other',
    },
    models: {
      ...TEXTS,
      defaultText: 'all',
      meaning:
        'the aliases and models (`<id>/<model>`) that it may use; `*` at the end of one matches any text',
    },
    ...CONCURRENCY,
    ...BUCKET,
  },
  admin: {
    port: {
      ...integer(0, MAX_PORT),
      needsRestart: true,
      meaning: 'port of the admin listener; without it there is none; 0 lets the system choose',
    },
    host: {
      ...text('127.0.0.1'),
      needsRestart: true,
      meaning: 'its bind address; beyond loopback, keys are required',
    },
    keys: {
      ...TEXTS,
      key: 'of callers',
      needsRestart: true,
      meaning: 'accepted tokens; without any, every client that can connect is served',
    },
  },
  logging: {
    level: {
      ...oneOf(LOG_LEVELS, 'info'),
      env: 'GATEWAY_LOG_LEVEL',
      meaning: 'the least severe level that is logged',
    },
    format: {
      ...oneOf(['auto', 'json', 'text'], 'auto'),
      meaning: 'auto is text if standard output is a terminal',
    },
    verbose: {
      ...boolean(false),
      meaning: 'adds `request_bytes` and `user_agent` to each access line',
    },
  },
  providers: {
    primary: {
      ...text(),
      env: 'GATEWAY_PRIMARY',
      meaning: 'the provider for model names without a provider',
    },
    fallback: {
      ...TEXTS,
      env: 'GATEWAY_FALLBACK',
      meaning: 'providers to ask, in order, when the requested one fails',
    },
  },
  'providers.<id>': {
    enabled: { ...boolean(true), meaning: 'false: the provider is not used, even if it has a key' },
    api_key: {
      ...text(),
      key: 'of a provider',
      providerEnv: '<ID>_API_KEY',
      meaning: 'a provider without a key is not used',
    },
    api_keys: {
      ...TEXTS,
      key: 'of a provider',
      meaning:
        'keys in addition to `api_key`, used in turn; a key that is refused or limited rests',
    },
    base_url: {
      ...text(),
      defaultText: 'built in',
      providerEnv: '<ID>_BASE_URL',
      meaning: 'required if the provider is not built in; the gateway appends `/chat/completions`',
    },
    headers: {
      ...HEADERS,
      key: 'of a provider',
      meaning: 'sent with each request to this provider',
    },
    default_model: {
      ...text(),
      providerEnv: '<ID>_DEFAULT_MODEL',
      meaning: 'for `<id>` alone, and as a fallback',
    },
    models: {
      ...TEXTS,
      meaning: 'lists the models by hand instead of asking the provider',
    },
    timeout: {
      ...seconds(1),
      defaultText: '`[server] timeout`',
      meaning: 'replaces `[server] timeout` for this provider',
    },
    ...CONCURRENCY,
    retries: {
      ...integer(0, MAX_RETRIES),
      defaultText: '`[server] retries`',
      meaning: 'replaces `[server] retries` for this provider',
    },
  },
  aliases: {
    '<alias>': {
      ...TEXT_OR_TEXTS,
      meaning: '`<id>/<model>`, or a list of them: the next is asked if one fails',
    },
  },
  rate_limit: {
    enabled: {
      ...boolean(false),
      env: 'GATEWAY_RATE_LIMIT_ENABLED',
      meaning: 'false switches off the limits of this section and of those below it',
    },
    requests_per_second: { ...BUCKET.requests_per_second, env: 'GATEWAY_RATE_LIMIT_RPS' },
    burst_capacity: { ...BUCKET.burst_capacity, env: 'GATEWAY_RATE_LIMIT_BURST' },
  },
  'rate_limit.providers.<id>': BUCKET,
} as const satisfies Readonly<Record<string, Rows>>;
