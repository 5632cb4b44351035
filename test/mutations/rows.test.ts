/** Rows of mutations, read, found in a source, and renamed. */

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test, type TestContext } from 'node:test';

import { emptyFolder } from '../support/process.ts';
import { PlaceFinder, readRows, renameInRows, replaceAt } from './rows.ts';

/** Returns the changed text of the file that holds the row's text, or the number of its places. */
function mutate(t: TestContext, files: Readonly<Record<string, string>>, row: string) {
  const mutation = readRows(row)[0]!;
  const folder = emptyFolder(t);
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(folder, dirname(name)), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  const place = new PlaceFinder(folder).find(mutation);
  return typeof place === 'number' ? place : replaceAt(place, mutation);
}

test('a text is found across other white space, and its surroundings stay', (t) => {
  const source = 'const a = 1;\n\nif (  a >\n    b\n) {\n  stop();\n}\n';
  assert.equal(
    mutate(t, { 'src/a.ts': source }, 'if (a > b)\tif (true)\tx'),
    source.replace(/if \([^)]*\)/, 'if (true)'),
  );
});

test('a text is not found in the middle of a longer name', (t) => {
  assert.equal(mutate(t, { 'src/a.ts': 'isDone(); this.#done();' }, 'Done()\tleft()\tx'), 0);
  assert.equal(mutate(t, { 'src/a.ts': 'isDone(); this.#done();' }, 'done()\tleft()\tx'), 0);
  const source = 'donePart(); done()';
  assert.equal(mutate(t, { 'src/a.ts': source }, 'done()\tend()\tx'), 'donePart(); end()');
});

test('each place of a text counts, also those that overlap and those of other files', (t) => {
  assert.equal(mutate(t, { 'src/a.ts': 'a, a, a', 'src/b/c.ts': 'a,\na' }, 'a, a\tb\tx'), 3);
});

test('a text outside of src is found only if src does not hold it', (t) => {
  assert.equal(mutate(t, { 'src/a.ts': 'left = 1', 'b.ts': '1' }, '1\t2\tx'), 'left = 2');
  assert.equal(mutate(t, { 'src/a.ts': 'left = 1', 'b/b.ts': '3' }, '3\t4\tx'), '4');
});

test('the list, packages and built files are not searched', (t) => {
  const names = ['dist', 'node_modules', 'test/node_modules', '.git'].map((name) => `${name}/a.js`);
  const files = Object.fromEntries([...names, 'list.txt'].map((name) => [name, 'word']));
  assert.equal(mutate(t, files, 'word\t\tx'), 0);
});

test('a row that names a file, or lacks a column, is refused', () => {
  const rows = ['src/a.ts\ttext\tother\ttest', 'text\tother', '\tother\ttest', 'text\tother\t'];
  for (const row of rows)
    assert.throws(
      () => readRows(row),
      /^Error: not the three columns text, replacement and test: /,
    );
});

test('a name is renamed in texts and replacements, and not in longer names and tests', () => {
  assert.equal(
    renameInRows('ask(asked)\t\task\nthis.#ask\task\task-more\n', 'ask', 'poll'),
    'poll(asked)\t\task\nthis.#ask\tpoll\task-more\n',
  );
  assert.equal(renameInRows('this.#ask\ta\tb\n', '#ask', '#poll'), 'this.#poll\ta\tb\n');
  assert.throws(() => renameInRows('a\tb\tc\n', 'a b', 'c'), /^Error: not a name: a b$/);
});
