/** `--healthcheck`: asks the gateway on this machine for its health. */

import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { text as textOf } from 'node:stream/consumers';

import { ConfigError, type Config, type Env, type Flags } from '../config/config.ts';
import { localUrl } from './startup-report.ts';
import { http } from '../lib/http.ts';

const TIMEOUT_MS = 5000;

/**
 * Returns as `text` the answer or the reason why there is none. Without valid settings, the port
 * comes from `flags` or the environment.
 */
export async function checkHealth(flags: Flags, env: Env, readConfig: () => Config) {
  let url: string;
  try {
    const { server } = readConfig();
    url = localUrl(server.host, server.port);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    // The running gateway may still use its former settings, although the file is wrong now.
    const port = Number(flags.port ?? env['GATEWAY_PORT']);
    if (!(port > 0)) return { isHealthy: false, text: `${error.message}\n` };
    url = localUrl(flags.host ?? (env['GATEWAY_HOST'] || '127.0.0.1'), port);
  }
  try {
    // `get` and no agent, because fetch refuses some ports and the default agent may use the
    // environment's proxy.
    const request = http.get(`${url}/health`, {
      signal: AbortSignal.timeout(TIMEOUT_MS),
      agent: false,
    });
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    const text = await textOf(response);
    return { isHealthy: response.statusCode === 200, text: `${text}\n` };
  } catch {
    return { isHealthy: false, text: `no answer from ${url}/health\n` };
  }
}
