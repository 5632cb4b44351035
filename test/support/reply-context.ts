/** What the reading of a provider's reply needs, for tests that call it by themselves. */

import { loadConfig } from '../../src/config/config.ts';
import { Attempt } from '../../src/lib/attempt.ts';
import { Reservation } from '../../src/lib/byte-budget.ts';
import { Cancellation, Deadline } from '../../src/lib/cancellation.ts';
import type { AttemptContext } from '../../src/upstream/attempt-context.ts';
import type { UpstreamReply } from '../../src/upstream/provider.ts';
import { createTransport } from '../../src/upstream/transport.ts';
import { newBudget } from './shared.ts';

const CONFIG = loadConfig({ toml: '[server]\nstream_idle_timeout = 0', env: {} });
const TRANSPORT = createTransport('fetch');

export function newReplyContext(
  onStreamEnd: AttemptContext['onStreamEnd'] = () => {},
): AttemptContext {
  return {
    attempt: new Attempt({ id: 'p', chatUrl: '' }, 'm'),
    settings: { forwardHeaders: undefined, returnHeaders: undefined, timeoutMs: 0 },
    call: {
      headers: {},
      cancellation: new Cancellation(),
      answerReservation: new Reservation(newBudget()),
      isDelivered: false,
    },
    services: {
      config: CONFIG,
      transport: TRANSPORT,
      redact: Object.assign((text: string) => text, { mayChange: () => false }),
    },
    isStream: true,
    deadline: new Deadline(),
    onStreamEnd,
  };
}

export function replyWith(body: UpstreamReply['body']): UpstreamReply {
  return { status: 200, headers: new Map(), body };
}
