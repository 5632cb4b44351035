/** A request's cost, in counts independent of other load. */

import assert from 'node:assert/strict';
import { before, test } from 'node:test';

import { buildOnce, ROOT, startCommand } from './support/process.ts';
import { OVER_FETCH } from './support/transport.ts';

before(buildOnce);

test(
  'a request, a stream and an event allocate, keep and run no more than their budgets',
  // Without a limit, because a busy machine gives the script as little time as it likes.
  { skip: OVER_FETCH, timeout: Infinity },
  async (t) => {
    const command = [process.execPath, '--import', 'tsx', 'scripts/cost.ts'];
    const { exit, stdout, stderr } = startCommand(t, command, { cwd: ROOT });
    const code = await exit;
    const printed = stdout();
    assert.equal(code, 0, printed + stderr());
    assert.equal(printed.match(/^.+ [\d.,]+ .*$/gm)?.length, 12, printed);
  },
);
