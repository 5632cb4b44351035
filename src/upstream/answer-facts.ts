/** What an answer says about itself: read from its bytes while they are relayed. */

import type { TokenUsage } from '../lib/request-facts.ts';

/** Is filled in while an answer is read: a complete one before `attempt` resolves, a stream until it has ended. */
export interface AnswerFacts {
  /** The model that the answer names. Untrusted; at most 128 characters. */
  model?: string;
  /** Of a choice, at most 32 letters, digits, `_`, `.` and `-`. Absent if the answer has none, or another. */
  finishReason?: string;
  /** Absent if the answer has none, or none with a usable count. */
  usage?: TokenUsage;
}
