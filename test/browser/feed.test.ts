/** The page with feeds that the tests write. */

import assert from 'node:assert/strict';

import {
  assertAccessible,
  browserTest,
  assertFitsWidth,
  rowsOf,
  screenshot,
  shows,
  until,
} from './browser.ts';
import {
  at,
  busyView,
  failingView,
  idleView,
  incident,
  largeView,
  provider,
  requestsByNumber,
  settings,
  steps,
} from './events.ts';
import { startFeed } from './feed.ts';

const FIRST_ROW = '#requests > tr:first-child';

const SITUATIONS: Record<string, object> = {
  busy: busyView(),
  empty: idleView({ settings: settings({ needsKey: true, settings: [], warnings: [] }) }),
  large: largeView(),
  draining: busyView({
    draining: true as unknown as object,
    accepting: false as unknown as object,
  }),
  failing: failingView(),
  restarted: idleView({
    settings: settings({ startedAt: at(-2) }),
    providers: { openai: provider(), groq: provider() },
  }),
};

for (const [name, view] of Object.entries(SITUATIONS)) {
  for (const scheme of ['light', 'dark'] as const) {
    for (const width of [1280, 360]) {
      browserTest(
        `${name}, ${scheme}, ${width} px: axe finds nothing, and only tables scroll sideways`,
        async (t, open) => {
          const feed = await startFeed(t);
          const isRestarted = name === 'restarted';
          feed.view = isRestarted ? busyView() : view;
          const page = await open(feed.url, { width, scheme, losesConnection: isRestarted });
          await shows(page, '#connection', name === 'draining' ? 'Draining' : 'Live');
          if (isRestarted) {
            feed.view = view;
            feed.cut();
            await shows(page, '#announcement', 'The gateway was restarted');
            await page.locator('#requests-empty').waitFor({ state: 'visible' });
          }
          const isWhole = !['busy', 'failing', 'draining'].includes(name);
          await screenshot(page, `${name}-${width}-${scheme}`, isWhole);
          if (name === 'busy') {
            await page.locator('#requests > tr:nth-child(8)').click();
            await page.locator('summary').click();
            await shows(page, '.details', 'The engine is currently overloaded');
            await shows(page, '.details table', /openai\s*2\s*gpt-5-mini/);
            await page.evaluate('document.querySelector("#requests-heading").scrollIntoView()');
            await screenshot(page, `${name}-open-${width}-${scheme}`);
          }
          await assertFitsWidth(page);
          await assertAccessible(page);
        },
      );
    }
  }
}

browserTest(
  'the figures, states and errors of the feed are shown in words and numbers',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, '#streams', '7');
    await shows(page, '#streams-note', '9 in flight');
    await shows(page, '#failed-note', /^\d+ of \d+ in the last minute$/);
    // Those that fail come first, then those with the most traffic.
    const [openai, groq, xai, ollama, bolt, mistral] = (await rowsOf(page, 'providers')).map(
      ([, state, inFlight, lastError, tries, failed, rejected, left]) => {
        return { state, inFlight, lastError, tries, failed, rejected, left };
      },
    );
    assert.equal(openai!.state, 'openai/gpt-5 answers with errors\ngpt-5 kept away, 19 s left');
    assert.deepEqual([openai!.inFlight, ollama!.inFlight], ['5\noldest 14 s', '1']);
    assert.deepEqual([openai!.failed, openai!.rejected, openai!.left], ['14', '40', '–']);
    assert.match(openai!.lastError!, /10:09:50\nread ECONNRESET/);
    assert.equal(groq!.state, 'cannot be reached\nkept away, 24 s left');
    assert.equal(xai!.state, 'answers with errors');
    assert.deepEqual([ollama!.state, bolt!.state], ['Good', 'Not asked']);
    assert.match(mistral!.state!, /^Skipped\nno api_key and no MISTRAL_API_KEY/);
    assert.deepEqual((await rowsOf(page, 'clients'))[2]!.slice(0, 4), [
      'no valid key',
      '12',
      '–',
      '12',
    ]);
    const sentences = (await page.locator('#incidents > li').allInnerTexts()).map((text) =>
      text.trim(),
    );
    assert.deepEqual(sentences, [
      'xai answers with errors since 11-21 21:15:30 (402 No credits left). xai/grok-4: every request fails (ci, 31 requests).',
      'openai/gpt-5 answers with errors since 10:14:50 (The engine is currently overloaded). openai/gpt-5: 9 of 12 fail (ci, team-search). smart: answered by ollama (4 requests). And 2 more names.',
      'groq cannot be reached since 10:14:29 (ECONNREFUSED 127.0.0.1:9000). fast: answered by ollama (team-search, 107 requests).',
      'The gateway refuses its new settings since 10:02:11 (providers.groq.timeout: found "ten", expected an integer from 1 to 2147483, and 1 more). The former are in use.',
    ]);
    await shows(
      page,
      '#ended',
      'The store of rate limits was away from 09:42:10 to 09:50:30, for 8 min 20 s (10.0.0.9:6379: no answer in 50 ms).',
    );
    assert.match(await page.title(), /^\(4\) /);
    await page.locator('summary').click();
    assert.deepEqual((await rowsOf(page, 'settings')).slice(3, 5), [
      ['server.auth.keys', '[secret]'],
      ['providers.fallback', '["groq","ollama"]'],
    ]);
    await shows(page, '#warnings', 'provider "openai" is not registered');
  },
);

