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
import { at, busyState, idleState, provider, requestsEvent, settingsEvent } from './events.ts';
import { startFeed } from './feed.ts';

const FIRST_ROW = '#requests > tr:first-child';

const SITUATIONS: Record<string, [string, unknown][]> = {
  busy: [
    ['settings', settingsEvent()],
    ['requests', requestsEvent()],
    ['state', busyState()],
  ],
  empty: [
    ['settings', settingsEvent({ needsKey: true, settings: [], warnings: [] })],
    ['state', idleState()],
  ],
};

for (const [name, greeting] of Object.entries(SITUATIONS)) {
  for (const scheme of ['light', 'dark'] as const) {
    for (const width of [1280, 360]) {
      browserTest(
        `${name}, ${scheme}, ${width} px: axe finds nothing, and only tables scroll sideways`,
        async (t, open) => {
          const feed = await startFeed(t);
          feed.greeting = greeting;
          const page = await open(feed.url, { width, scheme });
          await shows(page, '#connection', 'Live');
          await screenshot(page, `${name}-${width}-${scheme}`, name === 'empty');
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
    feed.greeting = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, '#streams', '7');
    await shows(page, '#streams-note', '9 in flight');
    await shows(page, '#failed-chart', '');
    assert.match(
      (await page.locator('#failed-chart').getAttribute('aria-label')) ?? '',
      /^Failed requests over 15 minutes: [\d.]+ %, \d+ of .* · highest [\d.]+ %$/,
    );
    const [openai, groq, ollama, xai, mistral] = await rowsOf(page, 'providers');
    assert.match(openai![1]!, /^Good, 1 model open\ngpt-5 open, 19 s left: 503 The engine/);
    assert.match(openai![4]!, /timeout 3 · upstream_error 11/);
    assert.match(openai![10]!, /10:09:50\nread ECONNRESET/);
    assert.match(groq![1]!, /^Open, 24 s left\nconnect ECONNREFUSED 127\.0\.0\.1:9000$/);
    assert.match(ollama![1]!, /^Half-open\nThe next request tests it\./);
    assert.equal(xai![1], 'Failing since 11-21 21:15:30\n402 No credits left');
    assert.match(xai![10]!, /^10:13:25\n402/);
    assert.match(mistral![1]!, /^Skipped\nno api_key and no MISTRAL_API_KEY/);
    assert.deepEqual((await rowsOf(page, 'clients'))[1]![0], 'ci');
    await page.locator('summary').click();
    assert.deepEqual((await rowsOf(page, 'settings')).slice(3, 5), [
      ['server.auth.keys', '[secret]'],
      ['providers.fallback', '["groq","ollama"]'],
    ]);
    await shows(page, '#warnings', 'provider "openai" is not registered');
  },
);

browserTest(
  'without providers the page says which variable to set, and without requests how to send one',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.greeting = SITUATIONS['empty']!;
    const page = await open(feed.url);
    await shows(page, '#providers-empty', 'OPENAI_API_KEY=');
    await shows(page, '#curl-hint', 'YOUR_KEY is one of [server.auth] keys, or of a client.');
    const command = await page.locator('#curl').innerText();
    assert.match(command, /^curl 'http:\/\/127\.0\.0\.1:8080\/v1\/chat\/completions' \\\n/);
    assert.match(command, /Authorization: Bearer YOUR_KEY/);
    assert.match(command, /"model":"openai\/MODEL"/);

    feed.send('settings', settingsEvent({ settings: [["aliases.it's", 'p/m']] }));
    feed.send('state', idleState({ providers: [provider('openai')] }));
    await shows(page, '#curl', 'Bearer any-text');
    await shows(page, '#curl', `"model":"it'\\''s"`);
    await page.locator('#providers-empty').waitFor({ state: 'hidden' });
  },
);

browserTest('the filters choose by outcome, provider, client and id', async (t, open) => {
  const feed = await startFeed(t);
  feed.greeting = SITUATIONS['busy']!;
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
  'the list keeps 200 requests and the failures before them, and stands still while a row is open or it is paused',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.greeting = SITUATIONS['busy']!;
    const page = await open(feed.url);
    await shows(page, '#count', /^200 of 200$/);
    const [newest] = requestsEvent(1);
    const send = (id: string) => {
      const { number } = requestsEvent(1)[0] as { number: number };
      feed.send('requests', [{ ...newest, number, request_id: id, model: id }]);
    };

    send('first');
    await shows(page, FIRST_ROW, 'first');
    await shows(page, '#count', /^20[01] of 20[01]$/);
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
  feed.greeting = SITUATIONS['busy']!;
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
  await shows(page, '.details', 'no first event in 20 s');
  assert.match(await focused(), /^BUTTON \d\d:/);
  await page.keyboard.press('Enter');
  await page.locator('.details').waitFor({ state: 'detached' });
  assert.match(await focused(), /^BUTTON \d\d:/);
});

browserTest('a live region tells what changes, and nothing each second', async (t, open) => {
  const feed = await startFeed(t);
  const state = (now: number, more: object) =>
    idleState({ now: at(now), providers: [provider('openai', more)] });
  feed.greeting = [
    ['settings', settingsEvent()],
    ['state', state(0, {})],
  ];
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  await page.evaluate(`
    globalThis.announced = [];
    const region = document.querySelector('[role=status]');
    new MutationObserver(() => announced.push(region.textContent)).observe(region, { childList: true });
  `);
  const rest = { state: 'open', why: 'read ECONNRESET', openUntil: at(30) };
  for (const second of [1, 2, 3]) feed.send('state', state(second, rest));
  await shows(page, '#providers', 'Open, 27 s left');
  for (const second of [31, 32]) feed.send('state', state(second, { state: 'half-open' }));
  feed.send('state', state(33, {}));
  const failing = { state: 'failing', why: '402 No credits left', since: at(20) };
  for (const second of [34, 35]) feed.send('state', state(second, failing));
  feed.send('state', idleState({ now: at(36), draining: true }));
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
  const ends = (...values: number[]) => [...Array.from({ length: 87 }, () => 0), ...values];
  // The second bar has more failures, and is half as high.
  const history = { requests: ends(4, 80, 0), failed: ends(2, 20, 0) };
  const { history: idle } = idleState() as { history: object };
  feed.greeting = [
    ['settings', settingsEvent()],
    ['state', idleState({ history: { ...idle, ...history } })],
  ];
  const page = await open(feed.url);
  await shows(page, '#failed-note', '22 of 84 · highest 50.0 %');
  const bars = await page.locator('#failed-chart .bars').getAttribute('d');
  assert.equal(bars, 'M87 32V2.0M88 32V16.0');
});

browserTest('a state that the page does not know is shown by its own name', async (t, open) => {
  const feed = await startFeed(t);
  feed.greeting = [
    ['settings', settingsEvent()],
    ['state', idleState({ providers: [provider('p', { state: 'constructor', why: 'a cause' })] })],
  ];
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  await shows(page, '#providers td:nth-child(2)', /^constructora cause$/);
});

browserTest(
  'an event changes only the parts of the document whose figures it changes',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.greeting = SITUATIONS['busy']!;
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
    feed.send('state', busyState());
    const { figures } = busyState() as { figures: object };
    feed.send('state', busyState({ figures: { ...figures, gateway_open_streams: 8 } }));
    await shows(page, '#streams', '8');
    assert.deepEqual(await page.evaluate('[...touched].sort()'), ['streams', 'streams-chart']);
  },
);

