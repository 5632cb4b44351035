/** The spans of a whole gateway, as a collector receives them. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';

import { parseMetrics } from '../support/exposition.ts';
import { startCollector, tracesTo } from '../support/collector.ts';
import { chatBody, CLIENT_TOKEN, PROVIDER_KEY, STREAM } from '../support/gateway.ts';
import { ROOT } from '../support/process.ts';
import { scenario } from '../support/scenario.ts';
import { lineOf, linesOf, openChat } from '../support/streams.ts';
import {
  beginStream,
  CHUNK,
  completion,
  completionEvents,
  failWith,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';

const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const PARENT_ID = 'b7ad6b7169203331';
const TRACEPARENT = `00-${TRACE_ID}-${PARENT_ID}-01`;
const SERVER = 2;
const CLIENT = 3;

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const withParent = (traceparent: string) => ({ headers: { traceparent } });

test('a request and each of its tries are spans under the traceparent of the client', async (t) => {
  const collector = await startCollector(t);
  const { p, q, gateway } = await scenario(t, {
    ...tracesTo(collector),
    providers: { p: failWith(500), q: {} },
    fallback: ['q'],
  });
  const { status } = await gateway.chat(chatBody(), withParent(TRACEPARENT));
  assert.equal(status, 200);
  await gateway.drain();
  const [request, failed, answered, ...more] = collector.spans();
  assert.deepEqual(more, []);
  assert.deepEqual(
    [request, failed, answered].map((span) => [span!.traceId, span!.parentSpanId, span!.kind]),
    [
      [TRACE_ID, PARENT_ID, SERVER],
      [TRACE_ID, request!.spanId, CLIENT],
      [TRACE_ID, request!.spanId, CLIENT],
    ],
  );
  const sent = [p, q].map(({ requests }) => requests[0]!.headers['traceparent']);
  assert.deepEqual(
    sent,
    [failed, answered].map((span) => `00-${TRACE_ID}-${span!.spanId}-01`),
  );
  const times = [request, failed, answered].map((span) =>
    [span!.startTimeUnixNano, span!.endTimeUnixNano].map(BigInt),
  ) as [bigint, bigint][];
  const [[begins, ends], [firstBegins, firstEnds], [lastBegins, lastEnds]] = times as [
    [bigint, bigint],
    [bigint, bigint],
    [bigint, bigint],
  ];
  const inOrder = [begins, firstBegins, firstEnds, lastBegins, lastEnds, ends];
  assert.deepEqual(
    inOrder.toSorted((a, b) => Number(a - b)),
    inOrder,
  );
  assert.ok(Math.abs(Number(ends / 1_000_000n) - Date.now()) < 60_000, String(ends));
  assert.equal((await lineOf(gateway))['trace_id'], TRACE_ID);
});

test('the spans have the attributes of the HTTP and GenAI conventions, and no others', async (t) => {
  const collector = await startCollector(t);
  const { p, q, gateway } = await scenario(t, {
    ...tracesTo(collector),
    providers: { p: failWith(503), q: {} },
    fallback: ['q'],
  });
  await gateway.chat(chatBody());
  await gateway.drain();
  const [request, failed, answered] = collector.spans();
  assert.equal(request!.name, 'POST /v1/chat/completions');
  assert.equal(request!.status, undefined);
  assert.deepEqual(request!.attributes, {
    'http.request.method': 'POST',
    'http.route': '/v1/chat/completions',
    'url.path': '/v1/chat/completions',
    'http.response.status_code': 200,
  });
  assert.equal(failed!.name, 'chat m');
  assert.deepEqual(failed!.status, { code: 2, message: 'upstream_error' });
  assert.deepEqual(failed!.attributes, {
    'gen_ai.operation.name': 'chat',
    'gen_ai.provider.name': 'p',
    'gen_ai.request.model': 'm',
    'server.address': '127.0.0.1',
    'server.port': Number(new URL(p.baseUrl).port),
    'http.response.status_code': 503,
    'error.type': 'upstream_error',
  });
  assert.equal(answered!.status, undefined);
  assert.deepEqual(answered!.attributes, {
    'gen_ai.operation.name': 'chat',
    'gen_ai.provider.name': 'q',
    'gen_ai.request.model': 'm',
    'gen_ai.response.model': 'm',
    'gen_ai.response.finish_reasons': { values: [{ stringValue: 'stop' }] },
    'gen_ai.usage.input_tokens': 1,
    'gen_ai.usage.output_tokens': 1,
    'server.address': '127.0.0.1',
    'server.port': Number(new URL(q.baseUrl).port),
    'http.response.status_code': 200,
  });
  const [, ofRequest = '', ofTry = ''] = read('docs/traces.md').split(/^\| (?:request|try) \|/m);
  const named = (row: string) => [...row.split('\n')[0]!.matchAll(/`([a-z_]+\.[a-z._]+)`/g)];
  assert.deepEqual(
    [ofRequest, ofTry].map((row) => named(row).map(([, name]) => name)),
    [
      [...Object.keys(request!.attributes), 'error.type'],
      [...Object.keys(answered!.attributes), 'error.type'],
    ],
  );
});

test("a stream's try lasts until the stream's end, and a failed stream is an error", async (t) => {
  const collector = await startCollector(t);
  const script: Script = (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(CHUNK);
    setTimeout(() => response.destroy(), 50);
  };
  const { gateway } = await scenario(t, { ...tracesTo(collector), providers: { p: script } });
  await openChat(gateway.port, STREAM).ended.catch(() => {});
  await lineOf(gateway);
  await gateway.drain();
  const [request, attempt] = collector.spans();
  assert.equal(attempt!.endTimeUnixNano, request!.endTimeUnixNano);
  const status = { code: 2, message: 'upstream_error' };
  assert.deepEqual([request!.status, attempt!.status], [status, status]);
  assert.equal(request!.attributes['http.response.status_code'], 200);
  assert.equal(request!.attributes['error.type'], 'upstream_error');
});

test('a client that leaves is no error', async (t) => {
  const collector = await startCollector(t);
  const { gateway } = await scenario(t, {
    ...tracesTo(collector),
    providers: { p: beginStream(CHUNK) },
  });
  const chat = openChat(gateway.port, STREAM);
  while (chat.text() === '') await new Promise(setImmediate);
  chat.leave();
  await lineOf(gateway);
  await gateway.drain();
  const spans = collector.spans();
  assert.equal(spans.length, 2);
  assert.deepEqual(
    spans.flatMap(({ attributes, status }) => [status, attributes['error.type']]),
    [undefined, undefined, undefined, undefined],
  );
});

test('a refused request is a span without an error, and a good probe is none', async (t) => {
  const collector = await startCollector(t);
  const { gateway } = await scenario(t, {
    ...tracesTo(collector),
    server: '[server.auth]\nkeys = ["a-key-of-some-client"]\n',
  });
  await gateway.send('/health');
  await gateway.chat(chatBody(), withParent(TRACEPARENT));
  const headers = { authorization: 'Bearer a-key-of-some-client' };
  await gateway.send('/v1/unknown?key=hunter-2', { headers });
  await gateway.drain();
  const [refused, unknown, ...more] = collector.spans();
  assert.deepEqual(more, []);
  assert.equal(refused!.parentSpanId, PARENT_ID);
  assert.equal(refused!.status, undefined);
  assert.equal(refused!.attributes['error.type'], 'refused');
  assert.equal(refused!.attributes['http.response.status_code'], 401);
  // The name of a span has no path from a client, because viewers list all names.
  assert.equal(unknown!.name, 'GET');
  assert.equal(unknown!.parentSpanId, undefined);
  assert.deepEqual(unknown!.attributes, {
    'http.request.method': 'GET',
    'url.path': '/v1/unknown',
    'http.response.status_code': 404,
    'error.type': 'refused',
  });
});

describe('the sampler', () => {
  const LOW = `00-${'0'.repeat(31)}1-${PARENT_ID}-01`;
  const HIGH = `00-${'f'.repeat(32)}-${PARENT_ID}-01`;
  const unsampled = (traceparent: string) => `${traceparent.slice(0, -2)}00`;
  const cases: [
    sampler: string,
    arg: string,
    traceparent: string | undefined,
    isSampled: boolean,
  ][] = [
    ['', '', undefined, true],
    ['', '', unsampled(HIGH), false],
    ['', '', LOW, true],
    ['always_on', '', unsampled(LOW), true],
    ['Always_Off', '', HIGH, false],
    ['traceidratio', '0.5', LOW, false],
    ['traceidratio', '0.5', unsampled(HIGH), true],
    ['traceidratio', '', LOW, true],
    ['traceidratio', '0', HIGH, false],
    ['parentbased_always_on', '', `${HIGH.slice(0, -2)}02`, false],
    ['parentbased_always_off', '', undefined, false],
    ['parentbased_always_off', '', HIGH, true],
    ['parentbased_traceidratio', '0', LOW, true],
    ['parentbased_traceidratio', '0', undefined, false],
    ['unknown', '', undefined, true],
    ['traceidratio', '2', LOW, true],
  ];
  for (const [sampler, arg, traceparent, isSampled] of cases) {
    const title = `${sampler || 'by default'} ${arg} with ${traceparent ?? 'no traceparent'}`;
    test(`${title}: ${isSampled ? 'sampled' : 'not sampled'}`, async (t) => {
      const collector = await startCollector(t);
      const env = { OTEL_TRACES_SAMPLER: sampler, OTEL_TRACES_SAMPLER_ARG: arg };
      const { p, gateway } = await scenario(t, tracesTo(collector, env));
      await gateway.chat(chatBody(), traceparent ? withParent(traceparent) : {});
      await gateway.drain();
      assert.equal(collector.spans().length, isSampled ? 2 : 0);
      const sent = String(p.requests[0]!.headers['traceparent']);
      assert.match(sent, isSampled ? /^00-.*-01$/ : /^00-.*-00$/);
      // A provider's span is never a child of the client's span.
      assert.ok(!sent.includes(PARENT_ID), sent);
    });
  }
});

test('an invalid traceparent begins a new trace', async (t) => {
  const collector = await startCollector(t);
  const { p, gateway } = await scenario(t, tracesTo(collector));
  await gateway.chat(chatBody(), withParent(`00-${'0'.repeat(32)}-${PARENT_ID}-00`));
  await gateway.drain();
  const [request] = collector.spans();
  assert.match(request!.traceId, /[1-9a-f]/);
  assert.equal(request!.parentSpanId, undefined);
  const [, traceId] = String(p.requests[0]!.headers['traceparent']).split('-');
  assert.equal(traceId, request!.traceId);
  assert.equal((await lineOf(gateway))['trace_id'], traceId);
});

test('no span has a key, a prompt, an answer or the text of an error', async (t) => {
  const collector = await startCollector(t);
  const digest = createHash('sha256').update(CLIENT_TOKEN).digest('hex');
  const secret = 'exporter-secret-canary-4711';
  const script: Script = ({ body }, response) => {
    const { model } = JSON.parse(body.toString()) as { model: string };
    const texts = `${PROVIDER_KEY} ${CLIENT_TOKEN} canary-error`;
    if (model.startsWith('bad')) {
      sendJson(response, { error: { message: texts, code: CLIENT_TOKEN } }, { status: 400 });
    } else {
      const [choice] = (completion('canary-answer') as { choices: object[] }).choices;
      const choices = [{ ...choice, finish_reason: PROVIDER_KEY }];
      sendJson(response, { ...completion(), model: CLIENT_TOKEN, choices });
    }
  };
  const { gateway } = await scenario(t, {
    ...tracesTo(collector, { OTEL_EXPORTER_OTLP_HEADERS: `api-key=${secret}` }),
    providers: { p: script },
    clients: { alice: `key_sha256 = "${digest}"` },
  });
  for (const model of ['p/m', 'p/bad', `p/${CLIENT_TOKEN}`, `p/${PROVIDER_KEY}`, `p/${secret}`]) {
    const messages = [{ role: 'user', content: 'canary-prompt' }];
    await gateway.chat({ model, messages, user: 'canary-user' });
  }
  await gateway.send(`/v1/${CLIENT_TOKEN}/${PROVIDER_KEY}?canary-query`);
  await gateway.drain();
  assert.equal(collector.requests[0]!.headers['api-key'], secret);
  assert.equal(collector.spans().length, 11);
  const text = collector.messages().join('\n');
  for (const canary of [PROVIDER_KEY, CLIENT_TOKEN, secret, 'canary', 'hello']) {
    assert.ok(!text.includes(canary), `${canary} in ${text}`);
  }
  assert.ok(text.includes('[secret]'), text);
  const log = gateway.log.join('');
  assert.ok(!log.includes(secret), log);
});

test('half a surrogate pair in a name is replaced in spans, lines and errors', async (t) => {
  const collector = await startCollector(t);
  const { p, gateway } = await scenario(t, tracesTo(collector));
  await gateway.chat(chatBody({ model: 'p/\ud800x' }));
  const { text } = await gateway.chat(chatBody({ model: '\udc00q/m' }));
  await gateway.drain();
  // The provider gets the name as the client wrote it.
  assert.match(p.requests[0]!.body.toString(), /"\\ud800x"/);
  const [, attempt] = collector.spans();
  assert.equal(attempt!.name, 'chat \ufffdx');
  const [line] = await linesOf(gateway, 2);
  assert.equal(line!['model'], 'p/\ufffdx');
  assert.match(text, /\ufffdq/);
  assert.doesNotMatch(collector.messages().join() + gateway.log.join() + text, /\\ud[89a-f]/i);
});

test('tokens of a stream are counted in the span of the try that answered', async (t) => {
  const collector = await startCollector(t);
  const usage = { prompt_tokens: 7, completion_tokens: 5, total_tokens: 12 };
  const events = completionEvents().replace(
    'data: [DONE]',
    `data: ${JSON.stringify({ choices: [], usage })}\n\ndata: [DONE]`,
  );
  const { gateway } = await scenario(t, {
    ...tracesTo(collector),
    providers: { p: (_, response) => sendEvents(response, events) },
  });
  await gateway.chat(STREAM);
  await gateway.drain();
  const [, attempt] = collector.spans();
  const { attributes } = attempt!;
  assert.equal(attributes['gen_ai.usage.input_tokens'], 7);
  assert.equal(attributes['gen_ai.usage.output_tokens'], 5);
});

test('without traces the traceparent of the client passes, and no span is sent', async (t) => {
  const collector = await startCollector(t);
  const { p, gateway } = await scenario(t, { ...tracesTo(collector), more: '[admin]\nport = 0\n' });
  await gateway.chat(chatBody(), withParent(TRACEPARENT));
  const { text } = await gateway.admin('/metrics');
  assert.ok(!text.includes('gateway_spans'), text);
  await gateway.drain();
  assert.equal(p.requests[0]!.headers['traceparent'], TRACEPARENT);
  assert.deepEqual(collector.requests, []);
});

test('spans that a collector refuses are lost and counted, and the requests go on', async (t) => {
  const collector = await startCollector(t, (_, response) => response.writeHead(401).end());
  const { more, env } = tracesTo(collector);
  const { gateway } = await scenario(t, { env, more: `${more}[admin]\nport = 0\n` });
  const dropped = async () =>
    parseMetrics((await gateway.admin('/metrics')).text).sum('gateway_spans_dropped_total', {});
  assert.equal(await dropped(), 0);
  for (let sent = 0; sent < 256; sent += 1) {
    assert.equal((await gateway.chat(chatBody())).status, 200);
  }
  while ((await dropped()) === 0) await new Promise(setImmediate);
  assert.equal(await dropped(), 512);
  const [warning, ...others] = gateway.lines('spans were not sent');
  assert.deepEqual(others, []);
  const { level, cause, dropped: lost } = warning!;
  assert.deepEqual([level, cause, lost], ['warn', 'status 401', 512]);
});
