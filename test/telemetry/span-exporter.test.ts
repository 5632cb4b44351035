import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { loadConfig } from '../../src/config/config.ts';
import { VERSION } from '../../src/lib/version.ts';
import { SpanExporter } from '../../src/telemetry/span-exporter.ts';
import { moveStopwatch, startStopwatch, useManualTimers } from '../support/clock.ts';
import { startCollector, tracesTo, type Collector } from '../support/collector.ts';
import { eventually } from '../support/streams.ts';
import { NOBODY_LISTENS, type Script } from '../support/upstream.ts';

const BATCH = 512;
const QUEUE = 2048;

/** Creates an exporter to this collector, and returns its log lines. */
function createExporter(
  collector: Pick<Collector, 'baseUrl'>,
  env: Record<string, string> = {},
  onLine?: () => void,
) {
  const { more, env: own } = tracesTo(collector as Collector, env);
  const { telemetry } = loadConfig({ toml: more, env: own });
  const lines: Record<string, unknown>[] = [];
  const exporter = new SpanExporter(telemetry!, {
    isEnabled: () => true,
    log: (level, message, facts) => {
      lines.push({ level, message, ...facts });
      onLine?.();
    },
  });
  const add = (count: number, first = 0) => {
    for (let at = first; at < first + count; at += 1) {
      exporter.add(`{"name":"${at}","attributes":[]}`);
    }
  };
  return { exporter, lines, add };
}

/** Starts a collector whose answers have these statuses in turn, and then 200. */
function startAnswering(t: TestContext, ...statuses: readonly number[]): Promise<Collector> {
  const left = [...statuses];
  const script: Script = (_, response) => response.writeHead(left.shift() ?? 200).end('{}');
  return startCollector(t, script);
}

const namesOf = (collector: Collector) => collector.spans().map(({ name }) => Number(name));
const upTo = (count: number) => Array.from({ length: count }, (_, at) => at);

test('512 spans are sent at once, and fewer after 5 s', async (t) => {
  const timers = useManualTimers(t);
  const collector = await startAnswering(t);
  const { exporter, add } = createExporter(collector);
  add(BATCH - 1);
  await new Promise(setImmediate);
  assert.deepEqual(collector.requests, []);
  add(1, BATCH - 1);
  await eventually(() => collector.requests.length === 1, 'a full batch');
  assert.deepEqual(namesOf(collector), upTo(BATCH));
  add(3, BATCH);
  timers.advance(4999);
  await new Promise(setImmediate);
  assert.equal(collector.requests.length, 1);
  timers.advance(1);
  await eventually(() => collector.requests.length === 2, 'the rest');
  assert.deepEqual(namesOf(collector), upTo(BATCH + 3));
  await exporter.close();
  timers.advance(60_000);
  assert.equal(collector.requests.length, 2);
});

