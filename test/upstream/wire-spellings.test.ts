/**
 * Providers spell the same word in many ways. These properties hold for each row in the tables for
 * errors, media types and headers.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { chatBody } from '../support/gateway.ts';
import { createRandom, type Random } from '../support/random.ts';
import { scenario } from '../support/scenario.ts';
import { answerWell, completion, completionEvents, sendJson } from '../support/upstream.ts';

const newRandom = () => createRandom(Number(process.env['TEST_SEED'] ?? 4711));

/** Returns the text with some letters in the other case. */
function inSomeCase(text: string, random: Random): string {
  return text.replace(/[a-z]/gi, (letter) =>
    random.oneIn(2) ? letter.toUpperCase() : letter.toLowerCase(),
  );
}

/** The words in docs/errors.md, each with the status for an error with this code or type. */
const STATUS_WORDS: Record<string, number> = {
  invalid_request_error: 400,
  tool_use_failed: 400,
  unsupported_value: 400,
  context_length_exceeded: 400,
  invalid_parameter: 400,
  content_filter: 400,
  content_policy: 400,
  authentication_error: 401,
  invalid_api_key: 401,
  permission: 403,
  not_found: 404,
  rate_limit: 429,
  insufficient_quota: 429,
  overloaded: 503,
};

/** Returns spellings of a word: letter case, separators, and text around it. */
function spellingsOf(word: string, random: Random): string[] {
  const parts = word.split('_');
  const capital = (part: string) => part.slice(0, 1).toUpperCase() + part.slice(1);
  const joined = ['_', '-', '', '.', ' '].map((separator) => parts.join(separator));
  const camel = parts.map(capital).join('');
  const all = [...joined, camel, camel.slice(0, 1).toLowerCase() + camel.slice(1)];
  const around = ['engine_X', 'X_error', 'Server.X', 'X.Detail', 'a-X-7'];
  return [
    ...all.flatMap((one) => [one, one.toUpperCase(), inSomeCase(one, random)]),
    ...around.map((form) => form.replace('X', random.pick(all))),
  ];
}

test('a word names its status in any spelling, and inside a longer code', async (t) => {
  const { gateway, p } = await scenario(t);
  const random = newRandom();
  for (const [word, status] of Object.entries(STATUS_WORDS)) {
    for (const spelling of spellingsOf(word, random)) {
      const member = random.pick(['code', 'type']);
      const isStream = random.oneIn(2);
      p.script = (_, response) =>
        sendJson(response, { error: { message: 'no', [member]: spelling } });
      const reply = await gateway.chat(chatBody({ stream: isStream }));
      assert.equal(reply.status, status, `${member} ${spelling}: ${reply.text}`);
    }
  }
});

test('a code decides on a fallback or a repeat in any spelling', async (t) => {
  const { gateway, p, q } = await scenario(t, {
    providers: { p: answerWell, q: answerWell },
    fallback: ['q'],
    fallbackOn: [403],
  });
  const random = newRandom();
  const ask = async (status: number, code: string) => {
    p.script = (_, response) => sendJson(response, { error: { message: 'no', code } }, { status });
    const before = q.requests.length;
    await gateway.chat(chatBody());
    return q.requests.length > before;
  };
  for (const code of spellingsOf('context_length_exceeded', random))
    assert.equal(await ask(400, code), true, code);
  assert.equal(await ask(413, 'context_length_exceeded'), false);
  assert.equal(await ask(403, 'x'), true);
  for (const word of ['content_policy', 'content_filter', 'moderation', 'safety']) {
    for (const code of spellingsOf(word, random)) assert.equal(await ask(403, code), false, code);
  }
  // OpenRouter's moderation.
  const metadata = { reasons: ['violence'], flagged_input: 'x', provider_name: 'y' };
  const error = { message: 'flagged', code: 403, metadata };
  p.script = (_, response) => sendJson(response, { error }, { status: 403 });
  const before = q.requests.length;
  assert.equal((await gateway.chat(chatBody())).status, 403);
  assert.equal(q.requests.length, before);
});

test('a code of an account without money makes the error final', async (t) => {
  const { gateway, p } = await scenario(t);
  const random = newRandom();
  const words = ['insufficient_quota', 'insufficient_user_quota', 'insufficient_balance'];
  words.push('insufficient_funds', 'insufficient_credits', 'billing_not_active');
  for (const word of words) {
    for (const code of spellingsOf(word, random)) {
      p.script = (_, response) =>
        sendJson(response, { error: { message: 'no', code } }, { status: 429 });
      assert.equal((await gateway.chat(chatBody())).headers['x-should-retry'], 'false', code);
    }
  }
  for (const code of ['insufficient_capacity', 'rate_limit']) {
    p.script = (_, response) => sendJson(response, { error: { code } }, { status: 429 });
    assert.equal((await gateway.chat(chatBody())).headers['x-should-retry'], undefined, code);
  }
});

/** White space, parameters, and repeated headers around a media type. */
const AROUND_TYPES = ['X', 'X ; charset=utf-8', 'X;charset="UTF-8"', 'X;', 'X,X', 'X, text/x'];

