/**
 * Preloaded with --import: says on standard error when the process is about to listen, and lets it do so later.
 * SLOW_LISTEN=main is for the main thread alone. LISTEN_ONCE is a file for whose existence it waits; else 2.5 s.
 */
import { existsSync } from 'node:fs';
import { Server } from 'node:net';
import { isMainThread } from 'node:worker_threads';

const { listen } = Server.prototype;
function listenLater(...args) {
  Server.prototype.listen = listen;
  process.stderr.write('about to listen\n');
  const { LISTEN_ONCE } = process.env;
  if (LISTEN_ONCE) {
    const waiting = setInterval(() => {
      if (!existsSync(LISTEN_ONCE)) return;
      clearInterval(waiting);
      listen.apply(this, args);
    }, 20);
  } else setTimeout(() => listen.apply(this, args), 2500);
  return this;
}
if (isMainThread || process.env['SLOW_LISTEN'] !== 'main') Server.prototype.listen = listenLater;
