/** dist/server.js is readable: it has each file in src with its comments. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';

import { buildOnce, ROOT, SERVER } from './support/process.ts';

before(buildOnce);

const sources = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((name) => name.endsWith('.ts') && name !== 'admin/page/source-files.ts')
  .map((name) => ({ name, text: readFileSync(join(ROOT, 'src', name), 'utf8') }));

/** Returns the lines of the built file below each source file's name, without indentation. */
function readSections(): Map<string, string[]> {
  const sections = new Map<string, string[]>();
  let lines: string[] = [];
  for (const line of readFileSync(SERVER, 'utf8').split('\n')) {
    const [, name] = /^\/\/ ((?:src|\S*node_modules)\/\S+)$/.exec(line) ?? [];
    if (name === undefined) lines.push(line.trim());
    else sections.set(name, (lines = []));
  }
  return sections;
}

test('the built file has each file of src with code, after its name', () => {
  const sections = readSections();
  const missing = sources.filter(({ name }) => !sections.has(`src/${name}`));
  for (const { name, text } of missing) {
    assert.doesNotMatch(text, /^(?:export )?(?:async|class|const|function|let) /m, name);
  }
  assert.ok(missing.length < 10 && sections.size > 100);
  assert.equal([...sections.keys()].at(-1), 'src/server.ts');
});

test('each comment of src is in the built file, except comments of types', () => {
  const sections = readSections();
  for (const { name, text } of sources) {
    const lines = sections.get(`src/${name}`);
    if (!lines) continue;
    // A type extends from a line with `type` or `interface` at its beginning to the next empty
    // line.
    const withoutTypes = text.replace(
      /^(?:\/\*\*(?:(?!\*\/)[^])*\*\/\n)?(?:export )?(?:interface|type) [^]*?\n(?=\n|$)/gm,
      '',
    );
    // A doc comment with more indentation belongs to a parameter's type.
    const isComment = (line: string) => /^ *\/\/ |^(?: {2})?(?:\/\*\*| \*) /.test(line);
    const comments = withoutTypes.split('\n').filter(isComment);
    assert.ok(comments.length > 0, name);
    assert.deepEqual(
      comments.filter((line) => !lines.includes(line.trim())),
      [],
      name,
    );
  }
});

test('no comment of an erased type is left in the built file', () => {
  for (const [name, lines] of readSections()) {
    if (!name.endsWith('.ts')) continue;
    // The first comment is the file's own.
    const body = lines.join('\n').replace(/^\/\*\*[^]*?\*\/\n/, '');
    assert.doesNotMatch(body, /\*\/\n\n/, name);
  }
});

test('the built file is ASCII, so that V8 keeps its text with one byte a character', () => {
  assert.match(readFileSync(SERVER, 'utf8'), /^[\0-\x7f]+$/);
});

test('docs/deployment.md states the size of the built file', () => {
  const docs = readFileSync(join(ROOT, 'docs/deployment.md'), 'utf8');
  const [, megabytes] = /^\/app\/server\.js +([\d.]+) MB$/m.exec(docs)!;
  assert.equal(megabytes, (statSync(SERVER).size / 1e6).toFixed(1));
});
