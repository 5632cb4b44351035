/** The metrics of finished requests. Names and labels of `gen_ai_*` are those of Envoy AI Gateway, and so are their buckets, among finer ones. */

import type { FinishedRequest, Outcome, TryFacts } from '../lib/request-facts.ts';
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

/** Returns true if the gateway or a provider failed: neither the client's mistake nor its leaving. */
export function isFailed(outcome: string | undefined): boolean {
  return FAILED_OUTCOMES.has(outcome);
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
  readonly refusals = new Metric('gateway_refusals_total', 'Answers with 429, by the limit.');
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

  add(request: FinishedRequest): void {
    const { facts, gatewayMs = NaN } = request;
    const { client = '', outcome, provider, tries = [] } = facts;
    const clientLabels = NO_LABELS.with('client', client);
    this.requests.add(clientLabels.with('outcome', outcome));
    // A stream that has begun with 200 can end with the provider's rate limit too.
    if (outcome === 'rate_limited' && facts.status === 429) {
      this.refusals.add(NO_LABELS.with('limit', facts.reason ?? OTHER));
    }
    this.#countTries(tries);
    this.processing.add(NO_LABELS, gatewayMs / 1000);
    const modelLabels = provider !== undefined && this.#models.setOf(provider, request);
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
  }

  /** Yields all of them in the exposition format, in parts. */
  *render(): Generator<string> {
    for (const metric of Object.values(this)) yield* (metric as Metric).render();
  }

  #countTries(tries: readonly TryFacts[]): void {
    let before: TryFacts | undefined;
    for (const one of tries) {
      this.tries.add(NO_LABELS.with('provider', one.provider).with('result', one.outcome));
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
