/** Rules for the source that a reader relies on. */

import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join, normalize } from 'node:path';
import { test } from 'node:test';

import { ROOT } from './support/process.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const packageJson = JSON.parse(read('package.json')) as {
  version: string;
  dependencies?: Record<string, string>;
  scripts: Record<string, string>;
};

/**
 * The folders that each folder may import from, besides itself. Files directly in src/ may import
 * everything.
 */
const IMPORTS: Readonly<Record<string, readonly string[]>> = {
  lib: [],
  'lib/memory': ['lib'],
  protocol: ['lib'],
  request: ['lib', 'protocol'],
  config: ['lib', 'protocol'],
  policy: ['lib', 'protocol', 'config', 'request'],
  incidents: ['lib', 'policy', 'request'],
  downstream: ['lib', 'lib/memory', 'config', 'request'],
  'upstream/connections': ['lib', 'lib/memory', 'protocol', 'config', 'request'],
  'upstream/answers': [
    'lib',
    'lib/memory',
    'protocol',
    'config',
    'request',
    'upstream/connections',
  ],
  store: ['lib', 'config', 'policy'],
  gateway: [
    'lib',
    'lib/memory',
    'protocol',
    'config',
    'policy',
    'incidents',
    'downstream',
    'upstream/connections',
    'upstream/answers',
    'request',
  ],
  admin: [
    'lib',
    'lib/memory',
    'config',
    'policy',
    'incidents',
    'downstream',
    'request',
    'admin/page',
  ],
  'admin/page': [],
  telemetry: ['lib', 'config', 'request'],
  cli: ['lib', 'config', 'request'],
};

const sources = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((name) => /\.[jt]s$/.test(name))
  .map((name) => ({ name, text: read(`src/${name}`) }));

const folderOf = (name: string) => name.split('/').slice(0, -1).join('/');

function importsOf(name: string, text: string): string[] {
  return [...text.matchAll(/from '(\.[^']+)'/g)].map(([, path = '']) =>
    normalize(join(dirname(name), path)),
  );
}

test('a folder of src imports only from the folders that it may, types included', () => {
  const folders = new Set(sources.map(({ name }) => folderOf(name)).filter((name) => name !== ''));
  assert.deepEqual([...folders].toSorted(), Object.keys(IMPORTS).toSorted());
  for (const { name, text } of sources) {
    const folder = folderOf(name);
    if (folder === '') continue;
    for (const imported of importsOf(name, text)) {
      const target = folderOf(imported);
      assert.ok(
        target === folder || IMPORTS[folder]!.includes(target),
        `${name} imports ${imported}`,
      );
    }
  }
});

test('no files of src import each other in a circle, types included', () => {
  const left = new Map(sources.map(({ name, text }) => [name, importsOf(name, text)]));
  const isLeaf = ([, imports]: [string, string[]]) => !imports.some((name) => left.has(name));
  for (let leaves = [...left].filter(isLeaf); leaves.length > 0;) {
    for (const [name] of leaves) left.delete(name);
    leaves = [...left].filter(isLeaf);
  }
  assert.deepEqual([...left.keys()], []);
});

test('ARCHITECTURE.md names every file of src, and which folders each folder may import', () => {
  const text = read('ARCHITECTURE.md');
  const files = sources.filter(({ name }) => !name.startsWith('admin/page/'));
  const missing = files
    .map(({ name }) => name)
    .filter((name) => ![name, basename(name)].some((one) => text.includes(`\`${one}\``)));
  assert.deepEqual(missing, []);
  const isNamed = (name: string) => name !== 'admin/page';
  const rows = [...text.matchAll(/^\| `([a-z/]+)\/` \| .* \| (.*) \|$/gm)];
  const told = rows.map(([, folder = '', cell = '']) => {
    const named = [...cell.matchAll(/`([\w/]+)`/g)].map(([, name = '']) => name);
    const others = Object.keys(IMPORTS).filter(
      (name) => name !== folder && isNamed(name) && !named.includes(name),
    );
    return [folder, (cell.startsWith('all but') ? others : named).toSorted()];
  });
  const allowed = Object.entries(IMPORTS)
    .filter(([folder]) => isNamed(folder))
    .map(([folder, names]) => [folder, names.filter(isNamed).toSorted()]);
  assert.deepEqual(Object.fromEntries(told), Object.fromEntries(allowed));
});

/** Returns the names in braces, without `type` and without new names after `as`. */
function namesIn(list: string): string[] {
  const names = list.split(',').map((item) => item.trim().replace(/^type /, ''));
  return names.filter((name) => name !== '').map((name) => name.split(/ as |: /)[0]!);
}