test('a media type is known in any letter case, with parameters, and if repeated', async (t) => {
  const { gateway, p } = await scenario(t);
  const random = newRandom();
  const ask = async (type: string, body: string, { status = 200, stream = false } = {}) => {
    p.script = (_, response) => response.writeHead(status, { 'content-type': type }).end(body);
    return gateway.chat(chatBody({ stream }));
  };
  for (const around of AROUND_TYPES) {
    const typed = (type: string) => around.replaceAll('X', () => inSomeCase(type, random));
    const isSole = !around.includes(',');
    for (const type of ['application/json', 'application/vnd.x+json', 'text/json']) {
      const sent = typed(type);
      const { headers } = await ask(sent, JSON.stringify(completion()));
      const passed = headers['content-type']!;
      assert.equal(passed, isSole ? sent : sent.split(',')[0], sent);
    }
    const sent = typed('text/event-stream');
    const { headers } = await ask(sent, completionEvents(), { stream: true });
    assert.equal(headers['content-type'], isSole ? sent : sent.split(',')[0], sent);
    for (const type of ['text/html', 'application/xhtml+xml']) {
      const { text } = await ask(typed(type), '{"message":"own words"}', { status: 503 });
      assert.match(text, /503 - Service Unavailable"/, typed(type));
    }
    const plain = typed('text/plain');
    assert.match((await ask(plain, 'own words', { status: 503 })).text, /- own words"/, plain);
  }
});

test('a content coding is refused in any letter case and in a list, but not "none"', async (t) => {
  const { gateway, p } = await scenario(t);
  const random = newRandom();
  const ask = async (coding: string | string[], stream: boolean) => {
    p.script = (request, response) => {
      response.setHeader('content-encoding', coding);
      return answerWell(request, response);
    };
    return (await gateway.chat(chatBody({ stream }))).status;
  };
  const codings = 'gzip x-gzip deflate compress x-compress br zstd dcb dcz aes128gcm exi';
  for (const stream of [false, true]) {
    for (const coding of codings.split(' ')) {
      const spelled = inSomeCase(coding, random);
      for (const sent of [spelled, `identity, ${spelled}`, `${spelled},none`])
        assert.equal(await ask(sent, stream), 502, sent);
      assert.equal(await ask(['identity', spelled], stream), 502, spelled);
    }
    for (const none of ['identity', 'none', 'utf-8', 'utf8', '', 'binary', 'application/json']) {
      const spelled = inSomeCase(none, random);
      for (const sent of [spelled, `identity, ${spelled}`])
        assert.equal(await ask(sent, stream), 200, sent);
      assert.equal(await ask([spelled, spelled], stream), 200, spelled);
    }
  }
});

test('a status is read as a number and as text, by each of its names', async (t) => {
  const { gateway, p } = await scenario(t);
  for (const name of ['status_code', 'status', 'code']) {
    for (const value of [418, '418']) {
      for (const place of ['error', 'errors', 'base_resp', '']) {
        const fault = { message: 'no', status_msg: 'no', [name]: value };
        const inside = { error: fault, errors: [fault], base_resp: fault, '': fault }[place]!;
        p.script = (_, response) => sendJson(response, place ? { [place]: inside } : inside);
        const reply = await gateway.chat(chatBody());
        assert.equal(reply.status, 418, `${place} ${name}: ${reply.text}`);
      }
    }
  }
});

test('the beginning of a page is found in any letter case', async (t) => {
  const { gateway, p } = await scenario(t);
  const random = newRandom();
  for (const begin of ['<!doctype', '<html', '<head', '<body', '<script']) {
    for (const spelled of [begin, begin.toUpperCase(), inSomeCase(begin, random)]) {
      const message = `busy: ${spelled}>`;
      p.script = (_, response) => sendJson(response, { message }, { status: 503 });
      assert.match((await gateway.chat(chatBody())).text, /503 - Service Unavailable"/, spelled);
    }
  }
});

test('a client may send JSON in UTF-8 in any spelling, and no other charset', async (t) => {
  const { gateway } = await scenario(t);
  const random = newRandom();
  const ask = async (type: string) =>
    (await gateway.chat(chatBody(), { headers: { 'content-type': type } })).status;
  const types = ['application/json', 'application/vnd.api+json'];
  for (const type of types.map((one) => inSomeCase(one, random))) {
    for (const charset of ['utf-8', 'utf8', '"utf-8"', '"utf8"']) {
      for (const form of ['X; charset=Y', 'X;charset = Y', ' X ; a=b; charset=Y ; c=d']) {
        const spelled = inSomeCase(charset, random);
        const sent = form.replace('X', type).replace('charset', inSomeCase('charset', random));
        assert.equal(await ask(sent.replace('Y', spelled)), 200, sent + spelled);
        assert.equal(await ask(sent.replace('Y', 'utf-16')), 400, sent);
        assert.equal(await ask(sent.replace('Y', `${spelled}x`)), 400, sent);
      }
    }
  }
});

test('a byte order mark before JSON hides nothing', async (t) => {
  const { gateway, p } = await scenario(t);
  const sends = (json: object, status = 200) => {
    p.script = (_, response) => response.writeHead(status).end(`\ufeff${JSON.stringify(json)}`);
  };
  sends(completion());
  assert.equal((await gateway.chat(chatBody())).text, `\ufeff${JSON.stringify(completion())}`);
  sends({ error: { message: 'own words', status: 422 } });
  assert.equal((await gateway.chat(chatBody())).status, 422);
  sends({ detail: 'own words' }, 503);
  assert.match((await gateway.chat(chatBody())).text, /503 - own words/);
  sends({ data: [{ id: 'a' }] });
  assert.match((await gateway.send('/v1/models')).text, /"p\/a"/);
});
