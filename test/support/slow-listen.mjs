/** Preloaded with --import: says on standard error when the process is about to listen, and lets it do so later. */
import { Server } from 'node:net';

const { listen } = Server.prototype;
Server.prototype.listen = function (...args) {
  Server.prototype.listen = listen;
  process.stderr.write('about to listen\n');
  setTimeout(() => listen.apply(this, args), 2500);
  return this;
};
