/**
 * The files for nginx, Caddy and HAProxy, and the page's snippet, in front of the built gateway.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { get as httpGet, type IncomingMessage } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { join } from 'node:path';
import { text as textOf } from 'node:stream/consumers';
import { test, type TestContext } from 'node:test';

import { createCertificate, NO_OPENSSL, type Certificate } from '../support/certificate.ts';
import { chatBody, CLIENT_TOKEN, providerToml } from '../support/gateway.ts';
import { buildOnce, emptyFolder, freePort, ROOT, startServing } from '../support/process.ts';
import { createGate, eventually } from '../support/streams.ts';
import { completionEvents, startUpstream, type FakeUpstream } from '../support/upstream.ts';
import {
  applyChanges,
  aroundServers,
  IS_ROOT,
  NGINX,
  nginxArguments,
  PROXIES,
  settingsOf,
  type Proxy,
} from './proxies.ts';
import { getTool, runServer, runTool, type Tool } from './tools.ts';

const LIMITS = { timeout: 300_000 };
const ADMIN_KEY = 'admin-key-canary-1234567890';
/** Far below the proxies' and the gateway's limits. */
const SILENCE_MS = 15_000;
const LARGE_BYTES = 20 * 1024 * 1024;
const [ROLE = '', TOKEN = '', ...LATER_EVENTS] = completionEvents().split(/(?<=\n\n)/);
const FIRST_EVENTS = ROLE + TOKEN;

interface Front {
  readonly upstream: FakeUpstream;
  readonly ask: (path: string, body?: string, token?: string) => Promise<IncomingMessage>;
}

async function startFront(t: TestContext, proxy: Proxy, tool: Tool): Promise<Front> {
  await buildOnce();
  const upstream = await startUpstream(t);
  const settings = `${settingsOf(proxy.file)}${providerToml(upstream)}`;
  const cwd = emptyFolder(t, { 'gateway.toml': settings });
  const env = { GATEWAY_TOKEN: CLIENT_TOKEN };
  const gateway = await startServing(t, ['--port', '0'], { cwd, env });
  const certificate = createCertificate(t, ['IP:127.0.0.1']);
  const port = await freePort();
  const folder = emptyFolder(t);
  const { check, run } = proxy.configure({ folder, port, gatewayPort: gateway.port, certificate });
  // Caddy keeps its state in these folders.
  const contained = {
    ...tool,
    env: { ...tool.env, XDG_CONFIG_HOME: folder, XDG_DATA_HOME: folder },
  };
  const checked = runTool(contained, check);
  assert.equal(checked.code, 0, checked.output);
  const isWarning = (line: string) => /\[(?:warn|warning|alert)\]/i.test(line);
  assert.deepEqual(checked.output.split('\n').filter(isWarning), []);
  t.diagnostic(
    /^.*(?:is valid|is successful|Valid configuration)/m.exec(checked.output)?.[0] ?? '',
  );
  const { pid } = await runServer(t, contained, run, port);
  if (proxy.dropsRoot && IS_ROOT) {
    assert.doesNotMatch(readFileSync(`/proc/${pid}/status`, 'utf8'), /^[UG]id:\s.*\b0\b/m);
  }
  return {
    upstream,
    ask: async (path, body, token) => ask(port, certificate, { path, body, token }),
  };
}

interface Question {
  readonly path: string;
  readonly body?: string | undefined;
  readonly token?: string;
}

async function ask(port: number, { cert }: Certificate, { path, body, token }: Question) {
  const request = httpsRequest({
    host: '127.0.0.1',
    port,
    path,
    ca: cert,
    agent: false,
    method: body === undefined ? 'GET' : 'POST',
    headers: {
      authorization: `Bearer ${token ?? CLIENT_TOKEN}`,
      'content-type': 'application/json',
    },
  });
  request.setTimeout(SILENCE_MS, () => request.destroy(new Error('nothing comes')));
  request.end(body);
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  return response;
}

for (const proxy of PROXIES) {
  const title = `${proxy.name}: its file handles keys, events, large bodies and leaving clients`;
  test(title, { ...LIMITS, skip: NO_OPENSSL }, async (t) => {
    const tool = getTool(t, proxy.name, proxy.source);
    if (!tool) return;
    const front = await startFront(t, proxy, tool);
    assert.equal((await front.ask('/health')).statusCode, 200);
    assert.equal((await front.ask('/v1/models', undefined, 'another-token')).statusCode, 401);
    await passesEvents(front);
    await passesLargeBody(front);
    if (proxy.buffersRequests) await answersTooLarge(front);
    await noticesLeaving(front);
  });
}