/** Returns a file's exported names. */
function exportsOf(text: string): string[] {
  const declared = text.matchAll(
    /^export (?:async )?(?:function\*?|class|const|let|type|interface|enum) (\w+)/gm,
  );
  const listed = text.matchAll(/^export (?:type )?\{([^}]*)\}/gm);
  return [
    ...[...declared].map(([, name = '']) => name),
    ...[...listed].flatMap(([, list = '']) => namesIn(list)),
  ];
}

/**
 * Returns a file's imports from the repository, each as `path name`. Tests import the page's
 * scripts with `import()`.
 */
function importedNames(name: string, text: string): string[] {
  const statements = text.matchAll(/^(?:im|ex)port (?:type )?\{([^}]*)\} from '(\.[^']+)'/gm);
  const calls = text.matchAll(/\{([^}]*)\} = \(?await import\(\s*join\(ROOT, '([^']+)'\)/g);
  const found = [
    ...[...statements].map(([, list = '', path = '']) => [list, join(dirname(name), path)]),
    ...[...calls].map(([, list = '', path = '']) => [list, path]),
  ] as const;
  return found.flatMap(([list = '', path = '']) => namesIn(list).map((one) => `${path} ${one}`));
}

test('each export of src is imported, at least by a test', () => {
  const importers = ['src', 'test', 'scripts', 'bench'].flatMap((folder) =>
    readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
      .filter((path) => /\.(?:[jt]s|mjs)$/.test(path) && !path.includes('node_modules'))
      .map((path) => `${folder}/${path}`),
  );
  const imported = new Set(importers.flatMap((path) => importedNames(path, read(path))));
  // `#page-files` is one of two files.
  const checked = sources.filter(({ name }) => !/^admin\/page\/\w+-files\./.test(name));
  const unused = checked.flatMap(({ name, text }) =>
    exportsOf(text)
      .map((one) => `src/${name} ${one}`)
      .filter((one) => !imported.has(one)),
  );
  assert.deepEqual(unused, []);
});

test('only src/app.ts imports the admin listener and traces', () => {
  for (const part of ['admin/admin.ts', 'telemetry/traces.ts']) {
    const importers = sources
      .filter(({ name, text }) => importsOf(name, text).includes(part))
      .map(({ name }) => name);
    assert.deepEqual(importers, ['app.ts'], part);
  }
});

/** Returns the files in this row of ARCHITECTURE.md. */
function auditedFiles(what: string): string[] {
  const [, row = ''] = new RegExp(`^\\| ${what} \\|(.*)$`, 'm').exec(read('ARCHITECTURE.md')) ?? [];
  return [...row.matchAll(/`([a-z/-]+\.ts)`/g)].map(([, name = '']) => name);
}

