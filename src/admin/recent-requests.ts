/** The last requests, and the last failures before those. */

import type { Icon } from '../incidents/notice.ts';
import { redactFacts } from '../lib/log.ts';
import type { Outcome } from '../lib/errors.ts';
import type { Redactor } from '../lib/secrets.ts';
import type { FinishedRequest, RequestFacts } from '../request/facts.ts';
import { hasAsked, type TryFacts } from '../request/history.ts';
import { isFailed, isOverOwnLimit } from './metrics.ts';

const MAX_REQUESTS = 200;
/** As many as the page lists without being asked for more. */
const MAX_LATEST = 10;

/** Providers in their order, each with its icon. A single good one needs no icon. */
export type Chain = readonly (readonly [icon: Icon | '', text: string])[];

/** A request as the page lists it. */
interface ListedRequest {
  readonly number: number;
  readonly time: string;
  readonly icon: Icon;
  readonly outcome: Outcome;
  readonly status: number | undefined;
  readonly model: string;
  readonly tried: Chain;
  readonly client: string | undefined;
  readonly first_ms: number | undefined;
  readonly duration_ms: number;
  readonly cause: string | undefined;
}

/** Which requests to list. */
export interface RequestFilter {
  readonly kind: string;
  /** A request must have all of these: `failed ci` finds the failures of the client `ci`. */
  readonly words: string;
}

interface Entry {
  readonly number: number;
  readonly request: FinishedRequest;
  /** Made at the first look, because most requests are gone before. */
  shown?: { readonly facts: RequestFacts; readonly row: ListedRequest };
}

const ICONS: Partial<Record<TryFacts['outcome'], Icon>> = {
  ok: 'good',
  client_closed: 'off',
  refused: 'warn',
  rejected: 'warn',
};

/** Returns the icon beside a try; `failed` if its provider has failed. */
function iconOfTry({ outcome }: Pick<TryFacts, 'outcome'>, failed: Icon): Icon {
  // A try that was not sent, or that the gateway itself has failed, says nothing of a provider.
  if (!hasAsked(outcome) || outcome === 'internal_error') return 'off';
  return ICONS[outcome] ?? failed;
}

function triedChainOf({ outcome, tries = [] }: RequestFacts): Chain {
  if (tries.length === 0) return [['off', 'not sent']];
  if (tries.length === 1 && outcome === 'ok') return [['', tries[0]!.provider]];
  const failed = outcome === 'ok' ? 'warn' : 'bad';
  return tries.map((one) => [iconOfTry(one, failed), one.provider]);
}

/** Returns a failure's cause: the request's, or else that of its latest try with a cause. */
function latestCauseOf({
  cause,
  limit,
  outcome,
  reason,
  tries = [],
}: RequestFacts): string | undefined {
  const known = cause ?? tries.findLast((one) => one.cause)?.cause;
  return known ?? (outcome === 'ok' ? undefined : (limit ?? reason));
}

function hasWords({ shown }: Required<Entry>, words: readonly string[]): boolean {
  const { client, model, outcome, provider, request_id, trace_id, tries = [] } = shown.facts;
  const failed = shown.row.icon === 'bad' ? 'failed' : '';
  const providers = [provider, ...tries.map((one) => one.provider)];
  const all = [failed, outcome, model, client, request_id, trace_id, ...providers];
  const text = all.join(' ').toLowerCase();
  return words.every((word) => text.includes(word));
}

function isOfKind({ shown: { facts, row } }: Required<Entry>, kind: string): boolean {
  const asked = facts.tries?.filter(({ outcome }) => hasAsked(outcome)) ?? [];
  return kind === 'Retried' ? asked.length > 1 : kind !== 'Failed' || row.icon === 'bad';
}

/** Keeps the last requests, numbered from 1. */
export class RecentRequests {
  readonly #requests: Entry[] = [];
  /** Failed requests that have left `#requests`. */
  readonly #failures: Entry[] = [];
  readonly #redact: Redactor;
  #total = 0;

  constructor(redact: Redactor) {
    this.#redact = redact;
  }

  /** How many requests are kept. */
  get kept(): number {
    return this.#all.length;
  }

  get #all(): Entry[] {
    return [...this.#failures, ...this.#requests];
  }

  add(request: FinishedRequest): void {
    this.#total += 1;
    this.#requests.push({ number: this.#total, request });
    if (this.#requests.length <= MAX_REQUESTS) return;
    const oldest = this.#requests.shift()!;
    const { outcome } = oldest.request.facts;
    if (isFailed(outcome) && !isOverOwnLimit(oldest.request)) this.#failures.push(oldest);
    if (this.#failures.length > MAX_REQUESTS) this.#failures.shift();
  }

  /** Returns the latest requests by their numbers. A request is the same object each time. */
  latest(): Readonly<Record<number, ListedRequest>> {
    const entries = this.#requests.slice(-MAX_LATEST);
    return Object.fromEntries(entries.map((one) => [one.number, this.#show(one).shown.row]));
  }

  /** Returns the requests of a kind with these words, the newest first. */
  find({ kind, words }: RequestFilter): ListedRequest[] {
    const all = this.#all.map((entry) => this.#show(entry));
    const wanted = words.toLowerCase().split(/\s+/);
    const found = all.filter((entry) => isOfKind(entry, kind) && hasWords(entry, wanted));
    return found.map(({ shown }) => shown.row).toReversed();
  }

  /** Returns a request's fields with masked keys; undefined if it is not kept. */
  factsOf(number: number): RequestFacts | undefined {
    const entry = this.#all.find((one) => one.number === number);
    return entry && this.#show(entry).shown.facts;
  }

  #show(entry: Entry): Required<Entry> {
    if (entry.shown) return entry as Required<Entry>;
    const { number, request } = entry;
    const time = new Date(request.endTime).toISOString();
    const facts = redactFacts({ time, ...request.facts }, this.#redact);
    const { client, duration_ms, first_byte_ms, method, outcome, path, status, stream } = facts;
    const isRefused = isOverOwnLimit(request);
    const row = {
      number,
      time,
      icon: isRefused ? 'warn' : (ICONS[outcome] ?? 'bad'),
      outcome,
      status,
      // A request for an unknown path has no model.
      model: facts.model ?? `${method} ${path}`,
      tried: triedChainOf(facts),
      client,
      // An error answer has a first byte, but no token.
      first_ms: stream && status === 200 ? first_byte_ms : undefined,
      duration_ms,
      cause: latestCauseOf(facts),
    };
    return Object.assign(entry, { shown: { facts, row } });
  }
}
