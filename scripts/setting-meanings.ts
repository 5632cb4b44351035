/** Describes each setting in a sentence, for docs/configuration.md and gateway.schema.json. */

/** By the setting's name, or by its key alone if several sections have it. */
export const MEANINGS: Readonly<Record<string, string>> = {
  'server.port': 'listen port; 0 lets the system choose',
  'server.host': 'bind address; 127.0.0.1 serves this machine only',
  'server.reuse_port':
    'lets several processes listen at the port (SO_REUSEPORT), each with its own admin port; ' +
    'needs Linux and Node 22.12 or newer',
  'server.timeout':
    "limit for each attempt at a provider: to the complete answer, or to a stream's first token",
  'server.first_token_timeout':
    "a shorter limit for a stream's first token, so that a fallback is asked sooner; a chunk " +
    'with the role alone is no token',
  'server.stream_idle_timeout':
    "longest silence inside a running stream; the provider's comments do not count as data; 0 " +
    'is off',
  'server.stream_keepalive':
    'sends a comment after this silence, so that no proxy closes the stream; before the first ' +
    'token the comment begins the stream with 200, and a later failure is an error event; 0 ' +
    'is off',
  'server.empty_answers':
    '`fail` turns a chat completion without content, reasoning, refusal, tool call or audio into a ' +
    '502 if it ends with `stop` or without a reason, and a completed response or message without ' +
    'content, so that it is retried and a fallback is asked',
  'server.keep_alive_timeout':
    'closes a connection that has been idle for so long; has to be longer than the load balancer ' +
    'in front keeps it',
  'server.shutdown_timeout':
    'time after SIGTERM for requests in flight; the remaining requests then get an error, and ' +
    '2 s to receive it',
  'server.drain_delay':
    'how long after SIGTERM the port stays open while `/health` answers 503 `draining`',
  'server.retries': 'further attempts at the same provider after a transient failure',
  'server.max_body_bytes': 'a larger request body is refused with 413',
  'server.max_buffered_bytes':
    'memory for the request bodies, complete answers and unfinished events of all clients; a ' +
    'request without room is refused with 429, or with 413 if it can never fit',
  'server.cors': 'answers web pages from other origins',
  'server.watch':
    'reloads as on SIGHUP when gateway.toml, a file in `${file:PATH}` or a certificate has changed',
  'server.upstream':
    "`fetch` sends requests with Node's fetch and not over the gateway's own connections",
  'server.trusted_proxies':
    'addresses and CIDR ranges of proxies; `remote` in the log is then the rightmost address ' +
    'in `X-Forwarded-For` outside them',
  'server.endpoints':
    'serves these endpoints too (docs/behaviour.md); without it they are 404 as any other path',
  'server.auth.enabled': 'false: requests need no token',
  'server.auth.keys':
    'accepted tokens, in visible ASCII without spaces; without tokens and clients, every text ' +
    'after `Bearer ` is accepted',
  'clients.<name>.key': "the client's token; a client needs `key`, `keys` or `key_sha256`",
  'clients.<name>.keys':
    'further tokens of the same client, such as the old and the new key during a change',
  'clients.<name>.key_sha256':
    'the SHA-256 digest of a token, in 64 hexadecimal digits, so that the settings hold no secret',
  'clients.<name>.expires':
    "when the client's keys expire: a date, to its end in UTC, or a date and time, in UTC unless it " +
    'has an offset',
  'clients.<name>.models':
    'aliases and models (`<id>/<model>`) that the client may name; a `*` matches any text, even ' +
    'an empty one',
  'clients.<name>.requests_per_minute': 'requests per minute; 0 is unlimited',
  'clients.<name>.tokens_per_minute':
    '`usage.total_tokens` per minute, counted when an answer has ended; 0 is unlimited',
  'clients.<name>.tokens_per_day':
    '`usage.total_tokens` per day in UTC; the sum survives a restart only with `[rate_limit] ' +
    'store`; 0 is unlimited',
  'clients.<name>.tokens_per_month': 'as `tokens_per_day`, per month in UTC',
  'clients.<name>.cost_per_day':
    'the cost of answers per day in UTC, in the currency of the prices in `model_details`; the ' +
    'sum survives a restart only with `[rate_limit] store`; 0 is unlimited',
  'clients.<name>.cost_per_month': 'as `cost_per_day`, per month in UTC',
  'clients.<name>.unpriced':
    '`allow` lets a client with a limit on cost use models without a price, at no cost',
  'admin.port':
    "admin listener's port; without a port there is no listener; 0 lets the system choose",
  'admin.host': "admin listener's bind address; beyond loopback, `keys` is required",
  'admin.keys': 'accepted tokens; without tokens, every client that can connect is served',
  'logging.level': 'the least severe level to log',
  'logging.format': '`auto` is text if standard output is a terminal',
  'logging.verbose': 'adds `request_bytes` and `user_agent` to each access line',
  'logging.headers':
    "names of the client's headers that each access line has, at most 16; credentials are refused",
  'logging.provider_messages':
    'false keeps error texts from providers, which may quote prompts, out of the log, the page, ' +
    'the metrics and the alerts',
  'telemetry.traces':
    "sends a span of each request and of each try to the collector that OpenTelemetry's variables " +
    'name (docs/traces.md)',
  'providers.primary': 'the provider for model names without a provider',
  'providers.fallback':
    'providers to ask, in order, when the requested provider fails; each is asked for its ' +
    '`default_model`, or without a `default_model` for the requested name',
  'providers.fallback_on':
    'further 4xx statuses after which a fallback is asked, besides 408 and 429; a refusal by ' +
    'content policy is never a reason',
  'providers.<id>.enabled': 'false: the provider is not used, even if it has a key',
  'providers.<id>.api_key': 'a provider without a key is not used',
  'providers.<id>.api_keys':
    'keys in addition to `api_key`, used in turn; a refused or limited key is left out for a while',
  'providers.<id>.base_url':
    'required unless the provider is built in; the gateway appends `/chat/completions`',
  'providers.<id>.ca_file':
    "a file with certificates in PEM: the authorities trusted for this provider, in place of Node's",
  'providers.<id>.client_cert':
    'a file with the certificate in PEM, and its chain, that this provider is shown (mTLS)',
  'providers.<id>.client_key': "a file with the certificate's private key in PEM",
  'providers.<id>.headers': 'sent with each request to this provider',
  'providers.<id>.key_header':
    'the header for the key at /v1/messages in place of `Authorization`; `anthropic` needs no setting',
  'providers.<id>.forward_headers':
    "names of the client's headers that this provider gets, at most 32",
  'providers.<id>.return_headers':
    "names of the provider's response headers that clients get, at most 32",
  'providers.<id>.default_model':
    'the model for requests that name `<id>` alone, and for requests that fall back to this ' +
    'provider',
  'providers.<id>.models': "the provider's model list; without it the provider is asked",
  'providers.<id>.hide_models':
    'models of this provider that `/v1/models` leaves out; `*` matches any text, even an ' +
    'empty one; requests may still name them',
  'providers.<id>.model_details':
    "model limits in tokens for `/v1/models`, which override the provider's own, and prices for " +
    'the log and the metrics: `[providers.<id>.model_details."<model>"]` with ' +
    '`context_length`, `max_output_tokens` and the like, `input_price_per_million`, ' +
    '`output_price_per_million`',
  'providers.<id>.key_affinity':
    "a session's requests (`x-session-id`, `x-session-affinity`, the body's " +
    '`prompt_cache_key`, else the client or its key) begin with the same key',
  'providers.<id>.stream_usage':
    'asks for the usage of each stream (`stream_options.include_usage`) if the client does ' +
    'not, and removes the chunk with `usage` and no choices; `"usage":null` in other chunks ' +
    'passes',
  'providers.<id>.timeout': 'replaces `[server] timeout` for this provider',
  'providers.<id>.retries': 'replaces `[server] retries` for this provider',
  'aliases.<alias>':
    '`<id>/<model>`, or a list, asked in order until a provider answers; `balance = ' +
    '"least_busy"` asks the target with the fewest requests in flight first, `balance = ' +
    '"fastest"` the target whose streams begin soonest, `balance = ' +
    '"weighted"` draws the first target by `weights`; a `*` in the name is any text, even ' +
    'an empty one, and in a target the same text',
  'rate_limit.enabled':
    'false switches off the limits in this section and in `[rate_limit.providers.<id>]`',
  'rate_limit.store':
    'a Redis or Valkey for buckets that several gateways share: ' +
    '`redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS',
  'rate_limit.prefix':
    "begins the store's key names; gateways with the same store and prefix share their limits",
  'rate_limit.providers.<id>.requests_per_minute':
    "the provider's requests per minute, beside those per second; 0 is unlimited",
  'server.queue_timeout':
    'how long a request waits for a slot of a provider with `max_waiting`, but no longer than half ' +
    "of the provider's `timeout`; then it is refused with 429",
  max_waiting:
    'requests that wait for a slot of `max_concurrent_requests`, with clients in turn, in place of ' +
    'the 429, if no fallback and no other target is free',
  max_concurrent_requests:
    'requests in flight at the same time; a stream counts until its end; 0 is unlimited',
  requests_per_second:
    'refill rate of the bucket, in client requests; retries take nothing; 0 is unlimited',
  burst_capacity: 'size of the bucket of `requests_per_second`, in requests',
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
