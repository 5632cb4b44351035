/** The metrics of finished requests. Names and labels of `gen_ai_*` are those of Envoy AI Gateway, and so are their buckets, among finer ones. */

import type { Config } from '../config/config.ts';
import type { TryFacts } from '../lib/attempt.ts';
import type { Outcome } from '../lib/errors.ts';
import type { FinishedRequest, RequestFacts } from '../lib/request-facts.ts';
import { NO_LABELS, OTHER, type LabelSet, type ModelLabels } from './labels.ts';
import { Metric } from './series.ts';

const DURATION_BOUNDS = [
  0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
  327.68, 655.36,
];
export const FIRST_TOKEN_BOUNDS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1,
  1.5, 2, 2.5, 3.5, 5, 7.5, 10, 15, 20, 30, 45, 60,
];
const OUTPUT_TOKEN_BOUNDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5];
const TOKEN_BOUNDS = [
  1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216,
  67_108_864,
];
const GATEWAY_BOUNDS = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1,
];
const FAILED_OUTCOMES: ReadonlySet<string | undefined> = new Set<Outcome>([
  'upstream_error',
  'timeout',
  'rate_limited',
  'internal_error',
]);

/** Below 500, those that are not about the client's request. */
const PROVIDER_STATUSES = new Set([401, 402, 403, 408, 429]);
const OUTCOMES: readonly Outcome[] = [
  'ok',
  'client_closed',
  'refused',
  'rate_limited',
  'upstream_error',
  'timeout',
  'internal_error',
];
const TOKEN_TYPES = ['input', 'cached_input', 'output', 'reasoning'];
/** The limits of one provider. */
const PROVIDER_LIMITS = new Set(['provider', 'provider_concurrency', 'upstream']);
/** The texts of `reason` that say which check refused, besides the limits. */
const CHECKS: Readonly<Record<string, string>> = {
  'no token': 'no_token',
  'unknown token': 'unknown_token',
  'model not allowed for this client': 'model_not_allowed',
};
const REFUSALS = [
  ...Object.values(CHECKS),
  'invalid_request',
  'global',
  'client',
  'server_concurrency',
  'client_concurrency',
  'memory',
];
/** The statuses that are to be expected of each result of a try. */
const TRY_STATUSES: Readonly<Record<string, readonly (number | undefined)[]>> = {
  ok: [200],
  rate_limited: [429],
  upstream_error: [undefined, 200, 400, 401, 403, 404, 422, 500, 502, 503, 504, 529],
  timeout: [undefined],
  client_closed: [undefined],
  circuit_open: [undefined],
  limit: [undefined],
};
const FALLBACK_REASONS = ['rate_limited', 'upstream_error', 'timeout', 'circuit_open', 'limit'];

/** Returns the check that refused a request, or whose limit did; undefined if a provider was asked and had another reason. */
function refusalOf({ outcome, reason = '', status }: RequestFacts): string | undefined {
  // A stream that has begun with 200 can end with the provider's rate limit too.
  if (outcome === 'rate_limited') return status === 429 ? reason || OTHER : undefined;
  return outcome === 'refused' ? (CHECKS[reason] ?? 'invalid_request') : undefined;
}

function tryLabels(provider: string, result: string, status: number | undefined): LabelSet {
  const labels = NO_LABELS.with('provider', provider).with('result', result);
  return labels.with('status', String(status ?? 'none'));
}

/** Returns true if the gateway or a provider failed: neither the client's mistake nor its leaving. */
export function isFailed(outcome: string | undefined): boolean {
  return FAILED_OUTCOMES.has(outcome);
}

/** Returns true for a provider's status that the client's request has caused. */
export function isClientError(status: number | undefined): boolean {
  return status !== undefined && status >= 400 && status < 500 && !PROVIDER_STATUSES.has(status);
}

/** Returns false for a provider that got no request, because of its open circuit or its limit. */
export function isSent(outcome: string | undefined): boolean {
  return outcome !== 'circuit_open' && outcome !== 'limit';
}

/** Milliseconds to the first token; undefined if the answer was no stream, or none began. */
export function firstTokenMsOf({ facts, firstByteMs }: FinishedRequest): number | undefined {
  return facts.stream && facts.status === 200 ? firstByteMs : undefined;
}

