/** The version that `GET /health` and `--version` report. A test compares it with package.json. */
export const VERSION = '0.5.0';

/** The oldest Node that runs the gateway, as in package.json's `engines`. */
const NEEDED_NODE = { major: 20, minor: 19 };

export function isNodeSince(version: string, needed: typeof NEEDED_NODE): boolean {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  return major > needed.major || (major === needed.major && minor >= needed.minor);
}

/**
 * Throws an Error if this Node is too old for the gateway. An import by name of a function that an
 * old Node lacks would fail before this call, so its module is imported whole.
 */
export function assertNodeVersion(): void {
  if (isNodeSince(process.versions.node, NEEDED_NODE)) return;
  const { major, minor } = NEEDED_NODE;
  throw new Error(`needs Node ${major}.${minor} or newer; this is Node ${process.version}`);
}

/** The gateway's name in requests to providers (RFC 9110, 10.1.5). */
export const USER_AGENT = `inference-gateway/${VERSION}`;
