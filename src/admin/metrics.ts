/** Metrics of finished requests. `gen_ai_*` have the names and labels of Envoy AI Gateway. */

import type { Config } from '../config/config.ts';
import { INCIDENT_OUTCOMES } from '../incidents/affected-requests.ts';
import { hasAsked, type TryFacts } from '../request/history.ts';
import { CHECKS, type Outcome } from '../lib/errors.ts';
import { LIMITS, limitsOf, type Limit } from '../lib/limits.ts';
import type { FinishedRequest } from '../request/facts.ts';
import { limitsIn } from './figures.ts';
import { combine, LabelSet, ModelLabels, OTHER, type ModelSet } from './labels.ts';
import type { AllNames } from './names.ts';
import { Metric } from './series.ts';

const DURATION_BOUNDS = Array.from({ length: 17 }, (_, at) => 0.01 * 2 ** at);
export const FIRST_TOKEN_BOUNDS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1,
  1.5, 2, 2.5, 3.5, 5, 7.5, 10, 15, 20, 30, 45, 60,
];
const OUTPUT_TOKEN_BOUNDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5];
const TOKEN_BOUNDS = Array.from({ length: 14 }, (_, at) => 4 ** at);
const GATEWAY_BOUNDS = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1,
];
const WAIT_BOUNDS = [0.01, 0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60];
const FAILED_OUTCOMES: readonly Outcome[] = [...INCIDENT_OUTCOMES, 'internal_error'];
const OUTCOMES: readonly Outcome[] = [
  'ok',
  'client_closed',
  'refused',
  'rejected',
  ...FAILED_OUTCOMES,
];
const TOKENS = [
  ['input', 'prompt_tokens'],
  ['cached_input', 'cached_tokens'],
  ['output', 'completion_tokens'],
  ['reasoning', 'reasoning_tokens'],
] as const;
const INVALID = 'invalid_request';
/** Refusals of requests with or without a client. */
const REFUSALS = [...Object.keys(CHECKS), INVALID, ...limitsOf('all')];
const FALLBACK_REASONS = ['rate_limited', 'upstream_error', 'timeout', 'circuit_open', 'limit'];
/** The usual statuses of a provider's tries with each result. */
const STATUSES: readonly (readonly [result: TryFacts['outcome'], statuses: readonly string[]])[] = [
  ['ok', ['200']],
  ['rate_limited', ['429']],
  ['rejected', ['400']],
  ['upstream_error', 'none 200 401 402 403 404 500 502 503 504 529'.split(' ')],
  ['timeout', ['none']],
  ['client_closed', ['none']],
  ['circuit_open', ['none']],
  ['limit', ['none']],
];

/**
 * Returns the check or the limit that refused a request; undefined if the request was not refused.
 */
function refusalOf({ facts: { outcome, status }, refusal }: FinishedRequest): string | undefined {
  // An answer that finds no memory is `internal_error`.
  const isLimited = outcome === 'rate_limited' || refusal === 'memory';
  // A stream that has begun with 200 can end with a limit too.
  if (isLimited) return status === 429 ? (refusal ?? OTHER) : undefined;
  return outcome === 'refused' ? (refusal ?? INVALID) : undefined;
}

/** Returns whose limit refused a request; undefined for a check. */
function limitKindOf(refusal: string | undefined) {
  return Object.hasOwn(LIMITS, refusal ?? '') ? LIMITS[refusal as Limit].of : undefined;
}

/** Returns whether the gateway or a provider failed, as opposed to the client. */
export function isFailed(outcome: TryFacts['outcome']): boolean {
  return (FAILED_OUTCOMES as readonly string[]).includes(outcome);
}

/** Returns whether the client's own limit refused the request, so that no provider was asked. */
export function isOverOwnLimit({ facts: { outcome }, refusal }: FinishedRequest): boolean {
  return outcome === 'rate_limited' && limitKindOf(refusal) === 'client';
}

/** Returns the milliseconds to a stream's first token; undefined without a stream or a token. */
export function firstTokenMsOf({ facts, firstByteMs }: FinishedRequest): number | undefined {
  return facts.stream && facts.status === 200 ? firstByteMs : undefined;
}

