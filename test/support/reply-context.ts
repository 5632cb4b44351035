/** What the reading of a provider's reply needs, for tests that call it by themselves. */

import { Attempt } from '../../src/lib/attempt.ts';
import { Reservation } from '../../src/lib/byte-budget.ts';
import { Deadline } from '../../src/lib/cancellation.ts';
import type { UpstreamReply } from '../../src/upstream/provider.ts';
import type { ReplyContext } from '../../src/upstream/provider-error.ts';
import { newBudget } from './shared.ts';

export function newReplyContext(onStreamEnd: ReplyContext['onStreamEnd'] = () => {}): ReplyContext {
  return {
    attempt: new Attempt({ id: 'p', chatUrl: '' }, 'm'),
    provider: 'p',
    isStream: true,
    deadline: new Deadline(),
    reservation: new Reservation(newBudget()),
    idleMs: 0,
    redact: (text) => text,
    isQuoted: true,
    onStreamEnd,
  };
}

export function replyWith(body: UpstreamReply['body']): UpstreamReply {
  return { status: 200, headers: new Map(), body };
}
