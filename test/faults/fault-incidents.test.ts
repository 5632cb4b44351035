/** Incidents an operator must recognise from the log alone, at its default level. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import {
  chatBody,
  PROVIDER_KEY,
  type TestGateway,
  withoutRefill,
  STREAM,
  type LogLine,
} from '../support/gateway.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
import { linesOf } from '../support/streams.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';

/** Starts a gateway with the provider `p`, and with its fallback `q` if a script is given. */
async function start(
  t: TestContext,
  {
    script = answerWell,
    fallback,
    ...settings
  }: { script?: Script; fallback?: Script } & Omit<ScenarioSettings<'p'>, 'providers' | 'fallback'>,
) {
  const providers = { p: script, q: { script: fallback, lines: 'default_model = "d"' } };
  return scenario(t, { ...settings, providers, fallback: fallback ? ['q'] : [] });
}

/** Waits for `count` access lines. Returns the last with its tries. */
async function lastLine(gateway: TestGateway, count = 1) {
  const line = (await linesOf(gateway, count)).at(-1)!;
  return { line, tries: (line['tries'] ?? []) as LogLine[] };
}

/** Checks for these members in `actual`. A regular expression matches text. */
function assertHas(actual: LogLine | undefined, expected: Record<string, unknown>): void {
  for (const [name, value] of Object.entries(expected)) {
    const found = actual?.[name];
    if (value instanceof RegExp) assert.match(String(found), value, name);
    else assert.equal(found, value, `${name} in ${JSON.stringify(actual)}`);
  }
}

const status =
  (code: number, message: string, headers: Record<string, string> = {}): Script =>
  (_, response) =>
    sendJson(response, { error: { message } }, { status: code, headers });
const warn = { level: 'warn', message: 'request', remote: '127.0.0.1' };

describe('the log shows', { concurrency: true }, () => {
  test('that a provider rejects its key, in its own words without the key', async (t) => {
    const script = status(401, `Incorrect API key provided: ${PROVIDER_KEY}`, {
      'x-request-id': 'up-7',
    });
    const { gateway } = await start(t, { script });
    await gateway.chat(chatBody());
    const { line, tries } = await lastLine(gateway);
    const cause = 'Incorrect API key provided: [secret]';
    assertHas(line, { ...warn, outcome: 'upstream_error', status: 401, cause: undefined });
    assertHas(line, { reason: 'Authentication failed', upstream_request_id: 'up-7' });
    assertHas(tries[0], { status: 401, cause, upstream_request_id: 'up-7' });
  });

  test('whose limit a 429 is about', async (t) => {
    const limit = 'requests_per_second = 1\nburst_capacity = 1\n';
    const cases: [reason: string, more: string, script?: Script][] = [
      ['upstream', '', status(429, 'tokens per minute')],
      ['global', `[rate_limit]\nenabled = true\n${limit}`],
      ['provider', `[rate_limit]\nenabled = true\n[rate_limit.providers.p]\n${limit}`],
    ];
    for (const [reason, more, script] of cases) {
      const { gateway } = await start(t, {
        more,
        adjust: withoutRefill,
        ...(script && { script }),
      });
      await Promise.all([gateway.chat(chatBody()), gateway.chat(chatBody())]);
      await lastLine(gateway, 2);
      const line = gateway.accessLines().find((one) => one['status'] === 429);
      assertHas(line, { ...warn, outcome: 'rate_limited', reason });
      const [tried] = (line?.['tries'] ?? []) as LogLine[];
      if (reason === 'upstream') assertHas(tried, { cause: 'tokens per minute' });
      if (reason === 'provider') {
        assertHas(tried, { provider: 'p', model: 'm', outcome: 'limit' });
      }
    }
  });

  test('that a stream was cut, or stalled, although its status is 200', async (t) => {
    const cut: Script = async (request, response) => {
      await beginStream(CHUNK)(request, response);
      setTimeout(() => response.destroy(), 20);
    };
    const server = 'stream_idle_timeout = 1';
    const { gateway, p } = await start(t, { script: cut, server });
    await gateway.chat(STREAM);
    const broken = await lastLine(gateway);
    const reason = 'Provider error: the answer was cut off';
    assertHas(broken.line, { ...warn, outcome: 'upstream_error', status: 200, reason });
    assertHas(broken.tries[0], {
      outcome: 'upstream_error',
      status: 200,
      cause: /closed|aborted|terminated/,
    });
    p.script = beginStream(CHUNK);
    await gateway.chat(STREAM);
    const stalled = await lastLine(gateway, 2);
    assertHas(stalled.line, { ...warn, outcome: 'timeout', status: 200 });
    const silence = 'no event in 1000 ms';
    assertHas(stalled.tries[0], { outcome: 'timeout', status: 200, cause: silence });
    p.script = (_, response) => sendEvents(response, CHUNK);
    await gateway.chat(STREAM);
    const unfinished = await lastLine(gateway, 3);
    const cause = 'Provider error: the stream ended before the answer was finished';
    assertHas(unfinished.tries[0], { outcome: 'upstream_error', cause });
  });

  test('the URL behind a 404, an HTML page or a redirect', async (t) => {
    const { gateway, p } = await start(t, {});
    const page = (code: number): Script => {
      const head = { 'content-type': 'text/html', location: 'https://p.example/x?key=canary' };
      const style = '<style>p { color: #c0ffee }</style><!-- x -->';
      const text = `<html>${style}<p>the\n page of</p> ${PROVIDER_KEY} ${'z '.repeat(24)}${PROVIDER_KEY}`;
      return (_, response) => response.writeHead(code, head).end(text);
    };
    const url = `${p.baseUrl}/chat/completions`;
    const cases: [script: Script, status: number | undefined, cause: RegExp, body?: object][] = [
      [status(404, 'Not Found'), 404, /^Not Found$/],
      [page(404), 404, /^404, text\/html, "the page of \[secret\] [z ]+\[secret\]"$/],
      [page(200), 200, /^no JSON: 200, text\/html, "the page of \[secret\] [z ]+\[secret\]"$/],
      [
        page(200),
        200,
        /^no events: 200, text\/html, "the page of \[secret\] [z ]+\[secret\]"$/,
        STREAM,
      ],
      [page(302), 302, /^status 302, location https:\/\/p\.example\/x$/],
    ];
    for (const [index, [script, code, cause, body = chatBody()]] of cases.entries()) {
      p.script = script;
      const { text } = await gateway.chat(body);
      assert.doesNotMatch(text, /the page/);
      const { line, tries } = await lastLine(gateway, index + 1);
      assertHas(line, { ...warn, outcome: 'upstream_error' });
      assertHas(tries[0], { url, status: code, cause });
    }
    assert.doesNotMatch(gateway.log.join(''), /canary|c0ffee|sk-prov/);
  });

  test('no words of a page with provider_messages = false', async (t) => {
    const script: Script = (_, response) => response.end('<html>the page');
    const { gateway } = await start(t, { script, more: '[logging]\nprovider_messages = false' });
    await gateway.chat(chatBody());
    const { tries } = await lastLine(gateway);
    assertHas(tries[0], { cause: 'no JSON: 200, no content-type' });
  });
});
