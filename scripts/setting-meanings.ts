/** The texts of docs/configuration.md and gateway.schema.json on each setting, in one sentence or less. */

/** By the name of the setting; of settings that several sections have by their key alone. */
export const MEANINGS: Readonly<Record<string, string>> = {
  'server.port': 'listen port; 0 lets the system choose',
  'server.host': 'bind address; 127.0.0.1 for local only',
  'server.reuse_port':
    'several processes may listen at the port (SO_REUSEPORT); each has an admin port of its own; needs Linux and Node 22.12 or newer',
  'server.timeout':
    "one attempt at one provider: to the complete answer, or to a stream's first token",
  'server.first_token_timeout':
    "a shorter limit for a stream's first token, so that a fallback is asked sooner; the role alone is none",
  'server.stream_idle_timeout':
    'silence inside a running stream; comments do not count as data; 0 is off',
  'server.stream_keepalive':
    'silence after which a stream gets a comment, so that no proxy closes it; before its first token it begins with 200 then, and a later failure is an error event; 0 is off',
  'server.empty_answers':
    '`fail`: an answer without any content, reasoning, refusal, tool call or audio that ends with `stop`, or without a reason, is a 502, which is retried and answered by a fallback',
  'server.shutdown_timeout':
    'time after SIGTERM for requests in flight; those that remain then end with an error, and get 2 s to send it',
  'server.drain_delay':
    'time after SIGTERM in which the port stays open and `/health` answers 503 `draining`',
  'server.retries': 'further attempts at the same provider after a failure that may pass',
  'server.max_body_bytes': 'larger requests are refused with 413',
  'server.max_buffered_bytes':
    'bodies, complete answers and unfinished events of all clients together; what does not fit is refused with 429, or 413 if it never can',
  'server.cors': 'answer browsers on other origins',
  'server.upstream':
    "`fetch` sends requests to providers over Node's fetch instead of the agent under it",
  'server.trusted_proxies':
    "addresses and CIDR ranges of proxies; the log's `remote` is then the rightmost address of `X-Forwarded-For` that is none of them",
  'server.auth.enabled': 'false: no token is asked for',
  'server.auth.keys':
    'accepted tokens, of visible ASCII characters without spaces; without any and without clients: any text after `Bearer `',
  'clients.<name>.key': 'its token; this or `keys` is required',
  'clients.<name>.keys':
    'more tokens of the same client, all accepted: both keys while one replaces the other',
  'clients.<name>.models':
    'the aliases and models (`<id>/<model>`) that it may use; `*` at the end of one matches any text',
  'clients.<name>.requests_per_minute': 'requests in a minute; 0 is unlimited',
  'clients.<name>.tokens_per_minute':
    '`usage.total_tokens` of the answers in a minute, taken when an answer has ended; 0 is unlimited',
  'clients.<name>.tokens_per_day':
    'the same in a day; only with `[rate_limit] store` it survives a restart; 0 is unlimited',
  'admin.port': 'port of the admin listener; without it there is none; 0 lets the system choose',
  'admin.host': 'its bind address; beyond loopback, keys are required',
  'admin.keys': 'accepted tokens; without any, every client that can connect is served',
  'logging.level': 'the least severe level that is logged',
  'logging.format': 'auto is text if standard output is a terminal',
  'logging.verbose': 'adds `request_bytes` and `user_agent` to each access line',
  'logging.provider_messages':
    'false: what providers say of their errors, which may quote prompts, stays out of the log and the page',
  'providers.primary': 'the provider for model names without a provider',
  'providers.fallback':
    'providers to ask, in order, when the requested one fails, each for its `default_model`, or for the requested name without one',
  'providers.fallback_on':
    'statuses from 400 to 499 that let the next one answer, besides 408 and 429; never a refusal by content policy',
  'providers.<id>.enabled': 'false: the provider is not used, even if it has a key',
  'providers.<id>.api_key': 'a provider without a key is not used',
  'providers.<id>.api_keys':
    'keys in addition to `api_key`, used in turn; a key that is refused or limited is in cooldown',
  'providers.<id>.base_url':
    'required if the provider is not built in; the gateway appends `/chat/completions`',
  'providers.<id>.headers': 'sent with each request to this provider',
  'providers.<id>.forward_headers':
    "headers of clients' requests that this provider gets, at most 32",
  'providers.<id>.return_headers': 'headers of its replies that clients get, at most 32',
  'providers.<id>.default_model': 'for `<id>` alone, and as a fallback',
  'providers.<id>.models': 'lists the models by hand instead of asking the provider',
  'providers.<id>.model_details':
    'limits of models by their names, in tokens, for `/v1/models` and over what the provider says: `[providers.<id>.model_details."<model>"]` with `context_length`, `max_output_tokens` and the like',
  'providers.<id>.key_affinity':
    "the requests of a session (`x-session-id`, `x-session-affinity`, the body's `prompt_cache_key`, else the client or its key) begin with the same one of `api_keys`",
  'providers.<id>.stream_usage':
    'asks for the tokens of each stream whose client does not (`stream_options.include_usage`), and takes the chunk that has `usage` and no choices out of the answer; a `"usage":null` in the other chunks passes',
  'providers.<id>.timeout': 'replaces `[server] timeout` for this provider',
  'providers.<id>.retries': 'replaces `[server] retries` for this provider',
  'aliases.<alias>':
    '`<id>/<model>`, or a list of them: the next is asked if one fails; with `balance = "least_busy"` the one with the fewest requests in flight first, with `balance = "weighted"` one by its share of `weights`',
  'rate_limit.enabled': 'false switches off the limits of this section and of those below it',
  'rate_limit.store':
    'a Redis or Valkey that keeps the buckets of several gateways, as `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS',
  'rate_limit.prefix':
    'what the names of its keys begin with; gateways with the same store and prefix share their limits',
  max_concurrent_requests:
    'requests in flight at the same time, streams until their end; 0 is unlimited',
  requests_per_second:
    'requests of clients, however often each is tried, that the bucket is refilled with; 0 is unlimited',
  burst_capacity: 'requests that the bucket holds',
};

/** Defaults that depend on something. */
export const DEFAULT_TEXTS: Readonly<Record<string, string>> = {
  'server.host': '0.0.0.0; 127.0.0.1 with `--demo`',
  'server.max_buffered_bytes': 'a quarter of the memory, at least 64 MiB',
  'clients.<name>.models': 'all',
  'providers.<id>.base_url': 'built in',
  'providers.<id>.timeout': '`[server] timeout`',
  'providers.<id>.retries': '`[server] retries`',
};
