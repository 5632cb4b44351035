/** Models named by the settings, but no longer at their provider. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { stopClock } from '../support/clock.ts';
import { chatBody, triesOf } from '../support/gateway.ts';
import { byModel, scenario } from '../support/scenario.ts';
import { linesOf } from '../support/streams.ts';
import { failWith, sendEvents, sendJson, type Script } from '../support/upstream.ts';

const gone = failWith(404, { code: 'model_not_found' });
const error = { message: 'no such model', code: 'model_not_found' };
const goneAsEvent: Script = (_, response) =>
  sendEvents(response, `data: ${JSON.stringify({ error })}\n\n`);
const noPage: Script = (_, response) =>
  response.writeHead(404, { 'content-type': 'text/html' }).end('<html>model</html>');

interface Row {
  readonly model: string;
  readonly script?: Script;
  readonly isStream?: boolean;
  /** The last try's outcome. */
  readonly outcome: 'upstream_error' | 'rejected';
  /** The fourth request's tries. */
  readonly fourth: string;
}

const skipped = 'p:circuit_open q:200';
const asked = 'p:404';

const rows: Record<string, Row> = {
  'an alias': { model: 'fast', outcome: 'upstream_error', fourth: skipped },
  'an alias, as the first event of a stream': {
    model: 'fast',
    script: goneAsEvent,
    isStream: true,
    outcome: 'upstream_error',
    fourth: skipped,
  },
  'the id of the provider': { model: 'p', outcome: 'upstream_error', fourth: skipped },
  'its full name': { model: 'p/gone', outcome: 'upstream_error', fourth: skipped },
  'a wildcard alias with its model': { model: 'any-1', outcome: 'upstream_error', fourth: skipped },
  'a wildcard alias without its model': { model: 'my-made-up', outcome: 'rejected', fourth: asked },
  'a name that the client chose': { model: 'p/made-up', outcome: 'rejected', fourth: asked },
};

describe('a 404 about a model', () => {
  for (const [what, { model, script = gone, isStream, outcome, fourth }] of Object.entries(rows)) {
    const isTold = outcome === 'upstream_error';
    const effect = isTold ? 'opens the circuit' : 'counts for nothing';
    test(`asked for by ${what} is ${outcome}, and ${effect}`, async (t) => {
      const { gateway } = await scenario(t, {
        providers: {
          p: {
            script: byModel({ gone: script, 'made-up': script, default: script }),
            lines: 'default_model = "default"',
          },
          q: { lines: 'default_model = "q"' },
        },
        fallback: ['q'],
        more: '[admin]\nport = 0\n[aliases]\nfast = "p/gone"\n"any-*" = "p/gone"\n"my-*" = "p/*"',
      });
      const ask = () => gateway.chat(chatBody({ model, stream: isStream ?? false }));
      for (let round = 0; round < 3; round += 1) assert.equal((await ask()).status, 404);
      const [line] = await linesOf(gateway, 3);
      assert.equal(line!['outcome'], outcome);
      gateway.judge();
      const incidents = async () =>
        (await gateway.admin('/metrics')).text
          .split('\n')
          .filter((one) => one.startsWith('gateway_incident{'));
      assert.deepEqual(
        await incidents(),
        isTold ? ['gateway_incident{kind="errors",provider="p"} 1'] : [],
      );
      await ask();
      assert.equal(triesOf((await linesOf(gateway, 4)).at(-1)), fourth);
    });
  }

  test('of a fallback is upstream_error if the settings chose the model', async (t) => {
    for (const [lines, model, outcome, setting] of [
      ['default_model = "d"', 'p/x', 'upstream_error', 'providers.q.default_model: '],
      ['', 'fast', 'upstream_error', 'aliases.fast: '],
      ['', 'p/x', 'rejected', ''],
    ] as const) {
      const { gateway } = await scenario(t, {
        providers: { p: failWith(503), q: { script: gone, lines } },
        fallback: ['q'],
        more: '[aliases]\nfast = "p/m"',
      });
      await gateway.chat(chatBody({ model }));
      const [line] = await linesOf(gateway, 1);
      const [, last] = line!['tries'] as { outcome: string; cause: string }[];
      assert.equal(last!.outcome, outcome, `${lines} ${model}`);
      assert.equal(last!.cause, `${setting}p failed (model_not_found)`);
    }
  });

  test('reported as a web page is upstream_error, and opens no circuit', async (t) => {
    const { gateway } = await scenario(t, {
      providers: { p: noPage, q: {} },
      fallback: ['q'],
      more: '[aliases]\nfast = "p/gone"',
    });
    for (let round = 0; round < 4; round += 1) await gateway.chat(chatBody({ model: 'fast' }));
    const lines = await linesOf(gateway, 4);
    assert.equal(lines[3]!['outcome'], 'upstream_error');
    assert.equal(triesOf(lines[3]), asked);
  });
});

test('a model of the settings that a fetched list lacks is warned of once', async (t) => {
  const clock = stopClock(t);
  let names = ['here', 'other'];
  const list: Script = (_, response) => sendJson(response, { data: names.map((id) => ({ id })) });
  const { gateway } = await scenario(t, {
    providers: { p: { script: list, lines: 'default_model = "lost"' } },
    more: '[aliases]\nfast = ["p/gone", "p/here", "absent/x"]',
  });
  /** Fetches the list, and returns all warnings so far. */
  const fetchList = async (...next: string[]) => {
    names = next;
    clock.nowMs += 300_000;
    await gateway.send('/v1/models');
    return gateway
      .lines('model is not listed')
      .map(({ level, setting, provider, model }) => [level, setting, provider, model].join(' '));
  };
  const aliased = 'warn aliases.fast p gone';
  const lost = 'warn providers.p.default_model p lost';
  assert.deepEqual(await fetchList('here'), [aliased, lost]);
  assert.deepEqual(await fetchList('here'), [aliased, lost], 'the same list');
  assert.deepEqual(await fetchList('here', 'gone', 'lost'), [aliased, lost], 'nothing is missing');
  assert.deepEqual(await fetchList(), [aliased, lost], 'an empty list proves nothing');
  assert.deepEqual(await fetchList('here', 'lost'), [aliased, lost, aliased]);
});
