/**
 * The clients of test/long/large-bodies.ts, as a child process. Arguments: the gateway's port,
 * `uploads` or `answers`, whether the length is `announced`, how many requests at once, and how
 * many rounds. Sends back how often each result occurred.
 */

import { createHash } from 'node:crypto';
import { request as httpRequest } from 'node:http';

import { chatBody, CLIENT_TOKEN } from './gateway.ts';
import { createLargeAnswer, createLargeRequest } from './large-body.ts';

const [port, kind, framing, count, rounds] = process.argv.slice(2);
const isChunked = kind === 'uploads' && framing !== 'announced';
const answerHash = createHash('sha1').update(createLargeAnswer()).digest('hex');

interface Result {
  readonly status: number;
  readonly retryAfter: string | undefined;
  readonly hash: string;
  readonly text: string;
}

async function send(parts: readonly Buffer[]): Promise<Result> {
  return new Promise((resolve, reject) => {
    const request = httpRequest(
      {
        host: '127.0.0.1',
        port,
        path: '/v1/chat/completions',
        method: 'POST',
        agent: false,
        headers: {
          authorization: `Bearer ${CLIENT_TOKEN}`,
          'content-type': 'application/json',
          ...(isChunked
            ? { 'transfer-encoding': 'chunked' }
            : { 'content-length': parts.reduce((sum, { length }) => sum + length, 0) }),
        },
      },
      (response) => {
        const hash = createHash('sha1');
        let text = '';
        response.on('error', reject);
        response.on('data', (chunk: Buffer) => {
          hash.update(chunk);
          if (text.length < 1000) text += chunk.toString('latin1');
        });
        response.on('end', () => {
          const { statusCode: status = 0, headers } = response;
          resolve({ status, retryAfter: headers['retry-after'], hash: hash.digest('hex'), text });
        });
      },
    );
    request.on('error', reject);
    for (const part of parts) request.write(part);
    request.end();
  });
}

/** Returns the request's result: its status, or a text about its defect. */
async function tryOne(number: number): Promise<string> {
  const upload = kind === 'uploads' ? createLargeRequest(number) : undefined;
  const small = Buffer.from(JSON.stringify(chatBody({ user: framing })));
  try {
    const { status, retryAfter, hash, text } = await send(upload?.parts ?? [small]);
    if (status === 429) {
      const isDocumented = retryAfter === '1' && text.includes('"type":"rate_limit_error"');
      return isDocumented ? '429' : `429 that is not documented: ${text}`;
    }
    const isWhole = upload ? text.includes(upload.forwardedHash) : hash === answerHash;
    return status === 200 && !isWhole ? '200 with other bytes' : String(status);
  } catch (error) {
    return `no answer: ${String(error)}`;
  }
}

const counts: Record<string, number> = {};
for (let round = 0; round < Number(rounds); round += 1) {
  const outcomes = await Promise.all(Array.from({ length: Number(count) }, (_, at) => tryOne(at)));
  for (const outcome of outcomes) counts[outcome] = (counts[outcome] ?? 0) + 1;
}
process.send?.(counts);
