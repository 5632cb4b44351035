/** The body of a complete answer: read in full, bounded, and checked for being a completion. */

import type { Reservation } from '../lib/byte-budget.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import { GatewayError } from '../lib/errors.ts';
import { JsonScanner, type JsonKind, type JsonVisitor } from '../lib/json-scanner.ts';
import { MAX_PARSED_CHARACTERS, parseUntrustedJson } from '../lib/untrusted-json.ts';
import { nextTurn, TurnLimit } from '../lib/turn-limit.ts';
import type { UpstreamFault, UpstreamReply } from './provider.ts';

/** A longer answer is no completion. */
const MAX_ANSWER_BYTES = 67_108_864;

interface CompletionOptions {
  readonly provider: string;
  /** Grows with the answer; with a Content-Length, to all of it at once. */
  readonly reservation: Reservation;
  /** The fault that the JSON of an answer tells of, if any. */
  readonly readFault: (json: unknown) => UpstreamFault | undefined;
  /** The error that such a fault becomes. */
  readonly toError: (fault: UpstreamFault) => GatewayError;
}

/**
 * Reads a complete answer and returns its bytes in parts. Throws `provider` if it is too large, `rateLimit` if it
 * does not fit the reservation's budget, `serialization` if it is not JSON, and its error if that is all it is.
 */
export async function readCompletion(
  { headers, body }: UpstreamReply,
  { provider, reservation, readFault, toError }: CompletionOptions,
): Promise<Buffer[]> {
  const chunks = new ChunkBuffer();
  const scan = new AnswerScan();
  const turn = new TurnLimit();
  const announcedBytes = Number(headers.get('content-length') ?? 0) || 0;
  const reserve = (bytes: number) => {
    if (bytes > MAX_ANSWER_BYTES) {
      throw new GatewayError('provider', 'the answer is too large', { provider });
    }
    reservation.resize(bytes);
  };
  reserve(announcedBytes);
  for await (const chunk of body) {
    chunks.push(chunk);
    if (chunks.size > announcedBytes) reserve(chunks.size);
    scan.push(chunk);
    if (!scan.isJson && chunks.size > MAX_PARSED_CHARACTERS) break;
    if (turn.isReached(chunk.length)) await nextTurn();
  }
  scan.end();
  const { size } = chunks;
  const parts = chunks.takeParts();
  if (scan.isCompletion) return parts;

  let { isJson } = scan;
  let fault = scan.hasError ? {} : undefined;
  if (size <= MAX_PARSED_CHARACTERS) {
    const json = parseUntrustedJson(Buffer.concat(parts).toString('utf8'));
    isJson = json !== undefined;
    fault = readFault(json);
  }
  if (!isJson) {
    const text = 'the provider did not answer with usable JSON';
    const cause = `content-type: ${headers.get('content-type') ?? 'none'}`;
    throw new GatewayError('serialization', text, { provider, cause });
  }
  if (fault) throw toError(fault);
  return parts;
}

/**
 * Looks for the members by which answers differ, while they arrive. Completions are not parsed: to have `choices` is
 * enough to be one, and the log probabilities of a long one are a million elements.
 */
export class AnswerScan implements JsonVisitor {
  isJson = true;
  hasError = false;
  #hasChoices = false;
  readonly #json = new JsonScanner(
    { onValue: (kind) => (kind === 'object' ? this : undefined) },
    Infinity,
  );

  get isCompletion(): boolean {
    return this.isJson && this.#hasChoices;
  }

  push(chunk: Buffer): void {
    if (this.isJson) this.#try(() => this.#json.push(chunk));
  }

  end(): void {
    if (this.isJson) this.#try(() => this.#json.end());
  }

  onValue(kind: JsonKind, name: string): undefined {
    if (kind === 'null') return;
    if (name === 'choices') this.#hasChoices = true;
    if (name === 'error') this.hasError = true;
  }

  #try(scan: () => void): void {
    try {
      scan();
    } catch {
      this.isJson = false;
    }
  }
}
