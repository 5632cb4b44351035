import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import {
  loadConfig,
  whyOnlyOneWorker,
  type Config,
  type Machine,
} from '../../src/config/config.ts';
import { compareSettings } from '../../src/config/reload.ts';
import { problemsIn } from '../support/problems.ts';

const LARGE: Machine = { processors: 12, version: '24.1.0', platform: 'linux' };

interface Sources {
  readonly toml?: string;
  readonly env?: Record<string, string>;
  readonly workers?: string;
  readonly machine?: Partial<Machine>;
}

function load({ toml = '', env = {}, workers, machine }: Sources): Config {
  return loadConfig({ toml, env, flags: { workers }, machine: { ...LARGE, ...machine } });
}

const problemsOf = (sources: Sources) => problemsIn(() => load(sources));

const inFile = (value: string) => `[server]\nworkers = ${value}\n`;

describe('workers', () => {
  const counts: [sources: Sources, count: number][] = [
    [{}, 1],
    [{ toml: inFile('1') }, 1],
    [{ toml: inFile('256') }, 256],
    [{ toml: inFile('"auto"') }, 12],
    [{ toml: inFile('"auto"'), machine: { processors: 1000 } }, 256],
    [{ toml: inFile('"${N}"'), env: { N: '3' } }, 3],
    [{ toml: inFile('"${N}"'), env: { N: 'auto' } }, 12],
    [{ toml: inFile('2'), env: { GATEWAY_WORKERS: '3' } }, 3],
    [{ toml: inFile('2'), env: { GATEWAY_WORKERS: 'auto' } }, 12],
    [{ toml: inFile('2'), env: { GATEWAY_WORKERS: '3' }, workers: '4' }, 4],
    [{ env: { GATEWAY_WORKERS: '3' }, workers: 'auto' }, 12],
  ];
  for (const [sources, count] of counts) {
    test(`${JSON.stringify(sources)} means ${count}, and shows it`, () => {
      const { server, resolved } = load(sources);
      assert.equal(server.workers, count);
      assert.equal(resolved.get('server.workers'), count);
    });
  }

  const expected = 'expected an integer from 1 to 256, or "auto"';
  for (const [sources, problem] of [
    [{ env: { GATEWAY_WORKERS: '0' } }, `GATEWAY_WORKERS: found 0, ${expected}`],
    [{ env: { GATEWAY_WORKERS: 'all' } }, `GATEWAY_WORKERS: found "all", ${expected}`],
    [{ workers: '257' }, `--workers: found 257, ${expected}`],
    [{ workers: '' }, `--workers: found "", ${expected}`],
  ] as const) {
    test(`${JSON.stringify(sources)} is refused`, () => {
      assert.deepEqual(problemsOf(sources), [problem]);
    });
  }

  test('stay as they were after a reload, and the log names them', () => {
    const running = load({ toml: inFile('2') });
    const { config, needRestart } = compareSettings(running, load({ toml: inFile('"auto"') }));
    assert.deepEqual(needRestart, ['server.workers']);
    assert.equal(config.server.workers, 2);
  });
});

describe('more than one worker', () => {
  const machines: [version: string, platform: string, isRefused: boolean][] = [
    ['20.20.2', 'linux', true],
    ['22.11.0', 'linux', true],
    ['22.12.0', 'linux', false],
    ['22.20.1', 'linux', false],
    ['24.0.0', 'linux', false],
    ['100.0.0', 'linux', false],
    ['24.0.0', 'darwin', true],
    ['24.0.0', 'win32', true],
  ];
  for (const [version, platform, isRefused] of machines) {
    const machine = { version, platform };
    const text = `Node 22.12 or newer on Linux; this is Node ${version} on ${platform}`;
    test(`${isRefused ? 'cannot' : 'can'} run with Node ${version} on ${platform}`, () => {
      assert.equal(whyOnlyOneWorker(version, platform), isRefused ? text : undefined);
      const problems = isRefused ? [`server.workers: 2 workers need ${text}`] : [];
      assert.deepEqual(problemsOf({ toml: inFile('2'), machine }), problems);
    });
  }

  test('"auto" is one worker there, with a warning that says where it comes from', () => {
    const machine = { version: '20.20.2', processors: 3 };
    const why = 'one worker: more need Node 22.12 or newer on Linux; this is Node 20.20.2 on linux';
    for (const [sources, name] of [
      [{ toml: inFile('"auto"') }, 'server.workers'],
      [{ env: { GATEWAY_WORKERS: 'auto' } }, 'GATEWAY_WORKERS'],
      [{ workers: 'auto' }, '--workers'],
    ] as const) {
      const { server, resolved, warnings } = load({ ...sources, machine });
      assert.deepEqual([server.workers, resolved.get('server.workers')], [1, 1]);
      assert.ok(warnings.includes(`${name}: ${why}`), warnings.join());
    }
    const single = { ...machine, processors: 1 };
    const { warnings } = load({ toml: inFile('"auto"'), machine: single });
    assert.doesNotMatch(warnings.join(), /worker/);
  });

  test('are blamed on where the number comes from, and one is not', () => {
    const machine = { version: '20.20.2', processors: 3 };
    const start = ' workers need Node 22.12 or newer';
    for (const [sources, words] of [
      [{ toml: inFile('3') }, `server.workers: 3${start}`],
      [{ env: { GATEWAY_WORKERS: '3' } }, `GATEWAY_WORKERS: 3${start}`],
      [{ workers: '4' }, `--workers: 4${start}`],
    ] as const) {
      const problems = problemsOf({ ...sources, machine });
      assert.equal(problems.length, 1);
      assert.ok(problems[0]!.startsWith(words), problems.join());
    }
    for (const toml of ['', inFile('1')]) assert.deepEqual(problemsOf({ toml, machine }), []);
  });
});
