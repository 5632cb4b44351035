/** `GATEWAY_UPSTREAM=fetch npm test` runs everything over the fetch transport. */

const setting = process.env['GATEWAY_UPSTREAM'];

/** The part of an environment that says so. */
export const TRANSPORT_ENV: Readonly<Record<string, string>> = setting
  ? { GATEWAY_UPSTREAM: setting }
  : {};

/** fetch has its own connections: a gateway can neither close them nor tell which one a request used. */
export const OVER_FETCH = setting === 'fetch' && 'fetch does not give control of its connections';