browserTest(
  'a lost connection is told, and made again after cuts and HTTP errors',
  async (t, open) => {
    const feed = await startFeed(t);
    feed.greeting = SITUATIONS['busy']!;
    const page = await open(feed.url, { losesConnection: true });
    await shows(page, '#connection', 'Live');
    await page.locator(`${FIRST_ROW} button`).focus();
    const [, [, requests]] = feed.greeting as [unknown, [string, object[]]];
    feed.cut();
    await shows(page, '#announcement', 'Connected again');
    // The feed repeats the last requests: none is there twice, and the focus stays.
    await shows(page, '#count', /^200 of 200$/);
    const isFocused = await page
      .locator(`${FIRST_ROW} button`)
      .evaluate((b) => b.matches(':focus'));
    assert.ok(isFocused);
    assert.equal(requests.length, 200);

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
  feed.greeting = SITUATIONS['busy']!;
  const page = await open(feed.url, { losesConnection: true });
  await shows(page, '#count', '200 of 200');
  await page.locator(FIRST_ROW).click();
  await shows(page, '.details', 'request_id');
  await page.getByRole('button', { name: 'Pause' }).click();
  feed.greeting = [
    ['settings', settingsEvent({ startedAt: at(100) })],
    ['state', idleState({ now: at(101), providers: [provider('openai')] })],
  ];
  feed.cut();
  await shows(page, '#announcement', 'The gateway was restarted');
  await page.locator('#requests-empty').waitFor({ state: 'visible' });
  assert.equal((await rowsOf(page, 'requests')).length, 0);
  await shows(page, '#about', 'up 1 s');
  feed.send('requests', requestsEvent(2));
  await shows(page, '#count', /^2 of 2$/);
});

