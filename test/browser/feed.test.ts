/** The page with feeds that the tests write. */

import assert from 'node:assert/strict';

import type { Page } from 'playwright-core';

import {
  assertAccessible,
  browserTest,
  assertFitsWidth,
  rowsOf,
  screenshot,
  shows,
  showsTitle,
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
  sums,
} from './events.ts';
import { startFeed } from './feed.ts';

const FIRST_ROW = '#requests > tr:first-child';
const NOTE = '#requests-note';

/** Waits until the list has so many requests. */
async function showsRows(page: Page, count: number): Promise<void> {
  await page.locator(`#requests > tr:nth-child(${count}):last-child`).waitFor();
}

const SITUATIONS: Record<string, object> = {
  busy: busyView(),
  empty: idleView({ settings: settings({ settings: [], warnings: [] }) }),
  large: largeView(),
  draining: busyView({ draining: true as unknown as object }),
  failing: failingView(),
  restarted: idleView({
    settings: settings({ startedAt: at(-2) }),
    figures: { process_up_seconds: 2 },
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
            await shows(page, '#about', 'up 2 s');
            await page.locator('#requests-empty').waitFor({ state: 'visible' });
          }
          const isWhole = !['busy', 'failing', 'draining'].includes(name);
          await screenshot(page, `${name}-${width}-${scheme}`, isWhole);
          if (name === 'busy') {
            await page.locator('#requests > tr:nth-child(8)').click();
            await shows(page, '.details', 'The engine is currently overloaded');
            await shows(page, '.details .tries', /openai\/gpt-5-mini key 2/);
            await page.evaluate('document.querySelector("#requests-section").scrollIntoView()');
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
    await shows(page, '#tile-requests-note', '9 in flight');
    await shows(page, '#tile-failed-note', '12 of 161');
    await shows(page, '#tile-failed', '7.5 %');
    await shows(
      page,
      '#verdict',
      /Requests fail.*12 of 161 in the last minute, 7\.5 %\..*4 incidents/,
    );
    await shows(page, '#tile-p50', '388 ms');
    await shows(page, '#tile-p50-note', 'p95 1,164 · connect 11 · gateway 2');
    // Those that fail come first, then those with the most traffic.
    const [openai, groq, xai, ollama, bolt, mistral] = (await rowsOf(page, 'providers')).map(
      ([, state, tries, failed, rejected, inFlight, connect, p50, p95]) => {
        return { state, inFlight, tries, failed, rejected, connect, p50, p95 };
      },
    );
    assert.equal(openai!.state, 'gpt-5: errors · streams of gpt-5 kept away until 10:15:49');
    assert.deepEqual([openai!.inFlight, ollama!.inFlight], ['5 oldest 14 s', '1']);
    assert.deepEqual([openai!.tries, openai!.failed], ['18,432', '14 0.1 %']);
    assert.deepEqual([openai!.rejected, openai!.connect], ['40', '11 ms']);
    assert.deepEqual([openai!.p50, openai!.p95], ['412 ms', '1,236 ms']);
    assert.equal(groq!.state, 'no connection · kept away until 10:15:54');
    assert.equal(xai!.state, 'errors');
    assert.deepEqual([ollama!.state, bolt!.state], ['Good', 'Not asked']);
    assert.equal(mistral!.state, 'Skipped · no api_key and no MISTRAL_API_KEY');
    // No client left a provider alone: that column is not there.
    assert.doesNotMatch(await page.locator('#providers-section thead').innerText(), /Client left/);
    assert.deepEqual((await rowsOf(page, 'clients'))[2]!.slice(0, 4), [
      'no valid key',
      '12',
      '–',
      '12',
    ]);
    const items = (await page.locator('#incidents > li').allInnerTexts()).map((text) =>
      text.replaceAll(/\s+/g, ' ').trim(),
    );
    assert.deepEqual(items, [
      'xai: errors for 13 h 0 min 402 No credits left xai/grok-4 31 of 31 failed · ci requests ›',
      'openai/gpt-5: errors for 40 s The engine is currently overloaded openai/gpt-5 9 of 12 failed · ci, team-search requests › smart 4 of 4 answered by ollama requests › and 2 more names',
      'groq: no connection, other providers answer for 1 min ECONNREFUSED 127.0.0.1:9000 fast 107 of 107 answered by ollama · team-search requests ›',
      'gateway: new settings refused, former ones in use for 13 min providers.groq.timeout: found "ten", expected an integer from 1 to 2147483, and 1 more',
      'Ended: gateway: store of rate limits away 09:42:10 – 09:50:30 · 8 min 20 s 10.0.0.9:6379: no answer in 50 ms',
    ]);
    const since = page.locator('#incidents > li:first-child time');
    assert.equal(await since.getAttribute('title'), '2026-11-21 21:15:30');
    assert.match(await page.title(), /^\(4\) /);
    await page.getByRole('button', { name: /^Show all \d+ settings$/ }).click();
    await shows(page, '#settings', 'server.port');
    assert.deepEqual((await rowsOf(page, 'settings')).slice(3, 5), [
      ['server.auth.keys', '[secret]'],
      ['providers.fallback', '["groq","ollama"]'],
    ]);
    await shows(page, '#warnings', 'provider "openai" is not registered');
  },
);

browserTest(
  '30 providers with 300 models are folded to the failing and the busiest ones',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = largeView();
    const page = await open(feed.url);
    await shows(page, '#models-section caption', /Models\s*10 of 300, as clients name them/);
    const [above, screen] = await page.evaluate<[number, number]>(
      '[document.querySelector("#filter").getBoundingClientRect().top, innerHeight]',
    );
    assert.ok(above <= 3 * screen, `${above} px before the requests`);
    const names = (await rowsOf(page, 'models')).map(([name]) => name);
    assert.deepEqual(names.slice(0, 6), [
      ...[59, 119, 179, 239, 299].map((i) => `provider-${i % 30}/model-${i}`),
      'provider-0/model-0',
    ]);
    const failing = (await rowsOf(page, 'providers')).slice(0, 4).map(([name]) => name);
    assert.deepEqual(failing, [4, 13, 22].map((i) => `provider-${i}`).concat('provider-0'));
    await page.getByRole('button', { name: 'Show all 300 models' }).click();
    await shows(page, '#models-section caption', /Models\s*as clients name them/);
    assert.equal(await page.locator('#models > tr').count(), 300);
    await page.getByRole('button', { name: 'Show fewer models' }).click();
    await shows(page, '#models-section caption', '10 of 300');
  },
);

