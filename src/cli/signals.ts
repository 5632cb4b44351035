/** For one Ctrl-C the terminal sends SIGINT to all processes, and npm forwards its own. */
const REPEATED_SIGNAL_MS = 1000;

/**
 * Keeps the process alive on signals that would end it, or open the debugger's port (SIGUSR1), and when the reader of
 * standard output or standard error ends: requests are still served. To be called first. Node itself ignores SIGPIPE.
 */
export function ignoreSignals(): void {
  for (const signal of ['SIGHUP', 'SIGUSR1', 'SIGUSR2']) process.on(signal, () => {});
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
}

interface SignalActions {
  /** Begins to stop. Returns false if that has begun before. */
  readonly stop: (reason: string) => boolean;
  /** Ends the process at once. */
  readonly end: () => void;
  /** Never throws. */
  readonly reload: () => void;
}

/**
 * Stops on SIGTERM and SIGINT, ends at once on a further one, and reloads on SIGHUP. Process 1 of a container ignores signals
 * that have no handler.
 */
export function handleSignals({ stop, end, reload }: SignalActions): void {
  let first: { readonly signal: string; readonly atMs: number } | undefined;
  const onSignal = (signal: string) => {
    const isRepeated =
      first?.signal === signal && performance.now() - first.atMs < REPEATED_SIGNAL_MS;
    first ??= { signal, atMs: performance.now() };
    if (!stop(signal) && !isRepeated) end();
  };
  process.on('SIGTERM', onSignal);
  process.on('SIGINT', onSignal);
  process.on('SIGHUP', reload);
}
