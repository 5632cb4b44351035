/** The settings table, the reader, and the files and documents made from it agree. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { loadConfig } from '../../src/config/config.ts';
import type { Rows } from '../../src/config/setting-kinds.ts';
import { SETTINGS } from '../../src/config/settings-table.ts';
import { withExampleFiles } from '../support/certificate.ts';
import { problemsIn } from '../support/problems.ts';
import { ROOT } from '../support/process.ts';
import { GENERATED } from '../../scripts/settings-docs.ts';

const read = (name: string) => readFileSync(join(ROOT, name), 'utf8');
const example = read('gateway.toml.example');
const complete = example.replace(/^#(?=[\w["])/gm, '');
const sections = Object.entries<Rows>(SETTINGS);

/** Returns a section's keys accepted by the reader. */
function keysOf(section: string): string[] {
  const lines = section === '' ? '' : `[${section.replace(/<\w+>/, 'openai')}]\n`;
  const toml = `${lines}${'x'.repeat(40)} = 1`;
  const text = problemsIn(() => loadConfig({ toml, env: {} })).join('\n');
  const [, known = ''] = /known: (.*)$/m.exec(text) ?? assert.fail(text);
  return known.split(', ');
}

for (const [name, generate] of Object.entries(GENERATED)) {
  test(`${name} is the output of \`npm run generate\``, () => {
    assert.equal(read(name), generate(read(name)));
  });
}

test('the reader reads exactly the keys of the table', () => {
  for (const [section, rows] of sections) {
    if (section === 'aliases') continue;
    const isSection = (key: string) =>
      sections.some(([name]) => name.startsWith(`${section}.${key}`));
    // The built-in providers follow.
    const most = section === 'providers' ? 3 : Infinity;
    const keys = keysOf(section).slice(0, most);
    const own = keys.filter((key) => !isSection(key));
    assert.deepEqual(own.toSorted(), Object.keys(rows).toSorted(), section);
  }
  const tops = new Set(sections.map(([name]) => name.split('.')[0]!));
  assert.deepEqual(keysOf('').toSorted(), [...tops].toSorted());
});

test('every default of the table is allowed by its own row', () => {
  for (const [section, rows] of sections) {
    for (const [key, row] of Object.entries(rows)) {
      if (row.default !== undefined) assert.ok(row.accepts(row.default), `${section}.${key}`);
    }
  }
});

test('gateway.toml.example has every key and variable, and names its schema', () => {
  assert.ok(example.startsWith('#:schema ./gateway.schema.json\n'));
  for (const [section, rows] of sections) {
    const name = section.replaceAll('.', '\\.').replace(/<\w+>/, '\\w+');
    const parts = complete.split(/^(?=\[)/m).filter((part) => part.match(`^\\[${name}\\]`));
    for (const [key, { env }] of Object.entries(rows)) {
      const named = key.replace(/<\w+>/, '\\w+');
      // The remark behind a key may name its other spelling.
      assert.match(parts.join('\n'), new RegExp(`^${named} = |# or ${named} = `, 'm'));
      assert.ok(!env || example.includes(env), `${env}`);
    }
  }
  assert.ok(example.includes('GATEWAY_CONFIG_TOML'));
});

test('gateway.toml.example has the defaults, and loads with every setting turned on', (t) => {
  const load = (toml: string, env = {}) => loadConfig({ ...withExampleFiles(t, toml), env });
  assert.deepEqual(load(example), load(''));
  const names = [...example.matchAll(/\$\{(\w+)\}/g)].map(([, name = '']) => name);
  assert.ok(names.length > 2);
  const env = Object.fromEntries(names.map((name) => [name, `value-of-${name}`]));
  const more = { GATEWAY_RATE_LIMIT_ENABLED: 'true', ANTHROPIC_API_KEY: 'k' };
  const { warnings, providers } = load(complete, { ...env, ...more });
  // With all settings on, the example has both a fallback and embeddings.
  assert.match(warnings.join('\n'), /^providers\.fallback: does not apply to \/v1\/embeddings.*$/);
  const ids = providers.registered.map(({ id }) => id);
  for (const id of ['openai', 'ollama', 'vllm', 'lmstudio']) assert.ok(ids.includes(id), id);
});
