/** Preload: SIGUSR2 makes the process throw where nothing catches. */

process.on('SIGUSR2', () => {
  throw new Error('thrown by a test');
});
