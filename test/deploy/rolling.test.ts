/**
 * Two replicas of the built gateway behind nginx with deploy/nginx.conf, restarted in turn under
 * load. The full run is ROLLING_RESTARTS=20.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { get, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { chatBody, providerToml } from '../support/gateway.ts';
import {
  buildOnce,
  emptyFolder,
  freePort,
  startServing,
  type Program,
} from '../support/process.ts';
import { openChat } from '../support/streams.ts';
import {
  completion,
  completionEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
} from '../support/upstream.ts';
import { aroundServers, NGINX, nginxArguments, rewrite } from './proxies.ts';
import { getTool, runServer, type RunningServer, type Tool } from './tools.ts';

const IN_FLIGHT = 1000;
const RESTARTS = Number(process.env['ROLLING_RESTARTS'] ?? 8);
/** The time for an answer, if the machine is fast enough. */
const ANSWER_MS = { min: 800, max: 1200 };
const COMPLETION = JSON.stringify(completion());
const EVENTS = completionEvents();
// The role's event, and the first token's.
const FIRST_EVENTS = `${EVENTS.split('\n\n', 2).join('\n\n')}\n\n`;

/** Starts a slow provider. A stream's first event is sent at once. */
async function startSlowUpstream(t: TestContext): Promise<FakeUpstream> {
  const { min, max } = ANSWER_MS;
  return startUpstream(t, async ({ body }, response) => {
    const isStream = body.includes('"stream":true');
    if (isStream) {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(FIRST_EVENTS);
    }
    await sleep(min + (max - min) * Math.random());
    if (isStream) response.end(EVENTS.slice(FIRST_EVENTS.length));
    else sendJson(response, completion());
  });
}

/** Runs nginx with deploy/nginx.conf, without TLS. */
async function startNginx(
  t: TestContext,
  tool: Tool,
  port: number,
  [first, second]: readonly [number, number],
): Promise<RunningServer> {
  const folder = emptyFolder(t);
  const servers = rewrite('deploy/nginx.conf', {
    'listen 443 ssl;': `listen 127.0.0.1:${port};`,
    '  ssl_certificate /etc/nginx/tls/gateway.crt;\n': '',
    '  ssl_certificate_key /etc/nginx/tls/gateway.key;\n': '',
    '127.0.0.1:8080': `127.0.0.1:${first}`,
    '# server 127.0.0.1:8081': `server 127.0.0.1:${second}`,
  });
  writeFileSync(join(folder, 'nginx.conf'), aroundServers(folder, servers));
  return runServer(t, tool, nginxArguments(folder), port);
}

/** Keeps requests in flight, half of them streams, until `stop` is called. */
function startLoad(port: number) {
  const tally = { complete: 0, streamed: 0, lost: [] as string[] };
  let begun = 0;
  const state = { isOver: false };
  const ask = async () => {
    const user = `request-${(begun += 1)}`;
    const stream = begun % 2 === 0;
    const { response, ended } = openChat(port, chatBody({ stream, user }));
    try {
      const [{ statusCode }, text] = [await response, await ended];
      if (statusCode === 200 && text === (stream ? EVENTS : COMPLETION)) {
        tally[stream ? 'streamed' : 'complete'] += 1;
      } else {
        tally.lost.push(`${user}: ${statusCode} ${text}`);
      }
    } catch (error) {
      tally.lost.push(`${user}: ${(error as Error).message}`);
    }
  };
  const askUntilOver = async () => {
    do await ask();
    while (!state.isOver);
  };
  const clients = Array.from({ length: IN_FLIGHT }, askUntilOver);
  const stop = async () => {
    state.isOver = true;
    await Promise.all(clients);
    return { begun, ...tally };
  };
  return { answered: () => tally.complete + tally.streamed + tally.lost.length, stop };
}

/** Ends a replica with SIGTERM and starts the next on its port. Returns it when it is healthy. */
async function restart(
  { child, exit, stdout }: Program,
  start: () => Promise<Program & { readonly port: number }>,
) {
  child.kill('SIGTERM');
  assert.equal(await exit, 0);
  const stopped = JSON.parse(stdout().trimEnd().split('\n').at(-1)!) as Record<string, unknown>;
  assert.equal(stopped['message'], 'stopped');
  assert.equal(stopped['cut'], 0);
  const replica = await start();
  const health = get({ host: '127.0.0.1', port: replica.port, path: '/health', agent: false });
  const [response] = (await once(health, 'response')) as [IncomingMessage];
  response.resume();
  assert.equal(response.statusCode, 200);
  return { replica, finished: Number(stopped['finished']) };
}

test(
  'nginx: rolling restarts of two replicas lose none of 1,000 requests in flight',
  { timeout: 300_000 },
  async (t) => {
    const tool = getTool(t, 'nginx', NGINX);
    if (!tool) return;
    await buildOnce();
    const upstream = await startSlowUpstream(t);
    const server = `[server]\nhost = "127.0.0.1"\ntrusted_proxies = ["127.0.0.1"]\n`;
    const settings = `${server}${providerToml(upstream)}`;
    const cwd = emptyFolder(t, { 'gateway.toml': settings });
    const ports = [await freePort(), await freePort()] as const;
    const start = async (port: number) => startServing(t, ['--port', String(port)], { cwd });
    const replicas = await Promise.all(ports.map(start));
    const port = await freePort();
    const nginx = await startNginx(t, tool, port, ports);
    const load = startLoad(port);
    // Wait for the first burst, which may take as long as the machine needs.
    while (load.answered() < IN_FLIGHT) await sleep(20);
    let finishedInDrains = 0;
    const startedAt = performance.now();
    for (let index = 0; index < RESTARTS; index += 1) {
      const which = index % 2;
      const { replica, finished } = await restart(replicas[which]!, async () =>
        start(ports[which]!),
      );
      replicas[which] = replica;
      finishedInDrains += finished;
    }
    const seconds = Math.round((performance.now() - startedAt) / 1000);
    const { begun, complete, streamed, lost } = await load.stop();

    const users = upstream.requests.map(
      ({ body }) => (JSON.parse(body.toString()) as { user: string }).user,
    );
    const askedTwice = users.length - new Set(users).size;
    const count = (pattern: RegExp) => [...nginx.stderr().matchAll(pattern)].length;
    const refused = count(/Connection refused/g);
    const closed = count(/Connection reset by peer|prematurely closed/g);
    const figures = { seconds, begun, complete, streamed, finishedInDrains, refused, closed };
    t.diagnostic(JSON.stringify({ ...figures, lost: lost.length, askedTwice }));
    assert.deepEqual(lost.slice(0, 20), []);
    assert.equal(complete + streamed, begun);
    assert.ok(streamed > IN_FLIGHT && complete > IN_FLIGHT && finishedInDrains > IN_FLIGHT);
    assert.ok(refused > 0);
    assert.equal(askedTwice, 0);
  },
);
