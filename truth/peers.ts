/**
 * `npm run truth:peers [-- NAME...]`: installs other gateways, starts each with settings as its own
 * documents say, plays the cases, and writes `results/NAME.json`.
 */

import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { SOURCES, VERSIONS } from '../bench/sources.ts';
import { findTool } from '../test/deploy/tools.ts';
import type { ResultFile } from './table.ts';

const ROOT = join(import.meta.dirname, '..');
const PORT = 9101;
const PROVIDER_PORT = 9100;
const PROVIDER_URL = `http://127.0.0.1:${PROVIDER_PORT}/v1`;
const PROVIDER_KEY = 'truth-provider-key';
const INSTALL_MS = 1_800_000;
const START_MS = 120_000;
const PORTKEY_VERSION = '1.15.2';
const PORTKEY_HOST = `x-portkey-custom-host: ${PROVIDER_URL}`;

interface Peer {
  readonly name: string;
  readonly version: string;
  /** Returns the command, whose files are in `folder`; or the reason why it cannot be installed. */
  readonly command: (folder: string) => readonly string[] | string;
  readonly env?: Readonly<Record<string, string>>;
  /** The name by which clients ask for the model; `m` by default. */
  readonly model?: string;
  /** The client's key; by default the runner's own. */
  readonly key?: string;
  /** Whether clients send the provider's key themselves. */
  readonly isKeyless?: boolean;
  /** Lines of each request. */
  readonly headers?: readonly string[];
  /** What clients send in place of the above for a model of Anthropic's protocol. */
  readonly messages?: Pick<Peer, 'model' | 'headers'>;
}