/** Metrics of all finished requests. */
export class RequestMetrics {
  readonly duration = new Metric(
    'gen_ai_server_request_duration_seconds',
    'Time from the head of the request to the last byte of the answer.',
    DURATION_BOUNDS,
  );
  readonly firstToken = new Metric(
    'gen_ai_server_time_to_first_token_seconds',
    'Time from the head of the request to the first token of a streamed answer.',
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
  readonly cost = new Metric(
    'gateway_cost_total',
    'Cost of answers, in the currency of the prices in the settings.',
  );
  readonly tries = new Metric('gateway_tries_total', 'Attempts at providers, and those skipped.');
  readonly fallbacks = new Metric('gateway_fallbacks_total', 'Requests sent to another provider.');
  readonly refusals = new Metric('gateway_refusals_total', 'Requests that were refused.');
  readonly processing = new Metric(
    'gateway_processing_seconds',
    'Time of requests for a model until the head of the answer, without upload and providers.',
    GATEWAY_BOUNDS,
  );
  readonly wait = new Metric(
    'gateway_queue_wait_seconds',
    'Time of requests that have waited for a slot of a provider.',
    WAIT_BOUNDS,
  );
  /** The set without labels, of which the sets of all series are made. */
  readonly #root = new LabelSet();
  readonly #names: AllNames;
  readonly #models: ModelLabels;

  /** @param names - decides which names are values of labels */
  constructor(names: AllNames) {
    this.#names = names;
    this.#models = new ModelLabels(this.#root, names.models);
  }

  /** Counts a request, and returns the labels of its model if a provider was asked. */
  add(request: FinishedRequest): ModelSet | undefined {
    const { facts, gatewayMs = NaN } = request;
    const { client, cost, outcome, provider, tries = [] } = facts;
    if (client !== undefined) this.#names.clients.note(client);
    if (provider !== undefined) this.#names.providers.note(provider);
    const clientLabels = this.#root.with('client', client);
    this.requests.add(clientLabels.with('outcome', outcome));
    const refusal = refusalOf(request);
    if (refusal !== undefined) {
      const labels = clientLabels.with('reason', refusal);
      const isProviders = limitKindOf(refusal) === 'provider';
      this.refusals.add(labels.with('provider', isProviders ? provider : undefined));
    }
    this.#countTries(tries);
    this.processing.add(this.#root, gatewayMs / 1000);
    if (facts.waited_ms !== undefined) this.wait.add(this.#root, facts.waited_ms / 1000);
    const model = provider === undefined ? undefined : this.#models.setOf(provider, request);
    if (model) this.#observeTimes(request, model.labels);
    if (provider !== undefined && cost !== undefined) {
      const labels = this.#costLabels(provider, facts.upstream_model);
      this.cost.add(labels.with('client', client), cost);
    }
    for (const [type, field] of TOKENS) {
      const count = facts[field];
      if (count === undefined) continue;
      if (model) this.tokens.add(model.labels.with('gen_ai_token_type', type), count);
      if (client) this.clientTokens.add(clientLabels.with('type', type), count);
    }
    return model;
  }

  /**
   * Creates the series that the settings imply, at 0, because Prometheus' `increase` ignores the
   * first event of a new series.
   */
  learn(config: Config): void {
    const { clients, providers } = config;
    const names = [undefined, ...clients.map(({ name }) => name)];
    const all = combine([this.#root], 'client', names);
    const named = all.slice(1);
    this.requests.create(combine(all, 'outcome', OUTCOMES));
    this.clientTokens.create(
      combine(
        named,
        'type',
        TOKENS.map(([type]) => type),
      ),
    );
    this.refusals.create(combine(all, 'reason', REFUSALS));
    this.refusals.create(combine(named, 'reason', limitsOf('client')));
    const ofUpstream = providers.registered.map(
      ({ id }) => ['upstream', 0, undefined, id] as const,
    );
    for (const [limit, , , provider] of [...limitsIn(config), ...ofUpstream]) {
      if (provider === undefined) continue;
      this.refusals.create(combine(combine(all, 'reason', [limit]), 'provider', [provider]));
    }
    for (const { id, modelPrices = {} } of providers.registered) {
      const priced = Object.keys(modelPrices).map((model) => this.#costLabels(id, model));
      this.cost.create(combine(priced, 'client', names));
      const provider = this.#root.with('provider', id);
      for (const [result, statuses] of STATUSES) {
        this.tries.create(combine([provider.with('result', result)], 'status', statuses));
      }
      const others = providers.fallback.filter((other) => other !== id);
      const ways = combine([this.#root.with('from', id)], 'to', others);
      this.fallbacks.create(combine(ways, 'reason', FALLBACK_REASONS));
    }
  }

  /** Forgets the series with names that are known no longer. */
  forgetUnknown(): void {
    this.#root.removeUnknown(this.#names);
    this.#models.forgetRemoved();
    for (const metric of Object.values(this)) (metric as Metric).forgetRemoved();
  }

  /** Yields all metrics in the exposition format, in parts. */
  *render(): Generator<string> {
    for (const metric of Object.values(this)) yield* (metric as Metric).render();
  }

  /** Returns the name of a model as a label shows it. */
  nameOf(model: string | undefined): string {
    return this.#models.nameOf(model);
  }

  #costLabels(provider: string, model: string | undefined): LabelSet {
    return this.#root.with('provider', provider).with('model', this.#models.nameOf(model));
  }

  #countTries(tries: readonly TryFacts[]): void {
    let before: TryFacts | undefined;
    for (const one of tries) {
      this.#names.providers.note(one.provider);
      const labels = this.#root.with('provider', one.provider).with('result', one.outcome);
      this.tries.add(labels.with('status', String(one.status ?? 'none')));
      if (hasAsked(one.outcome) && before && before.provider !== one.provider) {
        const ends = this.#root.with('from', before.provider).with('to', one.provider);
        this.fallbacks.add(ends.with('reason', before.outcome));
      }
      before = one;
    }
  }

  #observeTimes(request: FinishedRequest, labels: LabelSet): void {
    const { completion_tokens = 0, outcome } = request.facts;
    const isError = outcome !== 'ok' && outcome !== 'client_closed';
    this.duration.add(
      labels.with('error_type', isError ? outcome : undefined),
      request.durationMs / 1000,
    );
    const firstTokenMs = firstTokenMsOf(request);
    if (firstTokenMs === undefined) return;
    this.firstToken.add(labels, firstTokenMs / 1000);
    if (outcome === 'ok' && completion_tokens > 1) {
      const afterSeconds = (request.durationMs - firstTokenMs) / 1000;
      this.outputToken.add(labels, afterSeconds / (completion_tokens - 1));
    }
  }
}
