/** Rare scenes, applied to a finished plan, so all other worlds keep their plans. */

import { createRandom, type Random } from '../support/random.ts';
import { BROKEN_HEADS } from './dialects.ts';
import type { Ask, Item, Plan, Reply } from './plan.ts';
import { aList, anErrorStatus, answerWell, time } from './replies.ts';

type Scene = (plan: Plan, random: Random) => Plan;

export function withScene(plan: Plan): Plan {
  const random = createRandom(plan.seed ^ 0x7feb352d);
  return random.oneIn(2) ? random.pick(SCENES)(plan, random) : plan;
}

/** Makes each value at its first use, because few providers are asked. */
export function lazily<T>(
  names: readonly string[],
  random: Random,
  make: (own: Random, name: string) => T,
): Readonly<Record<string, T>> {
  const values: Record<string, T> = {};
  for (const name of names) {
    const seed = random.integer(0, 2 ** 31);
    let made: T | undefined;
    const get = () => (made ??= make(createRandom(seed), name));
    Object.defineProperty(values, name, { get, enumerable: true });
  }
  return values;
}

function withAsks(plan: Plan, change: (ask: Ask) => Ask): Plan {
  const connections = plan.connections.map((one) => ({ ...one, asks: one.asks.map(change) }));
  return { ...plan, connections };
}

function withReplies(plan: Plan, random: Random, change: (reply: Reply, own: Random) => Reply) {
  return withAsks(plan, (ask) => {
    const make = (own: Random, id: string) => ask.replies[id]!.map((one) => change(one, own));
    return { ...ask, replies: lazily(Object.keys(ask.replies), random, make) };
  });
}

/** Returns a request for the list of models, from the same client at the same time. */
export function toList(ask: Ask): Ask {
  const names = ['content-type', 'expect', 'traceparent', 'tracestate'];
  const headers = ask.headers.filter(([name]) => !names.includes(name));
  const plain = { body: undefined, chat: undefined, isChunked: false, cuts: [], replies: {} };
  return { ...ask, method: 'GET', path: '/v1/models', version: '1.1', headers, ...plain };
}

/** Many clients ask for the models, and keys are refused. */
const lists: Scene = (plan, random) => {
  const { providers } = plan.settings;
  const ofProvider = () => Array.from({ length: 6 }, () => aList(random, [401, 403, 404, 429]));
  const asking = withAsks(plan, (ask) => (random.oneIn(2) ? ask : toList(ask)));
  return { ...asking, lists: Object.fromEntries(providers.map(({ id }) => [id, ofProvider()])) };
};

/** Kept connections turn out to be closed. */
const stale: Scene = (plan, random) =>
  withReplies(plan, random, (reply, own) => {
    if (own.oneIn(2)) return reply;
    return { ...reply, connection: 'reused', headMs: 2.3, fault: 'stale', items: [], rest: '' };
  });

/** Answers are too long to be parsed whole. */
const long: Scene = (plan, random) => {
  if (plan.settings.server.max_buffered_bytes !== undefined) return plan;
  const pad = JSON.stringify([{ x: 'y'.repeat(270_000), finish_reason: 'no', usage: {} }]);
  return withReplies(plan, random, (reply, own) => {
    const [only, ...others] = reply.items;
    const text = only?.text.trim() ?? '';
    const isWhole = reply.end === 'end' && reply.status < 300 && others.length === 0;
    if (!isWhole || only?.kind !== 'json' || !/^\{".*\}$/s.test(text) || !own.oneIn(4))
      return reply;
    const inFront = `{"pad":${pad},${text.slice(1)}`;
    const behind = `${text.slice(0, -1)},"pad":${pad}}`;
    const cut = { at: own.integer(1, 300_000), waitMs: time(own, 0, 20) };
    const items: Item[] = [{ ...only, text: own.pick([inFront, behind]), cut }];
    const error: Item = { kind: 'error', text: `{"error":{"code":429},"pad":${pad}}`, waitMs: 0.3 };
    const failed = { ...error, error: { status: 429 } };
    return { ...reply, items: own.oneIn(6) ? [failed] : items };
  });
};

/** The process drains while clients keep their connections. */
const drain: Scene = (plan, random) => {
  const ends = plan.connections.map(({ asks, atMs }) =>
    asks.reduce((sum, one) => sum + one.afterMs, atMs),
  );
  const atMs = 1 + Math.round(random.next() * Math.max(...ends) * 1000) / 1000;
  const others = plan.incidents.filter(({ kind }) => kind !== 'drain');
  const one = { atMs, kind: 'drain', timeoutMs: 25_000, delayMs: random.pick([0, 700]) } as const;
  return { ...plan, incidents: [...others, one].toSorted((a, b) => a.atMs - b.atMs) };
};

/** Some clients send bytes other than HTTP. */
const broken: Scene = (plan, random) =>
  withAsks(plan, (ask) => {
    if (!random.oneIn(5)) return ask;
    const text = random.pick(BROKEN_HEADS);
    const plain = { chat: undefined, body: undefined, isChunked: false, replies: {}, cuts: [] };
    return { ...ask, path: '/broken', method: 'GET', ...plain, broken: text };
  });

/** Clients send a body slowly, or stop in it. Some bodies are refused before they have come. */
const uploads: Scene = (plan, random) =>
  withAsks(plan, (ask) => {
    if (ask.body === undefined || !random.oneIn(3)) return ask;
    const isRefused = random.oneIn(2);
    const headers = ask.headers.map(([name, value]) => {
      return [name, isRefused && name === 'authorization' ? 'Basic x' : value] as const;
    });
    const bytes = 300 + ask.body.length;
    const waits = random.pick([[7000], [31_000], [2000, 4500], Array<number>(45).fill(900)]);
    const cuts = waits.map((waitMs, index) => ({
      at: bytes + index,
      waitMs: time(random, waitMs, waitMs + 9),
    }));
    return { ...ask, headers, cuts: isRefused ? cuts : ask.cuts };
  });

/**
 * `a` fails and rests, and then begins streams longer than its rest, whose second data comes after
 * almost or exactly ten seconds.
 */
const probes: Scene = (plan, random) => {
  const { settings } = plan;
  const limits = { stream_keepalive: 0, stream_idle_timeout: 30, first_token_timeout: undefined };
  const fallback = settings.providers.map(({ id }) => id);
  const server = { ...settings.server, ...limits, timeout: 5 };
  const whole = answerWell({ id: 'p', chat: { model: '', isStream: true, asksForUsage: false } });
  const waits = [random.pick([9999.5, 10_000, 10_000]), 3000, ...Array<number>(9).fill(1000)];
  const [begin, ...rest] = whole.items;
  const items = [begin!, ...waits.map((waitMs) => ({ ...begin!, waitMs })), ...rest];
  const toMs = time(random, 3000, 9000);
  const fails: Reply = { ...anErrorStatus(random, [502, 503]), end: 'end' };
  const outages = [
    { provider: 'a', fromMs: 0, toMs, reply: fails },
    { provider: 'a', fromMs: 0, toMs: Infinity, reply: { ...whole, items } },
  ];
  return { ...plan, settings: { ...settings, server, fallback }, outages, incidents: [] };
};

const SCENES: readonly Scene[] = [lists, stale, long, drain, broken, uploads, probes];