browserTest(
  'the charts have one axis of time: a bar for each step, its share that failed, and labels',
  async (t, open) => {
    const feed = await startFeed(t);
    const counts = [
      { requests: 84, failed: 4, p50: 100, p95: 200 },
      { requests: 4, failed: 2, p50: 200, p95: 400 },
      {},
    ];
    const minute = { requests: 88, failed: 6, limited: 4, p50: 110 };
    feed.view = idleView({ steps: steps(counts), minute });
    const page = await open(feed.url);
    await shows(page, '#tile-requests', '88 /min');
    await shows(page, '#tile-failed', '7.1 %');
    await shows(page, '#tile-failed-note', '6 of 84 · 4 refused');
    assert.deepEqual(await page.locator('.hour').allTextContents(), ['10:05', '10:10', '10:15']);
    assert.deepEqual(await page.locator('.labels text').allTextContents(), [
      '1,000',
      '0',
      '50 %',
      '0',
      '500 ms',
      '0',
    ]);
    const pathOf = async (name: string) => page.locator(`#chart-${name}`).getAttribute('d');
    assert.equal(await pathOf('requests'), 'M87.12 100v-50.4h.76v50.4zM88.12 100v-2.4h.76v2.4z');
    assert.equal(await pathOf('failed'), 'M87.12 100v-9.5h.76v9.5zM88.12 100v-100.0h.76v100.0z');
    assert.equal(await pathOf('p95'), 'M87.5 60.0h.01L88.5 20.0');
    assert.equal(await pathOf('p50'), 'M87.5 80.0h.01L88.5 60.0');
    // Two steps are one, so that bars do not merge.
    await page.setViewportSize({ width: 390, height: 900 });
    feed.send({ now: at(1) });
    await page.locator('#chart-requests[d^="M43.12"]').waitFor({ state: 'attached' });
    const gap = await page.evaluate<number>(`(() => {
      const { width } = document.querySelector('.plot').getBoundingClientRect();
      return (width / 45) * 0.24;
    })()`);
    assert.ok(gap >= 1, `${gap} px between bars`);
  },
);

