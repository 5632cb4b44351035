/**
 * Changes one place of the source at a time, in a copy, and expects the named test file to fail.
 *
 *   npm run test:mutations [-- TEXT]   the rows of list.txt with TEXT in them or in the file's path
 *   ... --worlds=COUNT                 runs this many worlds instead of the named file
 *   ... --shard=1/8                    runs the first eighth of the rows
 *   ... --rename FROM TO               renames a name in all rows, and runs none
 *
 * Rows that are not found in the source fail whatever TEXT is, because their file is unknown.
 */

import { spawn, spawnSync } from 'node:child_process';
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
import { parseArgs } from 'node:util';

import { endGroup } from '../support/process.ts';
import { PlaceFinder, readRows, renameInRows, replaceAt, type Mutation } from './rows.ts';

const AT_ONCE = 2;
/** The CPU time of each process of a run, on Linux. */
const CPU_LIMIT_SECONDS = 180;
const LIMITED =
  spawnSync('prlimit', ['--version']).status === 0 ? ['prlimit', `--cpu=${CPU_LIMIT_SECONDS}`] : [];
const LIST = join(import.meta.dirname, 'list.txt');
const {
  positionals: [filter = '', newName],
  values: { worlds, shard, rename },
} = parseArgs({
  allowPositionals: true,
  options: {
    worlds: { type: 'string' },
    shard: { type: 'string', default: '1/1' },
    rename: { type: 'boolean', default: false },
  },
});
const [part = 0, parts = 0] = shard.split('/').map(Number);
if (!(part >= 1 && part <= parts)) throw new Error(`no shard: ${shard}`);

/**
 * Copies the project. Its packages are linked one by one, because test/run.ts puts a folder beside
 * them.
 */
function copyProject(): string {
  const folder = mkdtempSync(join(tmpdir(), 'mutations-'));
  const isCopied = (path: string) => !/^(?:\.git|dist|node_modules)$/.test(path);
  for (const name of readdirSync('.').filter(isCopied)) {
    cpSync(name, join(folder, name), {
      recursive: true,
      // A younger package-lock.json would make `npm run setup` install into the tests' own folder.
      preserveTimestamps: true,
      filter: (path) => !path.endsWith('node_modules'),
    });
  }
  mkdirSync(join(folder, 'node_modules'));
  for (const name of readdirSync('node_modules').filter((one) => !one.startsWith('.tests'))) {
    symlinkSync(join(process.cwd(), 'node_modules', name), join(folder, 'node_modules', name));
  }
  return folder;
}

/** Returns why the tests did not notice the change; undefined once a test has failed. */
async function runTests(cwd: string, tests: string): Promise<string | undefined> {
  // A process group, so its children end with it.
  const own = { TEST_SWEEPS: 'all', TEST_BAIL: 'yes', ...(worlds && { WORLDS: worlds }) };
  const env = { ...process.env, ...own };
  const args = ['--import', 'tsx', 'test/run.ts', worlds ? 'worlds' : tests];
  const [program, ...rest] = [...LIMITED, process.execPath, ...args];
  const child = spawn(program!, rest, { cwd, detached: true, env });
  let output = '';
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (output += chunk.toString()));
  await once(child, 'close');
  endGroup(child.pid!);
  if (/^ *\u2716 .* \([\d.]+ms\)$/m.test(output)) return undefined;
  const haveRun = /^\u2139 pass [1-9]/m.test(output) && /^\u2139 fail 0$/m.test(output);
  return haveRun ? 'it survives' : `no test ran\n${output}`;
}

/** Returns a row's problem; undefined if a test notices the change. */
async function check(mutation: Mutation, cwd: string): Promise<string | undefined> {
  const place = places.find(mutation);
  if (typeof place === 'number') return `its text occurs ${place} times`;
  const file = join(cwd, place.source.file);
  try {
    writeFileSync(file, replaceAt(place, mutation));
    return await runTests(cwd, mutation.tests);
  } finally {
    writeFileSync(file, place.source.text);
  }
}

function isChosen(mutation: Mutation): boolean {
  if (mutation.row.includes(filter)) return true;
  const place = places.find(mutation);
  return typeof place === 'number' || place.source.file.includes(filter);
}

const list = readFileSync(LIST, 'utf8');
if (rename) {
  if (newName === undefined) throw new Error('--rename needs two names');
  writeFileSync(LIST, renameInRows(list, filter, newName));
  process.exit();
}
const places = new PlaceFinder('.');
const chosen = readRows(list)
  .filter(isChosen)
  // Neighbours often need the same slow file, so each shard gets some.
  .filter((_, index) => index % parts === part - 1);
let passed = 0;
let failed = 0;

async function work(queue: Mutation[]): Promise<void> {
  const cwd = copyProject();
  try {
    for (let mutation = queue.shift(); mutation; mutation = queue.shift()) {
      const problem = await check(mutation, cwd);
      if (problem) failed += 1;
      else passed += 1;
      console.log(problem ? `\u2716 ${mutation.row}\n  ${problem}` : `\u2714 ${mutation.row}`);
    }
  } finally {
    rmSync(cwd, { recursive: true, force: true });
  }
}

const queue = [...chosen];
await Promise.all(Array.from({ length: Math.min(AT_ONCE, queue.length) }, async () => work(queue)));
console.log(`${passed} passed, ${failed} failed`);
if (failed > 0 || passed === 0) process.exitCode = 1;
