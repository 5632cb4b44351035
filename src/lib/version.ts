/** The gateway's own version, as `GET /health` and `--version` report it. package.json says the same; a test holds them together. */
export const VERSION = '0.2.0';

/** What the gateway calls itself to upstream providers (RFC 9110, 10.1.5). */
export const USER_AGENT = `inference-gateway/${VERSION}`;