browserTest(
  '30 providers with 300 models are folded to the failing and the busiest ones, and can be searched',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = largeView();
    const page = await open(feed.url);
    await shows(page, '#models-section caption', 'Models, 8 of 300, the last 15 minutes');
    const [above, screen] = await page.evaluate<[number, number]>(
      '[document.querySelector("#requests-heading").getBoundingClientRect().top, innerHeight]',
    );
    assert.ok(above <= 3 * screen, `${above} px before the requests`);
    const names = (await rowsOf(page, 'models')).map(([name]) => name);
    assert.deepEqual(names.slice(0, 6), [
      ...[59, 119, 179, 239, 299].map((i) => `provider-${i % 30}/model-${i}`),
      'provider-0/model-0',
    ]);
    const failing = (await rowsOf(page, 'providers')).slice(0, 4).map(([name]) => name);
    assert.deepEqual(failing, [4, 13, 22].map((i) => `provider-${i}`).concat('provider-0'));
    await page.getByRole('button', { name: 'Show all 300' }).click();
    await shows(page, '#models-section caption', 'Models, the last 15 minutes');
    assert.equal(await page.locator('#models > tr').count(), 300);
    await page.getByRole('button', { name: 'Show fewer' }).click();
    await page.getByLabel('Provider, model or client').fill('MODEL-17');
    await shows(page, '#models-section caption', 'Models, 11 of 300');
    assert.equal((await rowsOf(page, 'models'))[0]![0], 'provider-29/model-179');
  },
);

browserTest(
  'a chart has the times of its axis and its highest value, and begins where there is data',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url, { losesConnection: true });
    await shows(page, '#cards .axis', '10:0010:15');
    await shows(page, '#latency-scale', /^highest [\d\s]+ ms$/);
    await shows(page, '#failed-scale', /^highest [\d.]+ %$/);
    // A value alone between two gaps.
    const line = await page.locator('#latency-chart .first').getAttribute('d');
    assert.match(line ?? '', /M21\.5 [\d.]+h1M25 /);
    feed.view = idleView({ steps: steps([{ openStreams: 2 }, { openStreams: 4 }]) });
    feed.cut();
    await shows(page, '#streams-scale', 'highest 4');
    const area = await page.locator('#streams-chart .area').getAttribute('d');
    assert.equal(area, 'M88 16.0L89 2.0V32H88Z');
  },
);

browserTest(
  'on a narrow screen each row is a card with its state, in flight and last error in sight',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url, { width: 360 });
    await shows(page, '#connection', 'Live');
    for (const id of ['providers', 'models', 'clients', 'requests']) {
      for (const cell of await page.locator(`#${id} > tr:first-child > *:visible`).all()) {
        const { x, width } = (await cell.boundingBox())!;
        assert.ok(x + width <= 360, `${id}: to ${x + width} px`);
      }
    }
    const card = await page.locator('#providers > tr:first-child').innerText();
    for (const text of ['gpt-5 answers with errors', 'oldest 14 s', 'read ECONNRESET']) {
      assert.ok(card.includes(text), card);
    }
  },
);

