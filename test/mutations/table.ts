/**
 * Changes of one line that a test must notice. `now` stands in `file` exactly once; with `mutated` in its
 * place a test of test/<tests>.test.ts whose title begins with `title` has to fail.
 */

export interface Mutation {
  readonly file: string;
  readonly now: string;
  readonly mutated: string;
  readonly tests: string;
  readonly title: string;
}

export const MUTATIONS: readonly Mutation[] = [
  {
    file: 'src/gateway/chat-completions.ts',
    now: 'retryAfterSeconds > MAX_AWAITED_SECONDS',
    mutated: 'retryAfterSeconds >= MAX_AWAITED_SECONDS',
    tests: 'wire-fallback',
    title: 'a Retry-After of 30 s is waited for',
  },
  {
    file: 'src/gateway/chat-completions.ts',
    now: 'failures -= 1;',
    mutated: '',
    tests: 'wire-fallback',
    title: 'the immediate attempt after a stale connection does not lengthen the backoff',
  },
  {
    file: 'src/gateway/chat-completions.ts',
    now: 'else breaker.recordSuccess(id);',
    mutated: '',
    tests: 'wire-fallback',
    title: 'an answer that refuses the request ends a row of failures',
  },
  {
    file: 'src/gateway/chat-completions.ts',
    now: 'firstFailure ?? (await tryCandidate(first, ',
    mutated: 'firstFailure ?? (await tryCandidate(candidates.at(-1)!, ',
    tests: 'wire-fallback',
    title: 'when the circuits of all are open, an answer of the requested one is the answer',
  },
  {
    file: 'src/gateway/chat-completions.ts',
    now: 'if (candidate !== first && limits.takeProvider(id)) continue;',
    mutated: '',
    tests: 'wire-fallback',
    title: 'a request that the limit keeps from a provider is not its probe',
  },
  {
    file: 'src/gateway/gateway.ts',
    now: 'record.attempts.length > 1 || provider !== record.provider',
    mutated: 'record.attempts.length > 1',
    tests: 'wire-fallback',
    title: 'a failure of its fallback is told as the fallback\u2019s, and not to be repeated',
  },
  {
    file: 'src/gateway/access-log.ts',
    now: "failure?.kind === 'internal' && !(call.cancellation.reason instanceof GatewayError)",
    mutated: "failure?.kind === 'internal'",
    tests: 'wire-log',
    title: 'of a request that a shutdown ended is not one of an error of the gateway',
  },
  {
    file: 'src/gateway/model-list.ts',
    now: 'now() + FRESH_AFTER_FAILURE_MS',
    mutated: 'now() + FRESH_MS',
    tests: 'wire-models',
    title: 'a list that could not be fetched is tried again after ten seconds',
  },
  {
    file: 'src/policy/circuit-breaker.ts',
    now: 'if (state) state.restsUntilMs = this.#now() + REST_MS;',
    mutated: '',
    tests: 'wire-fallback',
    title: 'rests a provider after three failures in a row',
  },
  {
    file: 'src/policy/token-bucket.ts',
    now: 'this.#refilledAtMs = Math.max(nowMs, this.#refilledAtMs);',
    mutated: 'this.#refilledAtMs = nowMs;',
    tests: 'token-bucket',
    title: 'a clock set back gives nothing, takes nothing and does not stop the refill',
  },
  {
    file: 'src/upstream/attempt.ts',
    now: 'deadline.end({ abandon: true });',
    mutated: 'deadline.end();',
    tests: 'wire-stream',
    title: 'an error string as the first event is an HTTP error',
  },
  {
    file: 'src/upstream/attempt.ts',
    now: "new GatewayError('provider', 'the answer is too large'",
    mutated: "new GatewayError('serialization', 'the answer is too large'",
    tests: 'conformance-errors',
    title: 'a complete answer may have 64 MiB, and a longer one is a 502',
  },
  {
    file: 'src/upstream/attempt.ts',
    now: 'const MAX_ANSWER_BYTES = 67_108_864;',
    mutated: 'const MAX_ANSWER_BYTES = 67_108_863;',
    tests: 'conformance-errors',
    title: 'a complete answer may have 64 MiB, and a longer one is a 502',
  },
  {
    file: 'src/upstream/attempt.ts',
    now: 'const ERROR_BODY_MS = 1000;',
    mutated: 'const ERROR_BODY_MS = 20_000;',
    tests: 'conformance-errors',
    title: 'an error body is waited for one second',
  },
  {
    file: 'src/upstream/provider-error.ts',
    now: 'retryable: !isEvent && RETRYABLE_STATUSES.has(status)',
    mutated: 'retryable: RETRYABLE_STATUSES.has(status)',
    tests: 'wire-fallback',
    title: 'a stream that begins with an error event is not retried',
  },
  {
    file: 'src/upstream/stream-relay.ts',
    now: 'deadline.end({ abandon: !hasEnded });',
    mutated: 'deadline.end();',
    tests: 'wire-stream',
    title: 'an error string in a running stream becomes one documented error event, and the end',
  },
  {
    file: 'src/upstream/stream-relay.ts',
    now: 'if (isProgress) deadline.disarm();',
    mutated: '',
    tests: 'wire-stream',
    title: 'the idle limit does not run while the client is slow to take what came',
  },
  {
    file: 'src/upstream/stream-relay.ts',
    now: 'hasEnded || seen.size > MAX_COMMENT_BYTES',
    mutated: 'hasEnded',
    tests: 'wire-stream',
    title: 'more than 1 MiB of comments before the first event is a 502',
  },
  {
    file: 'src/upstream/stream-relay.ts',
    now: 'this.#isDone ? AFTER_DONE_MS : idleMs',
    mutated: 'idleMs',
    tests: 'wire-stream',
    title: 'after [DONE] the provider is given 5 s to end, and no longer',
  },
  {
    file: 'src/upstream/connections.ts',
    now: 'if (error) queue.session = undefined;',
    mutated: '',
    tests: 'wire-transports',
    title: 'a session is not resumed after a handshake that failed',
  },
  {
    file: 'src/upstream/connections.ts',
    now: 'isReused && isSoon',
    mutated: 'isReused',
    tests: 'wire-fallback',
    title: 'and is closed a second after the request is a 502',
  },
  {
    file: 'src/upstream/connections.ts',
    now: "code: 'ETIMEDOUT'",
    mutated: "code: 'ECONNREFUSED'",
    tests: 'wire-transports',
    title: 'a connection that is not made within ten seconds is a 504',
  },
  {
    file: 'src/upstream/connections.ts',
    now: 'const CONNECT_TIMEOUT_MS = 10_000;',
    mutated: 'const CONNECT_TIMEOUT_MS = 20_000;',
    tests: 'wire-transports',
    title: 'a connection that is not made within ten seconds is a 504',
  },
  {
    file: 'src/upstream/connections.ts',
    now: 'if (socket && socket.writableLength > MAX_UNSENT_BYTES) socket.destroy();',
    mutated: '',
    tests: 'fault-upstream-cut',
    title: 'an upload that is answered before it was read blocks no other request',
  },
  {
    file: 'src/downstream/call.ts',
    now: "response.off('close', onEnd);",
    mutated: '',
    tests: 'fault-cancellation',
    title:
      'a client that leaves when the provider has already sent everything leaves nothing behind',
  },
  {
    file: 'src/downstream/call.ts',
    now: 'response.writableFinished && !request.socket.destroyed',
    mutated: 'response.writableFinished',
    tests: 'fault-stuck-reader',
    title: 'an answer that a reset finds half written is not called delivered',
  },
  {
    file: 'src/downstream/call.ts',
    now: 'const isLast = this.isDraining && this.#request.complete;',
    mutated: 'const isLast = this.isDraining;',
    tests: 'fault-slow-client',
    title:
      'for its token, with a Content-Length, in a drain, is not reset before the answer is read',
  },
  {
    file: 'src/downstream/http-server.ts',
    now: 'quietTurns < 3',
    mutated: 'quietTurns < 1',
    tests: 'drain-load',
    title: 'SIGTERM at any moment breaks no answer',
  },
  {
    file: 'src/downstream/http-server.ts',
    now: 'if (givenUp) call.cancellation.cancel(givenUp);',
    mutated: '',
    tests: 'wire-drain',
    title: 'a request that comes after the deadline of a drain is told so',
  },
  {
    file: 'src/lib/cancellation.ts',
    now: 'if (ms !== this.#timerMs) this.#clear();',
    mutated: '',
    tests: 'wire-stream',
    title: 'a stream counts as silent although comments come',
  },
  {
    file: 'src/lib/secrets.ts',
    now: 'b.length - a.length',
    mutated: 'a.length - b.length',
    tests: 'conformance-errors',
    title: 'where one key begins with another, nothing of the longer one is left',
  },
];
