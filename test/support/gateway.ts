/** Starts the gateway in the test's process, on a free port, until the test ends. */

import { type Agent, request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import type { TestContext } from 'node:test';

import { loadConfig, type Config } from '../../src/config/config.ts';
import { CLIENT_TIME_LIMITS } from '../../src/downstream/listener.ts';
import { OUTSIDE, App } from '../../src/app.ts';
import { createTransport, type Transport } from '../../src/upstream/connections/transport.ts';
import { readAnswer } from './answer.ts';
import { watchGateway } from './leftovers.ts';
import { FAILED_STREAM_MS } from './clock.ts';
import { parseLog } from './process.ts';
import { TRANSPORT_ENV } from './transport.ts';

export const PROVIDER_KEY = 'sk-provider-canary-0123456789';
export const CLIENT_TOKEN = 'client-token-canary-9876543210';

/**
 * The machine's memory for the gateway: that of a small machine, whatever machine runs the tests.
 */
const MEMORY_BYTES = 8_589_934_592;

export type LogLine = Record<string, unknown>;

export interface TestGateway {
  readonly port: number;
  /** The `[admin]` port; 0 without `[admin]`. */
  readonly adminPort: number;
  /** The log lines so far, as text. */
  readonly log: string[];
  /** The parsed log lines with one of these messages; all lines without an argument. */
  lines(...messages: readonly string[]): LogLine[];
  /** The parsed access lines so far. */
  accessLines(): LogLine[];
  /** Sends a request with the client's token. A header whose value is undefined is left out. */
  send(path: string, options?: SendOptions): Promise<Reply>;
  /** Posts a chat completion. Other bodies than text and bytes are sent as JSON. */
  chat(body: unknown, options?: SendOptions): Promise<Reply>;
  /** Sends a request to the `[admin]` port, without default headers. */
  admin(path: string, options?: SendOptions): Promise<Reply>;
  /** The memory budget's reserved bytes. */
  reservedBytes(): number;
  /** Begins and ends incidents now. While something fails, the gateway does so once a second. */
  judge(): void;
  /** The bytes of streams waiting for room in the budget. */
  waitingBytes(): number;
  /** Drains as SIGTERM does. */
  drain(
    timeoutMs?: number,
    reason?: Error,
    delayMs?: number,
  ): Promise<{ finished: number; cut: number }>;
  /** Ends the drain at once. */
  cut(): void;
  /** Loads these settings as SIGHUP does, with the environment from the start. */
  reload(toml: string): Promise<void>;
}

export interface SendOptions {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string | string[] | undefined>>;
  readonly body?: string | Buffer;
  readonly signal?: AbortSignal;
  /** Reuses a connection; without an agent each request opens its own. */
  readonly agent?: Agent;
}

export interface Reply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly bytes: Buffer;
  readonly text: string;
  /** Parses the body as JSON. */
  json(): any; // oxlint-disable-line typescript/no-explicit-any
}

export interface GatewayOptions {
  readonly toml?: string;
  readonly env?: Record<string, string>;
  /** Changes settings in ways that no file can, for example to make the gateway itself fail. */
  readonly adjust?: (config: Config) => Config;
  /** Time limits for clients, shorter than the real limits. */
  readonly clientTimeLimits?: Partial<typeof CLIENT_TIME_LIMITS>;
  /** Wraps the function that sends a request to a provider. */
  readonly replaceSend?: (send: Transport['send']) => Transport['send'];
  /** Replaces the transport of the settings. */
  readonly createTransport?: typeof createTransport;
}