browserTest(
  'without providers the page says which variable to set, and without requests how to send one',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['empty']!;
    const page = await open(feed.url);
    await shows(page, '#providers-empty', 'OPENAI_API_KEY=');
    await shows(page, '#curl-hint', 'YOUR_KEY is one of [server.auth] keys, or of a client.');
    const command = await page.locator('#curl').innerText();
    assert.match(command, /^curl 'http:\/\/127\.0\.0\.1:8080\/v1\/chat\/completions' \\\n/);
    assert.match(command, /Authorization: Bearer YOUR_KEY/);
    assert.match(command, /"model":"openai\/MODEL"/);

    feed.send({
      settings: { needsKey: false, settings: [["aliases.it's", 'p/m']] },
      providers: { openai: provider() },
    });
    await shows(page, '#curl', 'Bearer any-text');
    await shows(page, '#curl', `"model":"it'\\''s"`);
    await page.locator('#providers-empty').waitFor({ state: 'hidden' });
  },
);

browserTest('the filters choose by outcome, provider, client and id', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, '#count', /^200 of 200$/);
  await page.getByLabel('Outcome').selectOption('failed');
  await shows(page, '#count', /^60 of 200$/);
  await page.getByLabel('Outcome').selectOption('timeout');
  await shows(page, '#count', /^20 of 200$/);
  await page.getByLabel('Client', { exact: true }).selectOption('ci');
  await shows(page, '#count', /^7 of 200$/);
  await page.getByLabel('Outcome').selectOption('');
  await page.getByLabel('Client', { exact: true }).selectOption('');
  await page.getByLabel('Provider', { exact: true }).selectOption('groq');
  await shows(page, '#count', /^20 of 200$/);
  await page.getByLabel('Provider', { exact: true }).selectOption('');
  await page.getByLabel('Request or trace id').fill('4BF92F3577B34DA6A3CE929D0E000192');
  await shows(page, '#count', /^1 of 20\d$/);
  assert.equal((await rowsOf(page, 'requests'))[0]![4], 'openai → groq');
});

browserTest(
  'the list shows new requests first, and stands still while a row is open or it is paused',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, '#count', /^200 of 200$/);
    const send = (id: string) => {
      const [[number, request]] = Object.entries(requestsByNumber(1)) as [[string, object]];
      feed.send({ requests: { [number]: { ...request, request_id: id, model: id } } });
    };

    send('first');
    await shows(page, FIRST_ROW, 'first');
    await shows(page, '#count', /^201 of 201$/);
    await page.locator(FIRST_ROW).click();
    send('second');
    await shows(page, '#count', 'paused while a row is open, 1 new');
    await shows(page, FIRST_ROW, 'first');
    await page.locator(FIRST_ROW).click();
    await shows(page, FIRST_ROW, 'second');

    await page.getByRole('button', { name: 'Pause' }).click();
    send('third');
    await shows(page, '#count', 'paused, 1 new');
    await shows(page, FIRST_ROW, 'second');
    await page.getByRole('button', { name: 'Pause' }).click();
    await shows(page, FIRST_ROW, 'third');

    // A row that a filter hides would pause the list unseen.
    await page.locator(FIRST_ROW).click();
    await shows(page, '#count', 'paused');
    await page.getByLabel('Request or trace id').fill('second');
    await shows(page, '#count', /^1 of 20\d$/);
  },
);

browserTest('everything can be done with the keyboard alone', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, '#count', '200 of 200');
  const focused = async () =>
    page.evaluate<string>(
      'document.activeElement.tagName + " " + (document.activeElement.id || document.activeElement.textContent)',
    );
  const seen: string[] = [];
  const tabTo = async (wanted: RegExp) => {
    for (let i = 0; i < 30; i += 1) {
      await page.keyboard.press('Tab');
      seen.push(await focused());
      if (wanted.test(seen.at(-1)!)) return;
    }
    assert.fail(`no focus on ${wanted}: ${seen.join(', ')}`);
  };
  await tabTo(/^A Requests/);
  await page.keyboard.press('Enter');
  await tabTo(/^SELECT by-outcome/);
  await page.keyboard.type('timeout');
  await shows(page, '#count', '20 of 200');
  await tabTo(/^BUTTON pause/);
  await page.keyboard.press('Space');
  await shows(page, '#count', 'paused');
  await tabTo(/^DIV requests-box/);
  await tabTo(/^BUTTON \d\d:/);
  await page.keyboard.press('Enter');
  await shows(page, '.details', 'no first token in 20 s');
  assert.match(await focused(), /^BUTTON \d\d:/);
  await page.keyboard.press('Enter');
  await page.locator('.details').waitFor({ state: 'detached' });
  assert.match(await focused(), /^BUTTON \d\d:/);
});

