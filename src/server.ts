#!/usr/bin/env node
/** The program: reads the command line and the settings, starts the gateway, and ends it. */

import { setDefaultAutoSelectFamilyAttemptTimeout } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { App } from './app.ts';
import { runCheck } from './check.ts';
import { EXIT, HELP, parseCommandLine, UsageError, type CommandLine } from './cli/command-line.ts';
import { startDemo } from './cli/demo.ts';
import { checkHealth } from './cli/healthcheck.ts';
import { LineWriter } from './lib/line-writer.ts';
import { demoInstructions, describeStartup, startedLine } from './cli/startup-report.ts';
import { ConfigError } from './config/config.ts';
import { readSettings, type Settings } from './config/read-settings.ts';
import { SettingsFiles } from './config/watch.ts';
import { CLIENT_TIME_LIMITS } from './downstream/listener.ts';
import { GatewayError } from './lib/errors.ts';
import { limitYoungGeneration } from './lib/memory/garbage-collector.ts';
import { assertNodeVersion, VERSION } from './lib/version.ts';

/**
 * How long an address of a provider or the store may take to accept a connection before the next
 * address is tried. Node's own 250 ms (500 ms in Node 26) are too short, because a lost SYN is sent
 * again after a second.
 */
const ADDRESS_MS = 3000;
/**
 * A signal repeated within this time counts once: Ctrl-C in a terminal sends SIGINT to all
 * processes, and npm forwards its own SIGINT too.
 */
const REPEATED_SIGNAL_MS = 1000;
/** Time after a second signal for the log and for the requests that it cut. */
const CUT_END_MS = 3000;
/** The time limit for the admin listener's last answers once the public port has closed. */
const ADMIN_DRAIN_MS = 100;

async function main(): Promise<void> {
  assertNodeVersion();
  ignoreSignals();
  // Set for the whole process, because fetch and connections to a proxy take no such option.
  setDefaultAutoSelectFamilyAttemptTimeout(ADDRESS_MS);
  const commandLine = parseCommandLine(process.argv.slice(2));
  if (commandLine.help) return print(HELP);
  if (commandLine.version) return print(`${VERSION}\n`);

  const demo = commandLine.demo ? await startDemo() : undefined;
  let wasFound = false;
  const files = new SettingsFiles();
  const read = () =>
    files.read((onFile) => {
      const settings = readSettings(commandLine, process.env, { demo, wasFound, onFile });
      wasFound = settings.source.isFound;
      return settings;
    });
  if (commandLine.check) {
    const exitCode = await runCheck(commandLine, read, print);
    // Exits explicitly, because abandoned connections and name lookups would keep the process
    // alive.
    process.stdout.write('', () => process.exit(exitCode));
    return;
  }
  if (commandLine.healthcheck) {
    const readConfig = () => read().config;
    const { isHealthy, text } = await checkHealth(commandLine, process.env, readConfig);
    process.exitCode = isHealthy ? 0 : EXIT.failed;
    return print(text);
  }
  await serve(read, files, commandLine);
}

/** Starts the gateway. Resolves when the gateway has started, or when it is drained before. */
async function serve(
  read: () => Settings,
  files: SettingsFiles,
  { demo: isDemo }: CommandLine,
): Promise<void> {
  limitYoungGeneration();
  const { config, source } = read();
  // The exit code if nothing keeps the process alive until it listens.
  process.exitCode = EXIT.failed;
  const writer = new LineWriter(process.stdout, {
    onDropped: (lines) => app.parts.logger.log('warn', 'log lines were dropped', { lines }),
    onLost: (cause) => app.parts.incidents.reportState('log_lines', cause),
  });
  const app: App = new App(config, {
    writeLog: writer.write,
    droppedLogLines: () => writer.droppedLines,
    isTerminal: process.stdout.isTTY,
    clientTimeLimits: CLIENT_TIME_LIMITS,
  });
  const { server } = app;
  const { logger, redact, store, transport } = app.parts;
  drainOnSignals(app, writer);
  const reload = () => {
    app.reload(() => read().config);
    watchIfWanted();
  };
  const watchIfWanted = () => {
    if (app.config.server.watch && !server.isDraining) files.watch(reload);
    else files.stop();
  };
  process.on('SIGHUP', reload);
  const { host, reusePort } = config.server;
  await store?.connect();
  const listening = server.listen(config.server.port, host, reusePort);
  const { port } = await listening.catch(listenerFailed('server', '--port'));
  const { admin } = config;
  const adminListening = admin && app.admin?.server.listen(admin.port, admin.host);
  const adminAddress = await adminListening?.catch(listenerFailed('admin', 'GATEWAY_ADMIN_PORT'));
  const adminPort = adminAddress?.port;
  if (server.isDraining) return;
  process.exitCode = 0;
  process.off('uncaughtException', failStart);
  // Drains instead of exiting: the process's state is unknown, but requests in flight may still be
  // completed.
  process.on('uncaughtException', (error) => {
    logger.log('error', 'uncaught exception', { cause: error.stack });
    process.exitCode = EXIT.failed;
    drainAndExit(app, writer, 'uncaught exception');
  });
  app.learnModels();
  watchIfWanted();
  const started = { config: app.config, source, port, adminPort, transport };
  logger.log('info', 'started', startedLine(started));
  print(redact(describeStartup(started)), process.stderr);
  if (isDemo) print(demoInstructions(host, port), process.stderr);
}

