/** Chooses a world by its seed. */

import { createRandom } from '../support/random.ts';
import type { Plan, Settings } from './plan.ts';

const NO_BUCKET = { requests_per_second: 0, burst_capacity: 100 };

export const PLAIN_SETTINGS: Settings = {
  server: {
    timeout: 60,
    stream_idle_timeout: 300,
    stream_keepalive: 0,
    retries: 0,
    max_concurrent_requests: 0,
    cors: false,
  },
  authKeys: [],
  clients: [],
  fallback: [],
  providers: [
    {
      id: 'a',
      enabled: true,
      api_keys: ['key-of-a-1'],
      default_model: 'm0',
      key_affinity: false,
      stream_usage: false,
      max_concurrent_requests: 0,
      forward_headers: [],
      return_headers: [],
    },
  ],
  aliases: [],
  rateLimit: { enabled: false, hasStore: false, ...NO_BUCKET, providers: {} },
  hasAdmin: false,
};

export function generate(seed: number): Plan {
  const random = createRandom(seed);
  const count = random.integer(5, 40);
  const asks = Array.from({ length: count }, (_, number) => {
    const isStream = random.oneIn(2);
    const body = JSON.stringify({
      model: 'a/m0',
      stream: isStream,
      messages: [{ role: 'user', content: `r${number}` }],
    });
    const trace = `${(number + 1).toString(16).padStart(8, '0')}${'ab'.repeat(12)}`;
    return {
      id: `r${number}`,
      number: number + 1,
      afterMs: random.integer(1, 1000) / 7,
      isPipelined: false,
      method: 'POST',
      path: '/v1/chat/completions',
      version: '1.1' as const,
      headers: [
        ['host', 'gateway.test'],
        ['authorization', 'Bearer any'],
        ['content-type', 'application/json'],
        ['x-request-id', `r${number}`],
        ['traceparent', `00-${trace}-00f067aa0ba902b7-01`],
      ] as [string, string][],
      body,
      isChunked: false,
      cuts: [],
      chat: { model: 'a/m0', isStream, asksForUsage: false },
      replies: {},
    };
  });
  return {
    seed,
    settings: PLAIN_SETTINGS,
    connections: [{ atMs: 1, asks }],
    incidents: [],
    outages: [],
  };
}