test('each of these actions has a single place', () => {
  const places: [string, RegExp, string[]][] = [
    ['sends heads', /\.writeHead\(/, ['downstream/client-reply.ts']],
    [
      'writes responses; the demo is a server of its own',
      /\bresponse\.(?:write|end)\(/,
      ['cli/demo.ts', 'downstream/client-reply.ts'],
    ],
    [
      'opens upstream connections',
      /\bfetch\(|connectTcp|connectTls/,
      [
        // In a browser, to the gateway.
        'admin/page/feed.js',
        'admin/page/requests.js',
        // To a collector.
        'telemetry/span-exporter.ts',
        'upstream/connections/connector.ts',
        'upstream/connections/fetch-transport.ts',
      ],
    ],
    ['knows the code of an error', /'SERIALIZATION_ERROR'|'INVALID_REQUEST'/, ['lib/errors.ts']],
    ['reads TOML', /smol-toml'/, ['config/settings-file.ts']],
    ['reads the environment', /process\.env|\{ env \} = process/, ['server.ts']],
    ['reveals keys', /\.reveal\(\)/, auditedFiles('reveals keys')],
    [
      'builds headers that go upstream',
      /authorization: `|'(?:content-length|traceparent)', /,
      auditedFiles('builds headers that go upstream'),
    ],
    ['ends the process', /process\.exit/, ['server.ts']],
    ['watches the event loop', /monitorEventLoopDelay\(/, ['admin/figures.ts']],
    ['has to do with threads', /worker_threads|SharedArrayBuffer|Atomics|BroadcastChannel/, []],
    ['exposes the garbage collector', /expose-gc/, ['lib/memory/garbage-collector.ts']],
    ['prints', /console\./, []],
    [
      'decides by the message of an error',
      /\.test\((?:\w+\.)?message\)|\.message(?: ===|\.(?:includes|match|startsWith)\()/,
      ['upstream/connections/fetch-transport.ts'],
    ],
  ];
  for (const [what, pattern, names] of places) {
    const found = sources.filter(({ text }) => pattern.test(text)).map(({ name }) => name);
    assert.deepEqual(found.toSorted(), names.toSorted(), what);
  }
});

test('smol-toml is the only imported package, and none is needed at run time', () => {
  assert.equal(packageJson.dependencies, undefined);
  const imported = sources.flatMap(({ text }) =>
    [...text.matchAll(/from '([^'.#][^']*)'/g)].map(([, name = '']) => name),
  );
  const foreign = new Set(imported.filter((name) => !name.startsWith('node:')));
  assert.deepEqual([...foreign], ['smol-toml']);
});

test('each cited anchor of docs/behaviour.md exists, and no outside document is cited', () => {
  const anchors = new Set(
    [...read('docs/behaviour.md').matchAll(/<a id="([a-z-]+)">/g)].map(([, id = '']) => id),
  );
  const citing = ['src', 'test', 'scripts', 'docs'].flatMap((folder) =>
    readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
      .filter((path) => /\.(?:[jt]s|md)$/.test(path) && !path.includes('node_modules'))
      .map((path) => `${folder}/${path}`),
  );
  const cited = citing.flatMap((path) =>
    [...read(path).matchAll(/behaviour\.md((?:,? ?#[a-z-]+)+)/g)].flatMap(([, list = '']) =>
      [...list.matchAll(/#([a-z-]+)/g)].map(([, id = '']) => `${path} #${id}`),
    ),
  );
  assert.ok(cited.length > 10, `${cited.length}`);
  const missing = cited.filter((one) => !anchors.has(one.split(' #')[1]!));
  assert.deepEqual(missing, []);
  const outside = citing.filter((path) => /(?:decisions|interface)\x2emd/.test(read(path)));
  assert.deepEqual(outside, []);
});

const MAX_COLUMNS = 100;

test('no line of src is wider than 100 columns, in code or comments', () => {
  const wide = sources.flatMap(({ name, text }) =>
    text
      .split('\n')
      .map((line, at) => ({ place: `${name}:${at + 1}`, columns: line.length }))
      .filter(({ columns }) => columns > MAX_COLUMNS)
      .map(({ place, columns }) => `${place} has ${columns}`),
  );
  assert.deepEqual(wide, []);
});

test('the README states the number of words in src, within two in a hundred', () => {
  const files = readdirSync(join(ROOT, 'src'), { recursive: true, withFileTypes: true });
  const words = files
    .filter((entry) => entry.isFile())
    .flatMap(({ parentPath, name }) => readFileSync(join(parentPath, name), 'utf8').match(/\S+/g)!);
  const [, told = ''] = /([\d,]+) words of source/.exec(read('README.md'))!;
  const share = Number(told.replace(',', '')) / words.length;
  assert.ok(share > 0.98 && share < 1.02, `README: ${told}, src: ${words.length} words`);
});

test('package.json and the source name the same version', () => {
  assert.match(read('src/lib/version.ts'), new RegExp(`VERSION = '${packageJson.version}'`));
});

test('the README names every folder of src, and only files and scripts that exist', () => {
  const readme = read('README.md');
  for (const folder of Object.keys(IMPORTS)) {
    assert.ok(readme.includes(`\`${folder.split('/')[0]}/\``), `README does not name ${folder}/`);
  }
  for (const [, path = ''] of readme.matchAll(/`((?:src|test|docs|deploy|\.ci)\/[\w./-]*)`/g)) {
    assert.ok(existsSync(join(ROOT, path)), `README names ${path}`);
  }
  for (const [, script = ''] of readme.matchAll(/npm run ([\w:-]+)/g)) {
    assert.ok(packageJson.scripts[script], `README names npm run ${script}`);
  }
});

test('test/README.md names exactly the files of test/support', () => {
  const [, table = ''] = read('test/README.md').split('## Support files');
  const cells = [...table.matchAll(/^\| (`.+?) \|/gm)].map(([, cell = '']) => cell);
  const named = cells.flatMap((cell) => cell.replaceAll('`', '').split(', '));
  assert.deepEqual(named.toSorted(), readdirSync(join(ROOT, 'test/support')).toSorted());
});
