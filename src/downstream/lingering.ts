/** Ends a connection whose client may still send (nginx's lingering_close). */

import type { Socket } from 'node:net';

/** Checks while the connection is read: 30 s, as nginx's lingering_time. */
const LINGER_CHECKS = 30;
/** Checks in a row without a byte until the end: 5 s, as nginx's lingering_timeout. */
const QUIET_CHECKS = 5;

/** Limits how long a connection is read on, with a check each `checkMs`. */
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