browserTest('a live region tells what changes, and nothing each second', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = idleView({ providers: { openai: provider() } });
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  await page.evaluate(`
    globalThis.announced = [];
    const region = document.querySelector('[role=status]');
    new MutationObserver(() => announced.push(region.textContent)).observe(region, { childList: true });
  `);
  const down = incident('unreachable', 0, { provider: 'openai' });
  for (const second of [1, 2, 3]) feed.send({ now: at(second), incidents: [down] });
  await shows(page, '#providers', 'cannot be reached');
  for (const second of [4, 5]) {
    feed.send({ now: at(second), incidents: [{ ...down, ended: at(4) }] });
  }
  await shows(page, '#ended', 'openai could not be reached');
  feed.send({ now: at(36), draining: true });
  await shows(page, '#connection', 'Draining');
  await shows(page, '#banner', 'The gateway is stopping');
  assert.deepEqual(await page.evaluate('announced'), [
    'openai cannot be reached',
    'Over: openai cannot be reached',
    'The gateway is draining',
  ]);
});

browserTest('the chart of failures shows their share of the requests', async (t, open) => {
  const feed = await startFeed(t);
  // The second bar has more failures, and is half as high.
  const counts = [[4, 2] as const, [80, 20] as const, [0, 0] as const];
  feed.view = idleView({
    steps: steps(counts.map(([requests, failed]) => ({ requests, failed }))),
  });
  const page = await open(feed.url);
  await shows(page, '#failed-note', '22 of 84 in the last minute');
  await shows(page, '#failed-scale', 'highest 50.0 %');
  const bars = await page.locator('#failed-chart .bars').getAttribute('d');
  assert.equal(bars, 'M87 32V2.0M88 32V16.0');
});

browserTest('an incident that the page does not know is told by its own name', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = idleView({
    providers: { p: provider() },
    incidents: [incident('constructor', 5, { provider: 'p' })],
  });
  const page = await open(feed.url);
  await shows(page, '#incidents', /^p constructor since/);
});

browserTest(
  'an event changes only the parts of the document whose figures it changes',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, '#count', '200 of 200');
    await page.evaluate(`
    globalThis.touched = new Set();
    const observer = new MutationObserver((changes) => {
      for (const { target } of changes) touched.add((target.closest ? target : target.parentElement).closest('[id]')?.id);
    });
    const everything = { subtree: true, childList: true, attributes: true, characterData: true };
    observer.observe(document, everything);
  `);
    feed.send({});
    feed.send({ figures: { gateway_open_streams: 8 } });
    await shows(page, '#streams', '8');
    assert.deepEqual(await page.evaluate('[...touched].sort()'), ['streams']);
  },
);

browserTest(
  'a lost connection is told, and made again after cuts and HTTP errors',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url, { losesConnection: true });
    await shows(page, '#connection', 'Live');
    await page.locator(`${FIRST_ROW} button`).focus();
    feed.cut();
    await shows(page, '#announcement', 'Connected again');
    // The feed repeats the last requests: none is there twice, and the focus stays.
    await shows(page, '#count', /^200 of 200$/);
    const isFocused = await page
      .locator(`${FIRST_ROW} button`)
      .evaluate((b) => b.matches(':focus'));
    assert.ok(isFocused);

    feed.refuseWith = 503;
    const before = feed.connections;
    feed.cut();
    await shows(page, '#connection', 'Connection lost');
    await shows(page, '#banner', 'Connection lost, retrying. The figures are as of 10:15:30.');
    await shows(page, '#announcement', 'Connection lost, retrying');
    await until(() => feed.connections >= before + 2);
    feed.refuseWith = undefined;
    await shows(page, '#connection', 'Live');
    await page.locator('#banner').waitFor({ state: 'hidden' });
  },
);

