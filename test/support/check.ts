/**
 * Runs `--check` and `--healthcheck` in the test's process, because a child process takes a hundred
 * times as long.
 */

import { runCheck } from '../../src/check.ts';
import { parseCommandLine } from '../../src/cli/command-line.ts';
import { checkHealth } from '../../src/cli/healthcheck.ts';
import { readSettings } from '../../src/config/read-settings.ts';
import { TRANSPORT_ENV } from './transport.ts';

type Env = Readonly<Record<string, string>>;

/** Runs `--check`. Returns its exit code and its output. Throws if the settings do not load. */
export async function checkHere(
  args: readonly string[],
  env: Env = {},
): Promise<{ readonly code: number; readonly stdout: string }> {
  const commandLine = parseCommandLine(args);
  const read = () => readSettings(commandLine, { ...TRANSPORT_ENV, ...env });
  let stdout = '';
  const code = await runCheck(commandLine, read, (text) => {
    stdout += text;
  });
  return { code, stdout };
}

/** Runs `--healthcheck` with these settings. Returns its result and its text. */
export async function checkHealthHere(
  args: readonly string[],
  env: Env,
  toml = '[server]\n',
): Promise<{ readonly isHealthy: boolean; readonly text: string }> {
  const commandLine = parseCommandLine(['--healthcheck', ...args]);
  const all = { GATEWAY_CONFIG_TOML: toml, ...env };
  return checkHealth(commandLine, all, () => readSettings(commandLine, all).config);
}
