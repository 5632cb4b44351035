/**
 * The command line: options, `--help`, usage errors. `node:util` is imported whole: see
 * `assertNodeVersion` of lib/version.ts.
 */

import util, { type parseArgs } from 'node:util';

import { REMOVED_HINT } from '../config/read-values.ts';
import { VERSION } from '../lib/version.ts';

export const HELP = `inference-gateway ${VERSION}
One OpenAI-compatible endpoint in front of your model providers.

Usage: inference-gateway [options]       (in a clone: node dist/server.js [options])

      --config FILE   settings file (else GATEWAY_CONFIG, else the text in GATEWAY_CONFIG_TOML,
                      else ./gateway.toml if it exists)
  -p, --port PORT     listen port; overrides GATEWAY_PORT and the file (default 8080)
      --host HOST     bind address; overrides GATEWAY_HOST and the file (default 0.0.0.0)
      --check         check and print all settings, ask each provider for its model list, and test
                      the rate limit store; --check=offline contacts nobody. Exit 0, 3 or 78
      --json          with --check: print a single JSON document
      --demo          serve "demo/echo" without keys, a settings file or other hosts; the default
                      bind address is 127.0.0.1
      --healthcheck   ask the running gateway's /health; if the settings are invalid by now, use
                      the port from --port or GATEWAY_PORT. Exit 0 or 1
  -v, --version       print the version
  -h, --help          print this text

Exit codes: 0 done or stopped by a signal, 1 crash or unavailable address, 2 wrong usage,
3 a provider or the store failed --check, 78 wrong settings.
`;

export const EXIT = {
  failed: 1,
  usage: 2,
  failedCheck: 3,
  /** EX_CONFIG in sysexits.h: a service manager can be configured not to restart after it. */
  wrongSettings: 78,
} as const;

const OPTIONS = {
  config: { type: 'string' },
  port: { type: 'string', short: 'p' },
  host: { type: 'string' },
  check: { type: 'boolean' },
  json: { type: 'boolean' },
  demo: { type: 'boolean' },
  healthcheck: { type: 'boolean' },
  version: { type: 'boolean', short: 'v' },
  help: { type: 'boolean', short: 'h' },
} as const;

/** `parseArgs` knows no option with an optional value, so this argument is read by hand. */
const CHECK_OFFLINE = '--check=offline';

export type CommandLine = ReturnType<typeof parseArgs<{ options: typeof OPTIONS }>>['values'] & {
  /** True if `--check` must ask neither the providers nor the store. */
  readonly offline?: boolean;
};

/** The message is for the person who typed the command line. */
export class UsageError extends Error {}

/**
 * `args` follow the script's name. Throws `UsageError` for an unknown option, a missing value, or
 * `--json` without `--check`.
 */
export function parseCommandLine(args: readonly string[]): CommandLine {
  let values: CommandLine;
  try {
    const known = args.map((arg) => (arg === CHECK_OFFLINE ? '--check' : arg));
    values = util.parseArgs({ args: known, options: OPTIONS }).values;
  } catch (error) {
    // parseArgs appends advice to a first line such as "Option '--port <value>' argument missing".
    const [message] = (error as Error).message.split('\n');
    const isRemoved = args.some((arg) => /^--workers(?:=|$)/.test(arg));
    throw new UsageError(isRemoved ? `--workers ${REMOVED_HINT}` : message);
  }
  if (values.json && !values.check) throw new UsageError('--json needs --check');
  return args.includes(CHECK_OFFLINE) ? { ...values, offline: true } : values;
}
