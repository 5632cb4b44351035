/**
 * The way of a request (`npm run way`): which functions of which files of `src` one plain streamed completion runs, after
 * three others, with default settings and one provider, by V8's precise coverage. Prints the files in the order of their
 * first function, each with its functions, and the totals.
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { Session, type Profiler } from 'node:inspector/promises';
import type { AddressInfo } from 'node:net';
import { join, relative } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const ROOT = join(import.meta.dirname, '..');
const WARM_UPS = 3;

interface FileOnTheWay {
  readonly file: string;
  readonly lines: number;
  readonly functions: readonly string[];
}

/** In the gateway's process: answers each message with the functions that have run since the last one. */
async function cover(): Promise<void> {
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
  process.on('message', () => {
    void session.post('Profiler.takePreciseCoverage').then(({ result }) => process.send!(result));
  });
  process.channel!.unref();
}

function isOnTheWay({ url }: Profiler.ScriptCoverage): boolean {
  return (
    url.startsWith('file://') && !relative(join(ROOT, 'src'), fileURLToPath(url)).startsWith('..')
  );
}

function toFile({ url, functions }: Profiler.ScriptCoverage): FileOnTheWay {
  const path = fileURLToPath(url);
  const ran = functions.filter(
    // esbuild adds `__name`.
    ({ functionName, ranges }) => functionName !== '__name' && ranges[0]!.count > 0,
  );
  return {
    file: relative(join(ROOT, 'src'), path),
    lines: readFileSync(path, 'utf8').split('\n').length - 1,
    functions: ran.map(({ functionName }) => functionName || '(anonymous)'),
  };
}

/** Runs the gateway, and returns the files that one streamed request runs. */
export async function walk(): Promise<FileOnTheWay[]> {
  const provider = createServer((request, response) => {
    request.resume().on('end', () => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const chunk = { id: '1', model: 'm', choices: [{ index: 0, delta: { content: 'a' } }] };
      response.write(`data: ${JSON.stringify(chunk)}\n\n`);
      const last = { ...chunk, choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] };
      response.end(`data: ${JSON.stringify(last)}\n\ndata: [DONE]\n\n`);
    });
  }).listen(0, '127.0.0.1');
  await once(provider, 'listening');
  const { port } = provider.address() as AddressInfo;
  const toml = `[server]\nport = 0\nhost = "127.0.0.1"\n[providers.p]\napi_key = "k-0123456789"\nbase_url = "http://127.0.0.1:${port}/v1"\n`;
  const gateway = fork(join(ROOT, 'src/server.ts'), {
    execArgv: ['--import', 'tsx', '--import', import.meta.url],
    env: { PATH: process.env['PATH'], GATEWAY_CONFIG_TOML: toml },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  try {
    let started = '';
    for await (const text of gateway.stderr!) {
      started += String(text);
      if (started.includes('upstream')) break;
    }
    const url = `${/http:\S+/.exec(started)![0]}/chat/completions`;
    const body = JSON.stringify({
      model: 'p/m',
      stream: true,
      messages: [{ role: 'user', content: 'a' }],
    });
    const headers = { authorization: 'Bearer t', 'content-type': 'application/json' };
    const take = async () => {
      gateway.send('take');
      const [scripts] = (await once(gateway, 'message')) as [Profiler.ScriptCoverage[]];
      return scripts;
    };
    for (let request = 0; request <= WARM_UPS; request += 1) {
      // What the request before has left to do.
      await sleep(300);
      if (request === WARM_UPS) await take();
      await (await fetch(url, { method: 'POST', headers, body })).text();
    }
    await sleep(300);
    const files = (await take()).filter(isOnTheWay).map(toFile);
    return files.filter(({ functions }) => functions.length > 0);
  } finally {
    gateway.kill();
    provider.close();
    provider.closeAllConnections();
  }
}

if (process.send) await cover();
else if (process.argv[1] === import.meta.filename) {
  const files = await walk();
  for (const { file, lines, functions } of files) {
    console.log(`${file} (${lines} lines): ${functions.join(', ')}`);
  }
  const sum = (of: (file: FileOnTheWay) => number) =>
    files.reduce((all, file) => all + of(file), 0);
  const functions = sum((file) => file.functions.length);
  console.log(
    `\n${functions} functions in ${files.length} files of ${sum(({ lines }) => lines)} lines`,
  );
}
