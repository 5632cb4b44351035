/**
 * The fast lane: one request through undici's engine itself. The WHATWG layer that fetch puts on top
 * costs more than the rest of the request (`npm run bench`).
 */

import type { Cancellation } from '../lib/cancellation.ts';
import type { Agent } from './connections.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import type { UpstreamReply, UpstreamRequest } from './provider.ts';

/** Sends once. Rejects, and fails the body, as fetch does: with the reason of the cancellation, or a TypeError with a cause. */
export async function dispatch(
  agent: Agent,
  { method, origin, path, headers, body }: UpstreamRequest,
  cancellation: Cancellation,
): Promise<UpstreamReply> {
  return new Promise((resolve, reject) => {
    cancellation.throwIfCancelled();
    const exchange = new Exchange(cancellation, resolve, reject);
    agent.dispatch({ method, origin, path, headers, body: body && Buffer.concat(body) }, exchange);
  });
}

/** What undici 7 and 8 hand to each method of a handler. */
interface Controller {
  readonly rawHeaders: readonly Buffer[];
  abort(reason: Error): void;
  pause(): void;
  resume(): void;
}

interface Reader {
  readonly resolve: (result: IteratorResult<Buffer>) => void;
  readonly reject: (error: unknown) => void;
}

/** What may wait to be read: about one read of the socket. */
const MAX_UNREAD_BYTES = 65_536;

/**
 * One request, and its reply once the headers have come. As its handler undici 6 calls the methods
 * from `onConnect` to `onError`, undici 7 and 8 those from `onRequestStart` to `onResponseError`.
 */
class Exchange implements UpstreamReply, AsyncIterableIterator<Buffer> {
  status = 0;
  headers = new Map<string, string>();
  readonly #cancellation: Cancellation;
  readonly #resolve: (reply: UpstreamReply) => void;
  readonly #reject: (error: unknown) => void;
  readonly #unread = new ChunkBuffer();
  #isOver = false;
  /** Why it is over, where it did not end well. */
  #error: unknown;
  /** The read under way. */
  #reader: Reader | undefined;
  #resume = () => {};
  #abortRequest: ((reason: Error) => void) | undefined;
  readonly #onCancel = () => this.#giveUp(this.#cancellation.reason);

  constructor(
    cancellation: Cancellation,
    resolve: (reply: UpstreamReply) => void,
    reject: (error: unknown) => void,
  ) {
    this.#cancellation = cancellation;
    this.#resolve = resolve;
    this.#reject = reject;
    cancellation.onCancel(this.#onCancel);
  }

  get body(): this {
    return this;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Buffer>> {
    if (this.#unread.size > 0) return { done: false, value: this.#unread.take() };
    return new Promise((resolve, reject) => {
      this.#reader = { resolve, reject };
      if (this.#isOver) this.#tellEnd();
      else this.#resume();
    });
  }

  onConnect(abort: (reason: Error) => void): void {
    this.#abortRequest = abort;
    // Given up while it waited for a connection, where undici has no way to be told.
    if (this.#isOver) abort(this.#cancellation.reason!);
  }

  onHeaders(status: number, rawHeaders: readonly Buffer[], resume: () => void): boolean {
    // 1xx: the answer is still to come.
    if (status < 200) return true;
    this.status = status;
    readHeaders(rawHeaders, this.headers);
    this.#resume = resume;
    this.#resolve(this);
    return true;
  }

  /** False: no more before `resume` is called. */
  onData(chunk: Buffer): boolean {
    // undici 6 reports nothing as data when it resumes; to pause again for it would go on for ever.
    if (chunk.length === 0) return true;
    if (this.#reader) {
      this.#reader.resolve({ done: false, value: chunk });
      this.#reader = undefined;
      return true;
    }
    this.#unread.push(chunk);
    return this.#unread.size < MAX_UNREAD_BYTES;
  }

  onComplete(): void {
    this.#end(undefined);
  }

  onError(error: Error): void {
    this.#end(new TypeError('the upstream request failed', { cause: error }));
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

  #giveUp(reason: unknown): void {
    if (this.#isOver) return;
    this.#unread.take();
    this.#end(reason);
    this.#abortRequest?.(reason as Error);
  }

  #end(error: unknown): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#error = error;
    this.#resume = () => {};
    this.#cancellation.offCancel(this.#onCancel);
    if (error) this.#reject(error);
    this.#tellEnd();
  }

  #tellEnd(): void {
    if (this.#error) this.#reader?.reject(this.#error);
    else this.#reader?.resolve({ done: true, value: undefined });
  }
}

/** Names in lower case; a header that comes several times is joined, as `Headers` does it. */
function readHeaders(raw: readonly Buffer[], headers: Map<string, string>): void {
  for (let at = 0; at < raw.length; at += 2) {
    const name = raw[at]!.toString('latin1').toLowerCase();
    const value = raw[at + 1]!.toString('latin1');
    const before = headers.get(name);
    headers.set(name, before === undefined ? value : `${before}, ${value}`);
  }
}
