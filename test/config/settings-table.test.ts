/** The table of settings, gateway.schema.json, docs/configuration.md, gateway.toml.example and the reader agree. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';

import { loadConfig } from '../../src/config/config.ts';
import { accepts, type Rows } from '../../src/config/setting-kinds.ts';
import { SETTINGS } from '../../src/config/settings-table.ts';
import { problemsIn } from '../support/problems.ts';
import { ROOT } from '../support/process.ts';
import { GENERATED } from '../../scripts/settings-docs.ts';

const read = (name: string) => readFileSync(join(ROOT, name), 'utf8');
const example = read('gateway.toml.example');
const sections = Object.entries<Rows>(SETTINGS);

/** The keys that a section may have, as the reader itself lists them. */
function keysOf(section: string): string[] {
  const lines = section === '' ? '' : `[${section.replace(/<\w+>/, 'openai')}]\n`;
  const toml = `${lines}${'x'.repeat(40)} = 1`;
  const text = problemsIn(() => loadConfig({ toml, env: {} })).join('\n');
  const [, known = ''] = /known: (.*)$/m.exec(text) ?? assert.fail(text);
  return known.split(', ');
}

for (const [name, generate] of Object.entries(GENERATED)) {
  test(`${name} is what \`npm run generate\` writes`, () => {
    assert.equal(read(name), generate(read(name)));
  });
}

describe('the reader reads each key of the table, and no other:', () => {
  for (const [section, rows] of sections) {
    if (section === 'providers' || section === 'aliases') continue;
    test(`[${section}]`, () => {
      const isSection = (key: string) =>
        sections.some(([name]) => name.startsWith(`${section}.${key}`));
      const keys = keysOf(section).filter((key) => !isSection(key));
      assert.deepEqual(keys.toSorted(), Object.keys(rows).toSorted());
    });
  }

  test('[providers] besides the providers', () => {
    const builtIn = /^(?:[a-z_]+)$/;
    const keys = keysOf('providers').slice(0, 3);
    assert.deepEqual(keys, Object.keys(SETTINGS.providers));
    assert.ok(keys.every((key) => builtIn.test(key)));
  });

  test('the top', () => {
    const tops = new Set(sections.map(([name]) => name.split('.')[0]!));
    assert.deepEqual(keysOf('').toSorted(), [...tops].toSorted());
  });
});

test('every default of the table is allowed by its own row', () => {
  for (const [section, rows] of sections) {
    for (const [key, row] of Object.entries(rows)) {
      if (row.default !== undefined) assert.ok(accepts(row, row.default), `${section}.${key}`);
    }
  }
});

describe('gateway.toml.example', () => {
  const complete = example.replace(/^#(?=[\w["])/gm, '');
  const parts = complete.split(/^(?=\[)/m);

  test('begins with the line by which editors find the schema', () => {
    assert.ok(example.startsWith('#:schema ./gateway.schema.json\n'));
  });

  for (const [section, rows] of sections) {
    test(`has every key of [${section}]`, () => {
      const header = new RegExp(
        `^\\[${section.replaceAll('.', '\\.').replace(/<\w+>/, '\\w+')}\\]`,
      );
      const bodies = parts.filter((part) => header.test(part)).join('\n');
      for (const key of Object.keys(rows)) {
        const name = key.replace(/<\w+>/, '\\w+');
        // A remark behind a key may name the other way to write it.
        assert.match(bodies, new RegExp(`^${name} = |# or ${name} = `, 'm'));
      }
    });
  }

  test('names every variable of the table, and those that name a file', () => {
    const names = sections.flatMap(([, rows]) =>
      Object.values(rows).flatMap(({ env }) => env ?? []),
    );
    for (const name of [...names, 'GATEWAY_CONFIG_TOML']) assert.ok(example.includes(name), name);
  });
});
