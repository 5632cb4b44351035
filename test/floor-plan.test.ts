/** The house rules that a reader relies on, held by reading the source. */

import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { test } from 'node:test';

import { ROOT } from './support/process.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const packageJson = JSON.parse(read('package.json')) as {
  version: string;
  dependencies: Record<string, string>;
  scripts: Record<string, string>;
};

/** From the ground up; a room imports only from floors below its own. */
const FLOORS: readonly (readonly string[])[] = [
  [
    'version',
    'errors',
    'secrets',
    'token-bucket',
    'circuit-breaker',
    'cancellation',
    'pieces',
    'connections',
  ],
  ['settings-reader', 'providers/built-in', 'log', 'json-scan', 'protocol', 'demo', 'sse'],
  ['chat', 'config', 'call'],
  ['provider', 'auth', 'limits', 'command-line', 'http'],
  ['providers/openai', 'dispatch'],
  ['upstream'],
  ['stream', 'models'],
  ['attempt'],
  ['complete'],
  ['gateway'],
  ['assembly'],
  ['server'],
];

const sources = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((name) => name.endsWith('.ts'))
  .map((name) => ({ room: name.slice(0, -3), text: read(`src/${name}`) }));

function roomsImportedBy(room: string, text: string): string[] {
  return [...text.matchAll(/from '(\.[^']+)\.ts'/g)].map(([, path = '']) =>
    normalize(join(dirname(room), path)),
  );
}

function roomsThatMention(pattern: RegExp): string[] {
  return sources
    .filter(({ text }) => pattern.test(text))
    .map(({ room }) => room)
    .toSorted();
}

test('every room has its floor, and imports only from floors below it', () => {
  const floorOf = new Map(FLOORS.flatMap((rooms, floor) => rooms.map((room) => [room, floor])));
  assert.deepEqual([...floorOf.keys()].toSorted(), sources.map(({ room }) => room).toSorted());
  for (const { room, text } of sources) {
    for (const imported of roomsImportedBy(room, text)) {
      assert.ok(floorOf.get(imported)! < floorOf.get(room)!, `${room} imports ${imported}`);
    }
  }
});

test('each thing is done in one place', () => {
  const places: [string, RegExp, string[]][] = [
    ['writes answers', /\.writeHead\(/, ['call']],
    ['opens upstream connections', /\bfetch\(|connectTcp|connectTls/, ['connections', 'upstream']],
    ['knows status and code of an error', /'SERIALIZATION_ERROR'|'INVALID_REQUEST'/, ['errors']],
    ['reads TOML', /smol-toml'/, ['config']],
    ['reads the environment', /process\.env|\{ env \} = process/, ['server']],
    ['reveals keys', /\.reveal\(\)/, ['auth', 'providers/openai', 'secrets']],
    ['ends the process', /process\.exit/, ['server']],
    ['prints', /console\./, []],
  ];
  for (const [what, pattern, rooms] of places) {
    assert.deepEqual(roomsThatMention(pattern), rooms, what);
  }
});

test('smol-toml is the only dependency, and nothing but it and Node is imported', () => {
  assert.deepEqual(Object.keys(packageJson.dependencies), ['smol-toml']);
  const imported = sources.flatMap(({ text }) =>
    [...text.matchAll(/from '([^'.][^']*)'/g)].map(([, name = '']) => name),
  );
  const foreign = new Set(imported.filter((name) => !name.startsWith('node:')));
  assert.deepEqual([...foreign], ['smol-toml']);
});

test('no file grows beyond reading in one sitting', () => {
  for (const { room, text } of sources) {
    assert.ok(text.split('\n').length <= 400, `${room} is too long`);
  }
});

test('package.json and the source name the same version', () => {
  assert.match(read('src/version.ts'), new RegExp(`VERSION = '${packageJson.version}'`));
});

test('the README lists every room with its line count, and names only paths and scripts that exist', () => {
  const readme = read('README.md');
  for (const { room, text } of sources) {
    const row = new RegExp(`\\| \`src/${room}\\.ts\` \\| (\\d+) \\|`).exec(readme);
    assert.ok(row, `README has no row for src/${room}.ts`);
    const lines = text.split('\n').length - 1;
    assert.ok(Math.abs(Number(row[1]) - lines) <= 5, `src/${room}.ts has ${lines} lines`);
  }
  for (const [, path = ''] of readme.matchAll(/`((?:src|test|\.ci)\/[\w./-]*)`/g)) {
    assert.ok(existsSync(join(ROOT, path)), `README names ${path}`);
  }
  for (const [, script = ''] of readme.matchAll(/npm run ([\w:-]+)/g)) {
    assert.ok(packageJson.scripts[script], `README names npm run ${script}`);
  }
});
