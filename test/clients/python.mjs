/**
 * Unchanged Python clients against the built gateway, each in its own virtual environment. Their
 * versions are in python/clients.txt. Their dependencies are fixed by a day on PyPI.
 *
 *   npm run test:clients:python -- [CLIENT...]   all clients, or these
 *
 * PYTHON names the interpreter. The environments are kept outside the project. Remove the folder to
 * create them again.
 */

import { execFile } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

import {
  CLIENT_KEY,
  chunkEvent,
  completion,
  embeddings,
  errorEvent,
  message,
  messageEnd,
  messageEvent,
  response,
  sendError,
  sendJson,
  startEvents,
  startGateway,
  startMessage,
  startNginx,
  startTypedEvents,
  startUpstream,
  stopAll,
  typedEnd,
  typedEvent,
  usageEvent,
} from './support.mjs';

const FOLDER = join(import.meta.dirname, 'python');
const CACHE = join(
  process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'),
  'inference-gateway/python',
);
/** A pip with `--uploaded-prior-to`, which the interpreter's pip may lack. */
const PIP = 'pip==26.3';
const UPLOADED_PRIOR_TO = '2026-11-22T00:00:00Z';
const INSTALL_MS = 900_000;
const RUN_MS = 180_000;
const run = promisify(execFile);
const ENDPOINTS = 'endpoints = ["/v1/embeddings", "/v1/responses", "/v1/messages"]';

