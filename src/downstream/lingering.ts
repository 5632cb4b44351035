/** A connection that is to be closed while its client may still send (nginx's lingering_close). */

import type { Socket } from 'node:net';

/** It is read on for so many checks at most: 30 s, nginx's lingering_time. */
const LINGER_CHECKS = 30;
/** So many in a row find that nothing has come: 5 s, nginx's lingering_timeout. */
const QUIET_CHECKS = 5;

/** Ends the reading of a connection, with a check each `checkMs`. */
export function limitLingering(socket: Socket, checkMs: number): void {
  let checks = 0;
  let quietChecks = 0;
  let { bytesRead } = socket;
  const timer = setInterval(() => {
    checks += 1;
    quietChecks = socket.bytesRead > bytesRead ? 0 : quietChecks + 1;
    ({ bytesRead } = socket);
    if (checks === LINGER_CHECKS || quietChecks === QUIET_CHECKS) socket.destroy();
    if (socket.destroyed) clearInterval(timer);
  }, checkMs);
}
