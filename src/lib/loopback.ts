/** Hosts that only this machine can reach. */

const LOOPBACK_HOST =
  /^(?:(?:[\w-]+\.)*localhost|127(?:\.\d{1,3}){0,3}|\[?(?:::1|::ffff:127(?:\.\d{1,3}){3}|0:0:0:0:0:0:0:1)\]?)$/i;

/** Whether `host`, a name or an address as in settings or URLs, is a loopback one (RFC 6761 6.3, RFC 6890). */
export function isLoopback(host: string): boolean {
  return LOOPBACK_HOST.test(host);
}