/** The series of all finished requests, for /metrics and for the page. */
export class RequestMetrics {
  readonly duration = new Metric(
    'gen_ai_server_request_duration_seconds',
    'Time from the head of the request to the last byte of the answer.',
    DURATION_BOUNDS,
  );
  readonly firstToken = new Metric(
    'gen_ai_server_time_to_first_token_seconds',
    'Time from the head of the request to the first event of a streamed answer.',
    FIRST_TOKEN_BOUNDS,
  );
  readonly outputToken = new Metric(
    'gen_ai_server_time_per_output_token_seconds',
    'Time per output token after the first, of streams that were delivered.',
    OUTPUT_TOKEN_BOUNDS,
  );
  readonly tokens = new Metric(
    'gen_ai_client_token_usage',
    'Tokens of requests, as the providers report them.',
    TOKEN_BOUNDS,
  );
  readonly requests = new Metric('gateway_requests_total', 'Finished requests.');
  readonly clientTokens = new Metric('gateway_client_tokens_total', 'Tokens of the named clients.');
  readonly tries = new Metric('gateway_tries_total', 'Attempts at providers, and those skipped.');
  readonly fallbacks = new Metric('gateway_fallbacks_total', 'Requests sent to another provider.');
  readonly refusals = new Metric('gateway_refusals_total', 'Requests that were refused.');
  readonly processing = new Metric(
    'gateway_processing_seconds',
    'Time of chat completions until the head of the answer, without upload and providers.',
    GATEWAY_BOUNDS,
  );
  readonly #models: ModelLabels;

  /** `models` decides which names of models are labels. */
  constructor(models: ModelLabels) {
    this.#models = models;
  }

  /** Counts it, and returns the labels of its model if a provider was asked. */
  add(request: FinishedRequest): LabelSet | undefined {
    const { facts, gatewayMs = NaN } = request;
    const { client = '', outcome, provider, tries = [] } = facts;
    const clientLabels = NO_LABELS.with('client', client);
    this.requests.add(clientLabels.with('outcome', outcome));
    const refusal = refusalOf(facts);
    if (refusal !== undefined) {
      const isProviders = PROVIDER_LIMITS.has(refusal);
      const labels = NO_LABELS.with('reason', refusal).with('client', client);
      this.refusals.add(isProviders ? labels.with('provider', provider ?? '') : labels);
    }
    this.#countTries(tries);
    this.processing.add(NO_LABELS, gatewayMs / 1000);
    const modelLabels = provider === undefined ? undefined : this.#models.setOf(provider, request);
    if (modelLabels) this.#observeTimes(request, modelLabels);
    const tokens = {
      input: facts.prompt_tokens,
      cached_input: facts.cached_tokens,
      output: facts.completion_tokens,
      reasoning: facts.reasoning_tokens,
    };
    for (const [type, count] of Object.entries(tokens)) {
      if (count === undefined) continue;
      if (modelLabels) this.tokens.add(modelLabels.with('gen_ai_token_type', type), count);
      if (client !== '') this.clientTokens.add(clientLabels.with('type', type), count);
    }
    return modelLabels;
  }

  /** Creates the series that the settings make known, at 0: Prometheus' `increase` does not see the first event of a new one. */
  learn({ clients, providers }: Config): void {
    const names = ['', ...clients.map(({ name }) => name)];
    for (const client of names) {
      const labels = NO_LABELS.with('client', client);
      for (const outcome of OUTCOMES) this.requests.create(labels.with('outcome', outcome));
      for (const reason of REFUSALS)
        this.refusals.create(NO_LABELS.with('reason', reason).with('client', client));
    }
    for (const { name } of clients) {
      for (const type of TOKEN_TYPES) {
        this.clientTokens.create(NO_LABELS.with('client', name).with('type', type));
      }
    }
    for (const { id } of providers.registered) {
      for (const [result, statuses] of Object.entries(TRY_STATUSES)) {
        for (const status of statuses) this.tries.create(tryLabels(id, result, status));
      }
      for (const to of providers.fallback.filter((other) => other !== id)) {
        for (const reason of FALLBACK_REASONS) {
          this.fallbacks.create(NO_LABELS.with('from', id).with('to', to).with('reason', reason));
        }
      }
    }
  }

  /** Yields all of them in the exposition format, in parts. */
  *render(): Generator<string> {
    for (const metric of Object.values(this)) yield* (metric as Metric).render();
  }

  #countTries(tries: readonly TryFacts[]): void {
    let before: TryFacts | undefined;
    for (const one of tries) {
      this.tries.add(tryLabels(one.provider, one.outcome, one.status));
      if (isSent(one.outcome) && before && before.provider !== one.provider) {
        const ends = NO_LABELS.with('from', before.provider).with('to', one.provider);
        this.fallbacks.add(ends.with('reason', before.outcome));
      }
      before = one;
    }
  }

  #observeTimes(request: FinishedRequest, labels: LabelSet): void {
    const { completion_tokens = 0, outcome } = request.facts;
    const isError = outcome !== 'ok' && outcome !== 'client_closed';
    this.duration.add(labels.with('error_type', isError ? outcome : ''), request.durationMs / 1000);
    const firstTokenMs = firstTokenMsOf(request);
    if (firstTokenMs === undefined) return;
    this.firstToken.add(labels, firstTokenMs / 1000);
    if (outcome === 'ok' && completion_tokens > 1) {
      const afterSeconds = (request.durationMs - firstTokenMs) / 1000;
      this.outputToken.add(labels, afterSeconds / (completion_tokens - 1));
    }
  }
}
