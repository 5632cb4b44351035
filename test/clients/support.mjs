/** A provider that does as it is told, and the built gateway in front of it. */

import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';

export const CLIENT_KEY = 'client-key';
export const PROVIDER_KEY = 'provider-key';
const MAIN = join(import.meta.dirname, '../../dist/server.js');
const STARTUP_MS = 10_000;
const cleanUp = [];

/** The members by which OpenRouter says what a model takes. */
const LIMITS = { context_length: 54_321, input_modalities: ['text', 'image'] };

/** A provider that has two models, of one with its limits, and leaves every chat to `onChat(response, body)`. */
export async function startUpstream(onChat) {
  const server = createServer(async (request, response) => {
    if (request.headers.authorization !== `Bearer ${PROVIDER_KEY}`) {
      sendError(response, 401, 'wrong key');
    } else if (request.url === '/v1/models') {
      const data = [
        { id: 'm', ...LIMITS },
        { id: 'vendor/n', context_length: null },
      ];
      sendJson(response, { object: 'list', data });
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

/**
 * The built gateway in front of it, as a process, its base URL and the access lines so far. `server` are further lines of its
 * section, `provider` those of the provider `p`.
 */
export async function startGateway(upstream, { server = '', provider: lines = '' } = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'gateway-clients-'));
  cleanUp.push(() => rmSync(folder, { recursive: true }));
  const provider = (id, more) =>
    `[providers.${id}]\nbase_url = "${upstream}"\napi_key = "${PROVIDER_KEY}"\n${more}\n`;
  writeFileSync(
    join(folder, 'gateway.toml'),
    [
      `[server]\nhost = "127.0.0.1"\nport = 0\n${server}`,
      `[server.auth]\nkeys = ["${CLIENT_KEY}"]`,
      '[aliases]\nfriendly = "p/m"',
      provider('p', lines),
      provider('slow', 'timeout = 1\nmodels = ["m"]'),
    ].join('\n'),
  );
  const child = spawn(process.execPath, [MAIN], {
    cwd: folder,
    // No keys of the machine's own: they would add providers.
    env: {},
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  cleanUp.push(() => child.kill('SIGKILL'));
  let log = '';
  child.stdout.setEncoding('utf8').on('data', (text) => (log += text));
  const accessLines = () =>
    log
      .split(/\n/)
      .slice(0, -1)
      .map((line) => JSON.parse(line))
      .filter(({ message }) => message === 'request');
  return { gateway: child, baseURL: await findAddress(child.stderr), accessLines };
}

/** nginx in front of a gateway, which it closes after 2 s of silence, and its base URL; undefined if there is no nginx. */
export async function startNginx(gatewayURL) {
  const program = ['/usr/sbin/nginx', '/usr/bin/nginx'].find((path) => existsSync(path));
  if (!program) return undefined;
  const folder = mkdtempSync(join(tmpdir(), 'gateway-nginx-'));
  cleanUp.push(() => rmSync(folder, { recursive: true }));
  const free = createServer().listen(0, '127.0.0.1');
  await once(free, 'listening');
  const { port } = free.address();
  free.close();
  await once(free, 'close');
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
  writeFileSync(
    join(folder, 'nginx.conf'),
    `daemon off; master_process off; pid ${folder}/pid; error_log stderr; events {}
    http {
      access_log off;
      ${temporary.map((name) => `${name}_temp_path ${join(folder, name)};`).join(' ')}
      server {
        listen 127.0.0.1:${port};
        location / {
          proxy_pass ${new URL(gatewayURL).origin};
          proxy_http_version 1.1;
          proxy_set_header Connection "";
          proxy_read_timeout 2s;
        }
      }
    }`,
  );
  const args = ['-e', 'stderr', '-p', folder, '-c', join(folder, 'nginx.conf')];
  const child = spawn(program, args, { stdio: 'ignore' });
  cleanUp.push(() => child.kill('SIGKILL'));
  const baseURL = `http://127.0.0.1:${port}/v1`;
  const deadline = performance.now() + STARTUP_MS;
  while (performance.now() < deadline) {
    if (await fetch(`http://127.0.0.1:${port}/health`).catch(() => undefined)) return baseURL;
    await sleep(50);
  }
  throw new Error('nginx did not start');
}

const OPENCODE = join(import.meta.dirname, 'node_modules/opencode-linux-x64/bin/opencode');
/** Why tests of opencode are skipped; false if they are not. */
export const NO_OPENCODE = existsSync(OPENCODE) ? false : 'opencode is installed on Linux x64 only';

/**
 * The models that opencode finds at the gateway, by their names. It asks for the list of its provider `modal` alone, so
 * the gateway stands in that one's place, in opencode's own file of providers.
 */
export async function opencodeModels(baseURL) {
  const folder = mkdtempSync(join(tmpdir(), 'gateway-opencode-'));
  cleanUp.push(() => rmSync(folder, { recursive: true }));
  const model = { id: 'x', name: 'x', limit: { context: 1, output: 1 } };
  const npm = '@ai-sdk/openai-compatible';
  const env = ['MODAL_PROXY_TOKEN'];
  const modal = { id: 'modal', name: 'x', env, npm, api: baseURL, models: { x: model } };
  const catalogue = join(folder, 'models.json');
  writeFileSync(catalogue, JSON.stringify({ modal }));
  const { stdout } = await promisify(execFile)(OPENCODE, ['models', 'modal', '--verbose'], {
    cwd: folder,
    env: {
      HOME: folder,
      MODAL_PROXY_TOKEN: CLIENT_KEY,
      OPENCODE_MODELS_PATH: catalogue,
      OPENCODE_DISABLE_MODELS_FETCH: '1',
      OPENCODE_DISABLE_AUTOUPDATE: '1',
    },
  });
  // A line with the name, and then the model as JSON.
  const models = stdout.split(/^modal\/.*$/m).slice(1);
  return new Map(models.map((json) => JSON.parse(json)).map((found) => [found.id, found]));
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

/** The chunk that has nothing but the tokens, if the request asks for it. */
export function usageEvent({ stream_options }) {
  if (!stream_options?.include_usage) return '';
  const usage = { prompt_tokens: 7, completion_tokens: 5, total_tokens: 12 };
  const chunk = { id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm' };
  return `data: ${JSON.stringify({ ...chunk, choices: [], usage })}\n\n`;
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
