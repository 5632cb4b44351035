/**
 * A scripted provider, and the built gateway in front of it. Node 22.18 or newer runs the helpers
 * directly.
 */

import { execFile } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

import { aroundServers, nginxArguments } from '../deploy/proxies.ts';
import { findProgram, runServer } from '../deploy/tools.ts';
import { providerToml } from '../support/gateway.ts';
import { emptyFolder, freePort, startServing } from '../support/process.ts';
import { createScope } from '../support/scope.ts';
import * as upstreams from '../support/upstream.ts';

export { PROVIDER_KEY } from '../support/gateway.ts';
export const { sendJson } = upstreams;
export const CLIENT_KEY = 'client-key';

const { t, close } = createScope();
export const stopAll = close;

/** A model's limits, as members in OpenRouter's list. */
const LIMITS = { context_length: 54_321, input_modalities: ['text', 'image'] };

/**
 * Starts a provider with two models, one with its limits. It leaves every other request to
 * `onChat(response, body, url)`.
 */
export async function startUpstream(onChat) {
  return upstreams.startUpstream(t, ({ url, body }, response) => {
    if (url !== '/v1/models') return onChat(response, JSON.parse(body.toString()), url);
    const data = [
      { id: 'm', ...LIMITS },
      { id: 'vendor/n', context_length: null },
    ];
    return sendJson(response, { object: 'list', data });
  });
}

/**
 * Starts the built gateway in front of it. Returns the process, its base URL and the access lines
 * so far. `server` and `provider` are further lines in `[server]` and `[providers.p]`.
 */
export async function startGateway(upstream, { server = '', provider = '' } = {}) {
  const toml = [
    `[server]\n${server}`,
    `[server.auth]\nkeys = ["${CLIENT_KEY}"]`,
    '[aliases]\nfriendly = "p/m"',
    providerToml(upstream, 'p', provider),
    providerToml(upstream, 'slow', 'timeout = 1\nmodels = ["m"]'),
  ].join('\n');
  const cwd = emptyFolder(t, { 'gateway.toml': toml });
  const { child, lines, port } = await startServing(t, ['--host', '127.0.0.1', '--port', '0'], {
    cwd,
  });
  const baseURL = `http://127.0.0.1:${port}/v1`;
  return { gateway: child, baseURL, accessLines: () => lines('request') };
}

/**
 * Starts nginx in front of a gateway. It closes after 2 s of silence. Returns its base URL;
 * undefined without nginx.
 */
export async function startNginx(gatewayURL) {
  const path = findProgram('nginx');
  if (!path) return undefined;
  const folder = emptyFolder(t);
  const port = await freePort();
  const location = `proxy_pass ${new URL(gatewayURL).origin}; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_read_timeout 2s;`;
  const servers = `server { listen 127.0.0.1:${port}; location / { ${location} } }`;
  writeFileSync(join(folder, 'nginx.conf'), aroundServers(folder, servers));
  await runServer(t, { path, env: {} }, nginxArguments(folder), port);
  return `http://127.0.0.1:${port}/v1`;
}

const OPENCODE = join(import.meta.dirname, 'node_modules/opencode-linux-x64/bin/opencode');
/** The reason for skipping opencode's tests; false if they run. */
export const NO_OPENCODE = existsSync(OPENCODE) ? false : 'opencode is installed on Linux x64 only';

/**
 * Returns opencode's models from the gateway, by name. opencode only asks its provider `modal` for
 * a list, so its providers' file gives `modal` the gateway's address.
 */
export async function opencodeModels(baseURL) {
  const model = { id: 'x', name: 'x', limit: { context: 1, output: 1 } };
  const npm = '@ai-sdk/openai-compatible';
  const env = ['MODAL_PROXY_TOKEN'];
  const modal = { id: 'modal', name: 'x', env, npm, api: baseURL, models: { x: model } };
  const folder = emptyFolder(t, { 'models.json': JSON.stringify({ modal }) });
  const { stdout } = await promisify(execFile)(OPENCODE, ['models', 'modal', '--verbose'], {
    cwd: folder,
    env: {
      HOME: folder,
      MODAL_PROXY_TOKEN: CLIENT_KEY,
      OPENCODE_MODELS_PATH: join(folder, 'models.json'),
      OPENCODE_DISABLE_MODELS_FETCH: '1',
      OPENCODE_DISABLE_AUTOUPDATE: '1',
    },
  });
  // Each model is a line with its name, and then JSON.
  const models = stdout.split(/^modal\/.*$/m).slice(1);
  return new Map(models.map((json) => JSON.parse(json)).map((found) => [found.id, found]));
}

