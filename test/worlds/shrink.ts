/**
 * Makes a failing world smaller while the same check fails: fewer requests, plainer settings and
 * replies.
 */

import { check } from './checks.ts';
import { PLAIN_SETTINGS } from './generate.ts';
import type { Ask, Plan, ProviderSettings, Settings } from './plan.ts';
import { runWorld } from './world.ts';

const MAX_RUNS = 600;

/** Returns a world's problems: those of its checks, or the thrown error. */
export async function problemsOf(plan: Plan): Promise<string[]> {
  try {
    return check(plan, await runWorld(plan));
  } catch (error) {
    return [`thrown: ${String((error as Error).stack)}`];
  }
}

const nameOf = (problem = '') => problem.split(':', 1)[0]!;

/** Returns the smallest failing plan found. */
export async function shrink(plan: Plan): Promise<Plan> {
  const name = nameOf((await problemsOf(plan))[0]);
  let smallest = plan;
  let runs = 0;
  for (let hasChanged = true; hasChanged && runs < MAX_RUNS;) {
    hasChanged = false;
    for (const smaller of smallerPlans(smallest)) {
      runs += 1;
      if (runs > MAX_RUNS) break;
      const problems = await problemsOf(smaller);
      if (!problems.some((problem) => nameOf(problem) === name)) continue;
      smallest = smaller;
      hasChanged = true;
      break;
    }
  }
  return smallest;
}

function* without<T>(list: readonly T[]): Generator<T[]> {
  if (list.length > 3) {
    const half = list.length >> 1;
    yield list.slice(half);
    yield list.slice(0, half);
  }
  for (const index of list.keys()) yield list.toSpliced(index, 1);
}

function* smallerPlans(plan: Plan): Generator<Plan> {
  for (const connections of without(plan.connections)) yield { ...plan, connections };
  for (const incidents of without(plan.incidents)) yield { ...plan, incidents };
  for (const outages of without(plan.outages)) yield { ...plan, outages };
  for (const [index, connection] of plan.connections.entries()) {
    const replace = (asks: readonly Ask[]) => ({
      ...plan,
      connections: plan.connections.with(index, { ...connection, asks }),
    });
    for (const asks of without(connection.asks)) yield replace(asks);
    for (const [at, ask] of connection.asks.entries()) {
      for (const plainer of plainerAsks(ask)) yield replace(connection.asks.with(at, plainer));
    }
  }
  for (const settings of plainerSettings(plan.settings)) yield { ...plan, settings };
}

function* plainerAsks(ask: Ask): Generator<Ask> {
  if (ask.cuts.length > 0) yield { ...ask, cuts: [] };
  if (ask.pause) yield { ...ask, pause: undefined };
  if (ask.leaves) yield { ...ask, leaves: undefined };
  if (ask.isChunked) yield { ...ask, isChunked: false };
  if (ask.isPipelined) yield { ...ask, isPipelined: false };
  if (ask.version === '1.0') yield { ...ask, version: '1.1' };
  if (Object.keys(ask.replies).length > 0) yield { ...ask, replies: {} };
  for (const [id, replies] of Object.entries(ask.replies)) {
    yield { ...ask, replies: { ...ask.replies, [id]: [] } };
    if (replies.length > 1)
      yield { ...ask, replies: { ...ask.replies, [id]: replies.slice(0, -1) } };
  }
}

function* plainerSettings(settings: Settings): Generator<Settings> {
  for (const [name, plain] of Object.entries(PLAIN_SETTINGS)) {
    if (name === 'providers') continue;
    const own = settings[name as keyof Settings];
    if (JSON.stringify(own) !== JSON.stringify(plain)) yield { ...settings, [name]: plain };
  }
  for (const providers of without(settings.providers)) {
    if (providers.length > 0) yield { ...settings, providers };
  }
  const [plain] = PLAIN_SETTINGS.providers;
  for (const [index, provider] of settings.providers.entries()) {
    const names = Object.keys(provider) as (keyof ProviderSettings)[];
    for (const name of names.filter((one) => one !== 'id')) {
      if (JSON.stringify(provider[name]) === JSON.stringify(plain![name])) continue;
      const plainer = { ...provider, [name]: plain![name] };
      yield { ...settings, providers: settings.providers.with(index, plainer) };
    }
  }
}
