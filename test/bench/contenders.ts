/** Who is measured, and how each is started and spoken to. */

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { nginxCommand } from './nginx.ts';
import { NODE } from './options.ts';
import { folder, program } from './processes.ts';

export interface Launch {
  readonly port: number;
  readonly upstreamPort: number;
  readonly nodeArgs: readonly string[];
}

export interface Contender {
  readonly label: string;
  readonly isNode?: boolean;
  /** Without one it is no process of its own. */
  readonly command?: (launch: Launch) => string[];
  readonly env?: Readonly<Record<string, string>>;
  /** It may use all cores. */
  readonly isFree?: boolean;
  /** Besides those of every request. */
  readonly headers?: (upstreamPort: number) => Record<string, string>;
  /** A GET for it is answered as soon as the contender is up. */
  readonly health: string;
}

const SERVER = join(import.meta.dirname, '..', '..', 'dist', 'server.js');
const PORTKEY = join(import.meta.dirname, 'node_modules/@portkey-ai/gateway/build/start-server.js');
const EMPTY = (port: number) =>
  `require('node:http').createServer((_, response) => response.end('ok')).listen(${port}, '127.0.0.1')`;

function gatewayCommand({ port, upstreamPort, nodeArgs }: Launch): string[] {
  const config = join(folder, 'gateway.toml');
  const server = `[server]\nport = ${port}\nhost = "127.0.0.1"\n`;
  const provider = `[providers.p]\nbase_url = "http://127.0.0.1:${upstreamPort}/v1"\napi_key = "none"\n`;
  writeFileSync(config, server + provider);
  return [NODE, ...nodeArgs, SERVER, '--config', config];
}

const relayCommand =
  (way: string) =>
  ({ port, upstreamPort, nodeArgs }: Launch) => [
    NODE,
    ...nodeArgs,
    program('relay'),
    `${port}`,
    `${upstreamPort}`,
    way,
  ];

export const CONTENDERS = {
  gateway: { label: 'gateway', health: '/health', isNode: true, command: gatewayCommand },
  'fetch-transport': {
    label: 'gateway (fetch transport)',
    health: '/health',
    isNode: true,
    command: gatewayCommand,
    env: { GATEWAY_UPSTREAM: 'fetch' },
  },
  'one-worker': {
    label: 'gateway, 1 worker',
    health: '/health',
    isNode: true,
    isFree: true,
    command: gatewayCommand,
  },
  'two-workers': {
    label: 'gateway, 2 workers',
    health: '/health',
    isNode: true,
    isFree: true,
    command: gatewayCommand,
    env: { GATEWAY_WORKERS: '2' },
  },
  'bare-relay': { label: 'bare relay', health: '/', isNode: true, command: relayCommand('agent') },
  'lean-relay': {
    label: 'leanest relay',
    health: '/',
    isNode: true,
    command: relayCommand('lean'),
  },
  'bare-fetch': {
    label: 'bare fetch relay',
    health: '/',
    isNode: true,
    command: relayCommand('fetch'),
  },
  portkey: {
    label: 'portkey',
    health: '/',
    isNode: true,
    command: ({ port, nodeArgs }) => [NODE, ...nodeArgs, PORTKEY, `--port=${port}`, '--headless'],
    headers: (upstreamPort) => ({
      'x-portkey-provider': 'openai',
      'x-portkey-custom-host': `http://127.0.0.1:${upstreamPort}/v1`,
    }),
  },
  nginx: {
    label: 'nginx',
    health: '/health',
    command: ({ port, upstreamPort }) => nginxCommand(port, upstreamPort),
  },
  direct: { label: 'upstream directly', health: '/' },
  empty: {
    label: 'empty node:http server',
    health: '/',
    isNode: true,
    command: ({ port }) => [NODE, '-e', EMPTY(port)],
  },
  parse: { label: 'JSON.parse alone', health: '/' },
} satisfies Record<string, Contender>;

export type ContenderId = keyof typeof CONTENDERS;
/** Those to choose from; the others are what these are compared with. */
export const RELAYS: readonly ContenderId[] = [
  'gateway',
  'fetch-transport',
  'bare-relay',
  'lean-relay',
  'bare-fetch',
  'portkey',
  'nginx',
];
