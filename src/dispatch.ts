/**
 * The fast lane: one request through undici's engine itself. The WHATWG layer that fetch puts on top
 * costs more than the rest of the request (`npm run bench`).
 */

import type { Engine } from './connections.ts';
import type { UpstreamReply, UpstreamRequest } from './provider.ts';

/** Sends once. Rejects, and fails the body, as fetch does: with the signal's reason, or a TypeError with a cause. */
export async function dispatch(
  engine: Engine,
  { method, origin, path, headers, body }: UpstreamRequest,
  signal: AbortSignal,
): Promise<UpstreamReply> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const exchange = new Exchange(signal, resolve, reject);
    engine.dispatch({ method, origin, path, headers, body }, exchange);
  });
}

/** What undici 7 and 8 hand to each method of a handler. */
interface Controller {
  readonly rawHeaders: readonly Buffer[];
  abort(reason: Error): void;
  pause(): void;
  resume(): void;
}

/** The handler of one request: undici 6 calls the first five methods, undici 7 and 8 the others. */
class Exchange {
  readonly #signal: AbortSignal;
  readonly #resolve: (reply: UpstreamReply) => void;
  readonly #reject: (error: unknown) => void;
  #body: ReadableStreamDefaultController<Uint8Array> | undefined;
  #abortRequest: ((reason: Error) => void) | undefined;
  #isOver = false;
  readonly #onAbort = () => this.#giveUp(this.#signal.reason as Error);

  constructor(
    signal: AbortSignal,
    resolve: (reply: UpstreamReply) => void,
    reject: (error: unknown) => void,
  ) {
    this.#signal = signal;
    this.#resolve = resolve;
    this.#reject = reject;
    signal.addEventListener('abort', this.#onAbort);
  }

  onConnect(abort: (reason: Error) => void): void {
    this.#abortRequest = abort;
    // Given up while it waited for a connection, where undici has no way to be told.
    if (this.#isOver) abort(this.#signal.reason as Error);
  }

  /** False, here and below: the reader wants nothing more for now. */
  onHeaders(status: number, rawHeaders: readonly Buffer[], resume: () => void): boolean {
    // 1xx: the answer is still to come.
    if (status < 200) return true;
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#body = controller;
      },
      pull: resume,
      cancel: (reason: Error) => this.#giveUp(reason),
    });
    this.#resolve({ status, headers: readHeaders(rawHeaders), body });
    return true;
  }

  onData(chunk: Buffer): boolean {
    // undici 6 reports nothing as data when it resumes; to pause again for it would go on for ever.
    if (chunk.length === 0) return true;
    this.#body!.enqueue(chunk);
    return this.#body!.desiredSize! > 0;
  }

  onComplete(): void {
    if (this.#end()) this.#body!.close();
  }

  onError(error: Error): void {
    if (this.#end()) this.#fail(new TypeError('the upstream request failed', { cause: error }));
  }

  onRequestStart(controller: Controller): void {
    this.onConnect((reason) => controller.abort(reason));
  }

  onResponseStart(controller: Controller, status: number): void {
    this.onHeaders(status, controller.rawHeaders, () => controller.resume());
  }

  onResponseData(controller: Controller, chunk: Buffer): void {
    if (!this.onData(chunk)) controller.pause();
  }

  onResponseEnd(): void {
    this.onComplete();
  }

  onResponseError(_: Controller, error: Error): void {
    this.onError(error);
  }

  #giveUp(reason: Error): void {
    if (!this.#end()) return;
    this.#fail(reason);
    this.#abortRequest?.(reason);
  }

  #fail(error: Error): void {
    this.#reject(error);
    this.#body?.error(error);
  }

  /** Whether it was not over already. */
  #end(): boolean {
    const wasOver = this.#isOver;
    this.#isOver = true;
    this.#signal.removeEventListener('abort', this.#onAbort);
    return !wasOver;
  }
}

/** Names in lower case; a header that comes several times is joined, as `Headers` does it. */
function readHeaders(raw: readonly Buffer[]): Map<string, string> {
  const headers = new Map<string, string>();
  for (let at = 0; at < raw.length; at += 2) {
    const name = raw[at]!.toString('latin1').toLowerCase();
    const value = raw[at + 1]!.toString('latin1');
    const before = headers.get(name);
    headers.set(name, before === undefined ? value : `${before}, ${value}`);
  }
  return headers;
}
