/** Node's module `node:http`. */

/**
 * An import would read all exports of the module, and reading its `WebSocket` loads undici: 25 ms
 * of CPU and 4 MiB. Undefined before Node 20.16, which `assertNodeVersion` refuses.
 */
export const http = process.getBuiltinModule?.('node:http');
