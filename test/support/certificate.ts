/** Certificates made when they are needed, by the `openssl` command. */

import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';

import { emptyFolder } from './process.ts';

export interface Certificate {
  readonly key: Buffer;
  readonly cert: Buffer;
  /** Where the certificate is, which is its own authority: what `NODE_EXTRA_CA_CERTS` is set to. */
  readonly path: string;
}

/** What a test that needs one is skipped for; `false` where nothing is missing. */
export const NO_OPENSSL =
  spawnSync('openssl', ['version']).status !== 0 && 'there is no openssl command';

/** One for these names, such as `DNS:localhost` or `IP:127.0.0.1`, that only itself vouches for. */
export function createCertificate(t: TestContext, names: readonly string[]): Certificate {
  const folder = emptyFolder(t);
  const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')];
  const command = 'req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2';
  const subject = ['-subj', '/CN=test', '-addext', `subjectAltName=${names.join(',')}`];
  const files = ['-keyout', key, '-out', cert];
  execFileSync('openssl', [...command.split(' '), ...subject, ...files], { stdio: 'pipe' });
  return { key: readFileSync(key), cert: readFileSync(cert), path: cert };
}