browserTest(
  'a step whose clock was set since keeps its time, and an incident its place',
  async (t, open) => {
    const feed = await startFeed(t);
    const hour = 3_600_000;
    const present = Date.parse(at(0));
    // The clock was an hour ahead until the last minute.
    const counts = Array.from({ length: 12 }, (_, i) => {
      return { requests: 6, time: present - 110_000 + 10_000 * i + (i < 6 ? hour : 0) };
    });
    const one = incident('errors', -3600 + 80, { provider: 'p', ended: at(3600 - 60) });
    feed.view = idleView({ steps: steps(counts), incidents: [one] });
    const page = await open(feed.url);
    await page.locator('.plot').focus();
    await page.keyboard.press('Home');
    await shows(page, '.tip text', '11:00:40');
    await page.keyboard.press('End');
    await shows(page, '.tip text', '10:15:30');
    const x = await page.locator('.lane').getAttribute('x1');
    assert.equal(x, '90.00%');
  },
);

browserTest(
  'a pointer or the keyboard chooses a step, of which the figures and a slider tell',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = idleView({
      steps: steps([
        { requests: 53, failed: 4, p50: 431, p95: 1304, connect: 12 },
        { requests: 9 },
      ]),
      minute: { requests: 62, failed: 4 },
    });
    const page = await open(feed.url);
    await shows(page, '#tile-requests', '62 /min');
    const plot = page.getByRole('slider', { name: 'Step of the charts' });
    await page.keyboard.press('Tab');
    for (let tab = 0; tab < 9 && !(await plot.evaluate((one) => one.matches(':focus'))); tab += 1) {
      await page.keyboard.press('Tab');
    }
    await shows(page, '.tip text', '10:15:30');
    await page.keyboard.press('ArrowLeft');
    await shows(page, '.charts dt', 'Requests, 10:15:20');
    await shows(page, '#tile-requests', '318 /min');
    await shows(page, '#tile-requests-note', '53 in 10 s');
    await shows(page, '#tile-failed', '7.5 %');
    await shows(page, '#tile-failed-note', '4 of 53');
    await shows(page, '#tile-p50', '431 ms');
    await shows(page, '#tile-p50-note', 'p95 1,304 · connect 12');
    assert.match(
      String(await plot.getAttribute('aria-valuetext')),
      /^10:15:20, requests 318 \/min, failed 7\.5 %/,
    );
    await page.keyboard.press('Escape');
    await shows(page, '#tile-requests', '62 /min');
    const { width, height } = (await plot.boundingBox())!;
    await plot.hover({ position: { x: width - 2, y: height / 2 } });
    await shows(page, '#tile-requests', '54 /min');
    await assertAccessible(page);
    await page.mouse.move(0, 0);
    await shows(page, '#tile-requests', '62 /min');
  },
);

browserTest(
  'whom an incident affects is linked to these requests, and the focus goes there',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await page.getByRole('button', { name: 'requests of fast groq' }).click();
    assert.equal(await page.locator('#filter').inputValue(), 'fast groq');
    await shows(page, NOTE, /^\d+, newest first/);
    for (const [, , model, tried] of await rowsOf(page, 'requests')) {
      assert.deepEqual([model, /groq/.test(tried!)], ['fast', true]);
    }
    assert.equal(await page.evaluate('document.activeElement.id'), 'requests-title');
    await page.getByRole('button', { name: 'Retried' }).click();
    await page.locator('#filter').fill('');
    await shows(page, NOTE, '20, newest first');
    await page.getByRole('button', { name: 'Failed', exact: true }).click();
    await shows(page, NOTE, '60, newest first');
  },
);

