/** What each provider, model and client has done since the start, for the page. */

import type { FinishedRequest, Outcome, TryFacts } from '../lib/request-facts.ts';
import { OTHER } from './labels.ts';
import { Percentiles } from './percentiles.ts';

const MAX_MODELS = 500;
/** The feed sends all of them. Clients that come later are `other`. */
const MAX_CLIENTS = 500;
/** In a row, until a provider counts as failing. The breaker's number, but it only works with a fallback. */
const FAILURES_TO_SHOW = 3;
/** The provider works, and the request is at fault. */
const REQUEST_STATUSES: ReadonlySet<number | undefined> = new Set([400, 413, 422]);
const FAILED_OUTCOMES: ReadonlySet<Outcome> = new Set([
  'upstream_error',
  'timeout',
  'rate_limited',
  'internal_error',
]);

/** Whether the gateway or a provider failed: neither the client's mistake nor its leaving. */
export function isFailed(outcome: Outcome): boolean {
  return FAILED_OUTCOMES.has(outcome);
}

/** Milliseconds to the first token; undefined if the answer was no stream, or none began. */
export function firstTokenMsOf({ facts, firstByteMs }: FinishedRequest): number | undefined {
  return facts.stream && facts.status === 200 ? firstByteMs : undefined;
}

class Row {
  requests = 0;
  failed = 0;
  inputTokens = 0;
  outputTokens = 0;
  readonly firstToken = new Percentiles();

  /** Counts all but the request itself. */
  addAnswer(request: FinishedRequest): void {
    const { prompt_tokens = 0, completion_tokens = 0 } = request.facts;
    this.inputTokens += prompt_tokens;
    this.outputTokens += completion_tokens;
    const firstTokenMs = firstTokenMsOf(request);
    if (firstTokenMs !== undefined) this.firstToken.record(firstTokenMs);
  }

  addRequest(request: FinishedRequest): void {
    this.requests += 1;
    if (isFailed(request.facts.outcome)) this.failed += 1;
    this.addAnswer(request);
  }

  get tokens() {
    return { inputTokens: this.inputTokens, outputTokens: this.outputTokens };
  }

  get firstTokenTimes() {
    return {
      firstTokenP50Ms: this.firstToken.valueAt(0.5),
      firstTokenP95Ms: this.firstToken.valueAt(0.95),
    };
  }
}

class ProviderRow extends Row {
  /** By outcome, of tries. */
  readonly errors: Partial<Record<TryFacts['outcome'], number>> = {};
  lastError: { readonly atMs: number; readonly text: string } | undefined;
  /** Failures since the last success, the first of them at `failingSinceMs`. */
  failuresInRow = 0;
  failingSinceMs = 0;

  addTry({ outcome, status, cause }: TryFacts, atMs: number): void {
    if (outcome === 'resting' || outcome === 'limit') return;
    this.requests += 1;
    if (outcome === 'ok') this.failuresInRow = 0;
    if (outcome === 'ok' || outcome === 'client_closed') return;
    this.errors[outcome] = (this.errors[outcome] ?? 0) + 1;
    const text = [status, cause].filter((part) => part !== undefined).join(' ');
    this.lastError = { atMs, text: text || outcome };
    if (!isFailed(outcome) || REQUEST_STATUSES.has(status)) return;
    if (this.failuresInRow === 0) this.failingSinceMs = atMs;
    this.failuresInRow += 1;
  }
}

interface ModelRow {
  readonly name: string;
  readonly provider: string;
  readonly row: Row;
}

/** The rows of all providers, models and clients. */
export class Totals {
  /** By id: as many as the settings have named. */
  readonly #providers = new Map<string, ProviderRow>();
  /** By `<provider>/<model>`: a provider's id has no slash. */
  readonly #models = new Map<string, ModelRow>();
  readonly #clients = new Map<string, Row>();

  /** Counts a finished request. `model` is its name as labels have it. */
  record(request: FinishedRequest, model: string): void {
    const { client, provider, tries = [] } = request.facts;
    for (const one of tries) this.#providerRow(one.provider).addTry(one, request.endedAtMs);
    if (provider !== undefined) {
      this.#providerRow(provider).addAnswer(request);
      this.#modelRow(model, provider).addRequest(request);
    }
    if (client !== undefined) this.#clientRow(client).addRequest(request);
  }

  /** Returns when the failures began, if the provider's last tries have all failed. */
  failingSince(id: string): string | null {
    const { failuresInRow, failingSinceMs } = this.#providerRow(id);
    return failuresInRow < FAILURES_TO_SHOW ? null : new Date(failingSinceMs).toISOString();
  }

  /** Returns what is known of a provider. */
  provider(id: string) {
    const row = this.#providerRow(id);
    const { errors, lastError, requests, firstTokenTimes, tokens } = row;
    const shown = lastError && { at: new Date(lastError.atMs).toISOString(), text: lastError.text };
    return { requests, errors, ...firstTokenTimes, ...tokens, lastError: shown ?? null };
  }

  /** The most used first. */
  models() {
    return [...this.#models.values()]
      .toSorted((a, b) => b.row.requests - a.row.requests)
      .map(({ name, provider, row }) => {
        const { requests, failed, tokens, firstTokenTimes } = row;
        return { name, provider, requests, failed, ...tokens, ...firstTokenTimes };
      });
  }

  /** The named clients, in the order of their first requests. */
  clients() {
    return [...this.#clients].map(([name, { requests, failed, tokens }]) => {
      return { name, requests, failed, ...tokens };
    });
  }

  #providerRow(id: string): ProviderRow {
    return rowOf(this.#providers, id, () => new ProviderRow());
  }

  #clientRow(client: string): Row {
    const isShown = this.#clients.has(client) || this.#clients.size < MAX_CLIENTS;
    return rowOf(this.#clients, isShown ? client : OTHER, () => new Row());
  }

  #modelRow(model: string, provider: string): Row {
    const isShown = this.#models.has(`${provider}/${model}`) || this.#models.size < MAX_MODELS;
    const name = isShown ? model : OTHER;
    const create = () => ({ name, provider, row: new Row() });
    return rowOf(this.#models, `${provider}/${name}`, create).row;
  }
}

/** The row with that key, which is created if there is none. */
function rowOf<R>(rows: Map<string, R>, key: string, create: () => R): R {
  let row = rows.get(key);
  if (!row) rows.set(key, (row = create()));
  return row;
}
