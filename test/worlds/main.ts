/**
 * Runs worlds on all cores: `npm run test:worlds -- COUNT [FIRST]`; `-- --seed=SEED` prints one
 * world. An interrupted run goes on if it is started with the same numbers. The first failing seeds
 * are made smaller and printed.
 */

import { fork } from 'node:child_process';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { build } from 'esbuild';

import { generate } from './generate.ts';
import { print } from './history.ts';
import { problemsOf, shrink } from './shrink.ts';
import { runWorld } from './world.ts';

const BLOCK = 100;
const MAX_FAILURES = 5;
const BUNDLE = join('node_modules', `.worlds-${process.pid}.mjs`);

type Result = { readonly failed: readonly { readonly seed: number; readonly text: string }[] };

/** Prints a whole world. */
async function show(seed: number): Promise<void> {
  const plan = generate(seed);
  console.log(print(await runWorld(plan)));
  console.log((await problemsOf(plan)).join('\n') || 'nothing is wrong');
}

/** Returns the failing world, made smaller, as text. */
async function explain(seed: number, problems: readonly string[]): Promise<string> {
  Error.stackTraceLimit = 10;
  const smallest = await shrink(generate(seed));
  const left = await problemsOf(smallest);
  const history = await runWorld(smallest).then(print, (error: Error) => `${error.stack}`);
  const found = problems.slice(0, 5).join('\n  ');
  return `seed ${seed}:\n  ${found}\nmade smaller:\n${history}\n  ${left.join('\n  ')}`;
}

async function work(first: number): Promise<Result> {
  const failed = [];
  for (let seed = first; seed < first + BLOCK; seed += 1) {
    // Worlds throw thousands of errors, and their stacks are not read.
    Error.stackTraceLimit = 0;
    const problems = await problemsOf(generate(seed));
    if (problems.length > 0) failed.push({ seed, text: await explain(seed, problems) });
    if (failed.length >= MAX_FAILURES) break;
  }
  return { failed };
}

async function runAll(count: number, first: number): Promise<void> {
  const stateFile = join('node_modules', `.worlds-${first}-${count}.json`);
  const done = new Set<number>(
    existsSync(stateFile) ? (JSON.parse(readFileSync(stateFile, 'utf8')) as number[]) : [],
  );
  const blocks = Array.from(
    { length: Math.ceil(count / BLOCK) },
    (_, index) => first + index * BLOCK,
  );
  const waiting = blocks.filter((block) => !done.has(block));
  const seeds: number[] = [];
  await build({
    entryPoints: [import.meta.filename],
    outfile: BUNDLE,
    bundle: true,
    packages: 'external',
    conditions: ['bundle'],
    platform: 'node',
    format: 'esm',
    target: 'node20.19',
    sourcemap: 'inline',
    logLevel: 'warning',
  });
  const startMs = Date.now();
  const runOne = () =>
    new Promise<void>((resolve) => {
      const child = fork(BUNDLE, ['--worker'], {
        execArgv: ['--enable-source-maps', '--max-semi-space-size=64'],
      });
      const next = () => {
        const block = seeds.length < MAX_FAILURES ? waiting.shift() : undefined;
        if (block === undefined) return child.disconnect();
        return child.send(block, () => (current = block));
      };
      let current = 0;
      child.on('message', ({ failed }: Result) => {
        done.add(current);
        for (const { seed, text } of failed) {
          seeds.push(seed);
          console.log(text);
        }
        writeFileSync(stateFile, JSON.stringify([...done]));
        next();
      });
      child.on('exit', () => resolve());
      next();
    });
  try {
    await Promise.all(Array.from({ length: availableParallelism() }, runOne));
  } finally {
    rmSync(BUNDLE, { force: true });
  }
  const seconds = (Date.now() - startMs) / 1000;
  console.log(
    `${done.size * BLOCK} worlds from seed ${first}, ${seconds.toFixed(0)} s, ` +
      `failed: ${seeds.join(' ') || 'none'}`,
  );
  if (seeds.length > 0) process.exitCode = 1;
  rmSync(stateFile, { force: true });
}

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { seed: { type: 'string' }, worker: { type: 'boolean' } },
});
if (values.worker) {
  process.on(
    'message',
    (first: number) => void work(first).then((result) => process.send!(result)),
  );
} else if (values.seed !== undefined) await show(Number(values.seed));
else await runAll(Number(positionals[0] ?? 1000), Number(positionals[1] ?? 1));
