/** Writes what is generated from the settings table and from the results of truth/. */

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { ROOT } from '../test/support/process.ts';
import { GENERATED } from './settings-docs.ts';
import { TRUTH_TABLES } from './truth-docs.ts';

for (const [name, generate] of Object.entries({ ...GENERATED, ...TRUTH_TABLES })) {
  const path = join(ROOT, name);
  writeFileSync(path, generate(existsSync(path) ? readFileSync(path, 'utf8') : ''));
}
