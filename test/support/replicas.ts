/** Gateways as processes with a shared rate limit store, and clients to keep them busy. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { Agent } from 'node:http';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { parseMetrics, type Metrics } from './exposition.ts';
import { openFeed } from './feed.ts';
import { chatBody, CLIENT_TOKEN, providerToml, send, type Reply } from './gateway.ts';
import { buildOnce, emptyFolder, SERVER, startServing, type Serving } from './process.ts';
import { isRedisMissing, startRedis, type RedisServer } from './redis-server.ts';
import { eventually } from './streams.ts';
import { completion, completionEvents, sendJson, startUpstream, type Script } from './upstream.ts';

/**
 * How long a gateway waits for the store: longer than a busy machine delays it, but short enough
 * for tests.
 */
export const PATIENT_MS = 2000;
export const AWAY = 'incident';
export const BACK = 'incident ended';

export const PASSWORD = 'store-password-canary-192837465';

/** Returns the store's line in `[rate_limit]`. */
export function storeUrl({ port }: Pick<RedisServer, 'port'>, password = PASSWORD): string {
  return `store = "redis://:${password}@127.0.0.1:${port}/0"`;
}

/**
 * Copies the built program with `answerMs` as its limit for the store's replies, because a busy
 * machine delays them.
 */
export async function programWaiting(t: TestContext, answerMs: number): Promise<string> {
  await buildOnce();
  const [before, after, ...others] = readFileSync(SERVER, 'utf8').split('ANSWER_MS = 50;');
  assert.ok(before !== undefined && after !== undefined && others.length === 0);
  const folder = emptyFolder(t, { 'server.mjs': `${before}ANSWER_MS = ${answerMs};${after}` });
  return join(folder, 'server.mjs');
}

export interface Replica extends Serving {
  readonly metrics: () => Promise<Metrics>;
  /** Returns the admin listener's answer on this path. */
  readonly admin: (path: string) => Promise<string>;
  readonly adminPort: number;
  readonly settingsFile: string;
}

/** Defines a test with a password-protected Redis. It is skipped if none is installed. */
export function testWithRedis(
  title: string,
  body: (t: TestContext, redis: RedisServer) => Promise<void>,
  password = PASSWORD,
): void {
  void test(title, { timeout: 300_000 }, async (t) => {
    if (isRedisMissing(t)) return;
    await body(t, await startRedis(t, { password }));
  });
}

/**
 * Starts a gateway with these settings and an admin listener. `script` replaces the built program.
 */
export async function startReplica(
  t: TestContext,
  toml: string,
  script?: string,
): Promise<Replica> {
  const cwd = emptyFolder(t, { 'gateway.toml': `${toml}\n[admin]\nport = 0\n` });
  const args = ['--host', '127.0.0.1', '--port', '0'];
  const program = await startServing(t, args, { cwd, ...(script ? { script } : {}) });
  const { lines } = program;
  await eventually(() => lines('started').length === 1, 'the start');
  const adminUrl = lines('started')[0]!['admin_url'] as string;
  const admin = async (path: string) => (await fetch(new URL(path, adminUrl))).text();
  return {
    ...program,
    // Leaves out other incidents than the store's.
    lines: (...messages) => lines(...messages).filter(({ kind = 'store' }) => kind === 'store'),
    admin,
    adminPort: Number(new URL(adminUrl).port),
    metrics: async () => parseMetrics(await admin('/metrics')),
    settingsFile: join(cwd, 'gateway.toml'),
  };
}

/** Answers a stream in pieces, and any other request at once. */
export const answerChat: Script = async ({ body }, response) => {
  if (!body.includes('"stream":true')) return sendJson(response, completion());
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  for (const event of completionEvents().split(/(?<=\n\n)/)) {
    response.write(event);
    await sleep(2);
  }
  response.end();
};

const COMPLETE = JSON.stringify(completion());
const STREAMED = completionEvents();

export interface Chat {
  readonly model?: string;
  readonly token?: string;
  readonly stream?: boolean;
  readonly agent?: Agent;
}

/** Sends a chat completion. Rejects unless a whole answer arrives. */
export async function chat(port: number, options: Chat = {}): Promise<Reply> {
  const { model = 'p/m', token = CLIENT_TOKEN, stream = false, agent } = options;
  const body = JSON.stringify(chatBody({ model, stream }));
  const headers = {
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(body)),
  };
  const more = agent ? { agent } : {};
  return send(port, '/v1/chat/completions', { method: 'POST', headers, body, ...more });
}

/** Returns undefined for a whole completion, and any other answer as a text. */
function faultOf({ status, text }: Reply, stream: boolean): string | undefined {
  if (status === 200 && text === (stream ? STREAMED : COMPLETE)) return undefined;
  return `${status} ${text}`;
}