const chat = async ({ ask: send }: Front, more: object) =>
  send('/v1/chat/completions', JSON.stringify(chatBody(more)));

/**
 * Checks that events pass one by one: the provider sends the rest when the client has the first.
 */
async function passesEvents(front: Front): Promise<void> {
  const gate = createGate();
  front.upstream.script = async (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(FIRST_EVENTS);
    await gate.opened;
    response.end(LATER_EVENTS.join(''));
  };
  const response = await chat(front, { stream: true });
  const [first] = (await once(response, 'data')) as [Buffer];
  assert.equal(first.toString(), FIRST_EVENTS);
  gate.open();
  assert.equal(await textOf(response), LATER_EVENTS.join(''));
}

async function passesLargeBody(front: Front): Promise<void> {
  front.upstream.script = (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.end(completionEvents());
  };
  const content = 'x'.repeat(LARGE_BYTES);
  const body = chatBody({ stream: true, messages: [{ role: 'user', content }] });
  const response = await front.ask('/v1/chat/completions', JSON.stringify(body));
  assert.equal(await textOf(response), completionEvents());
  const received = front.upstream.requests.at(-1)!.body;
  assert.ok(received.equals(Buffer.from(JSON.stringify({ ...body, model: 'm' }))));
}

/** Checks that the answer is the gateway's error object, and not the proxy's page. */
async function answersTooLarge(front: Front): Promise<void> {
  const content = 'x'.repeat(32 * 1024 * 1024);
  const body = chatBody({ messages: [{ role: 'user', content }] });
  const response = await front.ask('/v1/chat/completions', JSON.stringify(body));
  assert.equal(response.statusCode, 413);
  assert.match(await textOf(response), /^\{"error":\{"type":"invalid_request_error"/);
}

async function noticesLeaving(front: Front): Promise<void> {
  front.upstream.script = (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(FIRST_EVENTS);
  };
  const response = await chat(front, { stream: true });
  await once(response, 'data');
  let isTold = false;
  void front.upstream.requests.at(-1)!.closed.then(() => (isTold = true));
  response.destroy();
  await eventually(() => isTold, 'the provider is told that the client has left');
}

test(
  'nginx: the page and its feed work below a path, with the snippet of docs/page.md',
  LIMITS,
  async (t) => {
    const tool = getTool(t, 'nginx', NGINX);
    if (!tool) return;
    await buildOnce();
    const [port, adminPort] = [await freePort(), await freePort()];
    const toml = `[admin]\nport = ${adminPort}\nkeys = ["${ADMIN_KEY}"]\n`;
    const cwd = emptyFolder(t, { 'gateway.toml': toml });
    const env = { ANY_API_KEY: 'any' };
    await startServing(t, ['--host', '127.0.0.1', '--port', '0'], { cwd, env });
    const docs = readFileSync(join(ROOT, 'docs/page.md'), 'utf8');
    const [, snippet = ''] = /```nginx\n(.*?)```/s.exec(docs) ?? [];
    const location = applyChanges(snippet, { '127.0.0.1:8081': `127.0.0.1:${adminPort}` });
    const folder = emptyFolder(t);
    const servers = `server { listen 127.0.0.1:${port};\n${location}}`;
    writeFileSync(join(folder, 'nginx.conf'), aroundServers(folder, servers));
    await runServer(t, tool, nginxArguments(folder), port);
    const get = async (path: string) => {
      const headers = { authorization: `Bearer ${ADMIN_KEY}` };
      const options = { host: '127.0.0.1', port, path: `/gateway/${path}`, headers, agent: false };
      const [response] = (await once(httpGet(options), 'response')) as [IncomingMessage];
      return response;
    };
    const page = await get('');
    assert.equal(page.statusCode, 200);
    assert.match(await textOf(page), /^<!doctype html>/i);
    const events = await get('events');
    assert.equal(events.headers['content-type'], 'text/event-stream');
    await once(events, 'data');
    events.destroy();
  },
);
