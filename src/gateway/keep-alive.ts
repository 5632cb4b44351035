/** Comments that keep a silent stream open: proxies close a connection on which nothing comes for a minute or so. */

import type { Call } from '../downstream/call.ts';
import type { Answer } from '../lib/attempt.ts';
import { type ByteSink, type ByteStream, fromIterable } from '../lib/byte-source.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import { encodeEvent, EVENT_STREAM_HEADERS } from '../lib/sse.ts';

const KEEP_ALIVE = Buffer.from(': keep-alive\n\n');

/**
 * Resolves to the answer of a streamed request, with a comment in it after each `silenceMs` in which nothing was sent. If
 * there is none after `silenceMs`, resolves to a 200 that begins with a comment; the answer follows, or its failure as an
 * error event.
 */
export function keepAlive(
  answering: Promise<Answer>,
  call: Call,
  silenceMs: number,
): Promise<Answer> {
  const stream = new KeptAliveStream(call, silenceMs);
  return new Promise((resolve, reject) => {
    const headers = { ...EVENT_STREAM_HEADERS };
    const begin = () => resolve({ status: 200, headers, body: stream, pending });
    const timer = setTimeout(begin, silenceMs);
    // Once it has begun, `resolve` and `reject` have no effect.
    const pending = answering.then(
      (answer) => {
        clearTimeout(timer);
        stream.follow(answer.body as ByteStream, true);
        resolve({ ...answer, body: stream });
      },
      (thrown: unknown) => {
        clearTimeout(timer);
        stream.follow(fromIterable(failureEvents(thrown, call)), false);
        reject(thrown);
      },
    );
  });
}

/** The error event of a stream that has begun. */
async function* failureEvents(thrown: unknown, { record }: Call): AsyncGenerator<Buffer> {
  if (thrown instanceof ClientGone) return;
  record.failure = GatewayError.from(thrown);
  yield encodeEvent(record.failure.toBody());
}

/** The client's stream. It may begin before its source is known. */
class KeptAliveStream implements ByteSink, ByteStream {
  readonly #call: Call;
  readonly #silenceMs: number;
  #timer: NodeJS.Timeout | undefined;
  #client: ByteSink | undefined;
  #source: ByteStream | undefined;
  /** A client that does not read gets no comments, and is cut off as it is without them. */
  #hasRoom = true;
  #isOver = false;

  constructor(call: Call, silenceMs: number) {
    this.#call = call;
    this.#silenceMs = silenceMs;
  }

  /** `isAnswer`: it is not the failure that there is instead of one. */
  follow(source: ByteStream, isAnswer: boolean): void {
    this.#source = source;
    if (this.#isOver) source.cancel();
    else if (this.#client) {
      if (isAnswer) this.#call.firstByteAtMs = performance.now();
      source.start(this);
    }
  }

  start(client: ByteSink): void {
    this.#client = client;
    const comment = () => (this.#hasRoom &&= client.write(KEEP_ALIVE));
    this.#timer = setInterval(comment, this.#silenceMs);
    if (this.#source) return this.#source.start(this);
    comment();
    this.#call.passComments = (comments) => this.#hasRoom && this.write(comments.take());
  }

  write(chunk: Buffer): boolean {
    this.#timer!.refresh();
    this.#hasRoom = this.#client!.write(chunk);
    return this.#hasRoom;
  }

  end(error?: unknown): void {
    clearInterval(this.#timer);
    this.#client!.end(error);
  }

  resume(): void {
    this.#hasRoom = true;
    this.#source?.resume();
  }

  cancel(): void {
    this.#isOver = true;
    clearInterval(this.#timer);
    this.#source?.cancel();
  }
}
