/** Who is measured, and how each is spoken to. */

import {
  emptyCommand,
  gatewayCommand,
  litellmCommand,
  onwardsCommand,
  portkeyCommand,
  relayCommand,
  type Launch,
} from './commands.ts';
import { nginxCommand } from './nginx.ts';
import { folder } from './processes.ts';
import { VERSIONS, type ToolName } from './tools.ts';

export interface Contender {
  readonly label: string;
  readonly isNode?: boolean;
  /** What has to be fetched for it. */
  readonly tool?: ToolName;
  /** Without one it is no process of its own. */
  readonly command?: (launch: Launch) => string[];
  readonly env?: Readonly<Record<string, string>>;
  /** So many at one port, which may use all cores. */
  readonly processes?: number;
  /** It builds answers and events anew: their bytes cannot be compared, events are only counted. */
  readonly isRewriting?: boolean;
  /** What it can carry on one core, if that is less than the others are given. */
  readonly eventsPerSecond?: number;
  /** Besides those of every request. */
  readonly headers?: (upstreamPort: number) => Record<string, string>;
  /** A GET for it is answered as soon as the contender is up. */
  readonly health: string;
}

export const CONTENDERS = {
  gateway: {
    label: 'gateway',
    health: '/health',
    isNode: true,
    command: gatewayCommand,
  },
  'access-log-off': {
    label: 'gateway, access log off',
    health: '/health',
    isNode: true,
    command: gatewayCommand,
    env: { GATEWAY_LOG_LEVEL: 'warn' },
  },
  admin: {
    label: 'gateway, [admin]',
    health: '/health',
    isNode: true,
    command: (launch) => gatewayCommand(launch, '[admin]\nport = 0\n'),
  },
  'fetch-transport': {
    label: 'gateway (fetch transport)',
    health: '/health',
    isNode: true,
    command: gatewayCommand,
    env: { GATEWAY_UPSTREAM: 'fetch' },
  },
  'one-process': {
    label: 'gateway, 1 process',
    health: '/health',
    isNode: true,
    command: gatewayCommand,
    processes: 1,
  },
  'two-processes': {
    label: 'gateway, 2 processes',
    health: '/health',
    isNode: true,
    command: gatewayCommand,
    env: { GATEWAY_REUSE_PORT: 'true' },
    processes: 2,
  },
  'bare-relay': { label: 'bare relay', health: '/', isNode: true, command: relayCommand('agent') },
  'lean-relay': {
    label: 'relay without checks',
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
    command: portkeyCommand,
    headers: (upstreamPort) => ({
      'x-portkey-provider': 'openai',
      'x-portkey-custom-host': `http://127.0.0.1:${upstreamPort}/v1`,
    }),
  },
  nginx: {
    label: 'nginx proxy_pass',
    tool: 'nginx',
    health: '/health',
    command: nginxCommand,
  },
  onwards: {
    label: `onwards ${VERSIONS.onwards}`,
    tool: 'onwards',
    health: '/v1/models',
    command: onwardsCommand,
    env: { RUST_LOG: 'off' },
  },
  litellm: {
    label: `LiteLLM ${VERSIONS.litellm}`,
    tool: 'litellm',
    health: '/health/liveliness',
    isRewriting: true,
    eventsPerSecond: 500,
    command: litellmCommand,
    // The prices of models come with the package; it would fetch newer ones.
    env: { HOME: folder, LITELLM_LOCAL_MODEL_COST_MAP: 'True', LITELLM_LOG: 'ERROR' },
  },
  direct: { label: 'upstream directly', health: '/' },
  empty: {
    label: 'empty node:http server',
    health: '/',
    isNode: true,
    command: emptyCommand,
  },
  parse: { label: 'JSON.parse alone', health: '/' },
} satisfies Record<string, Contender>;

export type ContenderId = keyof typeof CONTENDERS;
/** Those to choose from; the others are what these are compared with. */
export const RELAYS: readonly ContenderId[] = [
  'gateway',
  'access-log-off',
  'admin',
  'fetch-transport',
  'lean-relay',
  'bare-relay',
  'bare-fetch',
  'onwards',
  'nginx',
  'portkey',
  'litellm',
];
export const NODE_RELAYS = RELAYS.filter((id) => (CONTENDERS[id] as Contender).isNode);
