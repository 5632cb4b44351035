/** The command line: options, `--help`, usage errors. */

import { parseArgs } from 'node:util';

import { didYouMean } from '../config/section-reader.ts';
import { VERSION } from '../lib/version.ts';

export const HELP = `inference-gateway ${VERSION}
One OpenAI-compatible endpoint in front of your model providers.

Usage: node dist/server.js [options]

  --config FILE   settings file (else GATEWAY_CONFIG, else ./gateway.toml if it exists)
  --port PORT     listen port, over GATEWAY_PORT and the file (default 8080)
  --host HOST     bind address, over GATEWAY_HOST and the file (default 0.0.0.0)
  --check         load and check everything, print the resolved settings, exit 0 or 1
  --demo          serve one built-in provider, "demo", that needs no key and no network
  --healthcheck   ask the running gateway's /health, exit 0 or 1
  --version       print the version
  --help          print this text
`;

const OPTIONS = {
  config: { type: 'string' },
  port: { type: 'string' },
  host: { type: 'string' },
  check: { type: 'boolean' },
  demo: { type: 'boolean' },
  healthcheck: { type: 'boolean' },
  version: { type: 'boolean' },
  help: { type: 'boolean' },
} as const;

export type CommandLine = ReturnType<typeof parseArgs<{ options: typeof OPTIONS }>>['values'];

/** Thrown for a command line that makes no sense; `message` is for the person who typed it. */
export class UsageError extends Error {}

/** Reads the arguments after the script's name. Throws `UsageError`. */
export function parseCommandLine(args: readonly string[]): CommandLine {
  const { tokens } = parseArgs({ args: [...args], options: OPTIONS, strict: false, tokens: true });
  for (const token of tokens) {
    if (token.kind === 'positional') throw new UsageError(`unexpected argument "${token.value}"`);
    if (token.kind === 'option' && !Object.hasOwn(OPTIONS, token.name)) {
      const known = Object.keys(OPTIONS).map((name) => `--${name}`);
      throw new UsageError(`unknown option ${token.rawName}${didYouMean(token.rawName, known)}`);
    }
  }
  try {
    return parseArgs({ args: [...args], options: OPTIONS }).values;
  } catch (error) {
    // "Option '--port <value>' argument missing", and more lines of advice.
    throw new UsageError((error as Error).message.split('\n')[0]);
  }
}
