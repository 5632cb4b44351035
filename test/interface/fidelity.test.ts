import assert from 'node:assert/strict';
import { Agent, request as httpRequest } from 'node:http';
import { test } from 'node:test';

import { CLIENT_TOKEN } from '../support/gateway.ts';
import { withRandom, type Random } from '../support/random.ts';
import { sweep } from '../support/sweep.ts';
import { type Script, completion, sendJson } from '../support/upstream.ts';
import { scenario } from '../support/scenario.ts';

const ROUNDS = sweep(1000, 200);
const AT_ONCE = 25;
const EMOJI = '\u{1F600}';

async function inBatches(run: (round: number) => Promise<void>): Promise<void> {
  for (let start = 0; start < ROUNDS; start += AT_ONCE) {
    await Promise.all(Array.from({ length: AT_ONCE }, (_, index) => run(start + index)));
  }
}

/** Posts over the agent's connections; the round travels to the upstream as the request's id. */
async function post(
  { port, agent, round }: { port: number; agent: Agent; round: number },
  body: Buffer,
): Promise<{ status: number | undefined; bytes: Buffer }> {
  const request = httpRequest({
    host: '127.0.0.1',
    port,
    agent,
    method: 'POST',
    path: '/v1/chat/completions',
    headers: {
      authorization: `Bearer ${CLIENT_TOKEN}`,
      'content-type': 'application/json',
      'content-length': body.length,
      'x-request-id': `round-${round}`,
    },
  });
  return new Promise((resolve, reject) => {
    request.on('error', reject);
    request.on('response', (response) => {
      const chunks: Buffer[] = [];
      response.on('error', reject);
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('end', () =>
        resolve({ status: response.statusCode, bytes: Buffer.concat(chunks) }),
      );
    });
    request.end(body);
  });
}

const VALUES = [
  ['9007199254740993', '-0', '1e400', '1.0', '123456789012345678901234567890', '1E-7'],
  ['{"a":1,"a":2,"model":"x","model":"y"}', '[ 1 ,\t2,\r\n3 ]', '{ }', '[]', 'null', 'true'],
  [`"${EMOJI}\u00e9\u2028"`, '"\\ud83d\\ude00 \\u0000\\/\\""', '"\\\\"', '"\\ud800"', '""'],
  ['{"__proto__":{"x":1}}', '{"model":"p/inner","stream":true}', '"\\"model\\":\\"x\\""'],
].flat();
const MESSAGES = [
  '[{"role":"user","content":"hi"}]',
  `[ {"content" : [{"type":"text","text":"${EMOJI}"}], "role":"user", "name":"\\u0061"} ]`,
  '[{"role":"assistant","content":null,"tool_calls":[{"x":1e400}]},{"role":"tool","content":""}]',
];

/** A valid request as bytes, and where its model value is. */
function randomBody(random: Random): { before: string; model: string; after: string } {
  const space = () => random.pick(['', '', ' ', '\n', '\t', '\r\n  ']);
  const members = [
    `"messages"${space()}:${space()}${random.pick(MESSAGES)}`,
    ...Array.from(
      { length: random.integer(0, 6) },
      (_, index) =>
        `"${random.pick(['x', 'seed', '\\u0061', EMOJI])}${index}"${space()}:${space()}${random.pick(VALUES)}`,
    ),
    ...(random.oneIn(3) ? [`"stream"${space()}:${space()}false`] : []),
  ].map((member) => space() + member + space());
  const ordered = members.toSorted(() => random.next() - 0.5);
  const place = random.integer(0, ordered.length);
  const key = random.pick(['"model"', '"model"', '"mod\\u0065l"', '"\\u006dodel"']);
  const head = ordered.slice(0, place).map((member) => `${member},`);
  const tail = ordered.slice(place).map((member) => `,${member}`);
  return {
    before: `${space()}{${head.join('')}${space()}${key}${space()}:${space()}`,
    model: random.pick([
      '"p/m"',
      '"p\\/m"',
      '"\\u0070/m"',
      '"p/a/b"',
      `"p/${EMOJI}"`,
      '"p/\\"q\\""',
    ]),
    after: `${space()}${tail.join('')}}${space()}`,
  };
}

test('random request bodies reach the provider byte for byte, but for the model', async (t) => {
  // Complete answers, whatever a body has inside.
  const p: Script = (_, response) => sendJson(response, completion());
  const { p: upstream, gateway } = await scenario(t, { providers: { p } });
  const agent = new Agent({ keepAlive: true });
  t.after(() => agent.destroy());
  await withRandom(async (random) => {
    const expected = new Map<string, string>();
    await inBatches(async (round) => {
      const { before, model, after } = randomBody(random);
      const body = before + model + after;
      const name = (JSON.parse(model) as string).slice('p/'.length);
      expected.set(`round-${round}`, before + JSON.stringify(name) + after);
      const { status, bytes } = await post({ port: gateway.port, agent, round }, Buffer.from(body));
      assert.equal(status, 200, `${body} -> ${bytes.toString()}`);
    });
    assert.equal(upstream.requests.length, ROUNDS);
    for (const { headers, body } of upstream.requests) {
      const id = String(headers['x-request-id']);
      assert.equal(body.toString(), expected.get(id));
      assert.equal(headers['content-length'], String(body.length));
      expected.delete(id);
    }
    assert.equal(expected.size, 0);
  });
});
