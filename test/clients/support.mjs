/** A provider that does as it is told, and the built gateway in front of it. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const CLIENT_KEY = 'client-key';
export const PROVIDER_KEY = 'provider-key';
const MAIN = join(import.meta.dirname, '../../dist/server.js');
const STARTUP_MS = 10_000;
const cleanUp = [];

/** A provider that has two models and leaves every chat to `onChat(response, body)`. */
export async function startUpstream(onChat) {
  const server = createServer(async (request, response) => {
    if (request.headers.authorization !== `Bearer ${PROVIDER_KEY}`) {
      sendError(response, 401, 'wrong key');
    } else if (request.url === '/v1/models') {
      sendJson(response, { object: 'list', data: [{ id: 'm' }, { id: 'vendor/n' }] });
    } else {
      onChat(response, JSON.parse(Buffer.concat(await request.toArray()).toString()));
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  cleanUp.push(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${server.address().port}/v1`;
}

/** The built gateway in front of it, as a process, and its base URL. */
export async function startGateway(upstream) {
  const folder = mkdtempSync(join(tmpdir(), 'gateway-clients-'));
  cleanUp.push(() => rmSync(folder, { recursive: true }));
  const provider = (id, more) =>
    `[providers.${id}]\nbase_url = "${upstream}"\napi_key = "${PROVIDER_KEY}"\n${more}\n`;
  writeFileSync(
    join(folder, 'gateway.toml'),
    [
      '[server]\nhost = "127.0.0.1"\nport = 0',
      `[server.auth]\nkeys = ["${CLIENT_KEY}"]`,
      '[aliases]\nfriendly = "p/m"',
      provider('p', ''),
      provider('slow', 'timeout = 1\nmodels = ["m"]'),
    ].join('\n'),
  );
  const child = spawn(process.execPath, [MAIN], {
    cwd: folder,
    // No keys of the machine's own: they would add providers.
    env: {},
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  cleanUp.push(() => child.kill('SIGKILL'));
  return { gateway: child, baseURL: await findAddress(child.stderr) };
}

export async function stopAll() {
  for (const undo of cleanUp.toReversed()) await undo();
}

async function findAddress(stderr) {
  const timer = setTimeout(() => stderr.destroy(), STARTUP_MS);
  let text = '';
  for await (const part of stderr.iterator({ destroyOnReturn: false })) {
    text += part;
    const [, url] = /listening\s+(http:\S+)\n/.exec(text) ?? [];
    if (!url) continue;
    clearTimeout(timer);
    stderr.resume();
    return url;
  }
  throw new Error(`the gateway did not start: ${text}`);
}

export function completion(message = { content: 'Hello there' }, finish_reason = 'stop') {
  return {
    id: 'chatcmpl-1',
    object: 'chat.completion',
    created: 1,
    model: 'm',
    choices: [
      {
        index: 0,
        message: { role: 'assistant', ...message },
        finish_reason,
      },
    ],
    usage: { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 },
  };
}

export function chunkEvent(delta, finish_reason = null) {
  const choices = [{ index: 0, delta, finish_reason }];
  const chunk = { id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm', choices };
  return `data: ${JSON.stringify(chunk)}\n\n`;
}

export function errorEvent(message, code) {
  return `data: ${JSON.stringify({ error: { message, code } })}\n\n`;
}

export function sendJson(response, body, status = 200, headers = {}) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

export function sendError(response, status, message, headers) {
  sendJson(response, { error: { message } }, status, headers);
}

/** A stream that has said its text and is not over. */
export function startEvents(response, words = ['Hello', ' there']) {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.flushHeaders();
  for (const content of words) response.write(chunkEvent({ role: 'assistant', content }));
  return response;
}
