/**
 * The files of deploy/, as far as they can be checked without their programs. For those, see `npm
 * run test:deploy`.
 */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { warningsOf } from '../src/cli/startup-report.ts';
import { loadConfig, needsKey } from '../src/config/config.ts';
import { PROXIES, settingsOf } from './deploy/proxies.ts';
import { ROOT } from './support/process.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const names = readdirSync(join(ROOT, 'deploy'), { withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map(({ name }) => name);

test('README.md and docs/deployment.md link to exactly the files of deploy/', () => {
  for (const [path, prefix] of [
    ['README.md', 'deploy/'],
    ['docs/deployment.md', '../deploy/'],
  ] as const) {
    const links = read(path)
      .split(`](${prefix}`)
      .slice(1)
      .map((rest) => rest.split(')')[0]!);
    assert.deepEqual(new Set(links.filter((name) => name !== '')), new Set(names), path);
  }
});

test('every file of deploy/ begins with a comment that has the command to use it', () => {
  // JSON has no comments. docs/metrics.md describes how to import the dashboard.
  for (const name of names.filter((one) => !one.endsWith('.json'))) {
    const [comment = ''] = /^(?:#.*\n)+/.exec(read(`deploy/${name}`)) ?? [];
    assert.match(comment, /^# {3}[a-z]+ .*deploy\//m, name);
  }
});

test('no file of deploy/ contains a key or an image digest', () => {
  for (const name of names) {
    assert.doesNotMatch(read(`deploy/${name}`), /sk-\w|BEGIN|sha256:[0-9a-f]/, name);
  }
});

test('git ignores the folders with settings and keys that compose.yaml expects', () => {
  const folders = new Set(
    [...read('deploy/compose.yaml').matchAll(/ \.\/(\w+)/g)].map(([, name]) => `deploy/${name}/`),
  );
  assert.deepEqual([...folders].toSorted(), ['deploy/secrets/', 'deploy/settings/']);
  const ignored = read('.gitignore').split('\n');
  for (const folder of folders) assert.ok(ignored.includes(folder), folder);
});

test('the image and the units allow more name lookups than two at a time', () => {
  const recipes = names.filter((name) => /^Dockerfile$|\.service$/.test(name));
  assert.equal(recipes.length, 3);
  for (const name of recipes) {
    assert.match(read(`deploy/${name}`), /^(?:ENV |Environment=)UV_THREADPOOL_SIZE=16$/m, name);
  }
});

test('the settings for each proxy load without a warning, and have a key', () => {
  for (const { file } of PROXIES) {
    const config = loadConfig({ toml: settingsOf(file), env: { GATEWAY_TOKEN: 'key-0123456789' } });
    assert.deepEqual(warningsOf(config), [], file);
    assert.ok(needsKey(config), file);
  }
});

test('the command for each proxy checks the file before it copies it', () => {
  for (const [name, check] of [
    ['nginx.conf', 'nginx -t -c'],
    ['Caddyfile', 'caddy validate --config deploy/Caddyfile &&'],
    ['haproxy.cfg', 'haproxy -c -f deploy/haproxy.cfg &&'],
  ] as const) {
    const text = read(`deploy/${name}`);
    assert.ok(text.includes(check), name);
    assert.ok(text.indexOf(check) < text.indexOf('cp deploy/'), name);
  }
});
