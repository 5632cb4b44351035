/** The client's error for each provider's error. For the words of providers, see wire-spellings. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { loadConfig } from '../../src/config/config.ts';
import { readFault } from '../../src/protocol/error-body.ts';
import { errorOf, toProviderError } from '../../src/upstream/answers/provider-error.ts';
import { newReplyContext } from '../support/reply-context.ts';

interface Given {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly isEvent?: boolean;
  /** Settings besides the provider `p`. */
  readonly toml?: string;
  readonly redact?: (text: string) => string;
}

const PROVIDER = '[providers.p]\nbase_url = "http://127.0.0.1:1/v1"\napi_key = "none"\n';

/** Maps a provider's error body, as parsed JSON or text. */
function mapped(json: unknown, given: Given = {}) {
  const { status, headers = {}, isEvent, toml = '', redact = (text: string) => text } = given;
  const context = newReplyContext();
  const config = loadConfig({ toml: `${PROVIDER}${toml}`, env: {} });
  const services = {
    ...context.services,
    config,
    redact: Object.assign(redact, { mayChange: () => true }),
  };
  context.attempt.status = status;
  context.attempt.headers = new Map(Object.entries(headers));
  return toProviderError(readFault(json, status), { ...context, services }, isEvent);
}

test('the status decides on the scope, the retry and the message', () => {
  const rows: readonly (readonly [number, scope: string, retry: string, message: string])[] = [
    [400, 'client', 'no', 'API error: 400 - boom'],
    [401, 'key', 'no', 'Authentication failed'],
    [403, 'key', 'no', 'API error: 403 - boom'],
    [404, 'model', 'no', 'API error: 404 - boom'],
    [408, 'model', 'later', 'API error: 408 - boom'],
    [413, 'client', 'no', 'API error: 413 - boom'],
    [422, 'client', 'no', 'API error: 422 - boom'],
    [429, 'model', 'later', 'Rate limit exceeded at p: boom'],
    [451, 'client', 'no', 'API error: 451 - boom'],
    [500, 'model', 'later', 'API error: 500 - boom'],
    [501, 'model', 'no', 'API error: 501 - boom'],
    [503, 'model', 'later', 'API error: 503 - boom'],
    [529, 'model', 'later', 'API error: 529 - boom'],
  ];
  for (const [status, scope, retry, message] of rows) {
    const error = mapped({ error: 'boom' }, { status });
    assert.deepEqual([error.status, error.scope, error.retry], [status, scope, retry], message);
    assert.equal(error.message, message);
    const inEvent = mapped({ error: 'boom' }, { status, isEvent: true });
    assert.deepEqual([inEvent.retry, inEvent.scope], ['no', scope]);
    assert.equal(inEvent.details.limit, status === 429 ? 'upstream' : undefined);
    const [hidden] = message.split(/(?: -|:) boom/);
    const expected = status === 401 ? undefined : hidden;
    assert.equal(error.details.reason, expected, 'the message without the text of the provider');
  }
  const named = errorOf({ error: { code: 429, message: 'a' } }, newReplyContext());
  assert.deepEqual([named.status, named.retry], [429, 'later']);
});

test("a 404 about a model is the client's, unless the settings name the model", () => {
  const gone = { error: { message: 'the model is gone' } };
  const problemOf = (json: unknown, toml = '') => {
    const { scope, details } = mapped(json, { status: 404, toml });
    return [scope, details.problem];
  };
  assert.deepEqual(problemOf(gone), ['client', 'model gone']);
  assert.deepEqual(problemOf({ error: 'no such page' }), ['model', undefined]);
  assert.deepEqual(problemOf('no such model'), ['model', undefined]);
  assert.deepEqual(problemOf(gone, '[aliases]\na = "p/m"\n'), ['model', 'model gone']);
  assert.deepEqual(problemOf(gone, '[aliases]\na = "p/other"\n'), ['client', 'model gone']);
});

