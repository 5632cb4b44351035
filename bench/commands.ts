/** The contenders' commands and settings. */

import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { NODE } from './options.ts';
import { MODEL } from './payloads.ts';
import { folder, program } from './processes.ts';

export interface Launch {
  readonly port: number;
  readonly upstreamPort: number;
  readonly nodeArgs: readonly string[];
  /** The path of the contender's tool, if it has one. */
  readonly program: string;
}

const SERVER = join(import.meta.dirname, '..', 'dist', 'server.js');
const PORTKEY = join(import.meta.dirname, 'node_modules/@portkey-ai/gateway/build/start-server.js');
const EMPTY = (port: number) =>
  `require('node:http').createServer((_, response) => response.end('ok'))` +
  `.listen(${port}, '127.0.0.1')`;

export function gatewayCommand({ port, upstreamPort, nodeArgs }: Launch, more = ''): string[] {
  const config = join(folder, 'gateway.toml');
  const server = `[server]\nport = ${port}\nhost = "127.0.0.1"\n`;
  const baseUrl = `http://127.0.0.1:${upstreamPort}/v1`;
  const provider = `[providers.p]\nbase_url = "${baseUrl}"\napi_key = "none"\n`;
  writeFileSync(config, server + provider + more);
  return [NODE, ...nodeArgs, SERVER, '--config', config];
}

/** Writes settings as JSON, which is also YAML. */
function writeSettings(name: string, settings: object): string {
  const path = join(folder, name);
  writeFileSync(path, JSON.stringify(settings));
  return path;
}

export function onwardsCommand({ program: onwards, port, upstreamPort }: Launch): string[] {
  const targets = { [MODEL]: { url: `http://127.0.0.1:${upstreamPort}/v1/` } };
  // More idle connections than are ever open, as with nginx.
  const settings = { targets, http_pool: { max_idle_per_host: 12_000, idle_timeout_secs: 600 } };
  const path = writeSettings('onwards.json', settings);
  return [onwards, `--targets=${path}`, `--port=${port}`, '--metrics-port=0'];
}

export function litellmCommand({ program: litellm, port, upstreamPort }: Launch): string[] {
  const provider = { api_base: `http://127.0.0.1:${upstreamPort}/v1`, api_key: 'none' };
  const path = writeSettings('litellm.yaml', {
    model_list: [
      { model_name: MODEL, litellm_params: { model: 'openai/gpt-5-mini', ...provider } },
    ],
    // Clients need no key, as with the other contenders.
    general_settings: { dangerously_permit_weak_or_unset_master_key: true },
    litellm_settings: { telemetry: false },
  });
  const address = `--host 127.0.0.1 --port ${port}`;
  const options = `--config ${path} ${address} --num_workers 1 --telemetry False`;
  // Not the script itself, because it contains the path of its first folder.
  return [join(dirname(litellm), 'python'), litellm, ...options.split(' ')];
}

export const relayCommand =
  (way: string) =>
  ({ port, upstreamPort, nodeArgs }: Launch) => [
    NODE,
    ...nodeArgs,
    program('relay'),
    `${port}`,
    `${upstreamPort}`,
    way,
  ];

export const portkeyCommand = ({ port, nodeArgs }: Launch) => [
  NODE,
  ...nodeArgs,
  PORTKEY,
  `--port=${port}`,
  '--headless',
];

export const emptyCommand = ({ port }: Launch) => [NODE, '-e', EMPTY(port)];
