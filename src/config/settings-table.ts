/**
 * Every setting by its section and its name in gateway.toml. `readValues` reads by this table. `npm
 * run generate` makes gateway.schema.json and docs/configuration.md's table of keys from it.
 */

import { clientPathOf, MODEL_PATH, MORE_ENDPOINTS } from '../protocol/endpoints.ts';
import { LOG_LEVELS } from '../lib/log.ts';
import {
  boolean,
  cost,
  DATE,
  DETAILS,
  FILE,
  HEADERS,
  host,
  integer,
  integers,
  oneOf,
  seconds,
  text,
  TARGETS,
  TEXTS,
  textsOf,
  type Rows,
} from './setting-kinds.ts';

export const MAX_PORT = 65_535;
const MAX_RETRIES = 10;

const BUCKET = {
  requests_per_second: integer(0, 1_000_000, 0),
  burst_capacity: integer(1, 1_000_000, 100),
};

const BY_MINUTE = integer(0, 60_000_000, 0);

const CONCURRENCY = { max_concurrent_requests: integer(0, 1_000_000, 0) };

/** The least default for `max_buffered_bytes`, otherwise a quarter of the memory. */
export const MIN_BUFFERED_BYTES = 67_108_864;

export const SETTINGS = {
  server: {
    port: { ...integer(0, MAX_PORT, 8080), env: 'GATEWAY_PORT', flag: 'port', needsRestart: true },
    host: { ...host('0.0.0.0'), env: 'GATEWAY_HOST', flag: 'host', needsRestart: true },
    reuse_port: { ...boolean(false), env: 'GATEWAY_REUSE_PORT', needsRestart: true },
    timeout: { ...seconds(1, 60), env: 'GATEWAY_TIMEOUT' },
    first_token_timeout: seconds(1),
    stream_idle_timeout: seconds(0, 300),
    stream_keepalive: seconds(0, 0),
    empty_answers: oneOf(['pass', 'fail'], 'pass'),
    keep_alive_timeout: seconds(1, 75),
    shutdown_timeout: seconds(0, 25),
    ...CONCURRENCY,
    queue_timeout: seconds(1, 30),
    drain_delay: seconds(0, 0),
    retries: integer(0, MAX_RETRIES, 0),
    max_body_bytes: integer(1, 268_435_456, 33_554_432),
    max_buffered_bytes: integer(1_048_576, 2 ** 40, MIN_BUFFERED_BYTES),
    cors: { ...boolean(false), env: 'GATEWAY_CORS' },
    watch: boolean(false),
    upstream: { ...oneOf(['auto', 'fetch'], 'auto'), env: 'GATEWAY_UPSTREAM', needsRestart: true },
    trusted_proxies: TEXTS,
    endpoints: textsOf([...MORE_ENDPOINTS.map(clientPathOf), MODEL_PATH]),
  },
  'server.auth': {
    enabled: boolean(true),
    keys: { ...TEXTS, secret: 'of callers', env: 'GATEWAY_AUTH_KEYS' },
  },
  'clients.<name>': {
    key: { ...text(), secret: 'of callers' },
    keys: { ...TEXTS, secret: 'of callers' },
    key_sha256: { ...text(), secret: 'of callers' },
    expires: DATE,
    models: TEXTS,
    ...CONCURRENCY,
    ...BUCKET,
    requests_per_minute: BY_MINUTE,
    tokens_per_minute: integer(0, 1_000_000_000, 0),
    tokens_per_day: integer(0, 1_000_000_000_000, 0),
    tokens_per_month: integer(0, 1_000_000_000_000, 0),
    cost_per_day: cost(1_000_000_000),
    cost_per_month: cost(1_000_000_000),
    unpriced: oneOf(['allow']),
  },
  admin: {
    port: { ...integer(0, MAX_PORT), env: 'GATEWAY_ADMIN_PORT', needsRestart: true },
    host: { ...host('127.0.0.1'), needsRestart: true },
    keys: { ...TEXTS, secret: 'of callers', needsRestart: true },
  },
  logging: {
    level: { ...oneOf(LOG_LEVELS, 'info'), env: 'GATEWAY_LOG_LEVEL' },
    format: oneOf(['auto', 'json', 'text'], 'auto'),
    verbose: boolean(false),
    headers: TEXTS,
    provider_messages: boolean(true),
  },
  telemetry: {
    traces: { ...boolean(false), needsRestart: true },
  },
  providers: {
    primary: { ...text(), env: 'GATEWAY_PRIMARY' },
    fallback: { ...TEXTS, env: 'GATEWAY_FALLBACK' },
    fallback_on: integers(400, 499),
  },
  'providers.<id>': {
    enabled: boolean(true),
    api_key: { ...text(), secret: 'of a provider', providerEnv: '<ID>_API_KEY' },
    api_keys: { ...TEXTS, secret: 'of a provider' },
    base_url: { ...text(), providerEnv: '<ID>_BASE_URL' },
    ca_file: FILE,
    client_cert: FILE,
    client_key: FILE,
    headers: { ...HEADERS, secret: 'of a provider' },
    forward_headers: TEXTS,
    return_headers: TEXTS,
    key_header: oneOf(['x-api-key']),
    default_model: { ...text(), providerEnv: '<ID>_DEFAULT_MODEL' },
    models: TEXTS,
    hide_models: TEXTS,
    model_details: DETAILS,
    key_affinity: boolean(false),
    stream_usage: boolean(false),
    timeout: { ...seconds(1, 60), inherits: 'server.timeout' },
    ...CONCURRENCY,
    max_waiting: integer(0, 10_000, 0),
    retries: { ...integer(0, MAX_RETRIES, 0), inherits: 'server.retries' },
  },
  aliases: {
    '<alias>': TARGETS,
  },
  rate_limit: {
    enabled: { ...boolean(false), env: 'GATEWAY_RATE_LIMIT_ENABLED' },
    requests_per_second: { ...BUCKET.requests_per_second, env: 'GATEWAY_RATE_LIMIT_RPS' },
    burst_capacity: { ...BUCKET.burst_capacity, env: 'GATEWAY_RATE_LIMIT_BURST' },
    store: { ...text(), secret: 'of the store', needsRestart: true },
    prefix: { ...text('inference-gateway'), needsRestart: true },
  },
  'rate_limit.providers.<id>': { ...BUCKET, requests_per_minute: BY_MINUTE },
} as const satisfies Readonly<Record<string, Rows>>;