browserTest(
  'an incident of a provider names the models that fail, each with its cause',
  async (t, open) => {
    const feed = await startFeed(t);
    const models = [
      { model: 'small', kind: 'errors', cause: 'no capacity', since: at(-60) },
      { model: 'big', kind: 'timeout', cause: 'no answer in 1000 ms', since: at(-50) },
    ];
    const both = incident('errors', 60, { provider: 'p', cause: 'no capacity', models });
    feed.view = idleView({ providers: { p: provider() }, incidents: [both] });
    const page = await open(feed.url);
    await shows(
      page,
      '#incidents',
      /^p \(small, big\): errors.*no capacity.*big: no answer in 1000 ms/,
    );
    feed.send({ incidents: [{ ...both, models: models.slice(0, 1) }] });
    await shows(page, '#incidents', /^p\/small: errors/);
    const states = [{ kind: 'model_list', cause: 'status 500', since: at(-9) }];
    feed.send({ incidents: [{ ...both, all_models: true, states }] });
    await shows(page, '#incidents', /^p: errors.*big: no answer.*no list of models: status 500/);
    feed.send({ incidents: [{ ...both, more_models: 3 }] });
    await shows(page, '#incidents', /^p \(small, big, 3 more\): errors/);
    feed.send({ incidents: [{ ...both, models: [] }] });
    await shows(page, '#incidents', /^p: errors/);
  },
);

browserTest('a model that its provider does not know stands out', async (t, open) => {
  const feed = await startFeed(t);
  const [[number, request]] = Object.entries(requestsByNumber(1)) as [[string, object]];
  const tries = [{ provider: 'p', model: 'gone', outcome: 'upstream_error', status: 404 }];
  const outcome = { model: 'old', outcome: 'upstream_error', status: 502, tries };
  feed.view = idleView({
    providers: { p: provider() },
    models: { busy: sums(900), old: sums(3, { failed: 3 }) },
    requests: { [number]: { ...request, ...outcome } },
  });
  const page = await open(feed.url);
  await shows(page, '#models > tr:first-child th', 'old 404 of p');
  assert.equal(await page.locator('#models .icon.bad').count(), 1);
});

browserTest('more than three incidents are folded to their titles on a phone', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url, { width: 390 });
  await shows(page, '#incidents summary', 'xai: errors');
  assert.equal(await page.locator('.affected:visible').count(), 0);
  await page.locator('summary').first().press('Enter');
  await shows(page, '#incidents details[open]', '31 of 31 failed');
  const bottom = await page
    .locator('.figures')
    .evaluate((one) => one.getBoundingClientRect().bottom);
  assert.ok(bottom < 900, `${bottom} px to the figures`);
  const ended = page.locator('#incidents .ended');
  assert.match(await ended.innerText(), /09:42:10 – 09:50:30 · 8 min 20 s[^]*no answer in 50 ms/);
});

browserTest('on a phone a cause has three lines before it is cut', async (t, open) => {
  const feed = await startFeed(t);
  const cause = 'The model `swift-2` does not exist or you do not have access to it. '.repeat(9);
  feed.view = idleView({
    providers: { openai: provider() },
    incidents: [
      incident('errors', 40, { provider: 'openai', cause }),
      incident('errors', 90, { provider: 'p', cause, ended: at(-20) }),
    ],
  });
  const page = await open(feed.url, { width: 390 });
  await shows(page, '#incidents .cause', 'swift-2');
  const lines =
    await page.evaluate(`[...document.querySelectorAll('#incidents .cause')].map((box) =>
    box.clientHeight / parseFloat(getComputedStyle(box).lineHeight))`);
  assert.deepEqual(lines, [3, 3]);
});

browserTest(
  'on a narrow screen each row is a card with its state and what is in flight in sight',
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
    for (const text of ['gpt-5: errors', 'oldest 14 s']) {
      assert.ok(card.includes(text), card);
    }
  },
);

browserTest('no width makes the page or a card scroll sideways', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  for (const width of [360, 601, 760, 761, 900, 901, 961, 1100, 1280]) {
    await page.setViewportSize({ width, height: 900 });
    await assertFitsWidth(page);
    const wide = await page.evaluate<string[]>(`[...document.querySelectorAll('.scroll')]
      .filter((one) => one.scrollWidth > one.clientWidth).map(({ id }) => id)`);
    if (width <= 900 || width === 1280) assert.deepEqual(wide, [], `${width} px`);
  }
});

