/** The contenders, and how to speak to each. */

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
import { VERSIONS, type ToolName } from './sources.ts';

export interface Contender {
  readonly label: string;
  readonly isNode?: boolean;
  /** The tool to download for it. */
  readonly tool?: ToolName;
  /** Undefined if it is no process of its own. */
  readonly command?: (launch: Launch) => string[];
  readonly env?: Readonly<Record<string, string>>;
  /** The number of processes at its port, which may use all cores. */
  readonly processes?: number;
  /** Whether it builds answers and events anew, so that events are counted instead of compared. */
  readonly isRewriting?: boolean;
  /** The most it can carry on one core, if less than the other contenders' load. */
  readonly eventsPerSecond?: number;
  /** Headers added to every request's own. */
  readonly headers?: (upstreamPort: number) => Record<string, string>;
  /** A path answered as soon as the contender is up. */
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
    // Uses the prices in the package, because LiteLLM would download newer prices.
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
/** The contenders to choose from. All others are for comparison. */
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
