#!/usr/bin/env node
/** The program: reads the environment, the file and the command line, starts, and stops when told to. */

import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { get, type IncomingMessage } from 'node:http';
import { totalmem } from 'node:os';
import { text as textOf } from 'node:stream/consumers';

import { assemble, type Assembly } from './assembly.ts';
import { HELP, parseCommandLine, UsageError, type CommandLine } from './cli/command-line.ts';
import { startDemo } from './cli/demo.ts';
import { createLineWriter } from './cli/line-writer.ts';
import {
  demoInstructions,
  describeConfig,
  describeStartup,
  urlHost,
} from './cli/startup-report.ts';
import { ConfigError, loadConfig, type Config } from './config/config.ts';
import { GatewayError } from './lib/errors.ts';
import { VERSION } from './lib/version.ts';

const EXIT_FAILED = 1;
const EXIT_USAGE = 2;
const DEFAULT_CONFIG_PATH = 'gateway.toml';
const HEALTHCHECK_TIMEOUT_MS = 5000;

async function main(): Promise<void> {
  const commandLine = parseCommandLine(process.argv.slice(2));
  if (commandLine.help) return print(HELP);
  if (commandLine.version) return print(`${VERSION}\n`);

  const { config, configPath } = await readConfig(commandLine);
  if (commandLine.check) return print(describeConfig(config, configPath));
  if (commandLine.healthcheck) return checkHealth(config);

  const isTerminal = process.stdout.isTTY;
  const assembly: Assembly = assemble(config, {
    writeLog: createLineWriter(process.stdout, (lines) => {
      assembly.logger.log('warn', 'log lines were dropped', { lines });
    }),
    isTerminal,
    colour: isTerminal && !process.env['NO_COLOR'],
  });
  stopOnSignals(assembly, config.server.shutdownTimeoutMs);
  const { server, transport } = assembly;
  const { port } = await server.listen(config.server.port, config.server.host);
  await transport.check(ownOrigin(config.server.host, port));
  print(describeStartup({ config, configPath, port, transport }), process.stderr);
  if (commandLine.demo) print(demoInstructions(port), process.stderr);
}

async function readConfig(
  commandLine: CommandLine,
): Promise<{ config: Config; configPath: string | undefined }> {
  const { env } = process;
  if (commandLine.demo) {
    const own = Object.entries(env).filter(([name]) => name.startsWith('GATEWAY_'));
    const toml = await startDemo();
    const config = loadConfig({
      toml,
      env: Object.fromEntries(own),
      flags: commandLine,
      memoryBytes: usableMemoryBytes(),
    });
    return { config, configPath: '--demo' };
  }
  const named = commandLine.config ?? (env['GATEWAY_CONFIG'] || undefined);
  const toml = readConfigFile(named ?? DEFAULT_CONFIG_PATH, named === undefined);
  const configPath = toml === undefined ? undefined : (named ?? DEFAULT_CONFIG_PATH);
  try {
    const memoryBytes = usableMemoryBytes();
    const config = loadConfig({ toml: toml ?? '', env, flags: commandLine, memoryBytes });
    return { config, configPath };
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    throw new ConfigError(
      error.problems.map((problem) => `${configPath ?? 'settings'}: ${problem}`),
    );
  }
}

/** The cgroup's limit if there is one; Node reports a huge number or 0 if there is none. */
function usableMemoryBytes(): number {
  const constrained = process.constrainedMemory();
  return constrained > 0 ? Math.min(constrained, totalmem()) : totalmem();
}

function readConfigFile(path: string, isOptional: boolean): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // Node's permission model denies also what is not there.
    if (isOptional && (code === 'ENOENT' || code === 'ERR_ACCESS_DENIED')) return undefined;
    throw new ConfigError([`${path}: cannot be read (${code})`]);
  }
}

async function checkHealth({ server: { host, port } }: Config): Promise<void> {
  const signal = AbortSignal.timeout(HEALTHCHECK_TIMEOUT_MS);
  process.exitCode = EXIT_FAILED;
  try {
    // Not fetch, which refuses some ports; an agent of its own never asks the environment's proxy.
    const request = get(`${ownOrigin(host, port)}/health`, { signal, agent: false });
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    print(`${await textOf(response)}\n`);
    if (response.statusCode === 200) process.exitCode = 0;
  } catch {
    print('not reachable\n');
  }
}

/** Where this program's own server is reached from here. */
function ownOrigin(host: string, port: number): string {
  const target = { '0.0.0.0': '127.0.0.1', '::': '::1' }[host] ?? host;
  return `http://${urlHost(target)}:${port}`;
}

/** The first signal drains, the second ends. Handlers matter: as PID 1 a process without them ignores signals. */
function stopOnSignals({ server, transport, logger }: Assembly, timeoutMs: number): void {
  let isStopping = false;
  const stop = async (reason: string, exitCode: number) => {
    if (isStopping) process.exit(EXIT_FAILED);
    isStopping = true;
    logger.log('info', 'draining', { reason });
    const shutdown = new GatewayError('internal', 'The gateway is shutting down');
    await server.drain(timeoutMs, shutdown);
    await transport.close();
    logger.log('info', 'stopped');
    process.exit(exitCode);
  };
  process.on('SIGTERM', () => void stop('SIGTERM', 0));
  process.on('SIGINT', () => void stop('SIGINT', 0));
  // A broken invariant: nothing in memory can be trusted, but those in flight may be finished.
  process.on('uncaughtException', (error) => {
    logger.log('error', 'uncaught exception', { cause: error.stack });
    void stop('uncaught exception', EXIT_FAILED);
  });
  // Whoever reads our log may go away; requests go on.
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {});
}

function print(text: string, stream: NodeJS.WriteStream = process.stdout): void {
  stream.write(text);
}

/** One line for a person, never a stack: what can go wrong at startup is theirs to mend. */
function explainFailure(error: unknown): { text: string; exitCode: number } {
  if (error instanceof UsageError) {
    return { text: `${error.message}\nSee --help.`, exitCode: EXIT_USAGE };
  }
  if (error instanceof ConfigError) return { text: error.message, exitCode: EXIT_FAILED };
  const { code, message, address, port } = error as NodeJS.ErrnoException & {
    address?: string;
    port?: number;
  };
  const texts: Record<string, string> = {
    EADDRINUSE: `port ${port} is already in use; choose another with --port`,
    EACCES: `port ${port} is not permitted; choose one above 1023 with --port`,
    EADDRNOTAVAIL: `${address} is not an address of this machine`,
    ENOTFOUND: `the host to listen on cannot be resolved`,
  };
  return { text: (code && texts[code]) ?? message, exitCode: EXIT_FAILED };
}

main().catch((error: unknown) => {
  const { text, exitCode } = explainFailure(error);
  print(`inference-gateway: ${text}\n`, process.stderr);
  process.exit(exitCode);
});
