/** Starts the built gateway of this project for the cases. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { Gateway } from './client.ts';

/** The cases tell their requests apart, so they need not wait for one another. */
const AT_ONCE = 16;

/**
 * Starts dist/server.js of this project folder with a provider at this port. Rejects with the
 * gateway's output if it ends at once.
 */
export async function startOwnGateway(project: string, providerPort: number) {
  const { name, version } = JSON.parse(readFileSync(join(project, 'package.json'), 'utf8')) as {
    name: string;
    version: string;
  };
  const settings = `
[server]
host = "127.0.0.1"
port = 0
endpoints = ["/v1/completions", "/v1/responses", "/v1/messages"]
[server.auth]
keys = ["truth-client-key"]
[logging]
level = "error"
[providers.p]
base_url = "http://127.0.0.1:${providerPort}/v1"
api_key = "truth-provider-key"
`;
  const { PATH, GATEWAY_UPSTREAM } = process.env;
  const child = spawn(process.execPath, [join(project, 'dist', 'server.js')], {
    cwd: tmpdir(),
    env: { PATH, GATEWAY_UPSTREAM, GATEWAY_CONFIG_TOML: settings },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let output = '';
  const port = await new Promise<string>((resolve, reject) => {
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      const found = /^listening .*:(\d+)\/v1/m.exec(output)?.[1];
      if (found !== undefined) resolve(found);
    });
    child.once('error', reject);
    child.once('exit', (code) => reject(new Error(`the gateway ended with ${code}: ${output}`)));
  });
  const gateway: Gateway = {
    url: new URL(`http://127.0.0.1:${port}/v1`),
    model: 'p/m',
    key: 'truth-client-key',
    headers: [],
  };
  return {
    gateway,
    name,
    version,
    atOnce: AT_ONCE,
    stop: async () => {
      const exited = once(child, 'exit');
      child.kill('SIGTERM');
      await exited;
    },
  };
}
