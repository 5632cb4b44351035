/** The script that takes tokens of several buckets, or of none. It needs Redis 5 or later, or Valkey. */

import type { StoredBucket, Taken } from '../policy/rate-limits.ts';

/**
 * A bucket is what it lacks and since when: with the rate, that is GCRA's theoretical arrival time. Lua has only
 * doubles, so a token is 1e6 units, of which a microsecond refills `rate`: all numbers are integers below 2^53.
 * A key expires when its bucket is full; the 1 ms more is for rounding. A refusal writes too: after the server's
 * clock was set back, the refill goes on from there.
 */
const SCRIPT = `
local time = redis.call('TIME')
local now = time[1] * 1e6 + time[2]
local tokens = ARGV[1] * 1e6
local lacks, answer = {}, 'OK'
for i, key in ipairs(KEYS) do
  local rate, burst = ARGV[2 * i], ARGV[2 * i + 1] * 1e6
  local lack, since = string.match(redis.call('GET', key) or '', '^(%d+) (%d+)$')
  lacks[i] = lack and math.max(0, lack - math.max(0, now - since) * rate) or 0
  local over = lacks[i] + tokens - burst
  if over > 0 and answer == 'OK' then answer = i .. ' ' .. math.ceil(over / rate) end
end
if answer ~= 'OK' then tokens = 0 end
for i, key in ipairs(KEYS) do
  local lack = math.max(0, lacks[i] + tokens)
  local expiryMs = math.ceil(lack / ARGV[2 * i] / 1000) + 1
  redis.call('SET', key, string.format('%.0f %.0f', lack, now), 'PX', expiryMs)
end
return redis.status_reply(answer)`;

/** Returns the arguments of `EVAL`. `tokens`: 1 takes one of each bucket, -1 puts it back. */
export function scriptArguments(
  tokens: 1 | -1,
  buckets: readonly StoredBucket[],
  prefix: string,
): string[] {
  const keys = buckets.map(
    // Buckets with other settings are other buckets.
    ({ name, requestsPerSecond, burstCapacity }) =>
      `${prefix}:${name}:${requestsPerSecond}/${burstCapacity}`,
  );
  const limits = buckets.flatMap(({ requestsPerSecond, burstCapacity }) => [
    String(requestsPerSecond),
    String(burstCapacity),
  ]);
  return [SCRIPT, String(keys.length), ...keys, String(tokens), ...limits];
}

/** Returns what the script's answer means, or undefined if it is none: `OK`, or a bucket's position and microseconds. */
export function parseAnswer(answer: string, buckets: readonly StoredBucket[]): Taken | undefined {
  if (answer === 'OK') return 'taken';
  const [, position, waitUs] = /^(\d{1,9}) (\d{1,9})$/.exec(answer) ?? [];
  const refusedBy = buckets[Number(position) - 1];
  return refusedBy && { refusedBy, waitMs: Number(waitUs) / 1000 };
}
