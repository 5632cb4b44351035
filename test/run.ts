/** Runs the test files given by name, or all of them, and fails when no test ran. */

import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { finished } from 'node:stream/promises';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';

const folder = import.meta.dirname;
const wanted = process.argv.slice(2);
const files = readdirSync(folder)
  .filter((name) => name.endsWith('.test.ts'))
  .filter((name) => wanted.length === 0 || wanted.some((part) => name.includes(part)))
  .map((name) => `${folder}/${name}`);

let passed = 0;
const events = run({ files, concurrency: availableParallelism(), timeout: 60_000 });
events.on('test:pass', ({ details, name }) => {
  // A file without tests passes as one test that bears the file's name.
  if (details.type !== 'suite' && !files.some((file) => file.endsWith(name))) passed += 1;
});
events.on('test:fail', () => {
  process.exitCode = 1;
});
const report = events.compose(spec);
report.pipe(process.stdout);
await finished(report);
if (passed === 0) {
  console.error('no test ran');
  process.exitCode = 1;
}
