/** A request's cost, in counts independent of other load. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { before, test } from 'node:test';

import { buildOnce, ROOT } from './support/process.ts';
import { OVER_FETCH } from './support/transport.ts';

before(buildOnce);

test(
  'a request, a stream and an event allocate, keep and run no more than their budgets',
  { skip: OVER_FETCH },
  async () => {
    const args = ['--import', 'tsx', 'scripts/cost.ts'];
    const stdio = ['ignore', 'pipe', 'inherit'] as const;
    const child = spawn(process.execPath, args, { cwd: ROOT, stdio: [...stdio] });
    const [printed, [code]] = await Promise.all([text(child.stdout), once(child, 'close')]);
    assert.equal(code, 0, printed);
    assert.equal(printed.match(/^.+ [\d.,]+ .*$/gm)?.length, 12, printed);
  },
);