test('a message has the resource, the scope, and the headers of the variables', async (t) => {
  const collector = await startAnswering(t);
  const { exporter, add } = createExporter(collector, {
    OTEL_EXPORTER_OTLP_HEADERS: 'x-other=lost',
    OTEL_EXPORTER_OTLP_TRACES_HEADERS: 'Authorization=Basic%20cGs6c2s=, x-a = b==',
    OTEL_RESOURCE_ATTRIBUTES: 'service.name=lost,deployment.environment.name=a%2Cb,',
    OTEL_SERVICE_NAME: 'gateway "1"',
  });
  add(1);
  await exporter.close();
  const [{ headers, method } = assert.fail()] = collector.requests;
  assert.deepEqual(
    ['authorization', 'x-a', 'x-other', 'content-type'].map((name) => headers[name]),
    ['Basic cGs6c2s=', 'b==', undefined, 'application/json'],
  );
  assert.match(String(headers['user-agent']), /^inference-gateway\//);
  assert.equal(method, 'POST');
  const message = JSON.parse(collector.messages()[0]!) as {
    resourceSpans: [
      { resource: { attributes: object[] }; scopeSpans: [{ scope: { name: string } }] },
    ];
  };
  const [{ resource, scopeSpans }] = message.resourceSpans;
  assert.deepEqual(resource.attributes, [
    { key: 'service.name', value: { stringValue: 'gateway "1"' } },
    { key: 'service.version', value: { stringValue: VERSION } },
    { key: 'deployment.environment.name', value: { stringValue: 'a,b' } },
  ]);
  assert.equal(scopeSpans[0].scope.name, 'inference-gateway');
});

test('a full queue drops the newest spans, and a batch is sent again after a 503', async (t) => {
  const timers = useManualTimers(t);
  const pass = moveStopwatch(t);
  const collector = await startAnswering(t, 503, 429);
  const { exporter, lines, add } = createExporter(collector);
  add(BATCH);
  await eventually(() => lines.length === 1, 'the first failure');
  assert.deepEqual(lines, [
    {
      level: 'warn',
      message: 'spans were not sent',
      cause: 'status 503',
      waiting: BATCH,
      dropped: 0,
    },
  ]);
  collector.requests.length = 0;
  add(QUEUE - BATCH + 100, BATCH);
  assert.equal(exporter.droppedSpans, 100);
  await eventually(() => collector.requests.length === 1, 'the second failure');
  await new Promise((resolve) => setImmediate(resolve));
  collector.requests.length = 0;
  // A minute has one line at most.
  assert.equal(lines.length, 1);
  pass(60_000);
  add(1, 9999);
  assert.equal(lines.length, 2);
  assert.deepEqual([lines[1]!['cause'], lines[1]!['dropped']], ['the queue is full', 101]);
  timers.advance(5000);
  await eventually(() => collector.requests.length === 4, 'the whole queue');
  assert.deepEqual(namesOf(collector), upTo(QUEUE));
  await exporter.close();
  assert.equal(exporter.droppedSpans, 101);
});

test('a batch that the collector refuses is dropped, and no redirect is followed', async (t) => {
  const other = await startAnswering(t);
  const collector = await startCollector(t, (_, response) =>
    response.writeHead(307, { location: other.baseUrl }).end(),
  );
  const { exporter, lines, add } = createExporter(collector);
  add(3);
  await exporter.close();
  assert.equal(exporter.droppedSpans, 3);
  assert.deepEqual(other.requests, []);
  assert.deepEqual(
    lines.map(({ cause, dropped }) => [cause, dropped]),
    [['status 307', 3]],
  );
});

test('spans wait for a collector that is away', async () => {
  const { exporter, lines, add } = createExporter({ baseUrl: NOBODY_LISTENS });
  add(BATCH);
  await eventually(() => lines.length === 1, 'a failure');
  assert.match(String(lines[0]!['cause']), /^ECONNREFUSED: /);
  assert.equal(exporter.droppedSpans, 0);
  await exporter.close();
  assert.equal(exporter.droppedSpans, BATCH);
  assert.deepEqual(
    lines.map(({ cause, dropped }) => [cause === 'the gateway has ended', dropped]),
    [
      [false, 0],
      [true, BATCH],
    ],
  );
});

test('a collector that hangs beyond the limit gets its batch again', async (t) => {
  const timers = useManualTimers(t);
  const limit = AbortSignal.timeout.bind(AbortSignal);
  t.mock.method(AbortSignal, 'timeout', (ms: number) => limit(ms === 10_000 ? 50 : ms));
  let isHanging = true;
  const collector = await startCollector(t, (_, response) => {
    if (!isHanging) response.end('{}');
  });
  const { exporter, lines, add } = createExporter(collector);
  add(BATCH);
  await eventually(() => lines.length === 1, 'the end of the wait');
  assert.deepEqual(lines[0], {
    level: 'warn',
    message: 'spans were not sent',
    cause: 'The operation was aborted due to timeout',
    waiting: BATCH,
    dropped: 0,
  });
  isHanging = false;
  collector.requests.length = 0;
  timers.advance(5000);
  await eventually(() => collector.requests.length === 1, 'the batch again');
  await exporter.close();
  assert.deepEqual(namesOf(collector), upTo(BATCH));
  assert.equal(exporter.droppedSpans, 0);
});

test('a fault while spans are sent does not end the process', async (t) => {
  const timers = useManualTimers(t);
  const collector = await startAnswering(t, 503);
  let faults = 0;
  const { exporter, add } = createExporter(collector, {}, () => {
    faults += 1;
    throw new Error('the log is broken');
  });
  add(BATCH);
  await eventually(() => faults === 1, 'the fault');
  collector.requests.length = 0;
  // node:test fails a test with an unhandled rejection.
  await new Promise((resolve) => setImmediate(resolve));
  timers.advance(5000);
  await eventually(() => collector.requests.length === 1, 'the batch again');
  await exporter.close();
  assert.deepEqual(namesOf(collector), upTo(BATCH));
});

test('the end waits 2 s at most for a collector that does not answer', async (t) => {
  const collector = await startCollector(t, () => {});
  const { exporter, add } = createExporter(collector);
  add(1);
  const passedMs = startStopwatch(t);
  const beganAtMs = performance.now();
  await exporter.close();
  assert.ok(performance.now() - beganAtMs > 1900);
  assert.ok(passedMs() < 4000, String(passedMs()));
  assert.equal(exporter.droppedSpans, 1);
});
