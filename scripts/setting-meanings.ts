/** Describes each setting in a sentence, for docs/configuration.md and gateway.schema.json. */

/** By the setting's name, or by its key alone if several sections have it. */
export const MEANINGS: Readonly<Record<string, string>> = {
  'server.port': 'listen port; 0 lets the system choose',
  'server.host': 'bind address; 127.0.0.1 for local only',
  'server.reuse_port':
    'several processes may listen at the port (SO_REUSEPORT), each with its own admin port; needs Linux and Node 22.12 or newer',
  'server.timeout':
    "limit for each attempt at a provider: to the complete answer, or to a stream's first token",
  'server.first_token_timeout':
    "a shorter limit for a stream's first token, so that a fallback is asked sooner; a role alone is not a token",
  'server.stream_idle_timeout':
    'longest silence inside a running stream; comments do not count as data; 0 is off',
  'server.stream_keepalive':
    'sends a comment after this silence, so that no proxy closes the stream; before the first token it begins the stream with 200, and a later failure is an error event; 0 is off',
  'server.empty_answers':
    '`fail`: an answer without content, reasoning, refusal, tool call or audio that ends with `stop`, or without a reason, is a 502, so that it is retried and a fallback is asked',
  'server.shutdown_timeout':
    'time after SIGTERM for requests in flight; the rest then end with an error, and get 2 s to send it',
  'server.drain_delay':
    'how long after SIGTERM the port stays open and `/health` answers 503 `draining`',
  'server.retries': 'further attempts at the same provider after a transient failure',
  'server.max_body_bytes': 'larger requests are refused with 413',
  'server.max_buffered_bytes':
    'memory for all clients together: bodies, complete answers and unfinished events; more is refused with 429, or with 413 if it can never fit',
  'server.cors': 'answer browsers on other origins',
  'server.upstream':
    "`fetch` sends requests with Node's fetch, not directly with the agent under it",
  'server.trusted_proxies':
    'addresses and CIDR ranges of proxies; `remote` in the log is then the rightmost `X-Forwarded-For` address outside them',
  'server.auth.enabled': 'false: requests need no token',
  'server.auth.keys':
    'accepted tokens, in visible ASCII without spaces; without tokens and clients, any text after `Bearer ` is accepted',
  'clients.<name>.key': "the client's token; this or `keys` is required",
  'clients.<name>.keys':
    'more accepted tokens for the same client, such as an old and a new key during a change',
  'clients.<name>.models':
    'allowed aliases and models (`<id>/<model>`); a final `*` matches any text',
  'clients.<name>.requests_per_minute': 'requests per minute; 0 is unlimited',
  'clients.<name>.tokens_per_minute':
    '`usage.total_tokens` per minute, counted when an answer has ended; 0 is unlimited',
  'clients.<name>.tokens_per_day':
    'the same per day; survives a restart only with `[rate_limit] store`; 0 is unlimited',
  'admin.port': "admin listener's port; without it there is no listener; 0 lets the system choose",
  'admin.host': "admin listener's bind address; beyond loopback, keys are required",
  'admin.keys': 'accepted tokens; without tokens, any client that can connect is served',
  'logging.level': 'the least severe level to log',
  'logging.format': '`auto` is text if standard output is a terminal',
  'logging.verbose': 'adds `request_bytes` and `user_agent` to each access line',
  'logging.provider_messages':
    'false: error texts from providers, which may quote prompts, stay out of the log and the page',
  'providers.primary': 'the provider for model names without a provider',
  'providers.fallback':
    'providers to ask, in order, when the requested provider fails, each for its `default_model`, or without it for the requested name',
  'providers.fallback_on':
    'further 4xx statuses after which a fallback is asked, besides 408 and 429; never a refusal by content policy',
  'providers.<id>.enabled': 'false: the provider is not used, even if it has a key',
  'providers.<id>.api_key': 'a provider without a key is not used',
  'providers.<id>.api_keys':
    'keys in addition to `api_key`, used in turn; a refused or limited key is left out for a while',
  'providers.<id>.base_url':
    'required if the provider is not built in; the gateway appends `/chat/completions`',
  'providers.<id>.headers': 'sent with each request to this provider',
  'providers.<id>.forward_headers': 'client headers to pass on to this provider, at most 32',
  'providers.<id>.return_headers': 'response headers to pass on to clients, at most 32',
  'providers.<id>.default_model': 'for `<id>` alone, and as a fallback',
  'providers.<id>.models': 'its model list by hand, instead of asking the provider',
  'providers.<id>.model_details':
    'model limits in tokens for `/v1/models`, over the provider\'s own: `[providers.<id>.model_details."<model>"]` with `context_length`, `max_output_tokens` and the like',
  'providers.<id>.key_affinity':
    "a session's requests (`x-session-id`, `x-session-affinity`, the body's `prompt_cache_key`, else the client or its key) begin with the same key",
  'providers.<id>.stream_usage':
    'asks for the usage of each stream (`stream_options.include_usage`) if the client does not, and removes the chunk with `usage` and no choices from the answer; `"usage":null` in other chunks passes',
  'providers.<id>.timeout': 'replaces `[server] timeout` for this provider',
  'providers.<id>.retries': 'replaces `[server] retries` for this provider',
  'aliases.<alias>':
    '`<id>/<model>`, or a list, asked in order until a provider answers; `balance = "least_busy"` puts the target with the fewest requests in flight first, `balance = "weighted"` draws the first target by `weights`',
  'rate_limit.enabled':
    'false switches off the limits in this section and in the sections below it',
  'rate_limit.store':
    'a Redis or Valkey for buckets that several gateways share: `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS',
  'rate_limit.prefix':
    "begins the store's key names; gateways with the same store and prefix share their limits",
  max_concurrent_requests:
    'requests in flight at the same time; a stream counts until its end; 0 is unlimited',
  requests_per_second:
    'refill rate of the bucket, in client requests, however often each is tried; 0 is unlimited',
  burst_capacity: 'size of the bucket, in requests',
};

/** Defaults depending on the machine or on other settings. */
export const DEFAULT_TEXTS: Readonly<Record<string, string>> = {
  'server.host': '0.0.0.0; 127.0.0.1 with `--demo`',
  'server.max_buffered_bytes': 'a quarter of the memory, at least 64 MiB',
  'clients.<name>.models': 'all',
  'providers.<id>.base_url': 'built in',
  'providers.<id>.timeout': '`[server] timeout`',
  'providers.<id>.retries': '`[server] retries`',
};
