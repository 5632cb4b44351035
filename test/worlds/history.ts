/** A world's events in order. The checks read them, and a failing world prints them. */

import type { StoredLimit } from '../../src/policy/limiter.ts';
import type { Ask, Reply, Settings } from './plan.ts';

/** An answer as its client got it. */
export interface Answer {
  status: number;
  readonly headers: Map<string, string>;
  headAtMs: number;
  /** The chunks of the body. */
  readonly pieces: { readonly atMs: number; readonly bytes: Buffer }[];
  /** `whole`: ended as its framing requires. `cut`: ended with its connection. */
  end: 'open' | 'whole' | 'cut';
  endAtMs: number;
}

/** A request and its result. */
export interface Exchange {
  readonly ask: Ask;
  /** When its last byte was handed to the connection; undefined if the client left before. */
  sentAtMs?: number;
  /** When its head was handed over, and at which place in the history. */
  headSentAtMs?: number;
  headOrder: number;
  /** Whether its client did not read for a while. */
  isDelayed: boolean;
  /** The request before it on its connection, if it had no access line when the head was sent. */
  behind?: Exchange | undefined;
  /** The request before it on its connection, if its answer was not over when the head was sent. */
  behindAnswer?: Exchange | undefined;
  answer?: Answer;
  /** Whether `100 Continue` came. */
  isContinued: boolean;
  /** When its parts were sent. */
  readonly pieceMs: number[];
  leftAtMs?: number;
  /** Whether the gateway does not read the connection, and notices its end only at a write. */
  isUnnoticed?: boolean;
  wastedAtMs?: number;
  readonly tries: Try[];
  /** Its access lines, each with its place in the history. */
  readonly lines: { readonly line: Line; readonly atMs: number; readonly order: number }[];
}

/** A request to a provider. */
export interface Try {
  readonly provider: string;
  readonly method: string;
  readonly path: string;
  readonly headers: ReadonlyMap<string, string>;
  body?: string;
  readonly atMs: number;
  readonly reply: Reply;
  /** The place in the history where it began. */
  readonly order: number;
  headAtMs?: number;
  /** The bytes handed to the gateway. */
  readonly pieces: { readonly atMs: number; readonly bytes: Buffer }[];
  /** `over`: the provider ended it as planned. `given up`: the gateway ended it. */
  end: 'open' | 'over' | 'given up';
  endAtMs: number;
  endOrder: number;
}

export type Line = Readonly<Record<string, unknown>> & { readonly message: string };

export type Event = { readonly atMs: number } & (
  | {
      readonly kind: 'begun' | 'sent' | 'answered' | 'left' | 'closed';
      readonly exchange: Exchange;
    }
  /** The gateway closed a connection, idle since `sinceMs`. `exchange` was its last request. */
  | { readonly kind: 'ended'; readonly exchange: Exchange | undefined; readonly sinceMs: number }
  | { readonly kind: 'asked' | 'tried'; readonly exchange: Exchange | undefined; readonly try: Try }
  | { readonly kind: 'line'; readonly line: Line; readonly exchange: Exchange | undefined }
  | { readonly kind: 'settings'; readonly settings: Settings }
  | { readonly kind: 'drain' | 'drained' }
  /** The store's connection came or went. */
  | { readonly kind: 'store'; readonly isUp: boolean }
  | { readonly kind: 'store asked'; readonly ask: StoreAsk }
);

/** A question to the rate limit store: a request's tokens, or this number of tokens. */
export interface StoreAsk {
  readonly buckets: readonly StoredLimit[];
  readonly tokens: number | undefined;
  /** The bucket with the longest wait. */
  readonly refusedBy: StoredLimit;
  /** Undefined if the tokens were given. */
  readonly refusedForMs: number | undefined;
  /** When the gateway got the answer; undefined if it came late or was lost. */
  toldAtMs?: number;
}

export interface History {
  readonly events: Event[];
  readonly exchanges: Exchange[];
  /** The gateway's own requests for model lists. */
  readonly lists: Try[];
  readonly leftovers: string[];
  metrics: string;
}

/** Returns the history as text, a line for each event. */
export function print({ events }: History): string {
  return events
    .map((event) => `${event.atMs.toFixed(3).padStart(12)}  ${describe(event)}`)
    .join('\n');
}

function describe(event: Event): string {
  switch (event.kind) {
    case 'begun':
      return `${event.exchange.ask.id} > its head`;
    case 'sent': {
      const { ask } = event.exchange;
      return `${ask.id} > ${ask.method} ${ask.path} ${ask.body?.slice(0, 160) ?? ''}`;
    }
    case 'answered':
    case 'closed': {
      const { ask, answer } = event.exchange;
      const text = Buffer.concat(answer?.pieces.map(({ bytes }) => bytes) ?? []).toString();
      const headers = ['retry-after', 'x-should-retry', 'x-gateway-provider']
        .flatMap((name) => (answer?.headers.has(name) ? `${name}=${answer.headers.get(name)}` : []))
        .join(' ');
      const body = JSON.stringify(text.slice(-300));
      return `${ask.id} < ${answer?.status ?? 'nothing'} ${answer?.end ?? ''} ${headers} ${body}`;
    }
    case 'left':
      return `${event.exchange.ask.id} | its client leaves`;
    case 'asked': {
      const { provider, headers, reply } = event.try;
      const what = reply.fault ?? (reply.headMs === undefined ? 'silent' : reply.status);
      const items = reply.items.map(({ kind, waitMs }) => `${kind}+${waitMs}`).join(' ');
      const plan = `${what} after ${reply.headMs}: ${items} ${reply.end}+${reply.endMs}`;
      const id = event.exchange?.ask.id ?? '';
      return `${id}   > ${provider} ${headers.get('authorization')} [${plan}]`;
    }
    case 'tried':
      return `${event.exchange?.ask.id ?? ''}   < ${event.try.provider} ${event.try.end}`;
    case 'line':
      return `    ${JSON.stringify(event.line)}`;
    case 'settings':
      return `settings ${JSON.stringify(event.settings)}`;
    case 'store':
      return `the store is ${event.isUp ? 'up' : 'down'}`;
    case 'store asked': {
      const { buckets, refusedForMs, tokens } = event.ask;
      const names = buckets.map(({ name }) => name).join(', ');
      return `store: ${tokens ?? 'ask'} of ${names}: ${refusedForMs ?? 'OK'}`;
    }
    default:
      return event.kind;
  }
}
