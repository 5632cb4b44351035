/** A collector of OpenTelemetry's spans. */

import type { TestContext } from 'node:test';

import { startUpstream, type FakeUpstream, type Script } from './upstream.ts';

/** A span as a collector receives it, with its attributes by their names. */
export interface ReceivedSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly status?: { readonly code: number; readonly message: string };
  readonly attributes: Readonly<Record<string, unknown>>;
}

export interface Collector extends FakeUpstream {
  /** The whole messages so far, as text. */
  readonly messages: () => string[];
  /** The spans of all messages so far. */
  readonly spans: () => ReceivedSpan[];
}

interface KeyValue {
  readonly key: string;
  readonly value: object;
}

interface Message {
  readonly resourceSpans: readonly {
    readonly scopeSpans: readonly {
      readonly spans: readonly (Omit<ReceivedSpan, 'attributes'> & {
        readonly attributes: readonly KeyValue[];
      })[];
    }[];
  }[];
}

/** Starts a collector until the test ends. The default script takes every message. */
export async function startCollector(t: TestContext, script?: Script): Promise<Collector> {
  const upstream = await startUpstream(t, script ?? ((_, response) => response.end('{}')));
  const messages = () => upstream.requests.map(({ body }) => body.toString());
  const spans = () =>
    messages()
      .flatMap((text) => (JSON.parse(text) as Message).resourceSpans)
      .flatMap(({ scopeSpans }) => scopeSpans)
      .flatMap((scope) => scope.spans)
      .map(({ attributes, ...span }) => ({ ...span, attributes: byName(attributes) }));
  return Object.assign(upstream, { messages, spans });
}

/** The settings and the variables with which a gateway sends its spans to this collector. */
export function tracesTo({ baseUrl }: Collector, env: Readonly<Record<string, string>> = {}) {
  return {
    more: '[telemetry]\ntraces = true\n',
    env: { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: baseUrl, ...env },
  };
}

function byName(attributes: readonly KeyValue[]): Record<string, unknown> {
  return Object.fromEntries(attributes.map(({ key, value }) => [key, Object.values(value)[0]]));
}
