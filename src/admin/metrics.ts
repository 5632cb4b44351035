/** The metrics of finished requests. Names and labels of `gen_ai_*` are those of Envoy AI Gateway, and so are their buckets, among finer ones. */

import type { FinishedRequest, Outcome, RequestFacts, TryFacts } from '../lib/request-facts.ts';
import { NO_LABELS, OTHER, type ModelLabels } from './labels.ts';
import { Counter, Histogram } from './series.ts';

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
  return outcome !== 'resting' && outcome !== 'limit';
}

/** Milliseconds to the first token; undefined if the answer was no stream, or none began. */
export function firstTokenMsOf({ facts, firstByteMs }: FinishedRequest): number | undefined {
  return facts.stream && facts.status === 200 ? firstByteMs : undefined;
}

/** The series of all finished requests, for /metrics and for the page. */
export class RequestMetrics {
  readonly duration = new Histogram(
    'gen_ai_server_request_duration_seconds',
    DURATION_BOUNDS,
    'Time from the head of the request to the last byte of the answer.',
  );
  readonly firstToken = new Histogram(
    'gen_ai_server_time_to_first_token_seconds',
    FIRST_TOKEN_BOUNDS,
    'Time from the head of the request to the first event of a streamed answer.',
  );
  readonly outputToken = new Histogram(
    'gen_ai_server_time_per_output_token_seconds',
    OUTPUT_TOKEN_BOUNDS,
    'Time per output token after the first, of streams that were delivered.',
  );
  readonly tokens = new Histogram(
    'gen_ai_client_token_usage',
    TOKEN_BOUNDS,
    'Tokens of requests, as the providers report them.',
  );
  readonly requests = new Counter('gateway_requests_total', 'Finished requests.');
  readonly clientTokens = new Counter(
    'gateway_client_tokens_total',
    'Tokens of the named clients, as the providers report them.',
  );
  readonly tries = new Counter(
    'gateway_tries_total',
    'Attempts at providers, and providers that were skipped.',
  );
  readonly fallbacks = new Counter(
    'gateway_fallbacks_total',
    'Times that a request went on to another provider.',
  );
  readonly refusals = new Counter(
    'gateway_refusals_total',
    'Requests answered with 429, by whose limit it was.',
  );
  readonly processing = new Histogram(
    'gateway_processing_seconds',
    GATEWAY_BOUNDS,
    'Time of chat completions spent neither on the upload nor on providers, until the head of the answer.',
  );
  readonly #models: ModelLabels;

  /** `models` decides which names of models are labels. */
  constructor(models: ModelLabels) {
    this.#models = models;
  }

  observe(request: FinishedRequest): void {
    const { client = '', outcome, provider, reason, status, tries } = request.facts;
    const clientLabels = NO_LABELS.with('client', client);
    this.requests.add(clientLabels.with('outcome', outcome));
    // A stream that has begun with 200 can end with the provider's rate limit too.
    if (outcome === 'rate_limited' && status === 429) {
      this.refusals.add(NO_LABELS.with('limit', reason ?? OTHER));
    }
    if (tries) this.#observeTries(tries);
    if (request.gatewayMs !== undefined) this.processing.observe(request.gatewayMs / 1000);
    if (provider !== undefined) this.#observeCompletion(request, provider);
    if (client === '') return;
    for (const [type, count] of tokenCounts(request.facts)) {
      this.clientTokens.add(clientLabels.with('type', type), count);
    }
  }

  /** Yields all of them in the exposition format, in parts. */
  *render(): Generator<string> {
    yield* this.duration.render();
    yield* this.firstToken.render();
    yield* this.outputToken.render();
    yield* this.tokens.render();
    yield* this.requests.render();
    yield* this.clientTokens.render();
    yield* this.tries.render();
    yield* this.fallbacks.render();
    yield* this.refusals.render();
    yield* this.processing.render();
  }

  #observeTries(tries: readonly TryFacts[]): void {
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

  #observeCompletion(request: FinishedRequest, provider: string): void {
    const { facts, durationMs } = request;
    const { completion_tokens = 0, outcome } = facts;
    const labels = this.#models.setOf(provider, request);
    const isError = outcome !== 'ok' && outcome !== 'client_closed';
    this.duration.observe(durationMs / 1000, labels.with('error_type', isError ? outcome : ''));
    const firstTokenMs = firstTokenMsOf(request);
    if (firstTokenMs !== undefined) {
      this.firstToken.observe(firstTokenMs / 1000, labels);
      if (outcome === 'ok' && completion_tokens > 1) {
        const afterSeconds = (durationMs - firstTokenMs) / 1000;
        this.outputToken.observe(afterSeconds / (completion_tokens - 1), labels);
      }
    }
    for (const [type, count] of tokenCounts(facts)) {
      this.tokens.observe(count, labels.with('gen_ai_token_type', type));
    }
  }
}

/** Returns the counts of each type that the provider has told. */
function tokenCounts(facts: RequestFacts): [type: string, count: number][] {
  const counts = {
    input: facts.prompt_tokens,
    cached_input: facts.cached_tokens,
    output: facts.completion_tokens,
    reasoning: facts.reasoning_tokens,
  };
  const told = Object.entries(counts).filter(([, count]) => count !== undefined);
  return told as [string, number][];
}
