/**
 * Every setting by its section and its name in gateway.toml. The reader reads by this table; gateway.schema.json and
 * the table of keys in docs/configuration.md are generated from it (`npm run generate`).
 */

import { LOG_LEVELS } from '../lib/log.ts';
import { BUCKET, CONCURRENCY, MAX_PORT, MAX_RETRIES, SERVER } from './server-rows.ts';
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

export const SETTINGS = {
  server: SERVER,
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
    provider_messages: {
      ...boolean(true),
      meaning:
        'false: what providers say of their errors, which may quote prompts, stays out of the log and the page',
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
        'keys in addition to `api_key`, used in turn; a key that is refused or limited is in cooldown',
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
    models: { ...TEXTS, meaning: 'lists the models by hand instead of asking the provider' },
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
    store: {
      ...text(),
      key: 'of the store',
      needsRestart: true,
      meaning:
        'a Redis or Valkey that keeps the buckets of several gateways, as `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS',
    },
    prefix: {
      ...text('inference-gateway'),
      needsRestart: true,
      meaning:
        'what the names of its keys begin with; gateways with the same store and prefix share their limits',
    },
  },
  'rate_limit.providers.<id>': BUCKET,
} as const satisfies Readonly<Record<string, Rows>>;
