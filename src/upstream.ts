/**
 * The one door out. Sends an `UpstreamRequest` by one of two lanes and says in the gateway's terms
 * what went wrong. Nothing above this file looks at the errors of fetch, undici or node:net.
 */

import { Deadline, type Cancellation } from './cancellation.ts';
import { beginWaiting, breakageOf, createEngine, endWaiting, type Engine } from './connections.ts';
import { dispatch } from './dispatch.ts';
import { GatewayError } from './errors.ts';
import { Pieces } from './pieces.ts';
import type { UpstreamReply, UpstreamRequest } from './provider.ts';

const CHECK_TIMEOUT_MS = 2000;
const MAX_CHECK_BYTES = 1024;

export interface Upstream {
  /** Which lane is in use, and why, for the operator. */
  readonly lane: string;
  /** False where fetch's own limits stay in force: it gives up after 300 s of silence, whatever is configured. */
  readonly canWaitLong: boolean;
  /**
   * Tries the engine on this server, whose `/health` answers 200. Node documents nothing of what the
   * fast lane rests on: where a new version has changed it, fetch takes over.
   */
  checkEngine(origin: string): Promise<void>;
  /**
   * Sends once: no redirects, no retries, no decoding. Rejects, and fails the body, with what
   * `upstreamFailure` understands.
   */
  send(request: UpstreamRequest, cancellation: Cancellation): Promise<UpstreamReply>;
  /** Closes all connections. */
  close(): Promise<void>;
}

/** Creates the upstream side, with its own pool of connections. `setting` is `server.upstream`. */
export function createUpstream(setting: 'auto' | 'fetch'): Upstream {
  const engine = createEngine();
  let whyFetch = engine === undefined ? 'its engine was not found' : '';
  if (setting === 'fetch') whyFetch = 'as the settings ask';
  return {
    canWaitLong: engine !== undefined,
    get lane() {
      return whyFetch
        ? `fetch, ${whyFetch}`
        : `undici ${process.versions['undici']}, fetch's engine`;
    },
    async checkEngine(origin) {
      if (!whyFetch && !(await isEngineWorking(origin))) whyFetch = 'its engine failed the check';
    },
    async send(request, cancellation) {
      beginWaiting(request.origin);
      try {
        if (whyFetch) return await sendByFetch(request, cancellation, engine);
        return await dispatch(engine!, request, cancellation);
      } finally {
        endWaiting(request.origin);
      }
    },
    async close() {
      await engine?.destroy();
    },
  };
}

async function isEngineWorking(origin: string): Promise<boolean> {
  const engine = createEngine({ isDirect: true })!;
  const deadline = new Deadline();
  deadline.arm(CHECK_TIMEOUT_MS, () => new Error('no answer in time'));
  try {
    const request = { method: 'GET', origin, path: '/health', headers: {} } as const;
    const reply = await dispatch(engine, request, deadline);
    const body = await readAll(reply.body, MAX_CHECK_BYTES);
    const length = Number(reply.headers.get('content-length'));
    return reply.status === 200 && length > 0 && body?.length === length;
  } catch {
    return false;
  } finally {
    deadline.end();
    await engine.destroy();
  }
}

/** The plain lane. */
async function sendByFetch(
  { method, origin, path, headers, body }: UpstreamRequest,
  cancellation: Cancellation,
  engine: Engine | undefined,
): Promise<UpstreamReply> {
  const controller = new AbortController();
  cancellation.onCancel(() => controller.abort(cancellation.reason));
  const response = await fetch(origin + path, {
    method,
    headers,
    signal: controller.signal,
    // A followed redirect would carry the prompt, and custom key headers, to another host.
    redirect: 'manual',
    body: body ?? null,
    ...(engine ? { dispatcher: engine as never } : {}),
  });
  const { status } = response;
  return { status, headers: response.headers, body: untilCancelled(response.body, cancellation) };
}

/** fetch's body, read by nobody but us from the start: an unread one fetch cancels by itself, and lets what that rejects with go. */
function untilCancelled(
  body: ReadableStream<Uint8Array> | null,
  cancellation: Cancellation,
): AsyncGenerator<Buffer> {
  const reader = body?.getReader();
  // On Node 20 and 22 a read stays unsettled where an abort meets data not yet read.
  cancellation.onCancel(() => void reader?.cancel().catch(() => {}));
  return (async function* () {
    for (;;) {
      const chunk = await reader?.read();
      cancellation.throwIfCancelled();
      if (!chunk?.value) return;
      yield Buffer.from(chunk.value.buffer, chunk.value.byteOffset, chunk.value.length);
    }
  })();
}

/** The whole body, or `undefined` when it is longer than `maxBytes`; the rest is left unread. */
export async function readAll(
  body: AsyncIterable<Buffer>,
  maxBytes: number,
): Promise<Buffer | undefined> {
  const whole = new Pieces();
  for await (const chunk of body) {
    whole.push(chunk);
    if (whole.size > maxBytes) return undefined;
  }
  return whole.take();
}

const CLOSED_BY_UPSTREAM = new Set(['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET']);
const TIMED_OUT = new Set([
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
]);

/** `Request timed out` (interface, Errors). */
export function timeoutError(provider: string, cause?: unknown): GatewayError {
  return new GatewayError('timeout', 'Request timed out', { provider, cause });
}

/**
 * Translates what `send`, or reading its body, was rejected with. `answered`: the response headers
 * had come, so the provider has worked on the request and it must not be repeated.
 * Hosts, ports and library texts stay in `cause`, for the log.
 */
export function upstreamFailure(
  thrown: unknown,
  { provider, answered }: { readonly provider: string; readonly answered: boolean },
): unknown {
  const outer = thrown instanceof TypeError ? thrown.cause : undefined;
  // fetch takes a proxy that refuses a tunnel for an abort of its own.
  const cause = outer instanceof DOMException ? (outer.cause ?? outer) : outer;
  // The reason of an abort, or a bug of ours: fetch's own failures are TypeErrors with a cause.
  if (!(cause instanceof Error)) return thrown;
  const { code = '' } = cause as NodeJS.ErrnoException;
  // Of several addresses tried, an AggregateError names only what became of the first.
  const isOneAddress = !(cause instanceof AggregateError);
  if (isOneAddress && TIMED_OUT.has(code)) return timeoutError(provider, cause);
  const breakage = breakageOf(cause);
  if (breakage === 'abandoned' || breakage === 'unconnected') {
    return new GatewayError('provider', 'the provider is unreachable', {
      provider,
      cause,
      retryable: true,
      repeatAtOnce: breakage === 'abandoned',
    });
  }
  if (!CLOSED_BY_UPSTREAM.has(code)) {
    return new GatewayError('provider', 'the answer was not valid HTTP', { provider, cause });
  }
  if (answered || breakage === 'midAnswer') {
    return new GatewayError('provider', 'the answer was cut off', { provider, cause });
  }
  return new GatewayError('provider', 'the connection was closed without an answer', {
    provider,
    cause,
    retryable: true,
    repeatAtOnce: breakage === 'stale',
  });
}
