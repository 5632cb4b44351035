/** The truth table: this gateway passes every case, and a gateway that lies does not. */

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { join } from 'node:path';
import { before, test, type TestContext } from 'node:test';

import { TRUTH_TABLES } from '../scripts/truth-docs.ts';
import { parseCase, readCases, slowDown, type Case } from '../truth/case.ts';
import type { Gateway } from '../truth/client.ts';
import { startOwnGateway } from '../truth/own-gateway.ts';
import { playCases } from '../truth/play.ts';
import { Provider } from '../truth/provider.ts';
import {
  createDetails,
  createSummary,
  insertTable,
  readResults,
  type ResultFile,
} from '../truth/table.ts';
import { ALL_SCALES, atSomeScale } from './support/clock.ts';
import { listen } from './support/listen.ts';
import { buildOnce, emptyFolder, freePort, ROOT, startCommand } from './support/process.ts';

before(buildOnce);

const cases = readCases(join(ROOT, 'truth', 'cases'));
const read = (name: string) => readFileSync(join(ROOT, name), 'utf8');

async function startProvider(t: TestContext) {
  const provider = new Provider();
  const providerPort = await provider.listen(0);
  t.after(() => provider.close());
  return { provider, providerPort };
}

const gatewayAt = (port: string | number): Gateway => ({
  url: new URL(`http://127.0.0.1:${port}/v1`),
  model: 'm',
  key: 'truth-client-key',
  headers: [],
});

type Setup = Parameters<typeof playCases>[1];

/** Checks the cases' results. Those that are wrong are played again, slower. */
async function assertResults(
  chosen: readonly Case[],
  setup: Setup,
  findWrong: (results: Awaited<ReturnType<typeof playCases>>) => string[],
): Promise<void> {
  let left = chosen;
  await atSomeScale(async (slowness) => {
    const wrong = findWrong(await playCases(left, { ...setup, slowness }, { atOnce: 8 }));
    left = left.filter(({ id }) => wrong.some((line) => line.startsWith(`${id}: `)));
    assert.deepEqual(wrong, []);
  });
}

/** Checks that each of these cases passes. */
async function assertPasses(chosen: readonly Case[], setup: Setup): Promise<void> {
  await assertResults(chosen, setup, (results) =>
    [...results].flatMap(([id, { result, seen }]) =>
      result === 'pass' ? [] : [`${id}: ${result}, ${seen}`],
    ),
  );
}

/** Checks that each of these cases fails, and that the runner says why. */
async function assertFails(setup: Setup, reasons: Readonly<Record<string, RegExp>>): Promise<void> {
  const chosen = cases.filter(({ id }) => id in reasons);
  assert.equal(chosen.length, Object.keys(reasons).length);
  await assertResults(chosen, setup, (results) =>
    [...results].flatMap(([id, { result, seen }]) =>
      result === 'fail' && reasons[id]!.test(seen) ? [] : [`${id}: ${result}, ${seen}`],
    ),
  );
}

for (const [name, generate] of Object.entries(TRUTH_TABLES)) {
  test(`the tables of ${name} are the output of \`npm run generate\``, () => {
    assert.equal(read(name), generate(read(name)));
  });
}

test('this gateway passes every case', ALL_SCALES, async (t) => {
  const { provider, providerPort } = await startProvider(t);
  const { gateway, stop } = await startOwnGateway(ROOT, providerPort);
  t.after(stop);
  assert.ok(cases.length > 90, `${cases.length} cases`);
  await assertPasses(cases, { gateway, provider, providerPort });
});

test('the written results of this gateway have every case', () => {
  const [own] = readResults(join(ROOT, 'truth', 'results'));
  const ids = cases.map(({ id }) => id);
  assert.deepEqual(Object.keys(own!.cases).toSorted(), ids.toSorted());
});