test('a 400 for a missing model is the same, but no other 400 and no other status', () => {
  const ALIAS = '[aliases]\na = "p/m"\n';
  const problemOf = (message: string, toml = ALIAS, status = 400) => {
    const { scope, details } = mapped({ error: { message } }, { status, toml });
    return [scope, details.problem];
  };
  assert.deepEqual(problemOf('Model Not Exist'), ['model', 'model gone']);
  assert.deepEqual(problemOf('Model Not Exist', ''), ['client', 'model gone']);
  assert.deepEqual(problemOf('the model takes no images'), ['client', undefined]);
  assert.deepEqual(problemOf('Model Not Exist', ALIAS, 422), ['client', undefined]);
});

test('a policy and a context length are problems of the request', () => {
  const accountOf = (error: object, status = 400) => {
    const { scope, outcome, retry, details } = mapped({ error }, { status });
    return [scope, outcome, retry, details.limit, details.problem];
  };
  const policy = ['client', 'rejected', 'no', undefined, 'policy'];
  assert.deepEqual(accountOf({ code: 'content_policy_violation' }), policy);
  assert.deepEqual(accountOf({ code: 'content_policy_violation' }, 403), policy);
  assert.deepEqual(accountOf({ code: 'content_filter' }, 429), policy);
  assert.deepEqual(accountOf({ type: 'Content-Filter' }, 500), policy);
  const length = ['client', 'rejected', 'no', undefined, 'length'];
  assert.deepEqual(accountOf({ code: 'context_length_exceeded' }), length);
  const request = ['client', 'rejected', 'no', undefined, undefined];
  assert.deepEqual(accountOf({ message: 'content policy' }), request);
});

test('a key refused with 400 is answered with 401, and has the account of a 401', () => {
  const error = { message: 'API key not valid. Please pass a valid API key.' };
  const { details, message, outcome, scope, status } = mapped({ error }, { status: 400 });
  assert.deepEqual([status, details.upstreamStatus], [401, 401]);
  assert.deepEqual([message, scope, outcome], ['Authentication failed', 'key', 'upstream_error']);
  assert.equal(details.cause, error.message);
});

test('an account without money is final: the client is told not to repeat', () => {
  const error = (code: string, status = 429) => mapped({ error: { code } }, { status });
  const words = ['insufficient_quota', 'InsufficientAccountBalance', 'billing_hard_limit'];
  for (const code of [...words, '1113', '1309']) {
    assert.equal(error(code).retry, 'no', code);
    assert.equal(error(code).toHeaders()['x-should-retry'], 'false', code);
  }
  assert.equal(error('rate_limit').retry, 'later');
  assert.equal(error('11130').retry, 'later');
  assert.equal(error('insufficient_quota', 503).retry, 'later');
});

test('Retry-After is read as seconds, a date or milliseconds, within 1 s to a day', () => {
  const secondsOf = (headers: Record<string, string>) =>
    mapped({ error: 'boom' }, { status: 503, headers }).details.retryAfterSeconds;
  const now = Date.now();
  const date = (seconds: number) => new Date(now + seconds * 1000).toUTCString();
  const rows: readonly (readonly [headers: Record<string, string>, number | undefined])[] = [
    [{ 'retry-after': '7' }, 7],
    [{ 'retry-after': '0' }, 1],
    [{ 'retry-after': '1.2' }, 2],
    [{ 'retry-after': '7, 9' }, 7],
    [{ 'retry-after': '100000' }, 86_400],
    [{ 'retry-after': date(-60) }, 1],
    [{ 'retry-after': date(200_000) }, 86_400],
    [{ 'retry-after': `${date(200_000)}, 7` }, 86_400],
    [{ 'retry-after': 'soon' }, undefined],
    [{ 'retry-after-ms': '2500' }, 3],
    [{ 'retry-after': '7', 'retry-after-ms': '2500' }, 7],
    [{ 'retry-after-ms': 'x' }, undefined],
    [{}, undefined],
  ];
  for (const [headers, seconds] of rows) {
    assert.equal(secondsOf(headers), seconds, JSON.stringify(headers));
  }
});

