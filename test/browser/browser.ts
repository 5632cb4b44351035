/** Debian's Chromium, driven by playwright-core, and what every test holds against each page it opens. */

import assert from 'node:assert/strict';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, type TestContext } from 'node:test';

import axe from 'axe-core';
import { chromium, type Browser, type Page } from 'playwright-core';

const CHROMIUM = process.env['CHROMIUM'] ?? '/usr/bin/chromium';
const MAX_WAIT_MS = 60_000;

/** For the tests' option `skip`. */
export const NO_CHROMIUM = existsSync(CHROMIUM) ? false : `${CHROMIUM} does not exist`;
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

/**
 * Opens the page. When the test ends it fails if the page has asked for anything but itself and its feed, or
 * the console shows an error, as it does for everything that the Content-Security-Policy forbids.
 */
export async function openPage(
  t: TestContext,
  url: string,
  { width = 1280, scheme = 'light', losesConnection = false, credentials }: OpenOptions = {},
): Promise<Page> {
  // The sandbox needs rights that containers and root do not have.
  launched ??= chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
  const context = await (
    await launched
  ).newContext({
    viewport: { width, height: 900 },
    colorScheme: scheme,
    timezoneId: 'UTC',
    ...(credentials && { httpCredentials: credentials }),
  });
  context.setDefaultTimeout(MAX_WAIT_MS);
  const page = await context.newPage();
  const problems: string[] = [];
  const requested = new Set<string>();
  page.on('request', (request) => requested.add(request.url()));
  page.on('pageerror', (error) => problems.push(String(error.stack)));
  page.on('console', (message) => {
    const isLostConnection = /^Failed to load resource|ERR_/.test(message.text());
    const isError = message.type() === 'error' || message.type() === 'warning';
    if (isError && !(losesConnection && isLostConnection)) problems.push(message.text());
  });
  t.after(async () => {
    await context.close();
    assert.deepEqual(problems, []);
    const isOurs = (asked: string) => asked === url || asked === `${url}events`;
    const foreign = [...requested].filter((asked) => !asked.startsWith('data:') && !isOurs(asked));
    assert.deepEqual(foreign, []);
  });
  await page.goto(url);
  return page;
}

/** Waits until the element contains the text, which no test expects sooner than a busy machine can draw it. */
export async function shows(page: Page, selector: string, text: string | RegExp): Promise<void> {
  const found = page.locator(selector).filter({ hasText: text }).first();
  await found.waitFor({ state: 'attached' }).catch(async () => {
    const texts = await page.locator(selector).allTextContents();
    assert.fail(`${selector} shows ${JSON.stringify(texts)}, not ${text}`);
  });
}

/** The texts of the cells of each row of a table, by its body's id. */
export async function rowsOf(page: Page, id: string): Promise<string[][]> {
  return page
    .locator(`#${id} > tr:not(.details)`)
    .evaluateAll((rows) =>
      rows.map((row) => [...(row as HTMLTableRowElement).cells].map((cell) => cell.innerText)),
    );
}

/** Runs axe's rules on the page as it is now. */
export async function assertAccessible(page: Page): Promise<void> {
  await page.evaluate(axe.source);
  const violations = await page.evaluate(async () => {
    const run = (globalThis as unknown as { axe: typeof axe }).axe.run;
    const { violations: found } = await run(document, {
      runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
    });
    return found.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' | ')}`);
  });
  assert.deepEqual(violations, []);
}

/** The document is as wide as the window, so that only tables scroll sideways. */
export async function assertFitsWidth(page: Page): Promise<void> {
  const [content, window] = await page.evaluate(() => [
    document.documentElement.scrollWidth,
    document.documentElement.clientWidth,
  ]);
  assert.equal(content, window);
}

/** Into the folder SCREENSHOTS, if it is set. */
export async function screenshot(page: Page, name: string, fullPage = false): Promise<void> {
  const folder = process.env['SCREENSHOTS'];
  if (folder === undefined) return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage });
}
