/** Explains OpenSSL's errors to the operator. */

/** The codes for an answer in plain text. OpenSSL's version and the bytes decide between them. */
const NOT_TLS = new Set(['ERR_SSL_WRONG_VERSION_NUMBER', 'ERR_SSL_PACKET_LENGTH_TOO_LONG']);

/**
 * Returns an error's message, without the addresses and file names in OpenSSL's own messages.
 * `remedy` follows if the server does not speak TLS.
 */
export function messageOf(error: NodeJS.ErrnoException, remedy: string): string {
  const { code, message, reason } = error as NodeJS.ErrnoException & { reason?: string };
  // A DOMException's code is a number.
  if (typeof code !== 'string') return message.trim();
  if (NOT_TLS.has(code)) return `the server does not speak TLS; ${remedy}`;
  return code.startsWith('ERR_SSL_') && reason ? reason : message.trim();
}