/** Each client's requirement, by its file name. */
const requirements = new Map(
  readFileSync(join(FOLDER, 'clients.txt'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => [/^[\w-]+/.exec(line)[0], line]),
);
const wanted = process.argv.length > 2 ? process.argv.slice(2) : [...requirements.keys()];

/** Clients also tried with `stream_usage`, and the strict client tried behind nginx. */
const COUNTED = ['openai', 'langchain-openai', 'openai-agents'];
const PATIENT = ['openai'];
const THINKS_MS = 6000;
const FIRST_TOKEN_MS = 300;

let passed = 0;
let tried = 0;
try {
  const upstream = await startUpstream(onChat);
  const { baseURL } = await startGateway(upstream, { server: ENDPOINTS });
  await tryAll(wanted, baseURL);
  const lines = { server: ENDPOINTS, provider: 'stream_usage = true' };
  const counting = await startGateway(upstream, lines);
  await tryAll(
    wanted.filter((name) => COUNTED.includes(name)),
    counting.baseURL,
  );
  for (const { path, stream, outcome, ...counted } of counting.accessLines()) {
    const { usage_added, completion_tokens } = counted;
    if (path !== '/v1/chat/completions' || !stream || outcome !== 'ok') continue;
    tried += 1;
    if (usage_added && completion_tokens === 5) passed += 1;
    else console.log(`FAILED  tokens of a stream: ${usage_added} ${completion_tokens}`);
  }
  const thinker = await startUpstream((...request) => {
    setTimeout(() => onChat(...request), request[1].stream ? THINKS_MS : 0);
  });
  const patient = await startGateway(thinker, { server: `${ENDPOINTS}\nstream_keepalive = 1` });
  const nginx = await startNginx(patient.baseURL);
  if (nginx)
    await tryAll(
      wanted.filter((name) => PATIENT.includes(name)),
      nginx,
    );
  else console.log('skipped nginx: it is not there');
} finally {
  await stopAll();
}
console.log(`${passed} of ${tried} ok`);
process.exitCode = passed > 0 && passed === tried ? 0 : 1;

async function tryAll(clients, baseURL) {
  for (const client of clients) {
    tried += 1;
    if (await isFine(client, baseURL)) passed += 1;
  }
}

async function isFine(client, baseURL) {
  const home = mkdtempSync(join(tmpdir(), 'gateway-python-'));
  try {
    const python = await install(client);
    const { stdout } = await run(
      python,
      // Isolated, because the scripts are named like packages and must not be imported.
      ['-I', '-B', join(FOLDER, 'try_client.py'), client],
      {
        cwd: home,
        env: {
          // For clients with a command line.
          PATH: `${join(python, '..')}:${process.env.PATH}`,
          HOME: home,
          BASE_URL: baseURL,
          API_KEY: CLIENT_KEY,
          NONCE: randomUUID(),
        },
        timeout: RUN_MS,
        killSignal: 'SIGKILL',
      },
    );
    console.log(`ok      ${lastLine(stdout)}`);
    return true;
  } catch (error) {
    if (error.stderr) console.error(error.stderr.trim());
    const reason = error.killed ? 'not done in time' : lastLine(error.stderr) || error.message;
    console.log(`FAILED  ${client}: ${reason}`);
    return false;
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
}

function lastLine(text = '') {
  return text.trim().split('\n').at(-1);
}

/** Returns the interpreter in the client's virtual environment, created if missing. */
async function install(client) {
  const requirement = requirements.get(client);
  const pinned = [PIP, UPLOADED_PRIOR_TO, requirement].join(' ');
  const version = createHash('sha256').update(pinned).digest('hex').slice(0, 12);
  const folder = join(CACHE, `${client}-${version}`);
  const python = join(folder, 'bin/python');
  // Written last, so an incomplete environment is not used.
  const mark = join(folder, 'complete');
  if (existsSync(mark)) return python;
  await run(process.env.PYTHON ?? 'python3', ['-m', 'venv', '--clear', folder]);
  const pip = async (...args) =>
    run(python, ['-m', 'pip', 'install', '--quiet', ...args], { timeout: INSTALL_MS });
  await pip(PIP);
  await pip('--no-compile', '--uploaded-prior-to', UPLOADED_PRIOR_TO, requirement);
  writeFileSync(mark, '');
  return python;
}

/**
 * Answers with the prompt's text between <say> and </say>, or with it as the first tool's
 * arguments.
 */
async function onChat(upstream, body, url) {
  if (url === '/v1/embeddings') {
    sendJson(upstream, embeddings(body.encoding_format));
    return;
  }
  const said = findWish(body.messages ?? body.input);
  if (said === undefined) {
    sendError(upstream, 400, 'the prompt has no <say>');
    return;
  }
  const breaks = body.model === 'breaks';
  if (url === '/v1/responses') {
    if (!body.stream) return void sendJson(upstream, response(said));
    startTypedEvents(upstream, said.split(/(?= )/));
    await sleep(FIRST_TOKEN_MS);
    const error = { code: 'server_error', message: 'out of memory', param: null };
    return void upstream.end(breaks ? typedEvent('error', error) : typedEnd(said));
  }
  if (url === '/v1/messages') {
    if (!body.stream) return void sendJson(upstream, message([{ type: 'text', text: said }]));
    startMessage(upstream, said.split(/(?= )/));
    await sleep(FIRST_TOKEN_MS);
    const error = { type: 'api_error', message: 'out of memory' };
    return void upstream.end(breaks ? messageEvent('error', { error }) : messageEnd());
  }
  const isCall = body.tools && said.startsWith('{');
  const delta = (text) => (isCall ? callTool(body.tools[0], text) : { content: text });
  const reason = isCall ? 'tool_calls' : 'stop';
  if (!body.stream) {
    sendJson(upstream, completion(delta(said), reason));
    return;
  }
  // As most servers do: the role when the request is queued, and the first token later.
  startEvents(upstream, []).write(chunkEvent({ role: 'assistant', content: '' }));
  await sleep(FIRST_TOKEN_MS);
  for (const word of said.split(/(?= )/)) upstream.write(chunkEvent(delta(word)));
  upstream.end(
    breaks
      ? errorEvent('out of memory', 500)
      : `${chunkEvent({}, reason)}${usageEvent(body)}data: [DONE]\n\n`,
  );
}

/**
 * Returns the last text in <say>, because agents put their own messages around it. `input` of
 * `/v1/responses` may be a text.
 */
function findWish(messages) {
  return [messages]
    .flat()
    .map((message) => (typeof message === 'string' ? { content: message } : message))
    .map(({ content }) =>
      Array.isArray(content) ? content.map(({ text }) => text).join('') : content,
    )
    .map((text) => /<say>(.*)<\/say>/s.exec(text)?.[1])
    .findLast((wish) => wish !== undefined);
}

/** Returns a tool call, or its part in a stream. */
function callTool(tool, argumentText) {
  const { name } = tool.function;
  const call = { index: 0, id: 'call_1', type: 'function' };
  return { tool_calls: [{ ...call, function: { name, arguments: argumentText } }] };
}