/** `another` is the option or variable for another port. */
function listenerFailed(section: string, another: string): (error: Error) => never {
  return (error: NodeJS.ErrnoException) => {
    const isPort = error.code === 'EADDRINUSE' || error.code === 'EACCES';
    const setting = `[${section}] ${isPort ? 'port' : 'host'}`;
    const hint = isPort ? `; choose another port with ${another}` : '';
    throw new Error(`${setting}: ${error.message}${hint}`, { cause: error });
  };
}

/**
 * Ignores signals that would end the process or, for SIGUSR1, open the debugger's port. Also
 * ignores errors of standard output and standard error, because their reader may have gone.
 */
function ignoreSignals(): void {
  for (const signal of ['SIGHUP', 'SIGUSR1', 'SIGUSR2']) process.on(signal, () => {});
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
}

/**
 * Drains on SIGTERM and SIGINT, and ends the drain on a further signal. Without a handler, a
 * container's process 1 would ignore both signals.
 */
function drainOnSignals(app: App, writer: LineWriter): void {
  let first: { readonly signal: string; readonly atMs: number } | undefined;
  const onSignal = (signal: string) => {
    const isRepeated =
      first?.signal === signal && performance.now() - first.atMs < REPEATED_SIGNAL_MS;
    first ??= { signal, atMs: performance.now() };
    if (!app.server.isDraining) process.exitCode = 0;
    if (drainAndExit(app, writer, signal) || isRepeated) return;
    process.exitCode = EXIT.failed;
    app.server.cancelRequests();
    // A request that was cut may still keep the process alive.
    setTimeout(() => process.exit(), CUT_END_MS).unref();
  };
  process.on('SIGTERM', onSignal);
  process.on('SIGINT', onSignal);
}

/** Drains, and then ends the process. Returns false if the drain began earlier. */
function drainAndExit(app: App, writer: LineWriter, text: string): boolean {
  const { admin, config, server } = app;
  const { logger, traces } = app.parts;
  if (server.isDraining) return false;
  logger.log('info', 'draining', { reason: text, in_flight: server.counts.inFlight });
  const { drainDelayMs: delayMs, shutdownTimeoutMs: timeoutMs } = config.server;
  const reason = new GatewayError('internal', 'The gateway is shutting down');
  void app.drain({ delayMs, timeoutMs, reason }).then(async ({ finished, cut }) => {
    // The admin listener drains last, so that it can report the drain until then.
    const adminDrain = admin?.server.drain({ delayMs: 0, timeoutMs: 0, reason });
    if (adminDrain) await Promise.race([adminDrain, sleep(ADMIN_DRAIN_MS)]);
    await traces?.close();
    logger.log('info', 'stopped', { finished, cut });
    const lost = await writer.end();
    if (lost > 0) print(`inference-gateway: ${lost} log lines were lost\n`, process.stderr);
    process.exit();
  });
  return true;
}

function print(text: string, stream: NodeJS.WriteStream = process.stdout): void {
  stream.write(text);
}

/** Ends a failed start with a message for the operator and without a stack. */
function failStart(error: unknown): void {
  const { message } = error as Error;
  const isUsage = error instanceof UsageError;
  print(`inference-gateway: ${message}\n${isUsage ? 'See --help.\n' : ''}`, process.stderr);
  if (isUsage) process.exit(EXIT.usage);
  process.exit(error instanceof ConfigError ? EXIT.wrongSettings : EXIT.failed);
}

// Catches errors outside `main`, because Node's permission model throws from a callback if the
// network is denied.
process.on('uncaughtException', failStart);
main().catch(failStart);