browserTest('after a restart of the gateway the page begins anew', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url, { losesConnection: true });
  await shows(page, '#count', '200 of 200');
  await page.locator(FIRST_ROW).click();
  await shows(page, '.details', 'request_id');
  await page.getByRole('button', { name: 'Pause' }).click();
  feed.view = idleView({
    settings: settings({ startedAt: at(100) }),
    now: at(101),
    providers: { openai: provider() },
  });
  feed.cut();
  await shows(page, '#announcement', 'The gateway was restarted');
  await page.locator('#requests-empty').waitFor({ state: 'visible' });
  assert.equal((await rowsOf(page, 'requests')).length, 0);
  await shows(page, '#about', 'up 1 s');
  feed.send({ requests: requestsByNumber(2) });
  await shows(page, '#count', /^2 of 2$/);
});

browserTest('settings that change while the page is open keep its requests', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = idleView({ providers: { openai: provider() }, requests: requestsByNumber(3) });
  const page = await open(feed.url);
  await shows(page, '#count', /^3 of 3$/);
  const warnings = ['a warning that is new'];
  feed.send({ settings: { settings: [['server.cors', true]], warnings } });
  await shows(page, '#announcement', 'The settings have changed');
  feed.send({ requests: requestsByNumber(2) });
  await shows(page, '#count', /^5 of 5$/);
  await shows(page, '#settings-count', /^Process, and 1 settings in force$/);
  await shows(page, '#warnings', 'a warning that is new');
});

browserTest('a connection that has gone silent is given up', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  const before = feed.connections;
  await until(() => feed.connections > before);
  await shows(page, '#announcement', 'Connected again');
});

browserTest('below a path of a proxy the page finds its feed', async (t, open) => {
  const feed = await startFeed(t, '/admin/gateway/');
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
});

browserTest(
  'text from outside stays text, whatever it is, and does not widen the page',
  async (t, open) => {
    const feed = await startFeed(t);
    const markup = '<img src=x onerror="document.title=1"><script>document.title=2</script>';
    const hostile = `${markup}\u202e\u2028\u0000${'w'.repeat(10_240)}`;
    const [[number, request]] = Object.entries(requestsByNumber(1)) as [[string, object]];
    const names = { provider: hostile, model: hostile, outcome: hostile, cause: hostile };
    const away = { model: hostile, until: at(9) };
    feed.view = busyView({
      settings: settings({
        settings: [
          [hostile, hostile],
          [`aliases.${hostile}`, 'p/m'],
        ],
        warnings: [hostile],
      }),
      requests: {
        [number]: {
          ...request,
          ...names,
          request_id: hostile,
          client: hostile,
          [hostile]: hostile,
          tries: [{ ...names, url: hostile }],
        },
      },
      incidents: [
        incident('errors', 5, {
          provider: hostile,
          model: hostile,
          cause: hostile,
          hit: [{ name: hostile, failed: 1, clients: hostile, by: hostile }],
        }),
      ] as unknown as object,
      providers: {
        [hostile]: provider({
          keptAway: [away],
          lastError: { at: at(0), text: hostile },
        }),
        ['__proto__']: provider(),
      },
      models: { [hostile]: { requests: 1 } },
      clients: { [hostile]: { requests: 1 } },
    });
    const page = await open(feed.url, { width: 360 });
    await shows(page, '#connection', 'Live');
    await page.locator(FIRST_ROW).click();
    await page.locator('summary').click();
    await shows(page, '.details', 'onerror');
    await page.locator('.details').getByText('<img src=x').first().waitFor();
    for (const id of ['providers', 'models', 'clients', 'requests', 'settings']) {
      await shows(page, `#${id}`, '<img src=x onerror="document.title=1"><script>');
    }
    await shows(page, '#models', '\\u202e\\u2028\\u0000www');
    assert.equal(await page.title(), '(1) inference-gateway gw-1');
    assert.equal(await page.locator('img').count(), 0);
    await assertFitsWidth(page);
    await assertAccessible(page);
    await screenshot(page, 'hostile-360-light', true);
  },
);