/** Starts a gateway with these settings. */
export async function startGateway(
  t: TestContext,
  {
    toml = '',
    env = {},
    adjust,
    clientTimeLimits = {},
    replaceSend = (real) => real,
    createTransport: create = createTransport,
  }: GatewayOptions,
): Promise<TestGateway> {
  const log: string[] = [];
  const load = (text: string) => {
    const allEnv = { ...TRANSPORT_ENV, ...env };
    const config = loadConfig({ toml: text, env: allEnv, memoryBytes: MEMORY_BYTES });
    return adjust ? adjust(config) : config;
  };
  const config = load(toml);
  const limits = { ...CLIENT_TIME_LIMITS, failedStreamMs: FAILED_STREAM_MS, ...clientTimeLimits };
  let watched: ReturnType<typeof watchGateway> | undefined;
  const runtime = {
    writeLog(lines: string) {
      const each = lines.split(/(?<=\n)/);
      log.push(...each);
      watched?.log.push(...each);
    },
    isTerminal: false,
    clientTimeLimits: limits,
  };
  const app = new App(config, runtime, {
    ...OUTSIDE,
    createTransport(...options) {
      const transport = create(...options);
      return Object.assign(transport, { send: replaceSend(transport.send) });
    },
  });
  const { admin, server } = app;
  const { budget, store, traces, transport } = app.parts;
  await store?.connect();
  const { port } = await server.listen(0, '127.0.0.1');
  const adminPort = (await admin?.server.listen(0, '127.0.0.1'))?.port ?? 0;
  const drain = async (timeoutMs = 0, reason = new Error('test is over'), delayMs = 0) => {
    const result = await app.drain({ delayMs, timeoutMs, reason });
    await admin?.server.drain({ delayMs: 0, timeoutMs: 0, reason });
    await traces?.close();
    transport.close();
    return result;
  };
  let isDrained = false;
  t.after(async () => {
    if (!isDrained) await drain();
  });
  watched = watchGateway(t, app, limits.lingerCheckMs);

  const gateway: TestGateway = {
    port,
    adminPort,
    log,
    lines: (...messages) => parseLog(log.join(''), ...messages),
    accessLines: () => gateway.lines('request'),
    async send(path, options = {}) {
      const headers = { authorization: `Bearer ${CLIENT_TOKEN}`, ...options.headers };
      return send(port, path, { ...options, headers });
    },
    chat: (body, options = {}) =>
      gateway.send('/v1/chat/completions', {
        method: 'POST',
        ...options,
        headers: { 'content-type': 'application/json', ...options.headers },
        body: typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body),
      }),
    admin: (path, options = {}) => send(adminPort, path, options),
    reservedBytes: () => budget.reservedBytes,
    judge: () => app.judge(),
    waitingBytes: () => budget.waitingBytes,
    drain: async (timeoutMs, reason, delayMs) => {
      isDrained = true;
      return await drain(timeoutMs, reason, delayMs);
    },
    cut: () => server.cancelRequests(),
    reload: async (text) => {
      app.reload(() => load(text));
      watched?.logging.push(app.config.logging);
    },
  };
  return gateway;
}

/**
 * For `adjust`: a bucket gets no new token before the test ends, however slow the machine is. A
 * settings file cannot set so low a rate.
 */
export function withoutRefill(config: Config): Config {
  const slow = <B extends Config['rateLimit']['global']>(bucket: B) => ({
    ...bucket,
    requestsPerSecond: Math.min(bucket.requestsPerSecond, 1e-6),
  });
  const { global, providers } = config.rateLimit;
  const slowProviders = new Map([...providers].map(([id, bucket]) => [id, slow(bucket)]));
  const rateLimit = { ...config.rateLimit, global: slow(global), providers: slowProviders };
  return { ...config, rateLimit };
}

/** Returns an access line's tries as `<provider_id>:<status, or outcome without a status>`. */
export function triesOf(line: LogLine | undefined): string | undefined {
  const tries = line?.['tries'] as { provider: string; status?: number; outcome: string }[];
  return tries
    ?.map(({ provider, status, outcome }) => `${provider}:${status ?? outcome}`)
    .join(' ');
}

/** The settings of a provider at this upstream. */
export function providerToml(
  { baseUrl }: { readonly baseUrl: string },
  id = 'p',
  more = '',
): string {
  return [
    `[providers.${id}]`,
    `base_url = "${baseUrl}"`,
    `api_key = "${PROVIDER_KEY}"`,
    more,
    '',
  ].join('\n');
}

/** The environment for an access line of each refusal, which other lines sum up. */
export const EACH_REFUSAL = { GATEWAY_LOG_LEVEL: 'debug' };

/** The smallest valid chat request. */
export function chatBody(more: object = {}): Record<string, unknown> {
  return { model: 'p/m', messages: [{ role: 'user', content: 'hello' }], ...more };
}

/** A chat request for a stream. */
export const STREAM = chatBody({ stream: true });

/** A chat request's bytes, to be written to a socket. `headers` are further lines. */
export function rawChat(body: object, headers: readonly string[] = []): string {
  const json = JSON.stringify(body);
  const head = [
    'POST /v1/chat/completions HTTP/1.1',
    'host: localhost',
    `authorization: Bearer ${CLIENT_TOKEN}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(json)}`,
    ...headers,
  ];
  return `${head.join('\r\n')}\r\n\r\n${json}`;
}

/** Sends a request with only these headers. Rejects unless a whole answer arrives. */
export async function send(
  port: number,
  path: string,
  { method = 'GET', headers = {}, body, signal, agent }: SendOptions,
): Promise<Reply> {
  const sent = Object.fromEntries(
    Object.entries(headers).filter(([, value]) => value !== undefined),
  ) as Record<string, string>;
  return new Promise((resolve, reject) => {
    const request = httpRequest(
      { host: '127.0.0.1', port, path, method, headers: sent, agent: agent ?? false, signal },
      (response) => {
        readAnswer(response).then((bytes) => {
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            bytes,
            text: bytes.toString(),
            json: () => JSON.parse(bytes.toString()) as unknown,
          });
        }, reject);
      },
    );
    request.on('error', reject);
    request.end(body);
  });
}