export function completion(message = { content: 'Hello there' }, finish_reason = 'stop') {
  const choices = [{ index: 0, message: { role: 'assistant', ...message }, finish_reason }];
  return { ...upstreams.completion(), choices };
}

export function chunkEvent(delta, finish_reason = null) {
  const choices = [{ index: 0, delta, finish_reason }];
  const chunk = { id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm', choices };
  return `data: ${JSON.stringify(chunk)}\n\n`;
}

/** Returns the usage chunk, if requested. */
export function usageEvent({ stream_options }) {
  if (!stream_options?.include_usage) return '';
  const usage = { prompt_tokens: 7, completion_tokens: 5, total_tokens: 12 };
  const chunk = { id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm' };
  return `data: ${JSON.stringify({ ...chunk, choices: [], usage })}\n\n`;
}

export function errorEvent(message, code) {
  return `data: ${JSON.stringify({ error: { message, code } })}\n\n`;
}

export function sendError(response, status, message, headers) {
  sendJson(response, { error: { message } }, { status, headers });
}

/** Begins a stream with its text, and leaves it open. */
export function startEvents(response, words = ['Hello', ' there']) {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.flushHeaders();
  for (const content of words) response.write(chunkEvent({ role: 'assistant', content }));
  return response;
}

/** A complete answer of `/v1/responses`. */
export const response = (text = 'Hello there') => ({
  id: 'resp_1',
  object: 'response',
  created_at: 1,
  status: 'completed',
  error: null,
  incomplete_details: null,
  instructions: null,
  metadata: {},
  model: 'm',
  output: [messageItem([textPart(text)], 'completed')],
  parallel_tool_calls: true,
  temperature: 1,
  tool_choice: 'auto',
  tools: [],
  top_p: 1,
  usage: {
    input_tokens: 3,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens: 5,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: 8,
  },
});

export function embeddings(encoding) {
  const numbers = Float32Array.of(0.25, -0.5);
  const isBase64 = encoding === 'base64';
  const embedding = isBase64 ? Buffer.from(numbers.buffer).toString('base64') : [...numbers];
  return {
    object: 'list',
    data: [{ object: 'embedding', index: 0, embedding }],
    model: 'm',
    usage: { prompt_tokens: 3, total_tokens: 3 },
  };
}

export const textCompletion = (text = 'Hello there', finish_reason = 'stop') => ({
  id: 'cmpl-1',
  object: 'text_completion',
  created: 1,
  model: 'm',
  choices: [{ index: 0, text, logprobs: null, finish_reason }],
  usage: { prompt_tokens: 3, completion_tokens: 5, total_tokens: 8 },
});

const messageItem = (content, status) => {
  return { id: 'msg_1', type: 'message', status, role: 'assistant', content };
};
const textPart = (text) => ({ type: 'output_text', text, annotations: [], logprobs: [] });

let sequence = 0;
/** An event of a stream of `/v1/responses`. */
export function typedEvent(type, members) {
  const data = JSON.stringify({ type, sequence_number: (sequence += 1), ...members });
  return `event: ${type}\ndata: ${data}\n\n`;
}

/** Begins a stream of `/v1/responses` with its text, and leaves it open. */
export function startTypedEvents(upstream, words = ['Hello', ' there']) {
  const place = { item_id: 'msg_1', output_index: 0, content_index: 0 };
  const started = { ...response(), status: 'in_progress', output: [], usage: null };
  upstream.writeHead(200, { 'content-type': 'text/event-stream' });
  upstream.write(typedEvent('response.created', { response: started }));
  upstream.write(typedEvent('response.in_progress', { response: started }));
  const item = messageItem([], 'in_progress');
  upstream.write(typedEvent('response.output_item.added', { output_index: 0, item }));
  upstream.write(typedEvent('response.content_part.added', { ...place, part: textPart('') }));
  for (const delta of words) {
    upstream.write(typedEvent('response.output_text.delta', { ...place, delta, logprobs: [] }));
  }
  return upstream;
}

/** The last events of a stream of `/v1/responses`. */
export function typedEnd(text = 'Hello there') {
  const place = { item_id: 'msg_1', output_index: 0, content_index: 0 };
  const whole = response(text);
  return [
    typedEvent('response.output_text.done', { ...place, text, logprobs: [] }),
    typedEvent('response.content_part.done', { ...place, part: textPart(text) }),
    typedEvent('response.output_item.done', { output_index: 0, item: whole.output[0] }),
    typedEvent('response.completed', { response: whole }),
  ].join('');
}

/** The last event of a stream of `/v1/responses` that has failed. */
export function typedFailure(message) {
  const error = { code: 'server_error', message };
  return typedEvent('response.failed', {
    response: { ...response(), status: 'failed', output: [], error },
  });
}

/** A complete answer of `/v1/messages`. */
export const message = (
  content = [{ type: 'text', text: 'Hello there' }],
  reason = 'end_turn',
) => ({
  id: 'msg_1',
  type: 'message',
  role: 'assistant',
  model: 'm',
  content,
  stop_reason: reason,
  stop_sequence: null,
  usage: {
    input_tokens: 3,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
    output_tokens: 5,
  },
});

/** An event of a stream of `/v1/messages`. */
export function messageEvent(type, members) {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...members })}\n\n`;
}

/** Begins a stream of `/v1/messages` with its text, and leaves it open. */
export function startMessage(upstream, words = ['Hello', ' there']) {
  upstream.writeHead(200, { 'content-type': 'text/event-stream' });
  upstream.write(messageEvent('message_start', { message: message([], null) }));
  upstream.write(messageEvent('ping'));
  if (words.length === 0) return upstream;
  const block = { type: 'text', text: '' };
  upstream.write(messageEvent('content_block_start', { index: 0, content_block: block }));
  for (const text of words) {
    const delta = { type: 'text_delta', text };
    upstream.write(messageEvent('content_block_delta', { index: 0, delta }));
  }
  return upstream;
}

/** The last events of a stream of `/v1/messages`. */
export function messageEnd(stop_reason = 'end_turn') {
  return [
    messageEvent('content_block_stop', { index: 0 }),
    messageEvent('message_delta', {
      delta: { stop_reason, stop_sequence: null },
      usage: { output_tokens: 5 },
    }),
    messageEvent('message_stop'),
  ].join('');
}

/** Not among the packages of these tests, because it takes 240 MB. */
const CLAUDE = process.env.CLAUDE ?? '';
/** The reason for skipping Claude Code's tests; false if they run. */
export const NO_CLAUDE = existsSync(CLAUDE) ? false : 'CLAUDE does not name the program';

/** Asks Claude Code for an answer. Returns its exit code and output. `more` are variables. */
export async function askClaude(baseURL, model, more = { ANTHROPIC_AUTH_TOKEN: CLIENT_KEY }) {
  const folder = emptyFolder(t);
  const asking = promisify(execFile)(CLAUDE, ['-p', 'hello', '--model', model], {
    cwd: folder,
    env: {
      PATH: process.env.PATH,
      HOME: folder,
      ANTHROPIC_BASE_URL: new URL(baseURL).origin,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      CLAUDE_CODE_MAX_RETRIES: '0',
      ...more,
    },
    timeout: 60_000,
  });
  asking.child.stdin.end();
  return asking.then(
    (done) => ({ code: 0, ...done }),
    (error) => error,
  );
}

/** Not among the packages of these tests, because it takes 420 MB. */
const CODEX = process.env.CODEX ?? '';
/** The reason for skipping Codex's tests; false if they run. */
export const NO_CODEX = existsSync(CODEX) ? false : 'CODEX does not name the program';

/** Asks Codex for an answer. Returns its exit code and output. */
export async function askCodex(baseURL, model) {
  const folder = emptyFolder(t);
  const provider = {
    name: 'gateway',
    base_url: baseURL,
    env_key: 'GATEWAY_KEY',
    wire_api: 'responses',
    request_max_retries: 0,
    stream_max_retries: 0,
  };
  const settings = Object.entries(provider).flatMap(([key, value]) => {
    return ['-c', `model_providers.gateway.${key}=${JSON.stringify(value)}`];
  });
  const args = ['exec', '--skip-git-repo-check', '--ephemeral', '-m', model];
  const chosen = ['-c', 'model_provider="gateway"', ...settings, 'hello'];
  const asking = promisify(execFile)(CODEX, [...args, ...chosen], {
    cwd: folder,
    env: { PATH: process.env.PATH, HOME: folder, CODEX_HOME: folder, GATEWAY_KEY: CLIENT_KEY },
    timeout: 60_000,
  });
  // Codex reads its input until its end.
  asking.child.stdin.end();
  return asking.then(
    (done) => ({ code: 0, ...done }),
    (error) => error,
  );
}