test(
  'the bare relay passes bytes, and fails where it would have to know more',
  ALL_SCALES,
  async (t) => {
    const { provider, providerPort } = await startProvider(t);
    const command = [process.execPath, '--import', 'tsx', 'bench/relay.ts', '0', `${providerPort}`];
    const relay = startCommand(t, [...command, 'lean'], { cwd: ROOT });
    const port = await new Promise<string>((resolve) => {
      relay.child.stderr!.on('data', () => {
        const found = /^listening .*:(\d+)\//m.exec(relay.stderr())?.[1];
        if (found !== undefined) resolve(found);
      });
    });
    const setup = { gateway: gatewayAt(port), provider, providerPort };
    await assertFails(setup, {
      'client-key': /the provider gets \$\{client-key\}/,
      'error-event-object': /^no failure \(200 "Hello" whole; provider: 1 request\)$/,
      'error-in-200': /^no failure but JSON without choices/,
      'leaves-in-stream': /the provider's connection stays open/,
      'half-closed-refused': /^no answer /,
      'retry-after': /^retry-after: missing \(429;/,
      'bad-json': /^status 200 and not 4xx; the provider got 1 requests/,
      'responses-leaves-in-stream': /the provider's connection stays open \(200 "Hello" /,
      'messages-retry-after': /^retry-after: missing \(429;/,
      'messages-beta': /^the provider gets anthropic-beta: missing /,
    });
    const passed = cases.filter(
      ({ id }) =>
        /^(?:good-|byte-by-byte|cut-between|length-too|end-without|error-event-openai)/.test(id) ||
        /^(?:tool-call|large-integer|completions-)/.test(id) ||
        /^(?:responses|messages)-(?!leaves|retry-after|beta)/.test(id),
    );
    await assertPasses(passed, setup);
  },
);

/** What ends a stream of the other endpoints than chat's. */
const ENDS: Readonly<Record<string, string>> = {
  '/v1/responses': `event: response.completed\ndata: {"type":"response.completed","response":{}}`,
  '/v1/messages': `event: message_stop\ndata: {"type":"message_stop"}`,
};

/**
 * Forwards a request as a careless gateway would: it rewrites the JSON, holds streams back, hides
 * cuts behind the end that a good stream has, blames the client for a provider that is down, and
 * quotes errors.
 */
async function lie(request: IncomingMessage, response: ServerResponse, port: number) {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const body: unknown = JSON.parse(Buffer.concat(chunks).toString());
  const isStream = (body as { stream?: boolean }).stream ?? false;
  const headers = { 'content-type': 'application/json', authorization: 'Bearer liars-key' };
  const end = ENDS[request.url!] ?? 'data: [DONE]';
  const url = `http://127.0.0.1:${port}${request.url}`;
  const sent = { method: 'POST', headers, body: JSON.stringify(body) };
  const reply = await fetch(url, sent).catch(() => undefined);
  if (!reply) {
    response.writeHead(400).end('{"error":{"message":"no provider"}}');
    return;
  }
  let text = '';
  try {
    const decoder = new TextDecoder();
    for await (const bytes of reply.body!) text += decoder.decode(bytes, { stream: true });
  } catch {
    // The end of the answer is not missed.
  }
  response.writeHead(reply.status, { 'content-type': reply.headers.get('content-type') ?? '' });
  response.end(isStream && !text.includes(end) ? `${text}\n\n${end}\n\n` : text);
}

async function startLiar(t: TestContext, providerPort: number): Promise<Gateway> {
  const server = createServer((request, response) => {
    lie(request, response, providerPort).catch(() => response.destroy());
  });
  return gatewayAt((await listen(t, server)).port);
}

test('a gateway that lies fails, and the runner says why', ALL_SCALES, async (t) => {
  const { provider, providerPort } = await startProvider(t);
  const gateway = await startLiar(t, providerPort);
  await assertFails(
    { gateway, provider, providerPort },
    {
      'cut-between-events': /^no failure \(200 "Hello" \[DONE\]; provider: 1 request\)$/,
      'cut-inside-json': /^no failure but no JSON/,
      'end-without-finish': /^no failure \/ it has \[DONE\] /,
      'events-at-once': /^the first text came after \d+ ms/,
      'large-integer-asked': /^the provider does not get "seed":9007199254740993 but /,
      'key-echo': /the client gets the gateway's key/,
      'leaves-before-head': /the provider's connection stays open/,
      down: /^status 400 and not 5xx/,
      'completions-text-behind-finish': /^no failure \/ it has \[DONE\] /,
      'responses-cut-between-events': /^no failure \(200 "Hello" response.completed; /,
      'responses-end-without-completed': /^no failure \/ it has "response\.completed" /,
      'messages-cut-between-events': /^no failure \(200 "Hello" message_stop; /,
      'messages-good-answer': /the provider does not get "maximum":9007199254740993 but /,
    },
  );
});

/** Starts a gateway that answers each POST with this text. */
async function startSpeaker(t: TestContext, status: number, text: string): Promise<Gateway> {
  const server = createServer((request, response) => {
    request.resume();
    response.writeHead(status, { 'content-type': 'text/event-stream' }).end(text);
  });
  return gatewayAt((await listen(t, server)).port);
}

test('a failure that SDKs do not read is none', async (t) => {
  const { provider, providerPort } = await startProvider(t);
  const typed = (type: string, members: string) =>
    `event: ${type}\ndata: {"type":"${type}",${members}}\n\n`;
  const failure = 'data: {"error":{"message":"cut"}}\n\n';
  const response = typed('response.output_text.delta', '"delta":"Hello"');
  const message = typed('content_block_delta', '"delta":{"type":"text_delta","text":"Hello"}');
  const stop = 'data: {"type":"message_stop"}\n\n';
  const unnamed = await startSpeaker(t, 200, message + failure + stop);
  await assertFails(
    { gateway: unnamed, provider, providerPort },
    { 'messages-cut-between-events': /^no failure but no end \(200 "Hello" no end; / },
  );
  const behindEnd = await startSpeaker(t, 200, `${response}data: [DONE]\n\n${failure}`);
  await assertFails(
    { gateway: behindEnd, provider, providerPort },
    {
      'responses-cut-between-events': /^no failure but no end \(200 "Hello" no end; /,
      'responses-done-without-completed': /^no failure but no end \/ it has "error":\{/,
    },
  );
});

test('a case is not tried where the gateway does not serve its endpoint', async (t) => {
  const { provider, providerPort } = await startProvider(t);
  const chosen = cases.filter(({ id }) => id === 'responses-good-answer');
  const seenAt = async (gateway: Gateway) => {
    const setup = { gateway, provider, providerPort, recoverySeconds: 5 };
    const [[, { result, seen }] = assert.fail()] = await playCases(chosen, setup, { atOnce: 1 });
    assert.equal(result, 'not tried', seen);
    return seen;
  };
  for (const status of [404, 405, 501]) {
    const gateway = await startSpeaker(t, status, '{}');
    assert.equal(await seenAt(gateway), `a good request is answered with ${status}`);
  }
  const translator = createServer((request, response) => {
    request.url = '/v1/chat/completions';
    lie(request, response, providerPort).catch(() => response.destroy());
  });
  const gateway = gatewayAt((await listen(t, translator)).port);
  assert.equal(await seenAt(gateway), 'the provider gets POST /v1/chat/completions HTTP/1.1');
});

test('an error event before a whole end fails', async (t) => {
  const { provider, providerPort } = await startProvider(t);
  const server = createServer((request, response) => {
    request.resume();
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: {"error":{"message":"cut"}}\n\n');
    setTimeout(() => response.end(), 50);
  });
  const gateway = gatewayAt((await listen(t, server)).port);
  const setup = { gateway, provider, providerPort };
  await assertFails(setup, { 'cut-then-end': /^whole by HTTP / });
});

test('a gateway that does not answer fails at the limit of the case', async (t) => {
  const { provider, providerPort } = await startProvider(t);
  let requests = 0;
  const silent = createServer((_, response) => {
    requests += 1;
    if (requests === 1) response.end('{}');
  });
  const gateway = gatewayAt((await listen(t, silent)).port);
  const one: Case = { ...cases.find(({ id }) => id === 'good-completion')!, limit_seconds: 0.2 };
  const setup = { gateway, provider, providerPort };
  const results = await playCases([one], setup, { atOnce: 1 });
  assert.match(results.get(one.id)!.seen, /^no whole answer in time; /);
});

test('a case after which the gateway refuses good requests makes the next one not tried', async (t) => {
  const { provider, providerPort } = await startProvider(t);
  const refusing = createServer((_, response) => response.writeHead(503).end('{}'));
  const gateway = gatewayAt((await listen(t, refusing)).port);
  const setup = { gateway, provider, providerPort, recoverySeconds: 0.6 };
  const results = await playCases(cases.slice(0, 1), setup, { atOnce: 1 });
  assert.equal(results.get(cases[0]!.id)!.result, 'not tried');
});

test('a case about the key of a gateway is not tried if the gateway holds none', async (t) => {
  const { provider, providerPort } = await startProvider(t);
  const gateway = { ...(await startLiar(t, providerPort)), isKeyless: true };
  const chosen = cases.filter(({ id }) => /^(?:client-key|key-echo|redirect)/.test(id));
  const results = await playCases(chosen, { gateway, provider, providerPort }, { atOnce: 8 });
  const tried = [...results].filter(([, { result }]) => result !== 'not tried');
  assert.deepEqual(
    tried.map(([id]) => id),
    ['redirect'],
  );
});

test('a rule or a step that the runner does not know is refused', () => {
  const good = read('truth/cases/good-stream.json');
  assert.equal(parseCase('good-stream', good).id, 'good-stream');
  const changes: [string, string, RegExp][] = [
    ['"finish": "stop"', '"finished": "stop"', /unknown in a step: finished/],
    ['"whole": true', '"hole": true', /unknown in a rules: hole/],
    ['"why"', '"because"', /unknown in a case: because/],
    ['"group": "', '"group": "No ', /unknown group/],
    ['"client": {', '"client": { "endpoint": "message",', /unknown endpoint: message/],
    ['{ "head": "events" }', '{ "event": "message_stop" }', /unknown event: message_stop/],
  ];
  for (const [now, changed, problem] of changes)
    assert.throws(() => parseCase('good-stream', good.replace(now, changed)), problem);
});

test('all times of a case are multiplied for a busy machine', () => {
  const one = cases.find(({ id }) => id === 'events-at-once')!;
  const slow = JSON.stringify(slowDown(one, 3));
  assert.match(slow, /"pause_ms":9000\b.*"first_text_within_ms":7500\b/);
  assert.equal(JSON.stringify(slowDown(one, 1)), JSON.stringify(one));
});

test('a table is inserted between its two comments alone', () => {
  const text = 'a\n<!-- x -->\nold\n<!-- end of x -->\nb';
  assert.equal(insertTable(text, 'x', 'new'), 'a\n<!-- x -->\nnew\n<!-- end of x -->\nb');
  assert.throws(() => insertTable(text, 'y', 'new'), /there is no <!-- y -->/);
});

test('a case that was not tried counts neither way in the tables', (t) => {
  const folder = emptyFolder(t);
  for (const name of ['cases', 'results']) mkdirSync(join(folder, name));
  for (const id of ['good-stream', 'good-completion'])
    writeFileSync(join(folder, `cases/${id}.json`), read(`truth/cases/${id}.json`));
  const file = (gateway: string, ...results: string[]) => {
    const [stream, completion] = results.map((result) => ({ result, seen: '' }));
    const all = { 'good-stream': stream, 'good-completion': completion };
    return JSON.stringify({ gateway, version: '1', date: '2026-11-28', cases: all });
  };
  const write = (name: string, text: string) => writeFileSync(join(folder, 'results', name), text);
  write('inference-gateway.json', file('Own', 'pass', 'pass'));
  write('other.json', file('Other', 'not tried', 'fail'));
  write('bare-relay.json', file('Relay', 'fail', 'pass'));
  const summary = createSummary(folder);
  assert.match(summary, /^\| \| Own 1 \| Other 1 \| Relay 1 \|$/m);
  assert.match(summary, /^\| Streams [^|]* \| 2 of 2 \| \*\*0 of 1\*\* \| \*\*1 of 2\*\* \|$/m);
  assert.match(createDetails(folder), /^\| \[A plain stream\][^|]* \| yes \| – \| \*\*no\*\* \|$/m);
});

test('`npm run truth` writes its results, and exits with 1 if a case fails', async (t) => {
  const providerPort = await freePort();
  const { url } = await startLiar(t, providerPort);
  const out = join(emptyFolder(t), 'truth.json');
  const main = [process.execPath, '--import', 'tsx', 'truth/main.ts', '--out', out];
  const run = async (...args: string[]) => {
    const { exit, stdout } = startCommand(t, [...main, ...args], { cwd: ROOT });
    const code = await exit;
    return { code, stdout: stdout(), file: JSON.parse(readFileSync(out, 'utf8')) as ResultFile };
  };
  const own = await run('--only', 'good-completion');
  assert.equal(own.code, 0, own.stdout);
  assert.equal(own.file.gateway, 'inference-gateway');
  const port = ['--provider-port', `${providerPort}`];
  const options = ['--name', 'Liar', '--gateway-version', '1.2', '--only', ': cut-between-events'];
  const liar = await run('--url', url.href, ...port, ...options);
  assert.equal(liar.code, 1, liar.stdout);
  assert.match(liar.stdout, /fail {6}cut-between-events: .*\n +no failure \(200 "Hello" \[DONE\]/);
  const { gateway, version, cases: results } = liar.file;
  assert.deepEqual(
    [gateway, version, Object.keys(results)],
    ['Liar', '1.2', ['cut-between-events']],
  );
});