const PEERS: Readonly<Record<string, Peer>> = {
  litellm: {
    name: 'LiteLLM',
    version: VERSIONS.litellm,
    command: (folder) =>
      installed('litellm', (program) => {
        const settings = write(folder, 'config.yaml', {
          model_list: [
            {
              model_name: 'm',
              litellm_params: { model: 'openai/m', api_base: PROVIDER_URL, api_key: PROVIDER_KEY },
            },
            {
              model_name: 'a',
              litellm_params: {
                model: 'anthropic/m',
                api_base: PROVIDER_URL.replace(/\/v1$/, ''),
                api_key: PROVIDER_KEY,
              },
            },
          ],
          general_settings: { master_key: 'sk-truth-client-key' },
        });
        const options = `--config ${settings} --host 127.0.0.1 --port ${PORT} --num_workers 1`;
        // Not the script itself, because it contains the path of its first folder.
        return [join(dirname(program), 'python'), program, ...options.split(' ')];
      }),
    // Uses the prices in the package, because LiteLLM would download newer prices.
    env: { LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
    key: 'sk-truth-client-key',
    messages: { model: 'a' },
  },
  llms: {
    name: '@musistudio/llms',
    version: VERSIONS.llms,
    command: (folder) =>
      installed('llms', (program) => {
        const provider = {
          name: 'p',
          api_base_url: `${PROVIDER_URL}/chat/completions`,
          api_key: PROVIDER_KEY,
          models: ['m'],
        };
        const anthropic = {
          ...provider,
          name: 'a',
          api_base_url: `${PROVIDER_URL}/messages`,
          transformer: { use: ['Anthropic'] },
        };
        const config = { HOST: '127.0.0.1', PORT, providers: [provider, anthropic] };
        const options = JSON.stringify({ useJsonFile: false, initialConfig: config });
        const script = join(folder, 'start.cjs');
        writeFileSync(
          script,
          `const { default: Server } = require(${JSON.stringify(program)});\n` +
            `void new Server(${options}).start();\n`,
        );
        return [process.execPath, script];
      }),
    model: 'p,m',
    messages: { model: 'a,m' },
  },
  onwards: {
    name: 'onwards',
    version: VERSIONS.onwards,
    command: (folder) =>
      installed('onwards', (program) => {
        const target = {
          url: `${PROVIDER_URL}/`,
          onwards_key: PROVIDER_KEY,
          keys: ['truth-client-key'],
        };
        const settings = write(folder, 'targets.json', { targets: { m: target } });
        return [program, `--targets=${settings}`, `--port=${PORT}`, '--metrics-port=0'];
      }),
  },
  portkey: {
    name: 'Portkey',
    version: PORTKEY_VERSION,
    command: () => {
      const setup = ['run', '-s', 'setup', '--prefix', 'bench'];
      const { status } = spawnSync('npm', setup, { cwd: ROOT, timeout: INSTALL_MS });
      if (status !== 0) return 'npm cannot install it';
      const start = 'bench/node_modules/@portkey-ai/gateway/build/start-server.js';
      return [process.execPath, join(ROOT, start), `--port=${PORT}`, '--headless'];
    },
    key: PROVIDER_KEY,
    isKeyless: true,
    headers: ['x-portkey-provider: openai', PORTKEY_HOST],
    messages: { headers: ['x-portkey-provider: anthropic', PORTKEY_HOST] },
  },
};

/** Returns the command for the installed program, or the reason why there is none. */
function installed(
  name: keyof typeof SOURCES,
  commandOf: (program: string) => readonly string[],
): readonly string[] | string {
  const tool = findTool(name, SOURCES[name], { cache: 'bench', timeout: INSTALL_MS });
  return typeof tool === 'string' ? tool : commandOf(tool.path);
}

/** Writes settings as JSON, which is also YAML. */
function write(folder: string, name: string, settings: object): string {
  const path = join(folder, name);
  writeFileSync(path, JSON.stringify(settings));
  return path;
}

/** Waits until the gateway answers on its port. Throws if it ends, or after two minutes. */
async function waitUntilReady(child: ChildProcess, output: () => string): Promise<void> {
  for (const endsAtMs = performance.now() + START_MS; performance.now() < endsAtMs;) {
    if (child.exitCode !== null) break;
    const url = `http://127.0.0.1:${PORT}/`;
    const isReady = await fetch(url, { signal: AbortSignal.timeout(1000) }).then(
      () => true,
      () => false,
    );
    if (isReady) return;
    await sleep(500);
  }
  throw new Error(`it did not start: ${output().slice(-1000)}`);
}

/** Plays the cases with `only` in their group and name against the running gateway. */
async function play(peer: Peer, out: string, only: string): Promise<ResultFile> {
  const { name, version, model = 'm', key = 'truth-client-key', headers = [], isKeyless } = peer;
  const options = {
    url: `http://127.0.0.1:${PORT}/v1`,
    'provider-port': `${PROVIDER_PORT}`,
    model,
    key,
    name,
    'gateway-version': version,
    only,
    out,
  };
  const args = [
    ...Object.entries(options).map(([option, value]) => `--${option}=${value}`),
    ...(isKeyless ? ['--keyless'] : []),
    ...headers.map((line) => `--header=${line}`),
  ];
  const runner = spawn(
    process.execPath,
    ['--import', 'tsx', join(import.meta.dirname, 'main.ts'), ...args],
    { cwd: ROOT, stdio: 'inherit' },
  );
  await once(runner, 'exit');
  return JSON.parse(readFileSync(out, 'utf8')) as ResultFile;
}

/** Starts the gateway, and plays the cases. Throws if it cannot be started. */
async function tryPeer(id: string, peer: Peer): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'truth-'));
  let child: ChildProcess | undefined;
  try {
    const command = peer.command(folder);
    if (typeof command === 'string') throw new Error(command);
    const [program = '', ...programArgs] = command;
    // A group of its own, because some gateways start further processes.
    child = spawn(program, programArgs, {
      cwd: folder,
      detached: true,
      env: { PATH: process.env['PATH'], HOME: folder, ...peer.env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    for (const stream of [child.stdout!, child.stderr!]) {
      stream.on('data', (chunk) => (output = (output + String(chunk)).slice(-10_000)));
    }
    await waitUntilReady(child, () => output);
    const result = await play(peer, join(folder, 'all.json'), '');
    if (peer.messages) {
      const other = { ...peer, ...peer.messages };
      const { cases } = await play(other, join(folder, 'messages.json'), '/v1/messages');
      Object.assign(result.cases, cases);
    }
    const path = join(import.meta.dirname, 'results', `${id}.json`);
    writeFileSync(path, `${JSON.stringify(result, null, 2)}\n`);
  } finally {
    if (child?.pid !== undefined && child.exitCode === null) process.kill(-child.pid, 'SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  }
}

const wanted = process.argv.slice(2);
const unknown = wanted.filter((id) => !Object.hasOwn(PEERS, id));
if (unknown.length > 0) {
  console.error(`not known: ${unknown.join(', ')}; there are ${Object.keys(PEERS).join(', ')}`);
  process.exit(2);
}
const failed: string[] = [];
for (const [id, peer] of Object.entries(PEERS)) {
  if (wanted.length > 0 && !wanted.includes(id)) continue;
  console.log(`\n== ${peer.name} ${peer.version}`);
  await tryPeer(id, peer).catch((error: unknown) => failed.push(`${peer.name}: ${String(error)}`));
}
for (const line of failed) console.error(line);
process.exit(failed.length > 0 ? 1 : 0);
