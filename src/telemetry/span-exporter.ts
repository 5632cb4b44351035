/**
 * Sends spans to a collector by OTLP over HTTP, in JSON. Spans wait in a bounded queue, and no
 * request waits for them.
 */

import { setTimeout as sleep } from 'node:timers/promises';

import type { TraceSettings } from '../config/config.ts';
import type { Logger } from '../lib/log.ts';
import { USER_AGENT, VERSION } from '../lib/version.ts';
import { describeCause } from '../request/cause.ts';

/** OpenTelemetry's defaults for batches (OTEL_BSP_*). A span takes about 1 KiB. */
const BATCH_SPANS = 512;
const MAX_QUEUED_SPANS = 2048;
const SEND_EVERY_MS = 5000;
const SEND_TIMEOUT_MS = 10_000;
const CLOSE_MS = 2000;
const WARN_EVERY_MS = 60_000;
/** Statuses after which a batch is sent again: "Retryable Response Codes" of OTLP. */
const RETRYABLE = new Set([429, 502, 503, 504]);
/** The message behind its spans. */
const TAIL = ']}]}]}';

/** The value of an attribute. An undefined attribute is left out. */
export type AttributeValue = string | number | readonly string[] | undefined;

/** Returns attributes as OTLP has them, with `hide` applied to their texts. */
export function toKeyValues(
  attributes: Iterable<readonly [name: string, value: AttributeValue]>,
  hide = (text: string) => text,
) {
  const toValue = (value: string | number | readonly string[]): object => {
    if (typeof value === 'number') return { intValue: value };
    if (typeof value === 'string') return { stringValue: hide(value) };
    return { arrayValue: { values: value.map(toValue) } };
  };
  return [...attributes].flatMap(([key, value]) =>
    value === undefined ? [] : [{ key, value: toValue(value) }],
  );
}

/** Sends spans in batches, one batch after the other, and counts lost spans. */
export class SpanExporter {
  readonly #endpoint: string;
  readonly #headers: Headers;
  /** The message before its spans. */
  readonly #head: string;
  readonly #logger: Logger;
  readonly #timer: NodeJS.Timeout;
  /** Spans as JSON, the oldest first. */
  readonly #queue: string[] = [];
  /** Set while batches are sent. */
  #sending: Promise<void> | undefined;
  #droppedSpans = 0;
  #warnedAtMs = -Infinity;

  constructor(settings: TraceSettings, logger: Logger) {
    this.#endpoint = settings.endpoint;
    this.#headers = new Headers({ 'user-agent': USER_AGENT });
    for (const [name, value] of settings.headers) this.#headers.set(name, value.reveal());
    this.#headers.set('content-type', 'application/json');
    const attributes = toKeyValues(settings.resource);
    const scope = JSON.stringify({ name: 'inference-gateway', version: VERSION });
    this.#head =
      `{"resourceSpans":[{"resource":${JSON.stringify({ attributes })},` +
      `"scopeSpans":[{"scope":${scope},"spans":[`;
    this.#logger = logger;
    this.#timer = setInterval(() => this.#send(1), SEND_EVERY_MS).unref();
  }

  /** Spans lost since the start. */
  get droppedSpans(): number {
    return this.#droppedSpans;
  }

  /** Takes a span as JSON. A full queue drops it. */
  add(span: string): void {
    if (this.#queue.length >= MAX_QUEUED_SPANS) return this.#drop(1, 'the queue is full');
    this.#queue.push(span);
    // Not at each span from then on, because a collector that is away would be asked at each.
    if (this.#queue.length % BATCH_SPANS === 0) this.#send(BATCH_SPANS);
  }

  /** Sends the queue, for 2 s at most. To be called once, after the last span. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    const send = async () => {
      await this.#sending;
      this.#send(1);
      await this.#sending;
    };
    await Promise.race([send(), sleep(CLOSE_MS, undefined, { ref: false })]);
    // The last line has the whole count.
    this.#warnedAtMs = -Infinity;
    if (this.#queue.length > 0) this.#drop(this.#queue.length, 'the gateway has ended');
  }

  /** Sends batches while at least `least` spans wait. */
  #send(least: number): void {
    this.#sending ??= this.#sendBatches(least)
      // An unhandled rejection would end the gateway.
      .catch((thrown: unknown) => this.#warn(String(thrown)))
      .finally(() => (this.#sending = undefined));
  }

  async #sendBatches(least: number): Promise<void> {
    while (this.#queue.length >= least) {
      const batch = this.#queue.slice(0, BATCH_SPANS);
      const { isRetryable, cause } = await this.#post(batch);
      if (isRetryable) return this.#warn(cause);
      this.#queue.splice(0, batch.length);
      if (cause !== undefined) this.#drop(batch.length, cause);
    }
  }

  /** Sends a batch once. Resolves with the cause of a failure. */
  async #post(batch: readonly string[]): Promise<{ isRetryable: boolean; cause?: string }> {
    try {
      const { body, ok, status } = await fetch(this.#endpoint, {
        method: 'POST',
        headers: this.#headers,
        body: this.#head + batch.join(',') + TAIL,
        // A redirect would carry the headers to another host.
        redirect: 'manual',
        signal: AbortSignal.timeout(SEND_TIMEOUT_MS),
      });
      // An unread body would keep its connection.
      await body?.cancel();
      return ok
        ? { isRetryable: false }
        : { isRetryable: RETRYABLE.has(status), cause: `status ${status}` };
    } catch (thrown) {
      const { cause = thrown } = thrown as Error;
      return { isRetryable: true, cause: describeCause(cause) ?? 'no connection' };
    }
  }

  #drop(spans: number, cause: string): void {
    this.#droppedSpans += spans;
    this.#warn(cause);
  }

  /** Logs once a minute at most. */
  #warn(cause: string | undefined): void {
    const nowMs = performance.now();
    if (nowMs - this.#warnedAtMs < WARN_EVERY_MS) return;
    this.#warnedAtMs = nowMs;
    const facts = { cause, waiting: this.#queue.length, dropped: this.#droppedSpans };
    this.#logger.log('warn', 'spans were not sent', facts);
  }
}
