/**
 * Changes one place of the source at a time, in a copy, and expects the named test file to fail.
 *
 *   npm run test:mutations [-- TEXT]   the rows with TEXT in list.txt
 *   ... --worlds=COUNT                 runs this many worlds instead of the named file
 *   ... --shard=1/8                    runs the first eighth of the rows
 *
 * Tabs separate the columns of list.txt: the file, a text that occurs in it exactly once, the text
 * that replaces it, and the name of the test file. \u23ce is a line end.
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

const AT_ONCE = 2;
/** The CPU time of each process of a run, on Linux. */
const CPU_LIMIT_SECONDS = 180;
const LIMITED =
  spawnSync('prlimit', ['--version']).status === 0 ? ['prlimit', `--cpu=${CPU_LIMIT_SECONDS}`] : [];
const {
  positionals: [filter = ''],
  values: { worlds, shard },
} = parseArgs({
  allowPositionals: true,
  options: { worlds: { type: 'string' }, shard: { type: 'string', default: '1/1' } },
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

interface Mutation {
  readonly row: string;
  readonly file: string;
  readonly now: string;
  readonly mutated: string;
  readonly tests: string;
}

function parseRow(row: string): Mutation {
  const [file, now, mutated, tests] = row
    .split('\t')
    .map((cell) => cell.replaceAll('\u23ce', '\n'));
  if (!file || !now || mutated === undefined || !tests)
    throw new Error(`not four columns with tabs between them: ${row}`);
  return { row, file, now, mutated, tests };
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
async function check({ file: name, now, mutated, tests }: Mutation, cwd: string) {
  const file = join(cwd, name);
  const source = readFileSync(file, 'utf8');
  const count = source.split(now).length - 1;
  if (count !== 1) return `its text occurs ${count} times`;
  try {
    writeFileSync(
      file,
      source.replace(now, () => mutated),
    );
    return await runTests(cwd, tests);
  } finally {
    writeFileSync(file, source);
  }
}

const chosen = readFileSync(join(import.meta.dirname, 'list.txt'), 'utf8')
  .trimEnd()
  .split('\n')
  .filter((row) => row.includes(filter))
  // Neighbours often need the same slow file, so each shard gets some.
  .filter((_, index) => index % parts === part - 1)
  .map(parseRow);
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
