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
    providers: { openai: provider({ state: 'not asked' }), groq: provider({ state: 'not asked' }) },
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
    await shows(page, '#failed-note', /^80 of 20\D719 · /);
    // Those that fail come first, then those with the most traffic.
    const [groq, ollama, xai, openai, mistral] = (await rowsOf(page, 'providers')).map(
      ([, errors, state, tries, inFlight, clientErrors, , , , , lastError]) => {
        return { errors, state, tries, inFlight, clientErrors, lastError };
      },
    );
    assert.match(openai!.state!, /^Good, 1 model open\ngpt-5 open, 19 s left: 503 The engine/);
    assert.equal(openai!.errors, 'upstream_error 11 · timeout 3');
    assert.equal(openai!.inFlight, '5\noldest 14 s');
    assert.equal(openai!.clientErrors, '40');
    assert.match(openai!.lastError!, /10:09:50\nread ECONNRESET/);
    assert.match(groq!.state!, /^Open, 24 s left\nconnect ECONNREFUSED 127\.0\.0\.1:9000$/);
    assert.match(ollama!.state!, /^Half-open\nThe next request tests it\./);
    assert.equal(xai!.state, 'Failing since 11-21 21:15:30\n402 No credits left');
    assert.match(xai!.lastError!, /^10:13:25\n402/);
    assert.match(mistral!.state!, /^Skipped\nno api_key and no MISTRAL_API_KEY/);
    assert.deepEqual((await rowsOf(page, 'clients'))[1]![0], 'ci');
    await shows(page, '#attention', 'refuses key 2 (401): replace it in api_keys.');
    await page.locator('summary').click();
    assert.deepEqual((await rowsOf(page, 'settings')).slice(3, 5), [
      ['server.auth.keys', '[secret]'],
      ['providers.fallback', '["groq","ollama"]'],
    ]);
    await shows(page, '#warnings', 'provider "openai" is not registered');
  },
);

browserTest(
  'tables and figures are of the last 15 minutes, or all of the time since the start',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, '#providers-section caption', 'Providers, the last 15 minutes');
    await shows(page, '#latency', '388');
    assert.deepEqual((await rowsOf(page, 'providers'))[0]!.slice(3, 4), ['2\u202f210']);
    await page.getByLabel('Figures of').selectOption('start');
    await shows(page, '#providers-section caption', 'Providers, since the start');
    assert.deepEqual((await rowsOf(page, 'providers'))[0]!.slice(3, 4), ['22\u202f100']);
    await shows(page, '#failed-note', /^80 of 207\Dk · /);
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
  'a chart has the times of its axis, and the value of a step under the pointer and by keyboard',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, '#cards .axis', '10:0010:0810:15');
    const slider = page.getByRole('slider', { name: 'Failed requests over the last 15 minutes' });
    assert.match((await slider.getAttribute('aria-valuetext')) ?? '', /^[\d.]+ %, 80 of /);
    await slider.focus();
    await shows(page, '#failed-note', /^10:15:30 · 0 of \d+ failed$/);
    await page.keyboard.press('ArrowLeft');
    await shows(page, '#failed-note', /^10:15:20 · /);
    await shows(page, '#rate-note', /^10:15:20 · \d\.\d \/s$/);
    await page.keyboard.press('Home');
    await shows(page, '#streams-note', /^10:00:40 · \d+ open$/);
    await slider.blur();
    await shows(page, '#failed-note', /^80 of /);
    const box = (await page.locator('#latency-chart').boundingBox())!;
    await page.mouse.move(box.x + box.width / 2, box.y + 5);
    await shows(page, '#latency-note', /^10:08:[0-9]0 · p50 \d+ ms, p95 \d+ ms$/);
    await page.mouse.move(0, 0);
    await shows(page, '#failed-note', /^80 of /);
    // A value alone between two gaps.
    const line = await page.locator('#latency-chart .first').getAttribute('d');
    assert.match(line ?? '', /M21\.5 [\d.]+h1M25 /);
  },
);

browserTest(
  'on a narrow screen the errors of providers, models and clients are in sight',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url, { width: 360 });
    await shows(page, '#connection', 'Live');
    for (const id of ['providers', 'models', 'clients']) {
      const cell = page.locator(`#${id} > tr:first-child > td`).first();
      const { x, width } = (await cell.boundingBox())!;
      assert.ok(x + width <= 360, `${id}: to ${x + width} px`);
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
  const state = (now: number, more: object) => ({
    now: at(now),
    providers: { openai: { openUntil: null, since: null, why: null, ...more } },
  });
  feed.view = idleView({ providers: { openai: provider() } });
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  await page.evaluate(`
    globalThis.announced = [];
    const region = document.querySelector('[role=status]');
    new MutationObserver(() => announced.push(region.textContent)).observe(region, { childList: true });
  `);
  const rest = { state: 'open', why: 'read ECONNRESET', openUntil: at(30) };
  for (const second of [1, 2, 3]) feed.send(state(second, rest));
  await shows(page, '#providers', 'Open, 27 s left');
  for (const second of [31, 32]) feed.send(state(second, { state: 'half-open' }));
  feed.send(state(33, { state: 'good' }));
  const failing = { state: 'failing', why: '402 No credits left', since: at(20) };
  for (const second of [34, 35]) feed.send(state(second, failing));
  feed.send({ now: at(36), draining: true });
  await shows(page, '#connection', 'Draining');
  await shows(page, '#banner', 'The gateway is stopping');
  assert.deepEqual(await page.evaluate('announced'), [
    'openai: Open: read ECONNRESET',
    'openai: Half-open',
    'openai: Good',
    'openai: Failing: 402 No credits left',
    'The gateway is draining',
  ]);
});

browserTest('the chart of failures shows their share of the requests', async (t, open) => {
  const feed = await startFeed(t);
  // The second bar has more failures, and is half as high.
  const counts = [[4, 2] as const, [80, 20] as const, [0, 0] as const];
  const sums = { requests: 84, failed: 22 };
  feed.view = idleView({
    steps: steps(counts.map(([requests, failed]) => ({ requests, failed }))),
    all: { recent: sums, start: sums },
  });
  const page = await open(feed.url);
  await shows(page, '#failed-note', '22 of 84 · highest 50.0 %');
  const bars = await page.locator('#failed-chart .bars').getAttribute('d');
  assert.equal(bars, 'M87 32V2.0M88 32V16.0');
});

browserTest('a state that the page does not know is shown by its own name', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = idleView({ providers: { p: provider({ state: 'constructor', why: 'a cause' }) } });
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  await shows(page, '#providers td:nth-child(3)', /^Constructora cause$/);
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
    assert.deepEqual(await page.evaluate('[...touched].sort()'), ['cards', 'streams']);
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
  await shows(page, '#settings-count', /^1 settings in force$/);
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
    const open1 = { model: hostile, until: at(9), why: hostile };
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
      attention: [hostile],
      providers: {
        [hostile]: provider({
          state: 'open',
          why: hostile,
          openUntil: at(9),
          openModels: [open1],
          lastError: { at: at(0), text: hostile },
        }),
        ['__proto__']: provider({ state: hostile }),
      },
      models: { [`${hostile} p`]: { recent: { requests: 1 }, start: {} } },
      clients: { [hostile]: { recent: { requests: 1 }, start: {} } },
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
