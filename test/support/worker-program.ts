/** The built program with worker threads, whose requests tell which of them answers. */

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { Agent, request as httpRequest } from 'node:http';
import { join } from 'node:path';
import type { TestContext } from 'node:test';

import { chatBody, CLIENT_TOKEN } from './gateway.ts';
import {
  emptyFolder,
  ROOT,
  startProgram,
  startServing,
  type Line,
  type Program,
  type Serving,
} from './process.ts';
import { eventually } from './streams.ts';

export interface ThreadReply {
  readonly status: number;
  readonly text: string;
  /** The number of the thread that has answered. */
  readonly thread: number;
}

/** A client with one connection. */
export interface Client {
  /** Rejects if the connection breaks. */
  chat(body?: object, headers?: Record<string, string>): Promise<ThreadReply>;
  get(path: string, headers?: Record<string, string>): Promise<ThreadReply>;
  /** Makes its worker fail. */
  inflict(fault: 'throw' | 'exit' | 'busy' | 'memory'): Promise<void>;
  close(): void;
}

interface ProgramSettings {
  readonly toml: string;
  readonly workers: number;
  /** Of test/support/worker-hook.mjs. */
  readonly env?: Record<string, string>;
  readonly nodeOptions?: string;
}

export interface WorkerProgram extends Serving {
  /** A path of the admin listener. */
  readonly adminUrl: (path: string) => URL;
  /** Replaces a part of its settings, if one is given, sends SIGHUP, and waits for the line "reloaded". */
  readonly reload: (part?: string, other?: string) => Promise<Line>;
  /** Waits for so many lines with this message and returns them. */
  readonly logged: (message: string, count?: number) => Promise<Line[]>;
  readonly connect: () => Client;
  /** Connects until each worker has a connection. By the number of the thread. */
  readonly connectToEach: () => Promise<Map<number, Client>>;
}

const HOOK = join(ROOT, 'test', 'support', 'worker-hook.mjs');

/** Returns what a program of a test is started with. */
function describeProgram(t: TestContext, settings: ProgramSettings) {
  const { toml, workers, env = {}, nodeOptions = '' } = settings;
  const server = `[server]\nhost = "127.0.0.1"\nport = 0\nworkers = ${workers}\n`;
  const text = toml.includes('[server]\n') ? toml.replace('[server]\n', server) : server + toml;
  const config = join(emptyFolder(t, { 'settings.toml': text }), 'settings.toml');
  // Not the number of workers that the whole run may have.
  const allEnv = { NODE_OPTIONS: `--import=${HOOK} ${nodeOptions}`, GATEWAY_WORKERS: '', ...env };
  return { config, args: ['--config', config], options: { env: allEnv } };
}

/** Starts it and waits until its log says so. */
export async function startWorkers(
  t: TestContext,
  settings: ProgramSettings,
): Promise<WorkerProgram> {
  const { config, args, options } = describeProgram(t, settings);
  const program = await startServing(t, args, options);
  const { port } = program;
  const { lines } = program;
  const logged = async (message: string, count = 1) => {
    await eventually(() => lines(message).length >= count, `${count} lines "${message}"`);
    return lines(message);
  };
  await logged('started');
  const adminUrl = (path: string) => new URL(path, String(lines('started')[0]!['admin_url']));
  const reload = async (part = '', other = '') => {
    writeFileSync(config, readFileSync(config, 'utf8').replace(part, other));
    const earlier = lines('reloaded').length;
    program.child.kill('SIGHUP');
    return (await logged('reloaded', earlier + 1)).at(-1)!;
  };
  const connect = () => createClient(t, port);
  const connectToEach = async () => {
    const clients = new Map<number, Client>();
    for (let tries = 0; clients.size < settings.workers; tries += 1) {
      assert.ok(tries < 500, `only ${clients.size} workers answer`);
      const client = connect();
      const { thread } = await client.get('/health');
      if (clients.has(thread)) client.close();
      else clients.set(thread, client);
    }
    return clients;
  };
  return { ...program, adminUrl, reload, logged, connect, connectToEach };
}

/** Starts it without waiting for anything. */
export function launchWorkers(t: TestContext, settings: ProgramSettings): Program {
  const { args, options } = describeProgram(t, settings);
  return startProgram(t, args, options);
}

function createClient(t: TestContext, port: number): Client {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  t.after(() => agent.destroy());
  const send = async (path: string, headers: Record<string, string>, body?: object) =>
    new Promise<ThreadReply>((resolve, reject) => {
      const method = body ? 'POST' : 'GET';
      const all = {
        authorization: `Bearer ${CLIENT_TOKEN}`,
        'content-type': 'application/json',
        ...headers,
      };
      const options = { host: '127.0.0.1', port, path, method, agent, headers: all };
      const request = httpRequest(options, (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
        response.on('error', reject);
        response.on('end', () => {
          const thread = Number(response.headers['x-thread']);
          resolve({ status: response.statusCode!, text, thread });
        });
      });
      request.on('error', reject);
      request.end(body && JSON.stringify(body));
    });
  return {
    chat: async (body = chatBody(), headers = {}) => send('/v1/chat/completions', headers, body),
    get: async (path, headers = {}) => send(path, headers),
    inflict: async (fault) => void (await send('/health', { 'x-fault': fault }).catch(() => {})),
    close: () => agent.destroy(),
  };
}
