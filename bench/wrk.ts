/** wrk, if it is installed, because it is faster than any generator on Node. */

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';

import { folder, has, startBeside } from './processes.ts';

export const hasWrk = has('wrk');
/** Heads may differ by some bytes, and an answer may be under way at the end. */
const LENGTH_TOLERANCE = 0.02;
const GRACE_MS = 30_000;

export interface WrkJob {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer;
  readonly connections: number;
  readonly ms: number;
  /** An answer's length with its head. */
  readonly answerBytes: number;
}

/** Sends requests as fast as answers come. Throws if an answer is wrong. */
export async function runWrk({ url, headers, body, connections, ms, answerBytes }: WrkJob) {
  const [script, bodyFile] = [join(folder, 'wrk.lua'), join(folder, 'wrk.body')];
  const lines = Object.entries(headers).map(([name, value]) => `["${name}"] = "${value}"`);
  writeFileSync(bodyFile, body);
  writeFileSync(
    script,
    `wrk.method, wrk.body = "POST", io.open("${bodyFile}", "rb"):read("*a")
    wrk.headers = { ${lines.join(', ')} }
    function done(sum)
      local e = sum.errors
      print(string.format('{"requests":%d,"us":%d,"bytes":%d,"errors":%d}', sum.requests,
        sum.duration, sum.bytes, e.connect + e.read + e.write + e.status + e.timeout))
    end`,
  );
  const seconds = Math.max(1, Math.round(ms / 1000));
  const args = `-t 1 -c ${connections} -d ${seconds}s --timeout 10s -s ${script} ${url}`;
  const wrk = startBeside('wrk', args.split(' '), ms + GRACE_MS);
  const output = await text(wrk.stdout!);
  const last = output.trim().split('\n').at(-1)!;
  const { requests, us, bytes, errors } = JSON.parse(last) as Record<string, number>;
  if (requests === 0) throw new Error('answered nothing');
  if (errors !== 0) throw new Error(`${errors} of ${requests} requests failed`);
  if (Math.abs(bytes! / requests! / answerBytes - 1) > LENGTH_TOLERANCE) {
    throw new Error(`answers of ${Math.round(bytes! / requests!)} bytes, not ${answerBytes}`);
  }
  return { requests: requests!, perSecond: requests! / (us! / 1e6) };
}
