/**
 * Changes one line of the source at a time, in a copy, and expects the test named for it to fail
 * (`npm run test:mutations [-- TEXT]`, for those in whose row TEXT occurs).
 */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { MUTATIONS, type Mutation } from './table.ts';

const AT_ONCE = 2;
const RUN_LIMIT_MS = 180_000;

/** A copy of the project; its packages are linked, one by one, because test/run.ts puts a folder beside them. */
function copyProject(): string {
  const folder = mkdtempSync(join(tmpdir(), 'mutations-'));
  const isCopied = (path: string) => !/^(?:\.git|dist|node_modules)$/.test(path);
  for (const name of readdirSync('.').filter(isCopied)) {
    cpSync(name, join(folder, name), {
      recursive: true,
      filter: (path) => !path.endsWith('node_modules'),
    });
  }
  mkdirSync(join(folder, 'node_modules'));
  for (const name of readdirSync('node_modules').filter((one) => !one.startsWith('.tests'))) {
    symlinkSync(join(process.cwd(), 'node_modules', name), join(folder, 'node_modules', name));
  }
  return folder;
}

interface Outcome {
  /** Titles of what failed. */
  readonly failed: readonly string[];
  readonly passed: number;
  readonly output: string;
}

async function runTests(cwd: string, tests: string, title: string): Promise<Outcome> {
  const args = ['--import', 'tsx', 'test/run.ts', tests, `--title=${title}`];
  // A group of its own, so that what it has started ends with it.
  const env = { ...process.env, TEST_SWEEPS: 'all' };
  const child = spawn(process.execPath, args, { cwd, detached: true, env });
  let output = '';
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (output += chunk.toString()));
  const limit = setTimeout(() => process.kill(-child.pid!, 'SIGKILL'), RUN_LIMIT_MS);
  await once(child, 'close');
  clearTimeout(limit);
  const failed = [...output.matchAll(/^ *\u2716 (.*) \([\d.]+ms\)$/gm)].map(([, name]) => name!);
  return { failed, passed: Number(/^\u2139 pass (\d+)$/m.exec(output)?.[1] ?? 0), output };
}

/** What is wrong with a row of the table; `undefined` where its test notices the change. */
async function check(mutation: Mutation, cwd: string): Promise<string | undefined> {
  const { now, mutated, tests, title } = mutation;
  const file = join(cwd, mutation.file);
  const source = readFileSync(file, 'utf8');
  const count = source.split(now).length - 1;
  if (count !== 1) return `its text occurs ${count} times`;
  const isNamed = (name: string) => name.startsWith(title);
  try {
    const before = await runTests(cwd, tests, title);
    if (before.failed.length > 0) return 'its test fails without it too';
    if (before.passed === 0) return 'its test did not run';
    writeFileSync(
      file,
      source.replace(now, () => mutated),
    );
    const { failed, passed, output } = await runTests(cwd, tests, title);
    if (failed.some(isNamed)) return undefined;
    return failed.length > 0 || passed === 0 ? `another failure\n${output}` : 'it survives';
  } finally {
    writeFileSync(file, source);
  }
}

const [filter = ''] = process.argv.slice(2);
const chosen = MUTATIONS.filter((mutation) => Object.values(mutation).join('\n').includes(filter));
let passed = 0;
let failed = 0;

async function work(queue: Mutation[]): Promise<void> {
  const cwd = copyProject();
  try {
    for (let mutation = queue.shift(); mutation; mutation = queue.shift()) {
      const problem = await check(mutation, cwd);
      if (problem) failed += 1;
      else passed += 1;
      const { file, now, mutated } = mutation;
      const change = `${file}: ${now} \u2192 ${mutated || '(removed)'}`;
      console.log(problem ? `\u2716 ${change}\n  ${problem}` : `\u2714 ${change}`);
    }
  } finally {
    rmSync(cwd, { recursive: true, force: true });
  }
}

const queue = [...chosen];
await Promise.all(Array.from({ length: Math.min(AT_ONCE, queue.length) }, async () => work(queue)));
console.log(`${passed} passed, ${failed} failed`);
if (failed > 0 || passed === 0) process.exitCode = 1;
