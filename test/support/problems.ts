import assert from 'node:assert/strict';
import { inspect } from 'node:util';

import { ConfigError } from '../../src/config/config.ts';

/** Returns the problems that `read` finds in its settings; an empty list if they load. */
export function problemsIn(read: () => unknown): readonly string[] {
  try {
    read();
  } catch (error) {
    assert.ok(error instanceof ConfigError, inspect(error));
    return error.problems;
  }
  return [];
}