/** Opens agents with one connection each. */
function openAgents(count: number): Agent[] {
  return Array.from({ length: count }, () => new Agent({ keepAlive: true, maxSockets: 1 }));
}

function closeAgents(agents: readonly Agent[]): void {
  for (const agent of agents) agent.destroy();
}

const CONNECTIONS = 25;
const LOAD_CONNECTIONS = 12;

/**
 * Sends the requests over 25 connections to each port. Returns how many each port passed; the limit
 * must have refused the rest.
 */
export async function countPassed(
  ports: readonly number[],
  chats: readonly Chat[],
): Promise<number[]> {
  const waiting = chats.values();
  return Promise.all(
    ports.map(async (port) => {
      let passed = 0;
      const work = async (agent: Agent) => {
        for (const options of waiting) {
          const reply = await chat(port, { ...options, agent });
          const fault = faultOf(reply, options.stream ?? false);
          if (!fault) passed += 1;
          else assert.equal(reply.status, 429, fault);
        }
      };
      const agents = openAgents(CONNECTIONS);
      await Promise.all(agents.map(work)).finally(() => closeAgents(agents));
      return passed;
    }),
  );
}

export interface Load {
  /** All answers except whole completions. */
  readonly faults: readonly string[];
  /** Resolves when each connection has finished a request begun after this call. */
  rounds(): Promise<void>;
  stop(): Promise<void>;
}

/** Sends complete and streamed requests over 12 connections, in sequence on each. */
export function startLoad(t: TestContext, port: number): Load {
  const faults: string[] = [];
  const answered = Array.from({ length: LOAD_CONNECTIONS }, () => 0);
  const state = { isOver: false };
  const work = async (agent: Agent, index: number) => {
    while (!state.isOver) {
      const stream = (index + answered[index]!) % 2 === 0;
      const fault = await chat(port, { stream, agent }).then(
        (reply) => faultOf(reply, stream),
        (error: Error) => `no answer: ${error.message}`,
      );
      if (fault) faults.push(fault);
      answered[index]! += 1;
      await sleep(10);
    }
  };
  const agents = openAgents(LOAD_CONNECTIONS);
  const senders = agents.map(work);
  t.after(() => {
    state.isOver = true;
    closeAgents(agents);
  });
  return {
    faults,
    async rounds() {
      const before = [...answered];
      // The request in flight began before this call.
      const isDone = () => answered.every((count, index) => count >= before[index]! + 2);
      await eventually(isDone, 'two answers on each connection');
    },
    async stop() {
      state.isOver = true;
      await Promise.all(senders);
    },
  };
}

/** Limits beyond reach, so each request asks the store twice. */
const WIDE = 'requests_per_second = 1000000\nburst_capacity = 1000000\n';

/** The settings for a provider, wide limits and a store. */
export function wideToml(store: string, { baseUrl }: { readonly baseUrl: string }): string {
  const limits = `[rate_limit]\nenabled = true\n${WIDE}${store}\n[rate_limit.providers.p]\n${WIDE}`;
  return `[server]\nshutdown_timeout = 600\n${limits}${providerToml({ baseUrl })}`;
}

/** Starts a gateway with this store, and its upstream. */
export async function startWithStore(
  t: TestContext,
  redis: Pick<RedisServer, 'port'>,
  script?: string,
) {
  const upstream = await startUpstream(t, answerChat);
  return await startReplica(t, wideToml(storeUrl(redis), upstream), script);
}

/** Returns the store's metrics. */
export async function readStore({ metrics }: Replica): Promise<{ up: number; fallbacks: number }> {
  const { sum } = await metrics();
  return {
    up: sum('gateway_rate_limit_store_up'),
    fallbacks: sum('gateway_rate_limit_store_fallbacks_total'),
  };
}

/** Waits until the metrics show the store as up or down. */
export async function untilStoreIs(up: 0 | 1, replica: Replica): Promise<void> {
  const isSo = async () => {
    await sleep(50);
    return (await readStore(replica)).up === up;
  };
  await eventually(isSo, `a store that is ${up === 1 ? 'there' : 'away'}`);
}

/** Checks that no output, log line or admin answer shows the store's URL or password. */
export async function assertSecretKept(
  t: TestContext,
  { stdout, stderr, admin, adminPort }: Replica,
) {
  const feed = await openFeed(t, adminPort);
  const events = [await feed.next('settings'), await feed.next('state')];
  feed.close();
  const shown = [stdout(), stderr(), JSON.stringify(events)];
  for (const path of ['/', '/metrics', '/ready']) shown.push(await admin(path));
  assert.match(shown.join(), /\["rate_limit.store","\[secret\]"\]/);
  for (const text of shown) assert.ok(!/redis:|store-password/i.test(text), text);
}
