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
  affected,
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
  withIncidents,
} from './events.ts';
import { startFeed } from './feed.ts';

const FIRST_ROW = '#requests > li:first-child';
const FIRST_SUMMARY = `${FIRST_ROW} summary`;
const NOTE = '#requests-note';

/** Waits until the list has so many requests. */
async function showsRows(page: Page, count: number): Promise<void> {
  await page.locator(`#requests > li:nth-child(${count}):last-child`).waitFor();
}

const SITUATIONS: Record<string, object> = {
  busy: busyView(),
  empty: idleView({ settings: settings({ settings: [], warnings: [] }) }),
  large: largeView(),
  draining: busyView({ draining: true as unknown as object }),
  failing: failingView(),
  restarted: idleView({
    settings: settings({ startedAt: at(-2) }),
    figures: { in_flight: 0, about: 'up 2 s' },
    providers: { openai: provider(), groq: provider() },
  }),
};

for (const [name, view] of Object.entries(SITUATIONS)) {
  for (const scheme of ['light', 'dark'] as const) {
    for (const width of [1280, 390, 320]) {
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
            await page.locator('#requests > li:nth-child(8) summary').click();
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
      /Requests fail.*12 of 161 in the last minute, 7\.5 %.*4 incidents/,
    );
    await page.locator('#tile-failed.bad').waitFor();
    await shows(page, '#tile-requests-note', '12,300 tokens');
    await shows(page, '#tile-p50', '388 ms');
    await shows(page, '#tile-p50-note', 'p95 1,164 · connect 11 · gateway 2');
    // Those that fail come first, then those with the most traffic.
    const [openai, groq, xai, ollama, bolt, mistral] = (await rowsOf(page, 'providers')).map(
      ([, state, , tries, failed, rejected, inFlight, connect, p50, p95]) => {
        return { state, inFlight, tries, failed, rejected, connect, p50, p95 };
      },
    );
    assert.equal(
      openai!.state,
      'gpt-5: errors · streams of gpt-5 kept away until 10:15:49 · oldest request 14 s',
    );
    assert.deepEqual([openai!.inFlight, ollama!.inFlight], ['5', '1']);
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
    assert.equal(
      await page.locator('#providers .minutes').first().getAttribute('aria-label'),
      'failures in 6 of 15 minutes',
    );
    await shows(page, '#models', /groq → *ollama/);
    const items = (await page.locator('#incidents > li').allInnerTexts()).map((text) =>
      text.replaceAll(/\s+/g, ' ').trim(),
    );
    assert.deepEqual(items, [
      'xai: errors since 11-21 21:15:30, 13 h 0 min 402 No credits left Look at its status page. xai/grok-4 31 of 31 failed · ci requests ›',
      'openai/gpt-5: errors since 10:14:50, 40 s The engine is currently overloaded Look at its status page. openai/gpt-5 9 of 12 failed · ci, team-search requests › smart 4 of 4 answered by ollama requests › and 2 more names',
      'groq: no connection since 10:14:29, 1 min · other providers answer ECONNREFUSED 127.0.0.1:9000 Look at its status page. fast 107 of 107 answered by ollama · team-search requests ›',
      'gateway: new settings refused, former ones in use since 10:02:11, 13 min providers.groq.timeout: found "ten", expected an integer from 1 to 2147483 Look at its status page.',
      'Ended: gateway: store of rate limits away 09:42:10 – 09:50:30 · 8 min 20 s 10.0.0.9:6379: no answer in 50 ms',
    ]);
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
  '40 providers, 200 models, 100 clients and 30 ended incidents are folded',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = largeView();
    const page = await open(feed.url);
    await shows(page, '#models-section caption', /Models\s*10 of 200, as clients name them/);
    const [above, screen] = await page.evaluate<[number, number]>(
      '[document.querySelector("#filter").getBoundingClientRect().top, innerHeight]',
    );
    assert.ok(above <= 3 * screen, `${above} px before the requests`);
    const names = (await rowsOf(page, 'models')).map(([name]) => name);
    assert.deepEqual(names.slice(0, 4), [
      ...[59, 119, 179].map((i) => `provider-${i % 40}/model-${i}`),
      'provider-0/model-0',
    ]);
    const failing = (await rowsOf(page, 'providers')).slice(0, 4).map(([name]) => name);
    assert.deepEqual(failing, [4, 13, 22].map((i) => `provider-${i}`).concat('provider-0'));
    await page.getByRole('button', { name: 'Show all 200 models' }).click();
    await shows(page, '#models-section caption', /Models\s*as clients name them/);
    assert.equal(await page.locator('#models > tr').count(), 200);
    await page.getByRole('button', { name: 'Show fewer models' }).click();
    await shows(page, '#models-section caption', '10 of 200');
    assert.equal(await page.locator('#incidents > .ended').count(), 4);
    const top = await page.evaluate<number>(
      'document.querySelector("#charts").getBoundingClientRect().top',
    );
    assert.ok(top < 600, `${top} px before the charts`);
    await page.locator('#incidents > .ended summary').click();
    assert.equal(await page.locator('#incidents .ended .ended:visible').count(), 27);
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
    assert.deepEqual(await page.locator('.hours text').allTextContents(), [
      '10:05',
      '10:10',
      '10:15',
    ]);
    const tops = await page.locator('.plot text').allTextContents();
    assert.deepEqual(tops, ['1,000', '50 %', '500 ms']);
    const pathOf = async (name: string) => page.locator(`#chart-${name}`).getAttribute('d');
    assert.equal(await pathOf('requests'), 'M87.12 100v-50.4h.76v50.4zM88.12 100v-2.4h.76v2.4z');
    assert.equal(await pathOf('failed'), 'M87.12 100v-9.5h.76v9.5zM88.12 100v-100.0h.76v100.0z');
    assert.equal(await pathOf('p95'), 'M87.5 60.0L88.5 20.0');
    assert.equal(await pathOf('p50'), 'M87.5 80.0L88.5 60.0');
    const { step } = idleView() as { step: number };
    feed.send({ steps: { [step - 2]: { p50: null, p95: null } } });
    // A lone point is a dash that can be seen.
    await page.locator('#chart-p50[d="M88.1 60.0h.8"]').waitFor({ state: 'attached' });
  },
);

