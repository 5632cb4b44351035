/**
 * SIGTERM at a random moment, under load. The full run is DRAIN_ROUNDS=50 DRAIN_CONNECTIONS=200;
 * the latter counts the connections of each kind.
 */

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { before, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { assertErrorObject } from '../support/documented.ts';
import { parseReplies } from '../support/raw.ts';
import { chatBody, rawChat } from '../support/gateway.ts';
import { buildOnce, emptyFolder, startServing } from '../support/process.ts';
import { withRandom, type Random } from '../support/random.ts';
import { completion, completionEvents, sendJson, startUpstream } from '../support/upstream.ts';

const ROUNDS = Number(process.env['DRAIN_ROUNDS'] ?? 5);
const CONNECTIONS = Number(process.env['DRAIN_CONNECTIONS'] ?? 20);
const LOAD_MS = 400;
/** A shutdown_timeout exceeded by some streams. */
const SHORT_SECONDS = CONNECTIONS > 50 ? 5 : 1;
const COMPLETION = JSON.stringify(completion());

before(buildOnce);

/** The results on all connections. */
interface Tally {
  answered: number;
  streamed: number;
  /** Streams ended by the error event, and requests after the deadline. */
  ended: number;
  /** Includes connections made after the signal and closed without a byte. */
  refusedConnections: number;
  /** The gateway closed an idle connection as the client used it again. */
  closedWhileIdle: number;
  /** Everything that must not happen. */
  broken: string[];
}

interface Client {
  readonly name: string;
  readonly port: number;
  readonly stream: boolean;
  readonly tally: Tally;
  /** The ids of passed requests. */
  readonly seen: ReadonlySet<string>;
  /** Whether the signal has been sent. */
  readonly isDraining: () => boolean;
}

/** Sends requests in sequence on one connection until it is closed, and checks each answer. */
async function sendUntilClosed({ name, port, stream, tally, seen, isDraining }: Client) {
  return new Promise<void>((resolve) => {
    const socket = connect(port, '127.0.0.1');
    let connected: 'no' | 'before the signal' | 'after it' = 'no';
    let requests = 0;
    let text = '';
    const next = () => {
      text = '';
      requests += 1;
      socket.write(rawChat(chatBody({ stream }), [`x-request-id: ${name}-${requests}`]));
    };
    socket.on('connect', () => {
      connected = isDraining() ? 'after it' : 'before the signal';
      next();
    });
    socket.on('data', (chunk: Buffer) => {
      text += chunk.toString('latin1');
      const [reply, ...others] = parseReplies(text);
      if (!reply?.isWhole) return;
      if (others.length > 0) tally.broken.push(`${name}: two answers`);
      checkAnswer(reply.status, reply.body);
      text = '';
      if (reply.headers['connection'] === 'close') socket.end();
      else next();
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      const id = `${name}-${requests}`;
      if (!isDraining()) tally.broken.push(`${id}: closed before the signal`);
      const [cut] = parseReplies(text);
      // A failed stream has no last chunk.
      if (cut && endsInError(cut.body)) tally.ended += 1;
      else if (cut) tally.broken.push(`${id}: cut: ${text}`);
      else if (checked.has(id)) return resolve();
      else if (seen.has(id)) tally.broken.push(`${id}: passed on, no answer`);
      else if (requests > 1) tally.closedWhileIdle += 1;
      else if (connected === 'before the signal') tally.broken.push(`${id}: no answer at all`);
      else tally.refusedConnections += 1;
      resolve();
    });
    const checked = new Set<string>();
    const checkAnswer = (status: number, body: string) => {
      checked.add(`${name}-${requests}`);
      // The answer to a request after the drain's deadline.
      if (status === 500 && body.includes('shutting down')) tally.ended += 1;
      else if (status !== 200) tally.broken.push(`${name}: ${status} ${body}`);
      else if (!stream && body === COMPLETION) tally.answered += 1;
      else if (stream && body === completionEvents()) tally.streamed += 1;
      else if (stream && endsInError(body)) tally.ended += 1;
      else tally.broken.push(`${name}: ${body}`);
    };
  });
}

function endsInError(body: string): boolean {
  const at = body.indexOf('data: {"error"');
  if (at < 0 || !completionEvents().startsWith(body.slice(0, at))) return false;
  return assertErrorObject(body.slice(at + 'data: '.length)) !== '';
}

async function startUnderLoad(t: TestContext, random: Random, shutdownSeconds: number) {
  const seen = new Set<string>();
  const isShort = shutdownSeconds === SHORT_SECONDS;
  const upstream = await startUpstream(t, async ({ headers, body }, response) => {
    seen.add(String(headers['x-request-id']));
    if (!body.includes('"stream":true')) {
      await sleep(random.integer(0, 60));
      return sendJson(response, completion());
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const event of completionEvents().split(/(?<=\n\n)/)) {
      response.write(event);
      // Some streams are too long for any drain.
      await sleep(random.oneIn(50) && isShort ? 3000 * SHORT_SECONDS : random.integer(0, 60));
    }
    response.end();
  });
  const toml = [
    `[server]\nshutdown_timeout = ${shutdownSeconds}\n[logging]\nlevel = "error"`,
    `[providers.p]\nbase_url = "${upstream.baseUrl}"\napi_key = "none"\n`,
  ].join('\n');
  const cwd = emptyFolder(t, { 'gateway.toml': toml });
  const program = await startServing(t, ['--host', '127.0.0.1', '--port', '0'], { cwd });
  const tally: Tally = {
    answered: 0,
    streamed: 0,
    ended: 0,
    refusedConnections: 0,
    closedWhileIdle: 0,
    broken: [],
  };
  let isDraining = false;
  const clients: Promise<void>[] = [];
  const begin = (stream: boolean) => {
    const name = `${stream ? 's' : 'c'}${clients.length}`;
    const { port } = program;
    const client = { name, port, stream, tally, seen, isDraining: () => isDraining };
    clients.push(sendUntilClosed(client));
  };
  const stop = () => {
    isDraining = true;
    program.child.kill('SIGTERM');
  };
  return { ...program, upstream, tally, clients, begin, stop };
}

test(
  'SIGTERM at any moment breaks no answer, and every stream shows how it ended',
  { timeout: 170_000 },
  async (t) => {
    const sum = { answered: 0, streamed: 0, ended: 0, refusedConnections: 0, closedWhileIdle: 0 };
    const broken: string[] = [];
    await withRandom(async (random) => {
      for (let round = 0; round < ROUNDS; round += 1) {
        const loaded = await startUnderLoad(t, random, random.oneIn(4) ? SHORT_SECONDS : 20);
        const { tally, clients, begin, stop, exit, stderr } = loaded;
        for (let i = 0; i < CONNECTIONS; i += 1) for (const stream of [true, false]) begin(stream);
        await sleep(random.integer(0, LOAD_MS));
        // Clients connecting around the signal are served or refused.
        const late = setInterval(() => begin(clients.length % 2 === 0), 2);
        await sleep(random.integer(0, 20));
        stop();
        await sleep(random.integer(0, 40));
        clearInterval(late);
        assert.equal(await exit, 0, `round ${round}: ${stderr()}`);
        await Promise.all(clients);
        broken.push(
          ...tally.broken.map(
            (what) => `round ${round}: ${what.slice(0, 200)} … ${what.slice(-200)}`,
          ),
        );
        for (const name of Object.keys(sum) as (keyof typeof sum)[]) sum[name] += tally[name];
      }
      const figures = JSON.stringify({ ...sum, broken: broken.length });
      t.diagnostic(`${ROUNDS} rounds of ${CONNECTIONS} + ${CONNECTIONS} connections: ${figures}`);
      assert.equal(broken.length, 0, `${figures}\n${broken.slice(0, 20).join('\n')}`);
      assert.ok(sum.answered > 0 && sum.streamed > 0);
    });
  },
);
