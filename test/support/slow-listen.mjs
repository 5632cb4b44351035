/**
 * Preload: reports on standard error when the process is about to listen, and waits until the file
 * LISTEN_ONCE exists.
 */
import { existsSync } from 'node:fs';
import { Server } from 'node:net';

const { listen } = Server.prototype;
Server.prototype.listen = function listenLater(...args) {
  Server.prototype.listen = listen;
  process.stderr.write('about to listen\n');
  const waiting = setInterval(() => {
    if (!existsSync(process.env['LISTEN_ONCE'])) return;
    clearInterval(waiting);
    listen.apply(this, args);
  }, 20);
  return this;
};
