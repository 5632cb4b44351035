/** The test runner fails if a test fails, and if it has not run all tests. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test, type TestContext } from 'node:test';

import { emptyFolder, ROOT, startCommand } from './support/process.ts';
import { eventually } from './support/streams.ts';

// Without NODE_TEST_CONTEXT, because a test runner within a test would run nothing.
const COMMAND = [process.execPath, '--import', 'tsx', 'test/run.ts'];

async function runTests(t: TestContext, cwd: string, ...args: readonly string[]) {
  const { exit, stdout, stderr } = startCommand(t, [...COMMAND, ...args], { cwd });
  return { code: await exit, stdout: stdout(), stderr: stderr() };
}

/** Makes a project with these tests alone, and so many others that none has a process alone. */
function projectOf(t: TestContext, files: Readonly<Record<string, string>>): string {
  const folder = emptyFolder(t);
  for (const name of ['test', 'node_modules']) mkdirSync(join(folder, name));
  cpSync(join(ROOT, 'test/support'), join(folder, 'test/support'), { recursive: true });
  cpSync(join(ROOT, 'test/run.ts'), join(folder, 'test/run.ts'));
  for (const name of ['src', 'package.json', 'tsconfig.json'])
    symlinkSync(join(ROOT, name), join(folder, name));
  for (const name of readdirSync(join(ROOT, 'node_modules')))
    symlinkSync(join(ROOT, 'node_modules', name), join(folder, 'node_modules', name));
  const empty = "import { test } from 'node:test';\n";
  const others = Array.from({ length: 11 }, (_, at) => [`other-${at}`, "test('good', () => {});"]);
  for (const [name, text] of [...Object.entries(files), ...others])
    writeFileSync(join(folder, `test/${name}.test.ts`), `${empty}${text}\n`);
  return folder;
}

/** Longer than other files, which are distributed by their size. */
const PADDING = `/* ${'x'.repeat(2000)} */ console.log(${JSON.stringify('x'.repeat(2000))});`;

const NO_PRLIMIT =
  spawnSync('prlimit', ['--version']).status !== 0 && 'there is no prlimit command';

describe('the test runner', () => {
  for (const [what, ...args] of [
    ['no file has the name', 'no-file-has-this-name'],
    ['no test has the title', 'token-bucket', '--title=no test has this title'],
  ] as const) {
    test(`fails if ${what}`, async (t) => {
      const { code, stderr } = await runTests(t, ROOT, ...args);
      assert.equal(code, 1);
      assert.match(stderr, /^no test passed$/m);
    });
  }

  test('succeeds if a test passed', async (t) => {
    const { code, stdout } = await runTests(t, ROOT, 'token-bucket');
    assert.equal(code, 0, stdout);
  });

  for (const [how, statement] of [
    ['is killed', "process.kill(process.pid, 'SIGKILL')"],
    ['ends by itself', 'process.exit(0)'],
  ] as const) {
    test(`names each file that has not run if its process ${how}`, async (t) => {
      const text = `${PADDING}\ntest('ends', () => { ${statement}; });`;
      const { code, stderr } = await runTests(t, projectOf(t, { large: text }));
      assert.equal(code, 1);
      const named = stderr.match(/^not all tests of test\/\S+ have run$/gm) ?? [];
      // Twelve files in six processes.
      assert.equal(named.length, 2, stderr);
      assert.ok(named.includes('not all tests of test/large.test.ts have run'), stderr);
    });
  }

  test('ends the programs of a process that was killed', async (t) => {
    const text = `import { startCommand } from './support/process.ts';
test('starts and ends', async (t) => {
  const { child } = startCommand(t, ['sleep', '600']);
  console.log('started', child.pid);
  await new Promise((resolve) => setTimeout(resolve, 100));
  process.kill(process.pid, 'SIGKILL');
});`;
    const { stdout } = await runTests(t, projectOf(t, { large: text }), 'large');
    const id = Number(/started (\d+)/.exec(stdout)?.[1]);
    assert.ok(id > 0, stdout);
    await eventually(() => isOver(id), 'its program ends');
  });

  test('limits the CPU time of each process', { skip: NO_PRLIMIT }, async (t) => {
    const text = `import { readFileSync } from 'node:fs';
test('prints', () => console.log(readFileSync('/proc/self/limits', 'utf8')));`;
    const { stdout } = await runTests(t, projectOf(t, { large: text }), 'large');
    assert.match(stdout, /^Max cpu time +1800 +/m);
  });

  test('does not wait for a process that something keeps after its tests', async (t) => {
    const text = `test('good', () => { setInterval(() => {}, 1000); });`;
    const folder = projectOf(t, { large: text });
    const { code, stdout } = await runTests(t, folder, 'large');
    assert.equal(code, 1);
    assert.match(stdout, /^no test runs, and this stays: .*Timeout/m);
  });
});

function isOver(id: number): boolean {
  try {
    process.kill(id, 0);
    return false;
  } catch {
    return true;
  }
}
