/**
 * Debian's Chromium, driven by playwright-core, and what every test holds against each page it
 * opens.
 */

import assert from 'node:assert/strict';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import axe, { type AxeResults } from 'axe-core';
import { chromium, type Browser, type Page } from 'playwright-core';

const CHROMIUM = process.env['CHROMIUM'] ?? '/usr/bin/chromium';
const MAX_WAIT_MS = 60_000;

const NO_CHROMIUM = existsSync(CHROMIUM) ? false : `${CHROMIUM} does not exist`;
if (NO_CHROMIUM) {
  console.error(`SKIPPED: ${NO_CHROMIUM}. Install chromium, or set CHROMIUM to its path.`);
}

let launched: Promise<Browser> | undefined;
after(async () => {
  await (await launched)?.close();
});

interface OpenOptions {
  readonly width?: number;
  readonly scheme?: 'light' | 'dark';
  /** Failed connections are part of the test. */
  readonly losesConnection?: boolean;
  readonly credentials?: { readonly username: string; readonly password: string };
}

type Open = (url: string, options?: OpenOptions) => Promise<Page>;

/**
 * A test that opens pages with `open`. It fails if a page has asked for anything but itself and its
 * feed, or if the
 * console showed an error, as it does for everything that the Content-Security-Policy forbids.
 */
export function browserTest(
  title: string,
  body: (t: TestContext, open: Open) => Promise<void>,
): void {
  test(title, { skip: NO_CHROMIUM }, async (t) => {
    const opened: OpenedPage[] = [];
    try {
      await body(t, async (url, options) => {
        opened.push(await openPage(url, options));
        return opened.at(-1)!.page;
      });
    } finally {
      // Before the servers end: a broken connection is an error on the console.
      for (const { page } of opened) await page.context().close();
    }
    for (const { problems, foreign } of opened) assert.deepEqual([...problems, ...foreign], []);
  });
}

interface OpenedPage {
  readonly page: Page;
  readonly problems: string[];
  /** Addresses that the page should not have asked for. */
  readonly foreign: string[];
}

async function openPage(
  url: string,
  { width = 1280, scheme = 'light', losesConnection = false, credentials }: OpenOptions = {},
): Promise<OpenedPage> {
  // The sandbox needs rights that containers and root do not have.
  launched ??= chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
  const browser = await launched;
  const context = await browser.newContext({
    viewport: { width, height: 900 },
    colorScheme: scheme,
    timezoneId: 'UTC',
    ...(credentials && { httpCredentials: credentials }),
  });
  context.setDefaultTimeout(MAX_WAIT_MS);
  const page = await context.newPage();
  const problems: string[] = [];
  const foreign: string[] = [];
  page.on('request', (request) => {
    const asked = request.url();
    const isOwn = [url, `${url}events`].includes(asked) || asked.startsWith(`${url}requests?`);
    if (!isOwn && !asked.startsWith('data:')) foreign.push(asked);
  });
  page.on('pageerror', (error) => problems.push(String(error.stack)));
  page.on('console', (message) => {
    const isLostConnection = /^Failed to load resource|ERR_/.test(message.text());
    const isError = message.type() === 'error' || message.type() === 'warning';
    if (isError && !(losesConnection && isLostConnection)) problems.push(message.text());
  });
  await page.goto(url);
  return { page, problems, foreign };
}

/**
 * Waits until the element contains the text, which no test expects sooner than a busy machine can
 * draw it.
 */
export async function shows(page: Page, selector: string, text: string | RegExp): Promise<void> {
  const found = page.locator(selector).filter({ hasText: text }).first();
  await found.waitFor({ state: 'attached' }).catch(async () => {
    const texts = await page.locator(selector).allTextContents();
    assert.fail(`${selector} shows ${JSON.stringify(texts)}, not ${text}`);
  });
}

/** Waits until the tab has the title, also of a page without frames. */
export async function showsTitle(page: Page, title: string): Promise<void> {
  const end = performance.now() + MAX_WAIT_MS;
  while ((await page.title()) !== title) {
    assert.ok(performance.now() < end, `the title is ${await page.title()}, not ${title}`);
    await sleep(50);
  }
}

/** Waits until the condition holds. */
export async function until(condition: () => boolean): Promise<void> {
  const end = performance.now() + MAX_WAIT_MS;
  while (!condition()) {
    assert.ok(performance.now() < end, `not within ${MAX_WAIT_MS} ms: ${condition.toString()}`);
    await sleep(50);
  }
}

/** The texts of the cells of each row of a table, by its body's id. */
export async function rowsOf(page: Page, id: string): Promise<string[][]> {
  const rows = await page.locator(`#${id} > tr, #${id} > li summary`).all();
  const cells = '> th, > td, > span > span:last-child';
  return Promise.all(rows.map(async (row) => row.locator(cells).allInnerTexts()));
}

/** Runs axe's rules on the page as it is now. */
export async function assertAccessible(page: Page): Promise<void> {
  await page.evaluate(axe.source);
  const options = {
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
  };
  const found = await page.evaluate<AxeResults>(`axe.run(document, ${JSON.stringify(options)})`);
  const violations = found.violations.map(
    ({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' | ')}`,
  );
  assert.deepEqual(violations, []);
}

/** The document is as wide as the window, so that only tables scroll sideways. */
export async function assertFitsWidth(page: Page): Promise<void> {
  const [content, window] = await page.evaluate<[number, number]>(
    '[document.documentElement.scrollWidth, document.documentElement.clientWidth]',
  );
  assert.equal(content, window);
}

/** Into the folder SCREENSHOTS, if it is set. */
export async function screenshot(page: Page, name: string, fullPage = false): Promise<void> {
  const folder = process.env['SCREENSHOTS'];
  if (folder === undefined) return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage });
}
