/**
 * The one door out. Sends an `UpstreamRequest` by one of two lanes and says in the gateway's terms
 * what went wrong. Nothing above this file looks at the errors of fetch, undici or node:net.
 */

import { Deadline, type Cancellation } from '../lib/cancellation.ts';
import { readAll } from '../lib/chunk-buffer.ts';
import { beginWaiting, createAgent, endWaiting } from './connections.ts';
import { sendByFetch } from './fetch-transport.ts';
import type { UpstreamReply, UpstreamRequest } from './provider.ts';
import { dispatch } from './undici-transport.ts';

const CHECK_TIMEOUT_MS = 2000;
const MAX_CHECK_BYTES = 1024;

export interface Transport {
  /** Which lane is in use, and why, for the operator. */
  readonly description: string;
  /** False where fetch's own limits stay in force: it gives up after 300 s of silence, whatever is configured. */
  readonly canWaitLong: boolean;
  /**
   * Tries the agent on this server, whose `/health` answers 200. Node documents nothing of what the
   * fast lane rests on: where a new version has changed it, fetch takes over.
   */
  check(origin: string): Promise<void>;
  /**
   * Sends once: no redirects, no retries, no decoding. Rejects, and fails the body, with what
   * `upstreamFailure` understands.
   */
  send(request: UpstreamRequest, cancellation: Cancellation): Promise<UpstreamReply>;
  /** Closes all connections. */
  close(): Promise<void>;
}

/** Creates the upstream side, with its own pool of connections. `setting` is `server.upstream`. */
export function createTransport(setting: 'auto' | 'fetch'): Transport {
  const agent = createAgent();
  let fetchReason = agent === undefined ? 'its agent was not found' : '';
  if (setting === 'fetch') fetchReason = 'as the settings ask';
  return {
    canWaitLong: agent !== undefined,
    get description() {
      return fetchReason
        ? `fetch, ${fetchReason}`
        : `undici ${process.versions['undici']}, fetch's engine`;
    },
    async check(origin) {
      if (!fetchReason && !(await isAgentWorking(origin)))
        fetchReason = 'its agent failed the check';
    },
    async send(request, cancellation) {
      beginWaiting(request.origin);
      try {
        if (fetchReason) return await sendByFetch(request, cancellation, agent);
        return await dispatch(agent!, request, cancellation);
      } finally {
        endWaiting(request.origin);
      }
    },
    async close() {
      await agent?.destroy();
    },
  };
}

async function isAgentWorking(origin: string): Promise<boolean> {
  const agent = createAgent({ isDirect: true })!;
  const deadline = new Deadline();
  deadline.arm(CHECK_TIMEOUT_MS, () => new Error('no answer in time'));
  try {
    const request = { method: 'GET', origin, path: '/health', headers: {} } as const;
    const reply = await dispatch(agent, request, deadline);
    const body = await readAll(reply.body, MAX_CHECK_BYTES);
    const length = Number(reply.headers.get('content-length'));
    return reply.status === 200 && length > 0 && body?.length === length;
  } catch {
    return false;
  } finally {
    deadline.end();
    await agent.destroy();
  }
}
