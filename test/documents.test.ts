/** Links, anchors and paths in the documents lead somewhere. */

import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { test } from 'node:test';

import { ROOT } from './support/process.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

/** Returns the paths of the repository's files. */
function filesIn(folder: string): string[] {
  return readdirSync(join(ROOT, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (/^(?:\.git|dist|node_modules|\.tests.*)$/.test(entry.name)) return [];
    return entry.isDirectory() ? filesIn(path) : [path];
  });
}

const files = filesIn('.');
const documents = files.filter((path) => path.endsWith('.md'));

/** Named files that a command creates, or that belong to other programs. */
const ELSEWHERE = [
  'dist/server.js',
  'gateway.toml',
  'inference-gateway.cdx.json',
  'build.cdx.json',
  'truth.json',
  'server.js',
  'opencode.json',
  'extra-openai-models.yaml',
  'examples/monitoring/grafana-dashboard.json',
  'config.yaml',
];

/** Returns a document without its code blocks. */
const proseOf = (path: string) => read(path).replaceAll(/^( *)```[^]*?^\1```$/gm, '');

/** Returns a document's anchors: GitHub's for its headings, and each `<a id>`. */
function anchorsOf(path: string): Set<string> {
  const headings = [...proseOf(path).matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
      .replaceAll(' ', '-'),
  );
  const written = [...read(path).matchAll(/<a id="([^"]+)">/g)].map(([, id = '']) => id);
  return new Set([...headings, ...written]);
}

test('each relative link of a document leads to a file, and its anchor to a heading there', () => {
  const links = documents.flatMap((path) =>
    [...proseOf(path).matchAll(/\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)/g)].map(
      ([, link = '', anchor = '']) => ({
        path,
        target: link === '' ? path : normalize(join(dirname(path), link)),
        anchor,
      }),
    ),
  );
  assert.ok(links.length > 60, `${links.length}`);
  const broken = links.filter(
    ({ target, anchor }) =>
      !existsSync(join(ROOT, target)) || (anchor !== '' && !anchorsOf(target).has(anchor)),
  );
  assert.deepEqual(broken, []);
});

test('each page about settings begins with a list of all its sections', () => {
  const pages = ['configuration', 'clients-and-limits', 'retries-and-fallback'].map(
    (name) => `docs/${name}.md`,
  );
  const anchorsIn = (text: string) =>
    [...text.matchAll(/\]\([^)#\s]*#([^)\s]+)\)/g)].map(([, anchor = '']) => anchor);
  const [top = ''] = read(pages[0]!).split('\n## ');
  for (const path of pages) {
    const [list = '', ...sections] = read(path).split(/\n##+ /);
    assert.ok(sections.length > 3, path);
    const anchors = [...anchorsOf(path)].slice(1);
    for (const anchor of anchors) {
      assert.ok(anchorsIn(list).includes(anchor), `${path}: ${anchor}`);
      assert.ok(anchorsIn(top).includes(anchor), `${pages[0]}: ${anchor}`);
    }
  }
});

test('each file that a document names between backticks exists', () => {
  // The changelog names files of earlier versions.
  const named = documents
    .filter((path) => path !== 'CHANGELOG.md')
    .flatMap((path) =>
      [...proseOf(path).matchAll(/`(?:\.\/)?([\w.@/-]+\.[a-z]+|[\w.@-]+\/[\w.@/-]*\/)`/g)].map(
        ([, name = '']) => ({ path, name }),
      ),
    )
    .filter(({ name }) =>
      /\.(?:[cm]?[jt]s|sh|md|json|toml|ya?ml|service|conf|cfg|txt|png|css|html|example)$|\/$/.test(
        name,
      ),
    );
  assert.ok(named.length > 150, `${named.length}`);
  const folders = files.map((path) => `/${dirname(path)}/`);
  const exists = (name: string) =>
    ELSEWHERE.includes(name) ||
    (name.endsWith('/')
      ? folders.some((folder) => folder.includes(`/${name}`))
      : files.some((path) => `/${path}`.endsWith(`/${name}`)));
  assert.deepEqual(
    named.filter(({ name }) => !exists(name)),
    [],
  );
});

test('each npm script that a document or a workflow names exists', () => {
  const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> };
  const workflows = files.filter((path) => path.startsWith('.github/workflows/'));
  assert.ok(workflows.length >= 3);
  const named = [...documents, ...workflows]
    .filter((path) => path !== 'CHANGELOG.md')
    .flatMap((path) =>
      [...read(path).matchAll(/npm run (?:-s )?([a-z][\w:-]*)/g)].map(([, script = '']) => ({
        path,
        script,
      })),
    );
  assert.ok(named.length > 20, `${named.length}`);
  assert.deepEqual(
    named.filter(({ script }) => !Object.hasOwn(scripts, script)),
    [],
  );
});

test('docs/compatibility.md names the versions of Node on which the tests run', () => {
  const named = [...read('docs/compatibility.md').matchAll(/^\| (\d+)[^|]* \| \d{4}-/gm)].map(
    ([, major = '']) => major,
  );
  const [, matrix = ''] = /node: \[(.*)\]/.exec(read('.github/workflows/ci.yml')) ?? [];
  assert.deepEqual(
    named,
    [...matrix.matchAll(/\d+/g)].map(([major]) => major),
  );
  const [, majors = ''] = /^majors='(.*)'$/m.exec(read('test/nodes.sh')) ?? [];
  assert.deepEqual(named, majors.split(' '));
});

test('SECURITY.md names the code and the test that meet each threat', () => {
  const [, section = ''] = read('SECURITY.md').split('## Threats, and where they are met');
  const rows = section
    .split('\n## ')[0]!
    .split('\n')
    .filter((line) => line.startsWith('| '));
  const cells = rows.slice(1).map((row) => row.split(' | '));
  assert.ok(cells.length > 15, `${cells.length}`);
  for (const [threat = '', , ...places] of cells) {
    assert.equal(places.length, 2, threat);
    for (const place of places) {
      const paths = [...place.matchAll(/`([^`]+)`/g)].map(([, path = '']) => path);
      assert.ok(paths.length > 0, threat);
      for (const path of paths) assert.ok(existsSync(join(ROOT, path)), `${threat}: ${path}`);
    }
  }
});
