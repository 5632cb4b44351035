/** Plays cases against a gateway. */

import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

import { slowDown, type Case, type Client, type Step } from './case.ts';
import { sendRequests, type Gateway } from './client.ts';
import { ENDPOINTS, endpointOf } from './endpoints.ts';
import type { Provider, ProviderRequest, Role } from './provider.ts';
import { judge } from './rules.ts';

const LIMIT_SECONDS = 15;
/** What a gateway may still send to the provider after its answer. */
const SETTLE_MS = 200;
/** How long a client that leaves waits for the provider's turn. */
const PROVIDER_WAITS_MS = 5000;
const GONE_WITHIN_MS = 4000;
const RECOVERY_SECONDS = 60;
const RECOVERY_PAUSE_MS = 500;
/** The statuses by which a gateway says that it does not serve a path. */
const NOT_SERVED: readonly number[] = [404, 405, 501];

export interface Result {
  readonly result: 'pass' | 'fail' | 'not tried';
  /** What was seen, in a line. */
  readonly seen: string;
}

interface Setup {
  readonly gateway: Gateway;
  readonly provider: Provider;
  readonly providerPort: number;
  /** How long the gateway may refuse good requests before a case is given up; 60 by default. */
  readonly recoverySeconds?: number;
  /** What all times are multiplied by, because a busy machine needs more; 1 by default. */
  readonly slowness?: number;
}

export interface PlayOptions {
  /** How many cases run at the same time. */
  readonly atOnce: number;
  /** Told of each result as it comes. */
  readonly onResult?: (one: Case, result: Result) => void;
}

/**
 * Plays cases. Those that close the provider's port are played one by one, after all others.
 * Returns the results by the cases' ids.
 */
export async function playCases(
  cases: readonly Case[],
  setup: Setup,
  { atOnce, onResult }: PlayOptions,
): Promise<Map<string, Result>> {
  const results = new Map<string, Result>();
  const play = async (one: Case) => {
    const result = await playCase(slowDown(one, setup.slowness ?? 1), setup);
    results.set(one.id, result);
    onResult?.(one, result);
  };
  const alone = cases.filter(({ provider }) => provider === 'down');
  const queue = cases.filter((one) => !alone.includes(one));
  const runNext = async () => {
    for (let one = queue.shift(); one; one = queue.shift()) await play(one);
  };
  await Promise.all(Array.from({ length: atOnce }, runNext));
  for (const one of alone) await play(one);
  return new Map(cases.map(({ id }) => [id, results.get(id)!]));
}

/** Plays a case on connections of its own, once the gateway answers a good request. */
async function playCase(one: Case, setup: Setup): Promise<Result> {
  if (one.needs_own_key && setup.gateway.isKeyless)
    return { result: 'not tried', seen: 'clients send the key of the provider' };
  const { gateway, provider, providerPort, slowness = 1 } = setup;
  const { endpoint } = one.client;
  const obstacle = await findObstacle(setup, endpoint === undefined ? {} : { endpoint });
  if (obstacle !== undefined) return { result: 'not tried', seen: obstacle };
  const token = createToken();
  const stage = createRole(one, slowness);
  const stop = provider.play(token, stage.role);
  if (one.provider === 'down') await provider.close();
  const limitSeconds = one.limit_seconds ?? LIMIT_SECONDS * slowness;
  const deadlineAtMs = performance.now() + limitSeconds * 1000;
  const { providerWaits } = stage;
  const exchanges = await sendRequests(gateway, one.client, {
    token,
    deadlineAtMs,
    slowness,
    providerWaits,
  });
  if (one.client.leaves) await stage.providerIsLeft(GONE_WITHIN_MS * slowness);
  else if (one.provider_sees) await sleep(SETTLE_MS * slowness);
  stop();
  if (one.provider === 'down') await provider.listen(providerPort);
  const { role } = stage;
  const other = role.requests.find(({ message }) => endpointOf(message.start) !== role.endpoint);
  if (other) return { result: 'not tried', seen: `the provider gets ${other.message.start}` };
  const seen = { exchanges, role, clientKey: gateway.key, token, providerPort };
  const { isPassed, seen: line } = judge(one, seen);
  return { result: isPassed ? 'pass' : 'fail', seen: line };
}

const createToken = () => `truth-token-${randomBytes(6).toString('hex')}`;

/** Creates the provider's role in a case, with waits for what happens there. */
function createRole({ client, provider }: Case, slowness: number) {
  const requests: ProviderRequest[] = [];
  const listeners = new Set<() => void>();
  const until = (condition: () => boolean, limitMs: number) =>
    new Promise<void>((resolve) => {
      const check = () => {
        if (!condition()) return;
        finish();
      };
      const finish = () => {
        clearTimeout(timer);
        listeners.delete(check);
        resolve();
      };
      const timer = setTimeout(finish, limitMs);
      listeners.add(check);
      check();
    });
  const lists = provider === 'down' ? [] : provider;
  const isList = (steps: (typeof lists)[number]): steps is readonly Step[] => Array.isArray(steps);
  const stepsOf = (place: number): readonly Step[] => {
    const steps = lists[Math.min(place, lists.length - 1)];
    return steps !== undefined && isList(steps) ? steps : (lists as readonly Step[]);
  };
  const role: Role = {
    stepsOf,
    endpoint: ENDPOINTS[client.endpoint ?? 'chat'],
    slowness,
    requests,
    elsewhere: [],
    onChange: () => listeners.forEach((listener) => listener()),
  };
  return {
    role,
    providerWaits: () =>
      until(
        () => requests.some(({ waitsSinceMs }) => waitsSinceMs !== undefined),
        PROVIDER_WAITS_MS * slowness,
      ),
    providerIsLeft: (limitMs: number) =>
      until(() => requests.every(({ goneAtMs }) => goneAtMs !== undefined), limitMs),
  };
}

/**
 * Sends good requests until one is answered well. Returns why none is: the gateway does not serve
 * the endpoint, or refuses for too long.
 */
async function findObstacle(setup: Setup, client: Client): Promise<string | undefined> {
  const { gateway, recoverySeconds = RECOVERY_SECONDS, slowness = 1 } = setup;
  const endsAtMs = performance.now() + recoverySeconds * 1000;
  for (;;) {
    const limitMs = LIMIT_SECONDS * slowness * 1000;
    const deadlineAtMs = Math.min(endsAtMs, performance.now() + limitMs);
    const stage = { token: 'good', deadlineAtMs, slowness, providerWaits: async () => {} };
    const [exchange] = await sendRequests(gateway, client, stage);
    const message = exchange?.messages[0];
    if (message?.isWhole && message.status === 200) return undefined;
    if (message && NOT_SERVED.includes(message.status))
      return `a good request is answered with ${message.status}`;
    if (performance.now() > endsAtMs) return `good requests failed for ${recoverySeconds} s before`;
    await sleep(RECOVERY_PAUSE_MS);
  }
}
