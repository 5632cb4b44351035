/**
 * The messages of traces are OTLP's `ExportTraceServiceRequest`, by the code that protobufjs has
 * generated from OpenTelemetry's .proto files. Version 0.203.0 of the package is the last that has
 * this code.
 */

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { test } from 'node:test';

import { startCollector, tracesTo } from '../support/collector.ts';
import { chatBody, STREAM } from '../support/gateway.ts';
import { emptyFolder, startCommand } from '../support/process.ts';
import { scenario } from '../support/scenario.ts';
import { eventually } from '../support/streams.ts';
import { failWith } from '../support/upstream.ts';

/** A type of protobufjs. */
interface MessageType {
  /** Returns what is wrong with the types of the members. */
  verify(json: object): string | null;
  fromObject(json: object): object;
  encode(message: object): { finish(): Uint8Array };
  decode(bytes: Uint8Array): object;
  toObject(message: object, options: object): object;
}

interface Root {
  readonly opentelemetry: {
    readonly proto: {
      readonly collector: { readonly trace: { readonly v1: Record<string, MessageType> } };
    };
  };
}

const load = createRequire(import.meta.url);
const root = load('@opentelemetry/otlp-transformer/build/src/generated/root') as Root;
const Message = root.opentelemetry.proto.collector.trace.v1['ExportTraceServiceRequest']!;

/** The path of an OpenTelemetry Collector with its OTLP receiver and its debug exporter. */
const { OTELCOL } = process.env;

const ID = /^(?:traceId|spanId|parentSpanId)$/;

/** Returns a message with ids in base64, as protobuf's JSON has bytes. OTLP's JSON has hex. */
function withBase64Ids(text: string): object {
  return JSON.parse(text, (key, value: unknown) => {
    if (!ID.test(key)) return value;
    assert.match(String(value), key === 'traceId' ? /^[\da-f]{32}$/ : /^[\da-f]{16}$/);
    return Buffer.from(String(value), 'hex').toString('base64');
  }) as object;
}

test("no member of a message is unknown to OTLP's .proto files, or of another type", async (t) => {
  const collector = await startCollector(t);
  const env = { OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment.name=test' };
  const { gateway } = await scenario(t, {
    ...tracesTo(collector, env),
    providers: { p: failWith(500), q: {} },
    fallback: ['q'],
  });
  const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
  await gateway.chat(chatBody(), { headers: { traceparent } });
  await gateway.chat(STREAM);
  await gateway.send('/v1/unknown');
  await gateway.drain();
  const [text = '', ...more] = collector.messages();
  assert.deepEqual(more, []);
  assert.equal(collector.spans().length, 7);
  const message = withBase64Ids(text);
  const parsed = Message.fromObject(message);
  assert.equal(Message.verify(parsed), null);
  const decoded = Message.decode(Message.encode(parsed).finish());
  const back = Message.toObject(decoded, { longs: String, bytes: String });
  // An unknown member would be lost, and a value of another type would change.
  const expected = JSON.parse(JSON.stringify(message), (key, value: unknown) =>
    key === 'intValue' ? String(value) : value,
  ) as object;
  assert.deepEqual(JSON.parse(JSON.stringify(back)), expected);
});

test(
  'an OpenTelemetry Collector reads each span',
  { skip: !OTELCOL && 'no OTELCOL' },
  async (t) => {
    const port = 43_180;
    const cwd = emptyFolder(t, {
      'collector.yaml': [
        `receivers: { otlp: { protocols: { http: { endpoint: "127.0.0.1:${port}" } } } }`,
        'exporters: { debug: { verbosity: detailed } }',
        'service:',
        '  telemetry: { metrics: { level: none } }',
        '  pipelines: { traces: { receivers: [otlp], exporters: [debug] } }',
      ].join('\n'),
    });
    const config = `--config=file:${join(cwd, 'collector.yaml')}`;
    const collector = startCommand(t, [OTELCOL!, config], { cwd });
    await eventually(() => collector.stderr().includes('Everything is ready'), 'the collector');
    const { gateway } = await scenario(t, {
      more: '[telemetry]\ntraces = true\n',
      env: { OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${port}` },
    });
    await gateway.chat(chatBody({ model: 'p/\ud800\u0001"\\é' }));
    await gateway.drain();
    assert.deepEqual(gateway.lines('spans were not sent'), []);
    const read = () => collector.stderr() + collector.stdout();
    await eventually(() => read().includes('Span #1'), 'the spans');
    const { trace_id: traceId } = gateway.accessLines()[0]!;
    assert.equal(read().split(`Trace ID       : ${String(traceId)}`).length, 3);
    for (const text of [
      'gen_ai.usage.input_tokens: Int(1)',
      'Slice(["stop"])',
      'Kind           : Client',
    ]) {
      assert.ok(read().includes(text), read());
    }
  },
);
