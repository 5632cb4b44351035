/**
 * Settings of released versions: each is still accepted, or the problem names its replacement.
 * `old/` has each version's gateway.toml.example.
 */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { parseCommandLine } from '../../src/cli/command-line.ts';
import { readSettings } from '../../src/config/read-settings.ts';
import { loadConfig } from '../../src/config/config.ts';
import { withExampleFiles } from '../support/certificate.ts';
import { problemsIn } from '../support/problems.ts';
import { ROOT } from '../support/process.ts';

const FOLDER = join(ROOT, 'test/config/old');
const versions = readdirSync(FOLDER).map((name) => {
  const text = readFileSync(join(FOLDER, name), 'utf8');
  // Turns every setting on.
  return { version: name.replace('.toml', ''), toml: text.replace(/^#(?=[\w["])/gm, '') };
});

/** Removed settings, variables and options, with the last version that had each. */
const REMOVED: Readonly<Record<string, string>> = {
  'server.workers': '0.3.0',
  GATEWAY_WORKERS: '0.3.0',
  '--workers': '0.3.0',
};

/** Returns a value for each `${variable}` in the text. */
function referencesIn(toml: string): Record<string, string> {
  const names = [...toml.matchAll(/\$\{(\w+)\}/g)].map(([, name = '']) => name);
  return Object.fromEntries(names.map((name) => [name, `value-of-${name}`]));
}

/** Returns the variables or options named in remarks, with the values of their settings. */
function named(toml: string, pattern: RegExp): [name: string, value: string][] {
  return [...toml.matchAll(/^\w+ = (.*?) # (.*)$/gm)].flatMap(([, value = '', remark = '']) =>
    [...remark.matchAll(pattern)].map(([name]): [string, string] => [
      name,
      value.replaceAll(/[[\]"${} ]/g, ''),
    ]),
  );
}

/** Checks that the problem names a removed setting and its replacement. */
function assertReplaced(problem: string, version: string): void {
  const [name = ''] = problem.split(' was removed; use ')[0]!.split(':');
  assert.ok(problem.includes(' was removed; use '), `${version}: ${problem}`);
  assert.equal(REMOVED[name], version, problem);
}

for (const { version, toml } of versions) {
  test(`each setting of ${version} is accepted, or its replacement is named`, (t) => {
    const env = { ...referencesIn(toml), ANTHROPIC_API_KEY: 'k' };
    const problems = problemsIn(() => loadConfig({ ...withExampleFiles(t, toml), env }));
    for (const problem of problems) assertReplaced(problem, version);
    const removed = problems.map((problem) => problem.split(':')[0]!.split('.').at(-1)!);
    const without = toml.replace(new RegExp(`^(?:${removed.join('|') || '(?!)'}) = .*$`, 'gm'), '');
    const { providers, aliases } = loadConfig({ ...withExampleFiles(t, without), env });
    assert.equal(providers.registered.length, 6);
    assert.ok(aliases.size >= 2);
  });

  test(`each variable of ${version} is accepted, or its replacement is named`, () => {
    const variables = named(toml, /GATEWAY_[A-Z_]+/g);
    assert.ok(variables.length >= 8, variables.join('\n'));
    for (const [name, value] of variables) {
      const env = {
        [name]: value,
        ANTHROPIC_API_KEY: 'k',
        OPENAI_API_KEY: 'k',
        OLLAMA_API_KEY: 'k',
      };
      const problems = problemsIn(() => {
        const { warnings } = loadConfig({ toml: '', env });
        const unread = warnings.filter((text) => text.includes('no setting reads'));
        assert.deepEqual(unread, []);
      });
      for (const problem of problems) assertReplaced(problem, version);
    }
  });

  test(`each option of ${version} is accepted, or its replacement is named`, () => {
    const options = named(toml, /--[a-z-]+/g);
    assert.ok(options.length >= 2);
    for (const [name, value] of options) {
      try {
        readSettings(parseCommandLine([name, value]), {});
      } catch (error) {
        assertReplaced((error as Error).message, version);
      }
    }
  });
}

test("each removed setting is in its last version's file", () => {
  for (const [name, version] of Object.entries(REMOVED)) {
    const { toml } = versions.find((one) => one.version === version) ?? assert.fail(version);
    assert.match(toml, new RegExp(`(?:^|\\b|#.*)${name.replace(/.*\./, '')}\\b`, 'm'));
  }
});

test('the folder has the settings of each version in the changelog', () => {
  const changelog = readFileSync(join(ROOT, 'CHANGELOG.md'), 'utf8');
  const released = [...changelog.matchAll(/^## (\d+\.\d+\.0)/gm)].map(([, name = '']) => name);
  assert.deepEqual(versions.map(({ version }) => version).toSorted(), released.toSorted());
});