browserTest('the labels of the charts are whole on a phone', async (t, open) => {
  const feed = await startFeed(t);
  const most = { requests: 20_000, failed: 20_000, p50: 100, p95: 499 };
  const { step } = idleView() as { step: number };
  // The first hour of the axis is near its left edge, then near its right edge.
  for (const [seconds, hours] of [
    [-60, '10:00,10:05,10:10'],
    [-20, '10:05,10:10'],
  ] as const) {
    const shown = steps([most, {}, {}, {}, {}, {}, {}]);
    feed.view = idleView({ now: at(seconds), step: step + seconds / 10, steps: shown });
    const page = await open(feed.url, { width: 390 });
    await shows(page, '.labels', '500 ms');
    const cut = await page.evaluate<string[]>(`[...document.querySelectorAll('.charts text')]
      .filter((label) => {
        const box = document.querySelector('#charts').getBoundingClientRect();
        const svg = label.closest('svg');
        const { left, right } = label.getBoundingClientRect();
        const own = svg.getBoundingClientRect();
        const isClipped = getComputedStyle(svg).overflow !== 'visible' &&
          (left < own.left || right > own.right);
        return isClipped || left < box.left + 2 || right > box.right - 2;
      })
      .map((label) => label.textContent)`);
    assert.deepEqual(cut, []);
    assert.equal(String(await page.locator('.hour').allTextContents()), hours);
  }
});

browserTest('a stream that failed before its first token shows no time of one', async (t, open) => {
  const feed = await startFeed(t);
  const stream = { time: at(0), outcome: 'ok', status: 200, stream: true, first_byte_ms: 41 };
  const failed = { outcome: 'upstream_error', status: 502 };
  const broken = { outcome: 'upstream_error', first_byte_ms: 43 };
  const requests = { 1: stream, 2: { ...stream, ...failed }, 3: { ...stream, ...broken } };
  feed.view = idleView({ requests });
  const page = await open(feed.url);
  await shows(page, NOTE, '3, newest first');
  const cells = await page.locator('#requests .token').allInnerTexts();
  assert.deepEqual(cells, ['43', '–', '41']);
});

browserTest('without providers the page says which variable to set', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['empty']!;
  const page = await open(feed.url);
  await shows(page, '#providers-empty', 'OPENAI_API_KEY');
  await shows(page, '#requests-empty', 'No request yet');
  feed.send({ providers: { openai: provider() } });
  await page.locator('#providers-empty').waitFor({ state: 'hidden' });
});

browserTest('the filter finds requests by outcome, provider, client and id', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  const finds = async (words: string, count: number) => {
    await page.getByLabel('Requests with these words').fill(words);
    await shows(page, NOTE, new RegExp(`^${count}, newest first`));
  };
  await finds('', 200);
  await finds('failed', 60);
  await finds('timeout', 20);
  await finds('Timeout  CI', 7);
  await finds('groq', 20);
  await finds('4BF92F3577B34DA6A3CE929D0E000192', 1);
  assert.equal((await rowsOf(page, 'requests'))[0]![3], 'openai → groq');
  await page.getByLabel('Requests with these words').fill('nothing');
  await shows(page, '#requests-empty', 'or none with these words');
});

browserTest(
  'the list shows new requests first, and stands still while a row is open',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, NOTE, '200, newest first');
    const send = (id: string) => {
      const [[number, request]] = Object.entries(requestsByNumber(1)) as [[string, object]];
      feed.send({ requests: { [number]: { ...request, request_id: id, model: id } } });
    };

    send('first');
    await shows(page, FIRST_ROW, 'first');
    await shows(page, NOTE, '201, newest first');
    await page.locator(FIRST_ROW).click();
    send('second');
    await shows(page, NOTE, 'held while a row is open, 1 new');
    await shows(page, FIRST_ROW, 'first');
    await page.locator(FIRST_ROW).click();
    await shows(page, FIRST_ROW, 'second');

    // A row that the filter hides would hold the list unseen.
    await page.locator(FIRST_ROW).click();
    await shows(page, NOTE, 'held');
    await page.getByLabel('Requests with these words').fill('first');
    await page.locator(NOTE, { hasNotText: 'held' }).waitFor();
    await shows(page, FIRST_ROW, 'first');
  },
);

