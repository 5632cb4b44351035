/** The metrics of finished requests. Names, labels and buckets of `gen_ai_*` are those of Envoy AI Gateway. */

import type { FinishedRequest, TryFacts } from '../lib/request-facts.ts';
import { Cells, Counter, Histogram } from './families.ts';
import { NO_LABELS, OTHER, type LabelSet, type ModelLabels } from './labels.ts';
import { firstTokenMsOf } from './totals.ts';

const DURATION_BOUNDS = [
  0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
const FIRST_TOKEN_BOUNDS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
];
const OUTPUT_TOKEN_BOUNDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5];
const TOKEN_BOUNDS = [
  1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216,
  67_108_864,
];
const GATEWAY_BOUNDS = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1,
];

export interface RequestMetrics {
  observe(request: FinishedRequest): void;
  /** All of them in the exposition format, in parts. */
  render(): Iterable<string>;
}

/** `models` decides which names of models are labels. */
export function createRequestMetrics(models: ModelLabels): RequestMetrics {
  const cells = new Cells();
  const observeCompletion = createCompletionMetrics(cells, models);
  const requests = new Counter(cells, {
    name: 'gateway_requests_total',
    help: 'Finished requests.',
  });
  const tries = new Counter(cells, {
    name: 'gateway_tries_total',
    help: 'Attempts at providers, and providers that were passed over.',
  });
  const fallbacks = new Counter(cells, {
    name: 'gateway_fallbacks_total',
    help: 'Times that a request went on to another provider.',
  });
  const refusals = new Counter(cells, {
    name: 'gateway_refusals_total',
    help: 'Requests answered with 429, by whose limit it was.',
  });
  const processing = new Histogram(cells, {
    name: 'gateway_processing_seconds',
    help: 'Time of chat completions spent neither on the upload nor on providers, until the head of the answer.',
    bounds: GATEWAY_BOUNDS,
  });

  function observeTries(made: readonly TryFacts[]): void {
    let before: TryFacts | undefined;
    for (const one of made) {
      tries.increment(NO_LABELS.with('provider', one.provider).with('result', one.outcome));
      // A provider that was passed over got no request.
      const isAsked = one.outcome !== 'resting' && one.outcome !== 'limit';
      if (isAsked && before && before.provider !== one.provider) {
        const ends = NO_LABELS.with('from', before.provider).with('to', one.provider);
        fallbacks.increment(ends.with('reason', before.outcome));
      }
      before = one;
    }
  }

  return {
    observe(request) {
      const { client = '', outcome, provider, reason, status, tries: made } = request.facts;
      requests.increment(NO_LABELS.with('client', client).with('outcome', outcome));
      // A stream that has begun with 200 can end with the provider's rate limit too.
      if (outcome === 'rate_limited' && status === 429) {
        refusals.increment(NO_LABELS.with('limit', reason ?? OTHER));
      }
      if (made) observeTries(made);
      if (request.gatewayMs !== undefined) processing.observe(request.gatewayMs / 1000);
      if (provider !== undefined) observeCompletion(request, provider);
    },
    *render() {
      const own = [requests, tries, fallbacks, refusals, processing];
      for (const family of [...observeCompletion.families, ...own]) yield* family.render();
    },
  };
}

/** The metrics of requests for which a provider was chosen. */
function createCompletionMetrics(cells: Cells, models: ModelLabels) {
  const duration = new Histogram(cells, {
    name: 'gen_ai_server_request_duration_seconds',
    help: 'Time from the head of the request to the last byte of the answer.',
    bounds: DURATION_BOUNDS,
  });
  const firstToken = new Histogram(cells, {
    name: 'gen_ai_server_time_to_first_token_seconds',
    help: 'Time from the head of the request to the first event of a streamed answer.',
    bounds: FIRST_TOKEN_BOUNDS,
  });
  const outputToken = new Histogram(cells, {
    name: 'gen_ai_server_time_per_output_token_seconds',
    help: 'Time per output token after the first, of streams that were delivered.',
    bounds: OUTPUT_TOKEN_BOUNDS,
  });
  const tokens = new Histogram(cells, {
    name: 'gen_ai_client_token_usage',
    help: 'Tokens of requests, as the providers report them.',
    bounds: TOKEN_BOUNDS,
  });

  function observeTokens(labels: LabelSet, type: string, count: number | undefined): void {
    if (count !== undefined) tokens.observe(count, labels.with('gen_ai_token_type', type));
  }

  function observe(request: FinishedRequest, provider: string): void {
    const { facts, durationMs } = request;
    const { completion_tokens = 0, outcome } = facts;
    const labels = models.setOf(provider, request);
    const isError = outcome !== 'ok' && outcome !== 'client_closed';
    duration.observe(durationMs / 1000, labels.with('error_type', isError ? outcome : ''));
    const firstTokenMs = firstTokenMsOf(request);
    if (firstTokenMs !== undefined) {
      firstToken.observe(firstTokenMs / 1000, labels);
      if (outcome === 'ok' && completion_tokens > 1) {
        const restSeconds = (durationMs - firstTokenMs) / 1000;
        outputToken.observe(restSeconds / (completion_tokens - 1), labels);
      }
    }
    observeTokens(labels, 'input', facts.prompt_tokens);
    observeTokens(labels, 'cached_input', facts.cached_tokens);
    observeTokens(labels, 'output', facts.completion_tokens);
    observeTokens(labels, 'reasoning', facts.reasoning_tokens);
  }

  return Object.assign(observe, { families: [duration, firstToken, outputToken, tokens] });
}
