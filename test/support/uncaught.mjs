/** Preloaded with --import: SIGUSR2 makes the process throw where nobody catches. */

process.on('SIGUSR2', () => {
  throw new Error('thrown by a test');
});
