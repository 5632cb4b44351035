/** The operator's page as a document: what it is made of. test/browser/ opens it in a browser. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Script } from 'node:vm';

import { createPage } from '../../src/admin/page/page.ts';
import { ROOT } from '../support/process.ts';

const MAX_BYTES = 47_000;
const MAX_LINES = 1200;

const page = createPage();
const contentsOf = (element: string) =>
  [...page.html.matchAll(new RegExp(`<${element}[^>]*>([^]*?)</${element}>`, 'g'))].map(
    ([, text = '']) => text,
  );
const hashOf = (text: string) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

test('the page has one script and one style sheet, and its policy allows them alone', () => {
  const sourcesOf = (kind: string) => new RegExp(`\\b${kind}-src ([^;]*);`).exec(page.policy)?.[1];
  assert.deepEqual(contentsOf('script').map(hashOf), [sourcesOf('script')]);
  assert.deepEqual(contentsOf('style').map(hashOf), [sourcesOf('style')]);
});

test('the page has no inline handler, no style attribute, and loads nothing', () => {
  const [script = ''] = contentsOf('script');
  const markup = page.html.replace(script, '');
  assert.doesNotMatch(markup, /\s(?:on\w+|style|src|srcset)=/);
  for (const [, url = ''] of markup.matchAll(/\shref="([^"]*)"/g)) assert.match(url, /^(#|data:)/);
  assert.doesNotMatch(contentsOf('style').join(''), /@import|url\(/);
});

test('the script writes text and attributes only: no markup, no code from text', () => {
  const [script = ''] = contentsOf('script');
  assert.doesNotMatch(
    script,
    /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function\(|\.style\b/,
  );
});

test('the bundled script has no import, no export and no name declared twice', () => {
  const [script = ''] = contentsOf('script');
  assert.doesNotThrow(() => new Script(script));
  assert.doesNotMatch(script, /^(?:import|export)\b/m);
});

test('the script looks up only ids that the document has, and no id is there twice', () => {
  const [script = ''] = contentsOf('script');
  const ids = [...page.html.matchAll(/\sid="([^"]+)"/g)].map(([, id = '']) => id);
  // The script makes this element.
  ids.push('cursor');
  assert.equal(new Set(ids).size, ids.length);
  for (const [, id = ''] of script.matchAll(/(?:byId|fill)\('([\w-]+)'[,)]/g)) {
    assert.ok(ids.includes(id), `no element has the id ${id}`);
  }
});

test(`the page is smaller than ${MAX_BYTES / 1000} kB`, () => {
  const size = Buffer.byteLength(page.html);
  assert.ok(size < MAX_BYTES, `${size} bytes`);
});

test(`the page's files have at most ${MAX_LINES} lines`, () => {
  const folder = join(ROOT, 'src/admin/page');
  const names = readdirSync(folder).filter((name) => /\.(?:css|html|js)$/.test(name));
  const files = names.filter((name) => name !== 'bundled-files.js');
  const lines = files.map(
    (name) => readFileSync(join(folder, name), 'utf8').split('\n').length - 1,
  );
  const sum = lines.reduce((all, count) => all + count, 0);
  assert.ok(sum > 500 && sum <= MAX_LINES, `${sum} lines`);
});
