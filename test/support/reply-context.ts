/** The objects needed to read a provider's reply, for unit tests. */

import { loadConfig } from '../../src/config/config.ts';
import { CHAT } from '../../src/protocol/chat.ts';
import { Attempt } from '../../src/request/history.ts';
import { Cancellation, Deadline } from '../../src/lib/cancellation.ts';
import type { AnswerSink, AttemptContext } from '../../src/upstream/answers/attempt-context.ts';
import type { UpstreamResponse } from '../../src/upstream/connections/upstream-request.ts';
import { openStream } from '../../src/upstream/answers/stream-opening.ts';
import { createTransport } from '../../src/upstream/connections/transport.ts';
import { newBudget } from './shared.ts';

const CONFIG = loadConfig({ toml: '[server]\nstream_idle_timeout = 0', env: {} });
const TRANSPORT = createTransport('fetch');

/** A client with room for everything. With `hasRoom` false, the next part waits for `onRoom`. */
export class RecordedReply implements AnswerSink {
  headersSent = false;
  hasRoom = true;
  mayClientLeave = false;
  hasEnded = false;
  readonly parts: Buffer[] = [];
  onRoom = () => {};

  get text(): string {
    return Buffer.concat(this.parts).toString('latin1');
  }

  send(_status: number, _headers: object, body: readonly Buffer[]): undefined {
    this.parts.push(...body);
    this.hasEnded = true;
  }

  beginStream(): void {
    this.headersSent = true;
  }

  write(chunk: Buffer): boolean {
    this.parts.push(Buffer.from(chunk));
    return this.hasRoom;
  }

  end(): void {
    this.hasEnded = true;
  }
}

export function newReplyContext(reply = new RecordedReply()): AttemptContext {
  return {
    attempt: new Attempt({ provider: { id: 'p', subject: {} }, model: 'm', isStream: false }, ''),
    settings: { headers: {}, forwardHeaders: undefined, returnHeaders: undefined },
    limitMs: 0,
    call: {
      headers: {},
      cancellation: new Cancellation(),
      budget: newBudget(),
      answerMemory: undefined,
      reply,
      history: { endpoint: CHAT, redactKey: undefined },
    },
    services: {
      config: CONFIG,
      transport: TRANSPORT,
      redact: Object.assign((text: string) => text, { mayChange: () => false }),
    },
    isStream: true,
    deadline: new Deadline(),
  };
}

export function replyWith(body: UpstreamResponse['body']): UpstreamResponse {
  return { status: 200, headers: new Map(), body };
}

/** Relays this body to the client as a stream. Resolves at its end, and rejects if it fails. */
export async function relayStream(
  body: UpstreamResponse['body'],
  context: AttemptContext,
  reply: AnswerSink,
): Promise<void> {
  const answer = await openStream(body, {}, context);
  await answer.deliver(reply);
}