browserTest('settings that change while the page is open keep its requests', async (t, open) => {
  const feed = await startFeed(t);
  feed.greeting = [
    ['settings', settingsEvent()],
    ['requests', requestsEvent(3)],
    ['state', idleState({ providers: [provider('openai')] })],
  ];
  const page = await open(feed.url);
  await shows(page, '#count', /^3 of 3$/);
  const settings = [['server.cors', true]];
  feed.send('settings', settingsEvent({ settings, warnings: ['a warning that is new'] }));
  await shows(page, '#announcement', 'The settings have changed');
  feed.send('requests', requestsEvent(2));
  await shows(page, '#count', /^5 of 5$/);
  await shows(page, '#settings-count', /^1 settings in force$/);
  await shows(page, '#warnings', 'a warning that is new');
});

browserTest('a connection that has gone silent is given up', async (t, open) => {
  const feed = await startFeed(t);
  feed.greeting = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
  const before = feed.connections;
  await until(() => feed.connections > before);
  await shows(page, '#announcement', 'Connected again');
});

browserTest('below a path of a proxy the page finds its feed', async (t, open) => {
  const feed = await startFeed(t, '/admin/gateway/');
  feed.greeting = SITUATIONS['busy']!;
  const page = await open(feed.url);
  await shows(page, '#connection', 'Live');
});

browserTest(
  'text from outside stays text, whatever it is, and does not widen the page',
  async (t, open) => {
    const feed = await startFeed(t);
    const markup = '<img src=x onerror="document.title=1"><script>document.title=2</script>';
    const hostile = `${markup}\u202e\u2028\u0000${'w'.repeat(10_240)}`;
    const [request] = requestsEvent(1);
    feed.greeting = [
      [
        'settings',
        settingsEvent({
          settings: [
            [hostile, hostile],
            [`aliases.${hostile}`, 'p/m'],
          ],
          warnings: [hostile],
        }),
      ],
      [
        'requests',
        [
          {
            ...request,
            request_id: hostile,
            model: hostile,
            client: hostile,
            outcome: hostile,
            cause: hostile,
            provider: hostile,
            [hostile]: hostile,
            tries: [
              { provider: hostile, model: hostile, outcome: hostile, cause: hostile, url: hostile },
            ],
          },
        ],
      ],
      [
        'state',
        busyState({
          providers: [
            provider(hostile, {
              state: 'open',
              why: hostile,
              openUntil: at(9),
              openModels: [{ model: hostile, until: at(9), why: hostile }],
              errors: { [hostile]: 2 },
              lastError: { at: at(0), text: hostile },
            }),
            provider('__proto__', { state: hostile }),
          ],
          models: [{ name: hostile, provider: hostile, requests: 1, failed: 0 }],
          clients: [{ name: hostile, requests: 1, failed: 0 }],
        }),
      ],
    ];
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
    assert.equal(await page.title(), 'inference-gateway gw-1');
    assert.equal(await page.locator('img').count(), 0);
    await assertFitsWidth(page);
    await assertAccessible(page);
    await screenshot(page, 'hostile-360-light', true);
  },
);
