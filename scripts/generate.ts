/** Writes the files generated from the settings table (`npm run generate`). */

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { ROOT } from '../test/support/process.ts';
import { GENERATED } from './settings-docs.ts';

for (const [name, generate] of Object.entries(GENERATED)) {
  const path = join(ROOT, name);
  writeFileSync(path, generate(existsSync(path) ? readFileSync(path, 'utf8') : ''));
}
