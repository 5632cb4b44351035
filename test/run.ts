/**
 * Runs all test files, or those whose names contain an argument. Fails if no test passed.
 * `--title=TEXT` runs only tests with TEXT in their titles. With `TEST_BAIL` set, the first failed
 * test ends the run, because the others may all wait for their limits (Node 22 or newer).
 */

import { spawnSync } from 'node:child_process';
import {
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename, join, relative, resolve } from 'node:path';
import { finished } from 'node:stream/promises';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { parseArgs } from 'node:util';

import { build, type Plugin } from 'esbuild';

import { endGroup } from './support/process.ts';
import { readProgress } from './support/progress.ts';
import { SWEEPS } from './support/sweep.ts';

const { positionals: wanted, values } = parseArgs({
  allowPositionals: true,
  options: { title: { type: 'string' } },
});

/**
 * Files left out by `npm test`: whole gateways under load, which take half a minute of CPU
 * together.
 */
const LEFT_OUT =
  /^(?:drain-load|package|prometheus|replicas|run|store-away|store-check)\.test\.ts$/;

/** Folders with their own script, because they need more than Node. */
const OWN_SCRIPT = /^(?:browser|clients|container|deploy|otlp|taplo)$/;
const FOLDERS = readdirSync(import.meta.dirname, { withFileTypes: true })
  .filter((entry) => entry.isDirectory() && !OWN_SCRIPT.test(entry.name))
  .map(({ name }) => name);

function isChosen(path: string): boolean {
  const name = basename(path);
  if (wanted.length > 0) return wanted.some((part) => name.includes(part));
  if (SWEEPS !== 'only') return SWEEPS !== undefined || !LEFT_OUT.test(name);
  const text = readFileSync(join(import.meta.dirname, path), 'utf8');
  return LEFT_OUT.test(name) || /'\.\.?\/support\/sweep\.ts'/.test(text);
}

const names = ['.', ...FOLDERS]
  .flatMap((folder) =>
    readdirSync(join(import.meta.dirname, folder)).map((name) => join(folder, name)),
  )
  .filter((path) => path.endsWith('.test.ts') && isChosen(path));

function escapePattern(text: string): RegExp {
  return new RegExp(text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&'));
}

/**
 * Gives each test file its own copy of the wrapper, because Node reports a failed test at the
 * wrapper's call.
 */
const limitTests: Plugin = {
  name: 'limit-tests',
  setup(bundler) {
    const wrapper = join(import.meta.dirname, 'support', 'node-test.ts');
    bundler.onResolve({ filter: /^node:test$/ }, ({ importer }) =>
      importer === wrapper ? { external: true } : { path: wrapper, suffix: `?${importer}` },
    );
  },
};

// Below node_modules, so packages are found from there. A folder for each run, because two may run.
const outdir = `node_modules/.tests-${process.pid}`;
mkdirSync(outdir);
const progress = resolve(outdir, 'progress');
writeFileSync(progress, '');
process.env['TEST_PROGRESS'] = progress;
process.on('exit', () => {
  for (const id of readProgress(progress).groups) endGroup(id);
  rmSync(outdir, { recursive: true, force: true });
});
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(1));

/**
 * The CPU time of each process, against loops that never end, which no timer of their process can
 * end. Linux alone has it. Every other hang has a limit in `support/node-test.ts`.
 */
const CPU_LIMIT_SECONDS = 1800;
spawnSync('prlimit', [`--pid=${process.pid}`, `--cpu=${CPU_LIMIT_SECONDS}:`]);

// All files at once, because each would take half a second of CPU to compile its own copies.
await build({
  entryPoints: names.map((name) => join(import.meta.dirname, name)),
  outdir,
  outbase: import.meta.dirname,
  bundle: true,
  splitting: true,
  packages: 'external',
  conditions: ['bundle'],
  plugins: [limitTests],
  platform: 'node',
  format: 'esm',
  target: 'node20.19',
  sourcemap: 'linked',
  logLevel: 'warning',
});
/**
 * Matches files with state of the whole process: memory, handles, and setup for a whole file. All
 * other files share processes, so only a few processes load and compile the gateway.
 */
const ALONE =
  /\b(?:createMemoryProbe|getActiveResourcesInfo|cpuUsage|residentBytes)\b|^(?:before|after)\((?!buildOnce\))/m;
const PROCESSES = 6;

/** Distributes the files. Returns a file for each process, which imports its share in sequence. */
function shareProcesses(built: readonly string[]): string[] {
  const shares: string[][] = Array.from({ length: PROCESSES }, () => []);
  built.forEach((name, i) => shares[i % PROCESSES]!.push(`./${name}`));
  return shares.map((share, i) => {
    const file = join(outdir, `share-${i}.test.js`);
    // A file that cannot be loaded counts as a failed test, and hides no other file.
    const text = `import { test } from 'node:test';
for (const file of ${JSON.stringify(share)})
  await import(file).catch((error) => test(file, () => { throw error; }));\n`;
    writeFileSync(file, text);
    return file;
  });
}

function isAlone(name: string): boolean {
  // Few files are named, so none needs to share.
  if (wanted.length > 0 || values.title !== undefined) return true;
  return ALONE.test(readFileSync(join(import.meta.dirname, name), 'utf8'));
}

// The largest first, because they probably take longest and should not start last.
const toJs = (name: string) => name.replace(/ts$/, 'js');
const bySize = (list: readonly string[]) =>
  list
    .map(toJs)
    .toSorted((a, b) => statSync(join(outdir, b)).size - statSync(join(outdir, a)).size);
const shared = bySize(names.filter((name) => !isAlone(name)));
const alone = bySize(names.filter(isAlone)).map((name) => join(outdir, name));
const files = shared.length > 0 ? [...shareProcesses(shared), ...alone] : alone;
// Replaces tsx's flags. A whole run goes without source maps, which take time.
process.execArgv = wanted.length > 0 ? ['--enable-source-maps'] : [];

let passed = 0;
// More than there are cores, because some files mostly wait.
const concurrency = availableParallelism() + 2;
const events = run({
  files,
  concurrency,
  ...(values.title === undefined ? {} : { testNamePatterns: [escapePattern(values.title)] }),
});
events.on('test:pass', ({ details, name, skip }) => {
  // A file without tests passes as a test with the file's name, and a skipped test passes too.
  if (details.type !== 'suite' && !name.endsWith('.test.js') && skip === undefined) passed += 1;
});
events.on('test:fail', () => {
  process.exitCode = 1;
});
if (process.env['TEST_BAIL']) {
  events.on('test:complete', ({ name, details }) => {
    if (details.passed) return;
    writeSync(1, `\u2716 ${name} (${details.duration_ms}ms)\n`);
    process.exit(1);
  });
}
const report = events.compose(spec);
report.pipe(process.stdout);
await finished(report);
// With a title, the other tests of a file do not run.
if (values.title === undefined) {
  const { counts } = readProgress(progress);
  const built = names.map((name) => resolve(outdir, toJs(name)));
  for (const name of new Set([...built, ...counts.keys()])) {
    if (counts.get(name) === 0) continue;
    const source = relative(resolve(outdir), name).replace(/js$/, 'ts');
    console.error(`not all tests of ${join('test', source)} have run`);
    process.exitCode = 1;
  }
}
if (passed === 0) {
  console.error('no test passed');
  process.exitCode = 1;
}
