/** What happened in a world, in order: the checks read it, and it is printed when one of them fails. */

import type { StoredBucket } from '../../src/policy/limiter.ts';
import type { Ask, Reply, Settings } from './plan.ts';

/** One answer as its client got it. */
export interface Answer {
  status: number;
  readonly headers: Map<string, string>;
  headAtMs: number;
  /** The chunks of its body. */
  readonly pieces: { readonly atMs: number; readonly bytes: Buffer }[];
  /** `whole`: as its framing says. `cut`: the connection was closed in it. */
  end: 'open' | 'whole' | 'cut';
  endAtMs: number;
}

/** One request, and what became of it. */
export interface Exchange {
  readonly ask: Ask;
  /** All of it was handed to the connection; undefined before, or if the client left earlier. */
  sentAtMs?: number;
  /** Its head was, and where in the history. */
  headSentAtMs?: number;
  headOrder: number;
  /** Its client did not read for a while. */
  isDelayed: boolean;
  /** The request before it on its connection was not answered then. */
  behind?: Exchange | undefined;
  /** The request before it on the connection, whose answer had not ended when its head was sent. */
  behindAnswer?: Exchange | undefined;
  answer?: Answer;
  /** `100 Continue` came. */
  isContinued: boolean;
  /** When parts of it were sent. */
  readonly pieceMs: number[];
  leftAtMs?: number;
  /** The gateway does not read the connection, and knows of it when it has written again. */
  isUnnoticed?: boolean;
  wastedAtMs?: number;
  readonly tries: Try[];
  /** Its access lines, and where in the history. */
  readonly lines: { readonly line: Line; readonly atMs: number; readonly order: number }[];
}

/** One request at a provider. */
export interface Try {
  readonly provider: string;
  readonly method: string;
  readonly path: string;
  readonly headers: ReadonlyMap<string, string>;
  body?: string;
  readonly atMs: number;
  readonly reply: Reply;
  /** Where in the history it began. */
  readonly order: number;
  headAtMs?: number;
  /** What was handed to the gateway. */
  readonly pieces: { readonly atMs: number; readonly bytes: Buffer }[];
  /** `over`: the provider has ended it as planned. `given up`: the gateway has. */
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
  /** The gateway has closed a connection without a request, idle since then; `exchange` was its last one. */
  | { readonly kind: 'ended'; readonly exchange: Exchange | undefined; readonly sinceMs: number }
  | { readonly kind: 'asked' | 'tried'; readonly exchange: Exchange | undefined; readonly try: Try }
  | { readonly kind: 'line'; readonly line: Line; readonly exchange: Exchange | undefined }
  | { readonly kind: 'settings'; readonly settings: Settings }
  | { readonly kind: 'drain' | 'drained' }
  /** Its connection is there, or is not. */
  | { readonly kind: 'store'; readonly isUp: boolean }
  | { readonly kind: 'store asked'; readonly ask: StoreAsk }
);

/** What the store of rate limits was asked for: a request's tokens, or so many. */
export interface StoreAsk {
  readonly buckets: readonly StoredBucket[];
  readonly tokens: number | undefined;
  /** The bucket that refuses for longest. */
  readonly refusedBy: StoredBucket;
  /** Undefined if they were given. */
  readonly refusedForMs: number | undefined;
  /** When the gateway had the answer; undefined if it was late or lost. */
  toldAtMs?: number;
}

export interface History {
  readonly events: Event[];
  readonly exchanges: Exchange[];
  /** Requests of the gateway's own: lists of models. */
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
      return `${ask.id} < ${answer?.status ?? 'nothing'} ${answer?.end ?? ''} ${headers} ${JSON.stringify(text.slice(-300))}`;
    }
    case 'left':
      return `${event.exchange.ask.id} | its client leaves`;
    case 'asked': {
      const { provider, headers, reply } = event.try;
      const what = reply.fault ?? (reply.headMs === undefined ? 'silent' : reply.status);
      const items = reply.items.map(({ kind, waitMs }) => `${kind}+${waitMs}`).join(' ');
      return `${event.exchange?.ask.id ?? ''}   > ${provider} ${headers.get('authorization')} [${what} after ${reply.headMs}: ${items} ${reply.end}+${reply.endMs}]`;
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