browserTest('an incident stands in the charts where its steps are', async (t, open) => {
  const feed = await startFeed(t);
  const { step } = idleView() as { step: number };
  const lane = { icon: 'off', text: 'p, ended', from: step - 8, to: step + 1 - 4.5 };
  feed.view = idleView({ lanes: [lane, { ...lane, from: step - 200, to: step - 89 }] });
  const page = await open(feed.url);
  const placeOf = async (index: number) => {
    const [rect] = await page.locator('.strip rect').nth(index).all();
    return [await rect!.getAttribute('x'), await rect!.getAttribute('width')];
  };
  await shows(page, '.lane', 'p, ended');
  assert.deepEqual(await placeOf(0), ['90.00%', '5.00%']);
  assert.deepEqual(await placeOf(1), ['0.00%', '0.33%']);
});

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
    await page.locator('.plot .cursor').first().waitFor({ state: 'attached' });
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

browserTest('a model that its provider does not know stands out', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = idleView({
    providers: { p: provider() },
    models: {
      busy: { ...sums(900), rank: 1 },
      old: { ...sums(3, { failed: 3 }), unknownTo: 'p', rank: 0 },
    },
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
    .locator('#tile-p50-note')
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
    ...withIncidents(incident('openai', 40, { causes: [cause] })),
    ended: [{ id: 'i9', subject: 'p', text: 'errors', cause }],
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
      const cells = `#${id} > :is(tr, li):first-child > *:visible`;
      for (const cell of await page.locator(cells).all()) {
        const { x, width } = (await cell.boundingBox())!;
        assert.ok(x + width <= 360, `${id}: to ${x + width} px`);
      }
    }
    const card = await page.locator('#providers > tr:first-child').innerText();
    for (const text of ['gpt-5: errors', 'oldest request 14 s']) {
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
  for (const seconds of [0, -20]) {
    const shown = steps([most, {}, {}, {}, {}, {}, {}]);
    feed.view = idleView({ now: at(seconds), step, steps: shown });
    const page = await open(feed.url, { width: 390 });
    await shows(page, '.plot', '500 ms');
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
  }
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
  assert.equal((await rowsOf(page, 'requests'))[0]![3]!.replaceAll(/\s+/g, ' '), 'openai → groq');
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
      feed.send({ kept: 201, requests: { [number]: { ...request, model: id } } });
    };

    send('alpha');
    await shows(page, FIRST_ROW, 'alpha');
    await shows(page, NOTE, '201, newest first');
    await page.locator(FIRST_SUMMARY).click();
    send('beta');
    await shows(page, NOTE, 'held while a row is open, 1 new');
    await shows(page, FIRST_ROW, 'alpha');
    await page.locator(FIRST_SUMMARY).click();
    await shows(page, FIRST_ROW, 'beta');

    // A row that the filter hides would hold the list unseen.
    await page.locator(FIRST_SUMMARY).click();
    await shows(page, NOTE, 'held');
    await page.getByLabel('Requests with these words').fill('alpha');
    await page.locator(NOTE, { hasNotText: 'held' }).waitFor();
    await shows(page, FIRST_ROW, 'alpha');
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
  await tabTo(/^SUMMARY/);
  await page.keyboard.press('Enter');
  await shows(page, '.details', 'no first token in 20 s');
  assert.match(await focused(), /^SUMMARY/);
  await page.keyboard.press('Enter');
  await page.locator('.details').waitFor({ state: 'detached' });
  assert.match(await focused(), /^SUMMARY/);
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
  const down = incident('openai', 0, { title: 'no connection' });
  for (const second of [1, 2, 3]) feed.send({ now: at(second), ...withIncidents(down) });
  await shows(page, '#incidents', 'no connection');
  const failing = { ...down, title: 'errors' };
  feed.send({ now: at(4), ...withIncidents(failing) });
  await shows(page, '#incidents', 'errors');
  const ended = [{ id: 'iopenai', subject: 'openai', text: 'errors' }];
  for (const second of [5, 6]) {
    feed.send({ now: at(second), order: [], incidents: { iopenai: null }, ended });
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
    feed.send({ figures: { in_flight: 8 } });
    await shows(page, '#tile-requests-note', '8 in flight');
    assert.deepEqual(await page.evaluate('[...touched].sort()'), ['tile-requests-note']);
  },
);

/** Returns whether the verdict has no colour of its own, and the tab's title. */
async function coloursOf(page: Page): Promise<unknown> {
  return page.evaluate(`(() => {
    const [r, g, b] = getComputedStyle(document.querySelector('#verdict strong')).color.match(/\\d+/g);
    const isGrey = Math.max(r, g, b) - Math.min(r, g, b) < 30;
    return [isGrey, document.title];
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
    feed.send({ figures: { in_flight: 8 }, kept: 201, requests: requestsByNumber(1) });
    await shows(page, '#tile-requests-note', '8 in flight');
    await shows(page, NOTE, '201, newest first');
    assert.equal(await page.locator('.added').count(), 3);
    feed.send({ order: [], verdict: { icon: 'good', title: 'All well' } });
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
    feed.send(withIncidents(incident('p', 5)));
    await showsTitle(page, '(1) gw-1');
    feed.refuseWith = 503;
    feed.cut();
    await showsTitle(page, '\u2013 gw-1');
  },
);

browserTest('the figures of an amber verdict list their requests', async (t, open) => {
  const feed = await startFeed(t);
  const limited = incident('ci', 120, {
    client: 'ci',
    title: 'at its own limit',
    causes: ['clients.ci.max_concurrent_requests: 5 of 5'],
    affected: [
      affected('last minute', {
        text: '38 of 98 refused',
        rest: ' by the gateway, no provider asked',
      }),
    ],
  });
  const notes = ['2.0 % of the last minute.', 'Too few for an incident: openai 5.'];
  feed.view = idleView({
    ...withIncidents(limited),
    verdict: { icon: 'warn', title: '7 of 351 requests failed', notes, list: 'Failed' },
    minute: { requests: 389, failed: 7, limited: 38 },
    requests: requestsByNumber(10),
  });
  const page = await open(feed.url);
  await shows(page, '#verdict', /7 of 351 requests failed.*2\.0 % of the last minute.*Too few/);
  await shows(page, '#incidents', /^ci: at its own limit.*38 of 98 refused by the gateway/);
  await shows(page, '#tile-failed-note', '7 of 351 · 38 refused');
  await page.getByRole('button', { name: 'Show the requests' }).click();
  await page.locator('#kinds [aria-pressed=true]', { hasText: 'Failed' }).waitFor();
  await shows(page, NOTE, '3, newest first');
  assert.equal(await page.title(), 'gw-1');
  await screenshot(page, 'amber-1280-light');
  await assertAccessible(page);
});

browserTest('the times of a verdict are the browser\u2019s', async (t, open) => {
  const feed = await startFeed(t);
  const verdict = { icon: 'good', title: `Over since ${at(-47)}`, notes: ['north: errors.'] };
  feed.view = idleView({ verdict });
  const page = await open(feed.url);
  await shows(page, '#verdict', /^Over since 10:14:43north: errors/);
});

browserTest('a ninth page says why it has no feed', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  feed.refuseWith = 429;
  const page = await open(feed.url, { losesConnection: true });
  await shows(page, '#connection', 'Rate limit exceeded: 8 feeds are open');
  feed.refuseWith = undefined;
  await shows(page, '#connection', 'Live');
  feed.refuseWith = 429;
  feed.cut();
  await shows(page, '#verdict', /No feed.*8 feeds are open.*as of 10:15:30/);
});

browserTest('the filter is in the address, and / focuses it', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, NOTE, '200, newest first');
  await page.keyboard.press('/');
  await page.keyboard.type('failed ci');
  await shows(page, NOTE, /^2\d, newest first/);
  assert.equal(new URL(page.url()).hash, '#failed%20ci');
  const other = await page.context().newPage();
  await other.goto(page.url());
  assert.equal(await other.locator('#filter').inputValue(), 'failed ci');
  await shows(other, NOTE, /^2\d, newest first/);
});

browserTest(
  'a lost connection is told, and made again after cuts and HTTP errors',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.view = SITUATIONS['busy']!;
    const page = await open(feed.url, { losesConnection: true });
    await shows(page, '#connection', 'Live');
    await page.locator(FIRST_SUMMARY).focus();
    const first = feed.connections;
    feed.cut();
    await until(() => feed.connections > first);
    await shows(page, '#connection', 'Live');
    // The feed repeats the last requests: none is there twice, and the focus stays.
    await shows(page, NOTE, '200, newest first');
    const isFocused = await page.locator(FIRST_SUMMARY).evaluate((b) => b.matches(':focus'));
    assert.ok(isFocused);

    feed.refuseWith = 503;
    const before = feed.connections;
    feed.cut();
    await shows(page, '#connection', 'No data since 10:15:30');
    await shows(page, '#verdict', 'Connection lost');
    await shows(page, '#verdict', /Everything below is as of 10:15:30, \d+ s ago/);
    await shows(page, '#providers', 'as of 10:15:30: Good');
    assert.deepEqual(await coloursOf(page), [true, '– gw-1']);
    await screenshot(page, 'lost-1280-light');
    await assertAccessible(page);
    await until(() => feed.connections >= before + 2);
    feed.refuseWith = undefined;
    await shows(page, '#connection', 'Live');
    await shows(page, '#verdict', 'Requests fail');
    assert.deepEqual(await coloursOf(page), [false, '(4) gw-1']);
  },
);

browserTest('without a connection ages stand still, and the charts end before', async (t, open) => {
  const feed = await startFeed(t);
  feed.view = SITUATIONS['busy']!;
  const page = await open(feed.url, { losesConnection: true });
  await shows(page, '.hours', '10:10');
  feed.refuseWith = 503;
  feed.cut();
  await shows(page, '#verdict', 'Connection lost');
  await page.evaluate(
    'const now = performance.now.bind(performance); performance.now = () => now() + 46_000',
  );
  await shows(page, '#verdict', /4\d s ago/);
  await shows(page, '#tile-requests', '161 /min');
  await shows(page, '.figure', 'Requests, minute to 10:15:30');
  // The last bar is four of 90 steps before the end.
  await page.locator('#chart-requests[d*="M85.12"]').waitFor({ state: 'attached' });
  assert.equal(await page.locator('#chart-requests[d*="M86.12"]').count(), 0);
  await shows(page, '#incidents', 'since 10:14:50, 40 s');
  await assertAccessible(page);
  await screenshot(page, 'lost-gap-1280-light');
});

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
    const marks = ['.bars.failed', '.band.bad', '.meter .bad', '.minutes .bar'];
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
  await page.locator(FIRST_SUMMARY).click();
  await shows(page, '.details', 'request_id');
  feed.view = idleView({
    settings: settings({ startedAt: at(100) }),
    figures: { in_flight: 0, about: 'up 1 s' },
    now: at(101),
    providers: { openai: provider() },
  });
  feed.cut();
  await page.locator('#requests-empty').waitFor({ state: 'visible' });
  assert.equal((await rowsOf(page, 'requests')).length, 0);
  await shows(page, '#about', 'up 1 s');
  feed.send({ kept: 2, requests: requestsByNumber(2) });
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
          client: hostile,
          tried: [['bad', hostile]],
          [hostile]: hostile,
          tries: [{ ...names, url: hostile }],
        },
      },
      ...withIncidents(
        incident(hostile, 5, {
          icon: 'bad',
          title: hostile,
          effect: hostile,
          causes: [hostile],
          affected: [affected(hostile, { clients: hostile, rest: hostile, words: hostile })],
        }),
      ),
      ended: [{ id: 'i9', subject: hostile, text: hostile, cause: hostile }],
      providers: {
        [hostile]: provider({ details: [hostile] }),
        ['__proto__']: provider(),
      },
      models: { [hostile]: { requests: 1, rank: 1, chain: [['bad', hostile]] } },
      clients: {
        [hostile]: {
          requests: 1,
          rank: 1,
          limits: [{ icon: 'warn', unit: '', share: 1, text: hostile }],
        },
      },
    });
    const page = await open(feed.url, { width: 360 });
    await shows(page, '#connection', 'Live');
    await page.locator(FIRST_SUMMARY).click();
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