browserTest('everything can be done with the keyboard alone', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, NOTE, '200, newest first');
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
  await tabTo(/^INPUT filter/);
  await page.keyboard.type('timeout');
  await shows(page, NOTE, /^20, newest/);
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
    const region = document.querySelector('#announcement');
    new MutationObserver(() => announced.push(region.textContent)).observe(region, { childList: true });
  `);
  const down = incident('unreachable', 0, { provider: 'openai' });
  for (const second of [1, 2, 3]) feed.send({ now: at(second), incidents: [down] });
  await shows(page, '#providers', 'no connection');
  const failing = { ...down, kind: 'errors' };
  feed.send({ now: at(4), incidents: [failing] });
  await shows(page, '#providers', 'errors');
  for (const second of [5, 6]) {
    feed.send({ now: at(second), incidents: [{ ...failing, ended: at(5) }] });
  }
  await shows(page, '#incidents', 'Ended: openai: errors');
  feed.send({ now: at(36), draining: true });
  await shows(page, '#connection[role=status]', 'Draining, before it stops');
  assert.deepEqual(await page.evaluate('announced'), [
    'openai: no connection',
    'openai: errors',
    'Over: openai: errors',
  ]);
});

browserTest('an incident that the page does not know is told by its own name', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = idleView({
    providers: { p: provider() },
    incidents: [incident('constructor', 5, { provider: 'p' })],
  });
  const page = await open(feed.url);
  await shows(page, '#incidents', /^p: constructor for 5 s/);
});

browserTest(
  'an event changes only the parts of the document whose figures it changes',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, NOTE, '200, newest first');
    await page.evaluate(`
    globalThis.touched = new Set();
    const observer = new MutationObserver((changes) => {
      for (const { target } of changes) touched.add((target.closest ? target : target.parentElement).closest('[id]')?.id);
    });
    const everything = { subtree: true, childList: true, attributes: true, characterData: true };
    observer.observe(document, everything);
  `);
    feed.send({});
    feed.send({ figures: { gateway_requests_in_flight: 8 } });
    await shows(page, '#tile-requests-note', '8 in flight');
    assert.deepEqual(await page.evaluate('[...touched].sort()'), ['tile-requests-note']);
  },
);

/**
 * Returns whether the verdict has no colour of its own, the colour of the tab's icon, and its
 * title.
 */
async function coloursOf(page: Page): Promise<unknown> {
  return page.evaluate(`(() => {
    const [r, g, b] = getComputedStyle(document.querySelector('#verdict strong')).color.match(/\\d+/g);
    const icon = decodeURIComponent(document.querySelector('#icon').href);
    const isGrey = Math.max(r, g, b) - Math.min(r, g, b) < 20;
    return [isGrey, /#[0-9a-f]{6}/.exec(icon)[0], document.title];
  })()`);
}

browserTest(
  'a page that a translator has rewritten goes on, and leaves what it did not make alone',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, '#tile-requests-note', '9 in flight');
    // As browsers do it: each text node is replaced, and extensions add nodes of their own.
    await page.evaluate(`
      const texts = [];
      const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) texts.push(walker.currentNode);
      for (const text of texts) {
        const font = document.createElement('font');
        font.append('\u00fcbersetzt');
        text.replaceWith(font);
      }
      for (const id of ['requests', 'incidents', 'charts']) {
        const added = document.createElement('i');
        added.className = 'added';
        document.getElementById(id).prepend(added);
      }
    `);
    feed.send({ figures: { gateway_requests_in_flight: 8 }, requests: requestsByNumber(1) });
    await shows(page, '#tile-requests-note', '8 in flight');
    await shows(page, NOTE, '201, newest first');
    assert.equal(await page.locator('.added').count(), 3);
    const kept = { incidents: [], minute: { requests: 5, failed: null } };
    feed.send(kept);
    await shows(page, '#verdict', 'All well');
    assert.equal(await page.locator('html[translate=no]').count(), 1);
  },
);

browserTest(
  'the tab of a hidden page tells of a lost connection and of incidents',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = idleView({ providers: { p: provider() } });
    const page = await open(feed.url, { losesConnection: true });
    await shows(page, '#verdict', 'No traffic');
    // A hidden page gets no frames.
    await page.evaluate('requestAnimationFrame = () => 0');
    feed.send({ incidents: [incident('errors', 5, { provider: 'p' })] });
    await showsTitle(page, '(1) gw-1');
    feed.refuseWith = 503;
    feed.cut();
    await showsTitle(page, '\u2013 gw-1');
  },
);

browserTest('the first words follow the last minute, and never say more', async (t, open) => {
  const feed = await startFeed(t);
  const failing = provider({ requests: 214, failed: 5, minute: { requests: 214, failed: 5 } });
  const well = provider({ requests: 80, minute: { requests: 80 } });
  feed.view = idleView({
    providers: {
      openai: failing,
      groq: well,
      bolt: provider({ requests: 9, failed: 9, latest: Date.parse(at(-340)) / 10_000 }),
    },
    minute: { requests: 389, failed: 7, limited: 38 },
    all: { requests: 389, failed: 7 },
    clients: {
      ci: {
        requests: 98,
        limited: 38,
        overLimit: {
          limit: 'clients.ci.max_concurrent_requests: 5 of 5',
          limited: 38,
          requests: 98,
          since: at(-120),
        },
      },
    },
  });
  const page = await open(feed.url);
  await shows(
    page,
    '#verdict',
    /7 of 351 requests failed.*2\.0 % of the last minute.*Too few for an incident: openai 5\./,
  );
  const told = (await page.locator('#incidents').innerText()).replaceAll(/\s+/g, ' ').trim();
  assert.equal(
    told,
    'ci: at its own limit for 2 min clients.ci.max_concurrent_requests: 5 of 5 last minute 38 of 98 refused by the gateway, no provider asked requests ›',
  );
  await shows(page, '#tile-failed-note', '7 of 351 · 38 refused');
  const states = (await rowsOf(page, 'providers')).map(([id, state]) => [id, state]);
  assert.deepEqual(states, [
    ['openai', '5 of 214 failed · last minute'],
    ['groq', 'Good'],
    ['bolt', 'Not asked · since 10:09:50'],
  ]);
  await page.getByRole('button', { name: 'Show the requests' }).click();
  await page.locator('#kinds [aria-pressed=true]', { hasText: 'Failed' }).waitFor();
  assert.equal(await page.title(), 'gw-1');
  await screenshot(page, 'amber-1280-light');
  await assertAccessible(page);
  for (const [minute, words] of [
    [{ requests: 389, failed: 3, limited: null }, 'All well'],
    [{ requests: null, failed: null }, 'No traffic'],
    [{ requests: 31, rejected: 31 }, '31 of 31 requests rejected'],
  ] as const) {
    feed.send({ minute });
    await shows(page, '#verdict', words);
  }
});

browserTest(
  'a lost connection is told, and made again after cuts and HTTP errors',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url, { losesConnection: true });
    await shows(page, '#connection', 'Live');
    await page.locator(`${FIRST_ROW} button`).focus();
    const first = feed.connections;
    feed.cut();
    await until(() => feed.connections > first);
    await shows(page, '#connection', 'Live');
    // The feed repeats the last requests: none is there twice, and the focus stays.
    await shows(page, NOTE, '200, newest first');
    const isFocused = await page
      .locator(`${FIRST_ROW} button`)
      .evaluate((b) => b.matches(':focus'));
    assert.ok(isFocused);

    feed.refuseWith = 503;
    const before = feed.connections;
    feed.cut();
    await shows(page, '#connection', 'No data since 10:15:30');
    await shows(page, '#verdict', 'Connection lost');
    await shows(page, '#verdict', /Everything below is as of 10:15:30, \d+ s ago/);
    await shows(page, '#providers', 'as of 10:15:30: Good');
    assert.deepEqual(await coloursOf(page), [true, '#868e9c', '– gw-1']);
    await screenshot(page, 'lost-1280-light');
    await assertAccessible(page);
    await until(() => feed.connections >= before + 2);
    feed.refuseWith = undefined;
    await shows(page, '#connection', 'Live');
    await shows(page, '#verdict', 'Requests fail');
    assert.deepEqual(await coloursOf(page), [false, '#4a7dff', '(4) gw-1']);
  },
);

browserTest(
  'without a connection ages stand still, and a gap grows in the charts',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url, { losesConnection: true });
    await shows(page, '.plot', '10:15');
    assert.equal(await page.locator('.end').count(), 0);
    feed.refuseWith = 503;
    feed.cut();
    await shows(page, '#verdict', 'Connection lost');
    await page.evaluate(
      'const now = performance.now.bind(performance); performance.now = () => now() + 46_000',
    );
    await shows(page, '#verdict', /4\d s ago/);
    await shows(page, '#tile-requests', '161 /min');
    await shows(page, '.figures', 'Requests, minute to 10:15:30');
    // Four of 90 steps.
    assert.equal(await page.locator('.end').getAttribute('x1'), '95.56%');
    assert.equal(await page.locator('.lane.bad').first().getAttribute('x2'), '95.56%');
    await shows(page, '#incidents', 'for 40 s');
    await assertAccessible(page);
    await screenshot(page, 'lost-gap-1280-light');
  },
);

browserTest(
  'at 200 % zoom, in forced colours and with reduced motion everything is there',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    // A window of 1280 px has so many at 200 %.
    const page = await open(feed.url, { width: 640 });
    await shows(page, '#connection', 'Live');
    await assertFitsWidth(page);
    await assertAccessible(page);
    const markOf = async (selector: string) =>
      page.evaluate<string>(`getComputedStyle(document.querySelector('${selector}')).fill`);
    const marks = ['.bars.failed', '.band.bad', '.meter .bad', '.times .bar'];
    const before = await Promise.all(marks.map(markOf));
    await page.emulateMedia({ forcedColors: 'active', reducedMotion: 'reduce' });
    assert.deepEqual(await Promise.all(marks.map(markOf)), before);
    assert.equal(new Set(before).size, 2);
    assert.equal(await page.evaluate('document.getAnimations().length'), 0);
    await assertAccessible(page);
    await screenshot(page, 'forced-640', true);
  },
);

browserTest('after a restart of the gateway the page begins anew', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url, { losesConnection: true });
  await shows(page, NOTE, '200, newest first');
  await page.locator(FIRST_ROW).click();
  await shows(page, '.details', 'request_id');
  feed.view = idleView({
    settings: settings({ startedAt: at(100) }),
    figures: { process_up_seconds: 1 },
    now: at(101),
    providers: { openai: provider() },
  });
  feed.cut();
  await page.locator('#requests-empty').waitFor({ state: 'visible' });
  assert.equal((await rowsOf(page, 'requests')).length, 0);
  await shows(page, '#about', 'up 1 s');
  feed.send({ requests: requestsByNumber(2) });
  await showsRows(page, 2);
});

browserTest('settings that change while the page is open keep its requests', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = idleView({ providers: { openai: provider() }, requests: requestsByNumber(3) });
  const page = await open(feed.url);
  await showsRows(page, 3);
  const warnings = ['a warning that is new'];
  await page.getByRole('button', { name: 'Show all 9 settings' }).click();
  feed.send({ settings: { settings: [['server.cors', true]], warnings } });
  await shows(page, '#settings', /server\.cors\s*true/);
  feed.send({ requests: requestsByNumber(2) });
  await showsRows(page, 5);
  await shows(page, '#warnings', 'a warning that is new');
});

browserTest('a connection that has gone silent is given up', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  const before = feed.connections;
  await until(() => feed.connections > before);
  await shows(page, '#connection', 'Live');
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
          affected: [{ name: hostile, failed: 1, clients: hostile, by: hostile }],
        }),
      ] as unknown as object,
      providers: {
        [hostile]: provider({
          keptAway: [away],
        }),
        ['__proto__']: provider(),
      },
      models: { [hostile]: { requests: 1 } },
      clients: { [hostile]: { requests: 1 } },
    });
    const page = await open(feed.url, { width: 360 });
    await shows(page, '#connection', 'Live');
    await page.locator(FIRST_ROW).click();
    await page.getByRole('button', { name: 'Show all 2 settings' }).click();
    await shows(page, '.details', 'onerror');
    await page.locator('.details').getByText('<img src=x').first().waitFor();
    for (const id of ['providers', 'models', 'clients', 'requests', 'settings']) {
      await shows(page, `#${id}`, '<img src=x onerror="document.title=1"><script>');
    }
    await shows(page, '#models', '\\u202e\\u2028\\u0000www');
    assert.equal(await page.title(), '(1) gw-1');
    assert.equal(await page.locator('img').count(), 0);
    await assertFitsWidth(page);
    await assertAccessible(page);
    await screenshot(page, 'hostile-360-light', true);
  },
);
