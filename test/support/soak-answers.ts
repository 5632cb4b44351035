/** Shared by both ends of the soak: each request's answer, and its possible faults. */

import { createHash } from 'node:crypto';

/** A provider's faults. */
export const FAULTS = [
  'no answer',
  'stall',
  'stall in body',
  'reset',
  'closed',
  'cut in head',
  'cut in body',
  'cut in chunk',
  'early end',
  '401',
  '408',
  '429',
  '500',
  '503',
  '204',
  '307',
  '600',
  'html',
  'garbage',
  'error in 200',
  'first event an error',
  'later event an error',
  'wrong kind',
  'empty',
  'not json',
  'one answer too many',
] as const;
export type Fault = (typeof FAULTS)[number];

export interface SoakRequest {
  readonly nonce: string;
  readonly stream: boolean;
  readonly pieces: number;
  readonly fault?: Fault | undefined;
  /** Whether the fault happens at the fallback too. */
  readonly everywhere: boolean;
}

/** Returns the events, or the single body, for this request only. */
export function answerTo({ nonce, stream, pieces }: SoakRequest): string[] {
  const texts = Array.from({ length: pieces }, (_, index) => sha256(`${nonce} ${index}`));
  const choice = (more: object) => ({ id: nonce, model: 'm', choices: [{ index: 0, ...more }] });
  if (!stream) {
    const message = { role: 'assistant', content: texts.join(' \u00e9\u{1F600} ') };
    return [JSON.stringify(choice({ message, finish_reason: 'stop' }))];
  }
  const events = texts.map((content) => choice({ delta: { content }, finish_reason: null }));
  return [
    ...[...events, choice({ delta: {}, finish_reason: 'stop' })].map(
      (event) => `data: ${JSON.stringify(event)}\n\n`,
    ),
    'data: [DONE]\n\n',
  ];
}

export function sha256(bytes: string | Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}
