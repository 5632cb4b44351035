/** Several processes at one port: where they can be had, and what is said of worker threads, which there were. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ConfigError, loadConfig } from '../../src/config/config.ts';

type Sources = Parameters<typeof loadConfig>[0];

function problemsOf(sources: Partial<Sources>): readonly string[] {
  try {
    loadConfig({ toml: '', env: {}, ...sources });
  } catch (error) {
    assert.ok(error instanceof ConfigError);
    return error.problems;
  }
  return [];
}

/** Gives properties of `process` other values, and returns a function that restores them. */
function replaceProcess(values: Partial<typeof process>): () => void {
  const former = Object.keys(values).map(
    (name) => [name, Object.getOwnPropertyDescriptor(process, name)!] as const,
  );
  for (const [name, value] of Object.entries(values)) {
    Object.defineProperty(process, name, { value, configurable: true });
  }
  return () => {
    for (const [name, descriptor] of former) Object.defineProperty(process, name, descriptor);
  };
}

const TOML = '[server]\nreuse_port = true';

test('reuse_port is refused below Node 22.12 and elsewhere than on Linux, with the reason', () => {
  for (const [version, platform, isRefused] of [
    ['22.12.0', 'linux', false],
    ['24.0.0', 'linux', false],
    ['22.11.9', 'linux', true],
    ['20.19.0', 'linux', true],
    ['24.0.0', 'darwin', true],
  ] as const) {
    const restore = replaceProcess({
      platform,
      versions: { ...process.versions, node: version },
    });
    const expected = `server.reuse_port: needs Linux and Node 22.12 or newer; this is Node ${version} on ${platform}`;
    assert.deepEqual(problemsOf({ toml: TOML }), isRefused ? [expected] : []);
    assert.deepEqual(problemsOf({}), []);
    restore();
  }
});

test('workers are refused in the file and as a variable, and what takes their place is named', () => {
  for (const [name, sources] of [
    ['server.workers', { toml: '[server]\nworkers = 2' }],
    ['GATEWAY_WORKERS', { env: { GATEWAY_WORKERS: 'auto' } }],
  ] as const) {
    const [problem = '', ...others] = problemsOf(sources);
    assert.ok(problem.startsWith(`${name}: is no setting any more; `), problem);
    assert.match(problem, /\[server\] reuse_port = true/);
    assert.deepEqual(others, []);
  }
  assert.deepEqual(problemsOf({ env: { GATEWAY_WORKERS: '' } }), []);
});
