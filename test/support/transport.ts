/** `GATEWAY_UPSTREAM=fetch npm test` runs everything over the plain lane. */

const setting = process.env['GATEWAY_UPSTREAM'];

/** The part of an environment that says so. */
export const TRANSPORT_ENV: Readonly<Record<string, string>> = setting
  ? { GATEWAY_UPSTREAM: setting }
  : {};