test('the wait in the body is the Retry-After without a usable header', () => {
  const error = { code: 429, details: [{ retryDelay: '26.66s' }] };
  const secondsOf = (headers: Record<string, string>, delay = error.details[0]!.retryDelay) =>
    mapped({ error: { ...error, details: [{ retryDelay: delay }] } }, { status: 429, headers })
      .details.retryAfterSeconds;
  assert.equal(secondsOf({}), 27);
  assert.equal(secondsOf({ 'retry-after': 'soon' }), 27);
  assert.equal(secondsOf({ 'retry-after': '5' }), 5);
  assert.equal(secondsOf({ 'retry-after-ms': '1500' }), 2);
  assert.equal(secondsOf({}, '0s'), 1);
  assert.equal(secondsOf({}, '100000s'), 86_400);
});

test('the text is a line of 500 characters without keys, or the reason phrase', () => {
  const textOf = (json: unknown, given?: Given) =>
    mapped(json, { status: 502, ...given }).message.replace('API error: 502 - ', '');
  assert.equal(textOf({ error: ' a\nb\u0000c ' }), 'a b c');
  assert.equal(textOf({ error: 'x'.repeat(600) }).length, 500);
  assert.equal(textOf({ error: `${'x'.repeat(499)}😀` }), `${'x'.repeat(499)}\ufffd`);
  for (const page of ['<!DOCTYPE html>', '<HTML>', 'Oops: <body>', '<head >', '<script>']) {
    assert.equal(textOf(page), 'Bad Gateway', page);
  }
  for (const text of ["got <class 'int'>", '<image>', '<400> boom']) {
    assert.equal(textOf(text), text);
  }
  assert.equal(textOf({}), 'Bad Gateway');
  assert.equal(mapped({}, { status: 499 }).message, 'API error: 499 - Unknown error');
  const redact = (text: string) => text.replaceAll('secret', '***');
  assert.equal(
    textOf({ error: { message: 'a secret', code: 'secret' } }, { redact }),
    'a *** (***)',
  );
  // A secret that the cut at 500 characters divides is recognised, because it is replaced before.
  const divided = `${'x'.repeat(497)}secret`;
  assert.equal(textOf({ error: divided }, { redact }), `${'x'.repeat(497)}***`);
});

test('a code follows in brackets if it is a word that the message lacks', () => {
  const textOf = (message: string, code: string) =>
    mapped({ error: { message, code } }, { status: 502 }).message.replace('API error: 502 - ', '');
  assert.equal(textOf('boom', 'some_code'), 'boom (some_code)');
  assert.equal(textOf('boom', '1210'), 'boom (1210)');
  assert.equal(textOf('boom: some_code', 'some_code'), 'boom: some_code');
  for (const code of ['502', 'not a word', '-x', 'x'.repeat(65), ' ']) {
    assert.equal(textOf('boom', code), 'boom', code);
  }
});

test('the log has the text, or the type and code alone without provider messages', () => {
  const causeOf = (json: unknown, given?: Given) =>
    mapped(json, { status: 502, ...given }).details.cause;
  const quiet = { toml: '[logging]\nprovider_messages = false\n' };
  const error = { message: 'boom', type: 'bad_type', code: 'bad_code' };
  assert.equal(causeOf({ error }), 'boom (bad_code)');
  assert.equal(causeOf({ error }, quiet), 'bad_type bad_code');
  assert.equal(causeOf({ error: { ...error, code: 'bad_type' } }, quiet), 'bad_type');
  assert.equal(causeOf({ error: { message: 'boom', type: 'not a word' } }, quiet), 'Bad Gateway');
  const html = { headers: { 'content-type': 'text/html; charset=utf-8' } };
  assert.equal(causeOf({}, html), '502, text/html, "Bad Gateway"');
  assert.equal(causeOf({}), '502, no content-type, "Bad Gateway"');
});
