/** The transport under test: `GATEWAY_UPSTREAM=fetch npm test` runs everything over fetch. */

const setting = process.env['GATEWAY_UPSTREAM'];

/** A gateway's environment for this transport. */
export const TRANSPORT_ENV: Readonly<Record<string, string>> = setting
  ? { GATEWAY_UPSTREAM: setting }
  : {};

/** The `skip` option for tests with control over connections, which fetch does not give. */
export const OVER_FETCH = setting === 'fetch' && 'fetch does not give control of its connections';
